"""SegCaps and U-Net: the published counts, and layers against loops over positions and kernels."""

import pytest
import torch
from torch.testing import assert_close

import torchcaps as tc
from torchcaps.nn.map_routing import KernelCaps, KernelVotes
from torchcaps.types import LayerSizes

from .small import sample_images, small_model

CHANGING_LAYERS = {"caps2_2", "caps3_2", "up1_1", "up2_1", "up3_1"}


def test_weights_at_the_start():
    votes = KernelVotes(LayerSizes(8, 16, 8, 16), 4, 2, transposed=True)
    assert (votes.bias == 0.1).all()
    std = (2 / (16 * 4)) ** 0.5  # 4 positions of 16 numbers reach a parent
    assert votes.weight.std().item() == pytest.approx(std, rel=0.05)
    layer = KernelCaps(8, 16, 4, 16)
    std = 2 * 4 / (8 * 16 * 25) ** 0.5  # sums are twice as long as children
    assert layer.weight.std().item() == pytest.approx(std, rel=0.05)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kernel_size": 4}, "an odd number, got 4"),
        ({"kernel_size": 3, "stride": 2, "transposed": True}, "an even"),
        ({"kernel_size": 2, "stride": 3, "transposed": True}, "at least 3"),
        ({"stride": 0}, "stride: expected at"),
    ],
)
def test_wrong_kernels(options, message):
    with pytest.raises(ValueError, match=message):
        KernelVotes(LayerSizes(2, 2, 2, 2), **options)


def test_a_pixel_is_drawn_by_the_capsule_of_its_class():
    model = small_model("segcaps", num_classes=3)
    capsules = model.capsules(sample_images(model))
    longest = 1 + capsules.activation.argmax(dim=-1)
    assert_close(model.reconstruct(capsules), model.reconstruct(capsules, longest))


def test_pixels_of_the_background_are_drawn_alike():
    model = small_model("segcaps", num_classes=3)
    capsules = model.capsules(sample_images(model))
    drawing = model.reconstruct(capsules, torch.zeros(2, 16, 16, dtype=torch.int64))
    assert_close(drawing, drawing[:1, :, :1, :1].expand_as(drawing))


def test_r1_has_equal_couplings_where_the_size_stays():
    model = tc.create_model("segcaps_r1", img_size=16, dim=2)
    for name, layer in model.named_children():
        if isinstance(layer, KernelCaps):
            assert layer.router.num_iterations == (3 if name in CHANGING_LAYERS else 1), name
    with tc.record_routing(model) as record:
        model(sample_images(model))
    coupling = record.last()["caps3_1"].coupling
    assert torch.equal(coupling, torch.full_like(coupling, 1 / 8))
