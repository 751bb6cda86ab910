from __future__ import annotations

import pytest
import torch

from torchcaps.evaluation import coupling_maps
from torchcaps.evaluation.routing.coupling_maps import _window
from torchcaps.models import create_model

from ..stubs import RoutedPixels


@pytest.fixture
def capsnet():
    torch.manual_seed(0)
    return create_model(
        "capsnet", num_classes=3, img_size=(28, 22), channels=8, primary_types=3, decoder=False
    )


def images(count=4, size=(28, 22)):
    return torch.rand(count, 1, *size, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("routing", ["dynamic", "uniform"])
def test_the_supports_of_a_vector_capsule_sum_to_its_length_before_squashing(routing):
    torch.manual_seed(0)
    sizes = {
        "num_classes": 3,
        "img_size": (28, 22),
        "channels": 8,
        "primary_types": 3,
        "decoder": False,
    }
    model = create_model("capsnet", **sizes, routing=routing)
    found = coupling_maps(model, images())
    length = found.activations.amax(dim=1)
    torch.testing.assert_close(
        found.positions.sum(dim=(1, 2)), (length / (1 - length)).sqrt(), atol=1e-5, rtol=1e-4
    )
    torch.testing.assert_close(found.maps.sum(dim=(1, 2)), found.positions.sum(dim=(1, 2)))
    assert found.maps.shape == (4, 28, 22)
    assert found.positions.shape == (4, 6, 3)
    assert torch.equal(found.shown, found.activations.argmax(dim=1))


def test_only_places_that_see_ink_give_support_and_only_what_they_see_is_colored(capsnet):
    for bias in (capsnet.conv.bias, capsnet.primary.conv.bias):
        torch.nn.init.zeros_(bias)
    image = torch.zeros(1, 1, 28, 22)
    image[..., :3, :3] = 1
    found = coupling_maps(capsnet, image)
    # Position k sees rows 2 k to 2 k + 16.
    assert found.positions[0, :2, :2].abs().min() > 0
    assert found.positions[0, 2:].abs().max() == 0
    assert found.positions[0, :, 2:].abs().max() == 0
    assert found.maps[0, 19:].abs().max() == 0
    assert found.maps[0, :, 19:].abs().max() == 0


def test_a_place_counts_most_in_the_middle_of_what_it_sees(capsnet):
    for bias in (capsnet.conv.bias, capsnet.primary.conv.bias):
        torch.nn.init.zeros_(bias)
    image = torch.zeros(1, 1, 28, 22)
    image[..., 0, 0] = 1  # position (0, 0) alone sees it
    spread = coupling_maps(capsnet, image).maps[0]
    assert divmod(int(spread.abs().argmax()), 22) == (8, 8)
    # Nine by nine after nine by nine, of which the edges of the stride of two count half.
    ways = (
        torch.tensor(
            [0.5, *(k + 0.5 for k in range(1, 8)), 8, *(k + 0.5 for k in range(7, 0, -1)), 0.5]
        )
        / 72
    )
    torch.testing.assert_close(
        spread[:17, :17] / spread.sum(), torch.outer(ways, ways), atol=1e-5, rtol=1e-4
    )


@pytest.mark.parametrize(
    ("kernel", "stride"), [(9, 1), (9, 2), (5, 2), (3, 2), (4, 4), (7, 3), (2, 3), (1, 1), (5, 4)]
)
def test_even_support_makes_an_even_map(kernel, stride):
    spread = _window(kernel, stride)
    assert float(spread.sum()) == pytest.approx(1)
    assert torch.equal(spread, spread.flip(0))
    if kernel >= stride:
        sums = [float(spread[offset::stride].sum()) for offset in range(stride)]
        assert sums == pytest.approx([1 / stride] * stride)


def test_classes_that_are_asked_for_are_shown(capsnet):
    asked = torch.tensor([2, 1, 0, 2])
    found = coupling_maps(capsnet, images(), asked)
    assert torch.equal(found.shown, asked)
    length = found.activations.gather(1, asked[:, None])[:, 0]
    torch.testing.assert_close(
        found.positions.sum(dim=(1, 2)), (length / (1 - length)).sqrt(), atol=1e-5, rtol=1e-4
    )


def test_the_batch_size_changes_nothing_and_the_model_is_left_as_it_was(capsnet):
    capsnet.train()
    whole, single = coupling_maps(capsnet, images()), coupling_maps(capsnet, images(), batch_size=1)
    torch.testing.assert_close(whole.maps, single.maps)
    assert capsnet.training
    assert not whole.maps.is_inference()
    assert all(
        not module._forward_hooks and not module._forward_pre_hooks for module in capsnet.modules()
    )


@pytest.mark.parametrize("options", [{}, {"bias": True, "coordinates": False}])
def test_matrix_capsules_hand_support_down_through_convolutions(options):
    torch.manual_seed(0)
    sizes = {
        "num_classes": 3,
        "in_chans": 2,
        "img_size": (24, 20),
        "channels": 6,
        "primary_types": 2,
        "types": (3, 3),
    }
    model = create_model("matrix_caps_small", **sizes, **options)
    pictures = torch.rand(3, 2, 24, 20, generator=torch.Generator().manual_seed(1))
    found = coupling_maps(model, pictures)
    assert found.positions.shape == (3, 10, 8)
    assert found.maps.shape == (3, 24, 20)
    assert found.maps.isfinite().all()
    assert found.maps.abs().max() > 0
    torch.testing.assert_close(
        found.maps.sum(dim=(1, 2)), found.positions.sum(dim=(1, 2)), atol=1e-4, rtol=1e-4
    )


def test_the_support_of_a_matrix_capsule_is_bounded_by_its_childrens_activations():
    torch.manual_seed(0)
    sizes = {
        "num_classes": 3,
        "in_chans": 1,
        "img_size": (20, 20),
        "channels": 6,
        "primary_types": 2,
        "types": (3, 3),
    }
    model = create_model("matrix_caps_small", **sizes)
    children = []
    model.class_capsules.register_forward_pre_hook(
        lambda _, inputs: children.append(inputs[0].activation.sum())
    )
    found = coupling_maps(model, images(1, (20, 20)))
    assert found.positions.sum().abs() <= children[0]


def test_capsules_without_places_are_refused():
    model = RoutedPixels(6, 3, dim=4)
    with pytest.raises(
        ValueError, match="expected the children of 'layers.0' to be capsules with places"
    ):
        coupling_maps(model, torch.rand(2, 1, 6, 4))


@pytest.mark.parametrize(
    ("labels", "complaint"),
    [
        (torch.tensor([0]), "labels: expected .n=4"),
        (torch.tensor([0, 1, 2, 3]), "labels: expected class indices"),
    ],
)
def test_labels_that_do_not_fit_are_refused(capsnet, labels, complaint):
    with pytest.raises(ValueError, match=complaint):
        coupling_maps(capsnet, images(), labels)


def test_a_network_without_capsules_is_refused():
    model = create_model("cnn_smallnorb", in_chans=1, channels=(2, 2), hidden=(4,))
    with pytest.raises(ValueError, match="expected a capsule network with routed layers, got CNN"):
        coupling_maps(model, images(1, (32, 32)))
