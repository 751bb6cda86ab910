import pytest
import torch
from torch.testing import assert_close

from torchcaps.errors import ArgumentError
from torchcaps.evaluation import coupling_maps
from torchcaps.evaluation.routing.coupling_maps import _hand_down, _spread_over_pixels, _window
from torchcaps.models import create_model
from torchcaps.nn import ConvCaps, record_routing
from torchcaps.types import Capsules

from ..stubs import RoutedPixels, assert_model_is_back

CAPSNET = {
    "num_classes": 3,
    "img_size": (28, 22),
    "channels": 8,
    "primary_types": 3,
    "decoder": False,
}
MATRIX = {"num_classes": 3, "channels": 6, "primary_types": 2, "types": (3, 3)}


@pytest.fixture
def capsnet():
    return create_model("capsnet", **CAPSNET)


@pytest.fixture
def unbiased(capsnet):
    """Black pixels make capsules of length zero."""
    torch.nn.init.zeros_(capsnet.conv.bias)
    torch.nn.init.zeros_(capsnet.primary.conv.bias)
    return capsnet


def random_images(*shape):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(1))


IMAGES = random_images(4, 1, 28, 22)


def total(maps):
    """Sums over places."""
    return maps.sum(dim=(1, 2))


def assert_sums_are_lengths(maps):
    """The supports of a vector capsule sum to its length before squashing."""
    length = maps.activations.gather(1, maps.selected[:, None])[:, 0]
    unsquashed = (length / (1 - length)).sqrt()
    assert_close(
        total(maps.positions),
        unsquashed,
        atol=1e-5,
        rtol=1e-4,
    )
    assert_close(total(maps.maps), total(maps.positions))


@pytest.mark.parametrize("routing", ["dynamic", "uniform"])
def test_the_supports_of_a_vector_capsule_sum_to_its_length_before_squashing(routing):
    maps = coupling_maps(create_model("capsnet", **CAPSNET, routing=routing), IMAGES)
    assert_sums_are_lengths(maps)
    assert maps.maps.shape == (4, 28, 22)
    assert maps.positions.shape == (4, 6, 3)
    assert torch.equal(maps.selected, maps.activations.argmax(dim=1))


def test_classes_that_are_asked_for_are_mapped(capsnet):
    labels = torch.tensor([2, 1, 0, 2])
    maps = coupling_maps(capsnet, IMAGES, labels)
    assert torch.equal(maps.selected, labels)
    assert_sums_are_lengths(maps)


def test_only_places_that_see_ink_give_support_and_only_what_they_see_is_colored(unbiased):
    image = torch.zeros(1, 1, 28, 22)
    image[..., :3, :3] = 1
    maps = coupling_maps(unbiased, image)
    # Position k sees rows 2 k to 2 k + 16.
    assert maps.positions[0, :2, :2].abs().min() > 0
    assert not maps.positions[0, 2:].any()
    assert not maps.positions[0, :, 2:].any()
    assert not maps.maps[0, 19:].any()
    assert not maps.maps[0, :, 19:].any()


def test_a_place_counts_most_in_the_middle_of_what_it_sees(unbiased):
    image = torch.zeros(1, 1, 28, 22)
    image[..., 0, 0] = 1  # position (0, 0) alone sees it
    spread = coupling_maps(unbiased, image).maps[0]
    assert divmod(int(spread.abs().argmax()), 22) == (8, 8)
    # Nine by nine after nine by nine, of which the edges of the stride of two count half.
    rising = [0.5, *(k + 0.5 for k in range(1, 8))]
    ways = torch.tensor([*rising, 8, *reversed(rising)]) / 72
    expected = torch.outer(ways, ways)
    assert_close(
        spread[:17, :17] / spread.sum(),
        expected,
        atol=1e-5,
        rtol=1e-4,
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


def test_support_is_handed_down_without_loss():
    layer = ConvCaps(2, 3, 3, 2)
    children = Capsules(torch.randn(1, 7, 9, 2, 16), torch.rand(1, 7, 9, 2))
    with record_routing(layer) as record:
        layer(children)
    support = torch.rand(1, 3, 4, 3)
    handed = _hand_down(layer, support, children, record.last()[""])
    assert handed.shape == (1, 7, 9, 2)
    assert_close(handed.sum(), support.sum())


def test_positions_are_stretched_over_an_image_of_another_shape():
    positions = torch.zeros(1, 3, 4)
    positions[0, 2, 0] = 6.0  # at the lower left
    spread = _spread_over_pixels(positions, None, (12, 28))
    assert spread.shape == (1, 12, 28)
    assert float(spread.sum()) == pytest.approx(6.0, rel=0.5)
    assert not spread[0, :6].any() and not spread[0, :, 14:].any()
    even = _spread_over_pixels(torch.ones(1, 3, 4), None, (12, 28))
    assert_close(even, torch.full((1, 12, 28), 12 / (12 * 28)))


def test_the_batch_size_changes_nothing_and_the_model_is_left_as_it_was(capsnet, monkeypatch):
    capsnet.train()
    maps = coupling_maps(capsnet, IMAGES)
    monkeypatch.setattr("torchcaps.evaluation.routing.coupling_maps.BATCH", 1)
    assert_close(maps.maps, coupling_maps(capsnet, IMAGES).maps)
    assert not maps.maps.is_inference()
    assert_model_is_back(capsnet)


@pytest.mark.parametrize("options", [{}, {"bias": True, "coordinates": False}])
def test_matrix_capsules_hand_support_down_through_convolutions(options):
    model = create_model(
        "matrix_caps_small",
        in_chans=2,
        img_size=(24, 20),
        **MATRIX,
        **options,
    )
    maps = coupling_maps(model, random_images(3, 2, 24, 20))
    assert maps.positions.shape == (3, 10, 8)
    assert maps.maps.shape == (3, 24, 20)
    assert maps.maps.abs().max() > 0
    assert_close(
        total(maps.maps),
        total(maps.positions),
        atol=1e-4,
        rtol=1e-4,
    )


def test_networks_without_places_or_without_capsules_are_refused():
    with pytest.raises(
        ArgumentError, match="expected the children of 'layers.0' to be capsules with places"
    ):
        coupling_maps(RoutedPixels(6, 3), torch.rand(2, 1, 6, 4))
    cnn = create_model(
        "cnn_smallnorb",
        in_chans=1,
        channels=(2, 2),
        hidden=(4,),
    )
    with pytest.raises(
        ArgumentError, match="expected a capsule network with routed layers, got CNN"
    ):
        coupling_maps(cnn, random_images(1, 1, 32, 32))
