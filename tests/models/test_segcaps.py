"""SegCaps and U-Net: the sheet's counts and values, against loops over positions, types and kernels."""

import numpy as np
import pytest
import torch

import torchcaps as tc
from torchcaps.nn.map_routing import KernelCaps, KernelVotes
from torchcaps.testing import seeded
from torchcaps.types import Capsules, LayerSizes

# The sheet's table: parameters of each layer of R3 for one class.
LAYERS = {
    "conv1": 416,
    "primary": 12_832,
    "caps2_1": 25_664,
    "caps2_2": 51_328,
    "caps3_1": 205_056,
    "caps3_2": 410_112,
    "caps4_1": 409_856,
    "up1_1": 131_328,
    "up1_2": 102_528,
    "up2_1": 32_832,
    "up2_2": 25_664,
    "up3_1": 8_224,
    "seg_caps": 272,
    "decoder": 9_537,
}


def tiny(**options):
    return tc.create_model(
        "segcaps", **{"num_classes": 3, "img_size": 16, "dim": 2} | options
    ).eval()


def images_of(model, batch=2, seed=0):
    return torch.rand(batch, model.in_chans, *model.img_size, generator=seeded(seed))


def windows(x, weight, stride, transposed):
    """One vote of each child type at each position, by loops: `[types, rows, columns, outputs]`."""
    height, width, types, _ = x.shape
    kernel = weight.shape[-1]
    rows, columns = (n * stride if transposed else -(-n // stride) for n in (height, width))
    edge = (kernel - stride) // 2 if transposed else kernel // 2
    out = np.zeros((types, rows, columns, weight.shape[1] if transposed else weight.shape[0]))
    for i in range(types):
        for ky in range(kernel):
            for kx in range(kernel):
                for y in range(height if transposed else rows):
                    for z in range(width if transposed else columns):
                        here = (y * stride + ky - edge, z * stride + kx - edge)
                        if transposed and 0 <= here[0] < rows and 0 <= here[1] < columns:
                            out[i, here[0], here[1]] += x[y, z, i] @ weight[:, :, ky, kx]
                        elif not transposed and 0 <= here[0] < height and 0 <= here[1] < width:
                            out[i, y, z] += weight[:, :, ky, kx] @ x[here[0], here[1], i]
    return out


def routed(votes, bias, iterations):
    """Section 2 of the sheet at one position: votes `[types, parents, dim]` -> `[parents, dim]`, by loops."""
    types, parents, _ = votes.shape
    b, v = np.zeros((types, parents)), np.zeros(votes.shape[1:])
    for step in range(iterations):
        r = np.exp(b) / np.exp(b).sum(axis=1, keepdims=True)
        for j in range(parents):
            s = sum(r[i, j] * votes[i, j] for i in range(types)) + bias[j]
            v[j] = s * np.linalg.norm(s) / (1 + s @ s)
        if step < iterations - 1:
            b += np.einsum("ijd,jd->ij", votes, v)
    return v


@pytest.mark.parametrize(
    ("kernel", "stride", "transposed", "iterations"),
    [(5, 1, False, 3), (5, 2, False, 3), (4, 2, True, 3), (1, 1, False, 1), (3, 1, False, 2)],
)
def test_a_layer_is_the_sheets(kernel, stride, transposed, iterations):
    layer = KernelCaps(
        3, 4, 2, 5, kernel, stride, transposed=transposed, iterations=iterations
    ).double()
    x = torch.randn(2, 6, 5, 3, 4, generator=seeded(), dtype=torch.float64)
    found = layer(x)
    weight, bias = layer.weight.detach().numpy(), layer.bias.detach().numpy()
    for image, pose in zip(x.numpy(), found.pose.detach().numpy(), strict=True):
        votes = windows(image, weight, stride, transposed)
        votes = votes.reshape(*votes.shape[:3], 2, 5)
        expected = [
            [routed(votes[:, y, z], bias, iterations) for z in range(votes.shape[2])]
            for y in range(votes.shape[1])
        ]
        np.testing.assert_allclose(pose, expected, atol=1e-7)


def test_bias_and_kernels_at_the_start():
    votes = KernelVotes(LayerSizes(8, 16, 8, 16), 4, 2, transposed=True)
    assert (votes.bias == 0.1).all()
    assert votes.weight.std().item() == pytest.approx(
        (2 / (16 * 4)) ** 0.5, rel=0.05
    )  # 4 places of 16 numbers reach it
    layer = KernelCaps(8, 16, 4, 16)  # sums are twice as long as children: 2 J / sqrt(I D K K)
    assert layer.weight.std().item() == pytest.approx(2 * 4 / (8 * 16 * 25) ** 0.5, rel=0.05)
    for options, message in (
        ({"kernel_size": 4}, "an odd number, got 4"),
        ({"kernel_size": 3, "stride": 2, "transposed": True}, "an even"),
        ({"kernel_size": 2, "stride": 3, "transposed": True}, "at least 3"),
        ({"stride": 0}, "stride: expected at"),
    ):
        with pytest.raises(ValueError, match=message):
            KernelVotes(LayerSizes(2, 2, 2, 2), **options)


def test_parameters_of_the_sheet():
    model = tc.create_model("segcaps", img_size=16)
    found = {
        name: sum(p.numel() for p in child.parameters()) for name, child in model.named_children()
    }
    assert found == LAYERS
    assert sum(found.values()) - found["decoder"] == 1_416_112
    counts = {(28, 4): 1_474_061, (56, 3): 1_425_593, (14, 5): 1_486_143}
    for (channels, levels), count in counts.items():
        net = tc.create_model("unet", img_size=16, channels=channels, levels=levels)
        assert sum(p.numel() for p in net.parameters()) == count


def test_votes_are_not_stored_for_the_gradient():
    """What autograd keeps of a layer is less than its votes."""
    layer, kept = KernelCaps(4, 8, 4, 8), []
    x = torch.rand(4, 32, 32, 4, 8, requires_grad=True)

    def keep(tensor):
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        layer(Capsules(x, torch.ones(4, 32, 32, 4)))
    votes = 4 * 32 * 32 * 4 * 4 * 8
    assert sum({t.data_ptr(): t.numel() for t in kept}.values()) < votes / 2


@pytest.mark.parametrize(("img_size", "num_classes"), [(16, 2), ((17, 30), 4), (8, 3)])
@pytest.mark.parametrize("name", ["segcaps", "unet"])
def test_any_size(name, img_size, num_classes):
    small = {"dim": 2} if name == "segcaps" else {"channels": 2, "levels": 4}
    model = tc.create_model(name, img_size=img_size, num_classes=num_classes, in_chans=2, **small)
    images = images_of(model)
    assert model(images).shape == (2, num_classes - 1, *images.shape[2:])
    if name == "segcaps":
        pose, length = capsules = model.capsules(images)
        assert pose.shape == (2, *images.shape[2:], num_classes - 1, 2)
        torch.testing.assert_close(length, pose.norm(dim=-1), atol=1e-3, rtol=0)
        assert model.reconstruct(capsules).shape == images.shape
    with pytest.raises(ValueError, match="num_classes: expected at least 2, got 1"):
        tc.create_model(name, num_classes=1, **small)


def test_a_pixel_is_drawn_by_the_capsule_of_its_class():
    model = tiny()
    capsules = model.capsules(images_of(model))
    chosen = 1 + capsules.activation.argmax(dim=-1)
    torch.testing.assert_close(model.reconstruct(capsules), model.reconstruct(capsules, chosen))
    ground = model.reconstruct(capsules, torch.zeros_like(chosen))
    torch.testing.assert_close(
        ground, ground[:1, :, :1, :1].expand_as(ground)
    )  # nothing to tell pixels apart


def test_r1_has_equal_couplings_where_the_size_stays():
    model = tc.create_model("segcaps_r1", img_size=16, dim=2)
    passes = {
        name: layer.router.num_iterations
        for name, layer in model.named_children()
        if isinstance(layer, KernelCaps)
    }
    assert {name for name, count in passes.items() if count == 3} == {
        "caps2_2",
        "caps3_2",
        "up1_1",
        "up2_1",
        "up3_1",
    }
    with tc.record_routing(model) as record:
        model(images_of(model))
    found = record.last()
    assert torch.equal(found["caps3_1"].coupling, torch.full_like(found["caps3_1"].coupling, 1 / 8))
    assert found["caps2_2"].coupling.shape == (2, 4, 4, 4, 4)
    assert found["caps2_2"].child_activation.shape == (2, 4, 4, 4)
    torch.testing.assert_close(found["caps2_2"].coupling.sum(dim=-1), torch.ones(2, 4, 4, 4))


def test_gradients_are_finite_for_zeros_and_in_bfloat16():
    model = tiny()
    images = torch.zeros(1, 1, 16, 16, requires_grad=True)
    model(images).sum().backward()
    assert images.grad.isfinite().all()
    assert all(p.grad.isfinite().all() for n, p in model.named_parameters() if "decoder" not in n)
    with torch.autocast("cpu", torch.bfloat16):
        found = model(images_of(model))
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, model(images_of(model)), atol=0.03, rtol=0)
