import numpy as np
import pytest
import torch

from torchcaps.data import Dataset, affine_copies, load_dataset, placed
from torchcaps.data.pixels import windows_at
from torchcaps.data.sets.placed import PlaceMaker
from torchcaps.errors import DataError

from ..makers import center_of, draw, ink_corners, refusal

# Of `placed(make_source(), 16)`, top and left; of `affine_copies(nine digits, 2)`.
PLACES = [[4, 5, 0, 3, 3], [3, 7, 0, 1, 0]]
ROTATIONS = [1.95254, -3.05381, 18.54651]


def make_set(images, name="toy"):
    return Dataset(images, {"label": torch.arange(len(images)) % 2}, ("a", "b"), name)


def make_source(count=40, channels=1):
    """Images of 10 × 8 pixels, all of which have ink."""
    random = np.random.RandomState(0)
    pixels = random.randint(1, 256, (count, channels, 10, 8)).astype(np.uint8)
    return make_set(torch.from_numpy(pixels))


def make_dots(count=1, value=255):
    """Images of 28 × 28 pixels with a dot in the middle."""
    images = torch.zeros(count, 1, 28, 28, dtype=torch.uint8)
    images[:, 0, 14, 14] = value
    return make_set(images, "dot")


def windows(images, tops, lefts):
    """Windows of 10 × 8 pixels at these places."""
    return windows_at(images, (10, 8), tops, lefts)


@pytest.fixture(scope="module")
def digits():
    return load_dataset("digits", "test").subset(range(60))


def test_placed_images_are_where_their_factors_say():
    source = make_source()
    wide = placed(source, 16)
    assert wide.name == "placed-toy"
    places = (wide.targets["top"], wide.targets["left"])
    assert torch.equal(windows(wide.images, *places), source.images)
    assert ((wide.images > 0).flatten(1).sum(dim=1) == 80).all()


def test_a_seed_gives_the_same_places_on_every_machine():
    places = placed(make_source(), 16).targets
    assert places["top"][:5].tolist() == PLACES[0]
    assert places["left"][:5].tolist() == PLACES[1]
    assert placed(make_source(), 16, seed=1).targets["top"][:5].tolist() != PLACES[0]


def test_a_batch_has_the_images_at_new_places():
    source = make_source(channels=3)
    wide = placed(source, 16)
    batch = draw(wide, range(40))
    assert batch.inputs.shape == (40, 3, 16, 16)
    assert batch.targets["label"].tolist() == wide.labels.tolist()
    places = ink_corners(batch.inputs)
    assert torch.equal(windows(batch.inputs, *places), source.float_images())
    assert torch.equal(batch.targets["top"], places[0].long())
    assert torch.equal(batch.targets["left"], places[1].long())
    assert not torch.equal(batch.inputs, wide.float_images())
    assert torch.equal(batch.inputs, draw(wide, range(40)).inputs)


def test_a_batch_uses_every_place():
    wide = placed(make_source(2), 16)
    index = torch.zeros(3000, dtype=torch.int64)
    tops, lefts = ink_corners(draw(wide, index).inputs)
    assert set(tops.tolist()) == set(range(16 - 10 + 1))
    assert set(lefts.tolist()) == set(range(16 - 8 + 1))


def test_a_resized_canvas_is_refused():
    wide = placed(make_source(), 16).resized(20, None)
    with refusal("placed-toy: expected the canvases of 16 pixels, got"):
        draw(wide, [0])


def test_amounts_fill_their_ranges():
    copies = affine_copies(make_dots(100), copies=20)
    limits = {
        "rotation": (-20, 20),
        "shear": (-0.2, 0.2),
        "scale_x": (0.8, 1.2),
        "scale_y": (0.8, 1.2),
    }
    for name, (low, high) in limits.items():
        amounts = copies.targets[name]
        width = high - low
        assert low <= amounts.min() < low + 0.02 * width
        assert high - 0.02 * width < amounts.max() <= high
        assert abs(amounts.mean() - (low + high) / 2) < 0.03 * width
    assert torch.equal(copies.targets["original"], torch.arange(2000) // 20)


def test_all_places_that_keep_the_ink_inside_are_used():
    copies = affine_copies(make_dots(200), copies=10)
    ends = ink_corners(copies.images.flip(2, 3))
    for name, end in zip(("top", "left"), ends, strict=True):
        assert copies.targets[name].min() == 0
        assert end.min() == 0


def test_all_ink_stays_inside_at_the_place_named(digits):
    copies = affine_copies(digits, copies=3)
    assert copies.images.shape == (180, 1, 40, 40)
    tops, lefts = ink_corners(copies.images)
    assert torch.equal(tops, copies.targets["top"].int())
    assert torch.equal(lefts, copies.targets["left"].int())
    # A digit of changed area has its ink, apart from rounding: none was cut off.
    ink = copies.images.flatten(1).double().sum(dim=1)
    area = (copies.targets["scale_x"] * copies.targets["scale_y"]).double()
    ink_before = digits.images.flatten(1).double().sum(dim=1)[copies.targets["original"]]
    assert ((ink / (ink_before * area)) - 1).abs().max() < 0.04


@pytest.mark.parametrize(("row", "column"), [(4, 20), (20, 22), (9, 5)])
def test_a_point_goes_where_the_matrix_sends_it(row, column):
    """Two dots: the one in the middle is the origin, the other shows where A sends its point."""
    images = torch.zeros(50, 1, 29, 29, dtype=torch.uint8)  # odd: a pixel is in the middle
    images[:, 0, 14, 14] = 255
    images[:, 0, row, column] = 120
    copies = affine_copies(make_set(images), copies=1)
    point = torch.tensor([column - 14.0, row - 14.0])  # x to the right, y down
    along = torch.arange(40)
    for k, image in enumerate(copies.images[:, 0].float()):
        angle = copies.targets["rotation"][k].deg2rad()
        rotation = torch.tensor([[angle.cos(), -angle.sin()], [angle.sin(), angle.cos()]])
        shear = torch.eye(2)
        shear[0, 1] = copies.targets["shear"][k]
        scales = torch.stack([copies.targets["scale_x"][k], copies.targets["scale_y"][k]])
        expected = rotation @ shear @ (scales * point)
        # The pixels around the brightest one are one dot, the rest is the other.
        peak_row, peak_column = divmod(int(image.argmax()), 40)
        is_row = (along - peak_row).abs() <= 2
        is_column = (along - peak_column).abs() <= 2
        is_near = is_row.unsqueeze(1) & is_column
        dim, bright = sorted((image * is_near, image * ~is_near), key=torch.sum)
        distance = (center_of(dim.double()) - center_of(bright.double())).flip(0) - expected
        assert distance.norm() < 0.5


def test_a_seed_gives_the_same_copies(digits):
    nine = digits.subset(range(9))
    copies = affine_copies(nine, 2)
    assert copies.targets["rotation"][:3].tolist() == pytest.approx(ROTATIONS)
    assert not torch.equal(copies.images, affine_copies(nine, 2, seed=1).images)


def test_what_is_too_large_is_drawn_again():
    white = make_set(torch.full((60, 1, 28, 28), 255, dtype=torch.uint8), "white")
    has_ink = affine_copies(white, 2, size=34).images[:, 0] > 0
    for axis in (1, 2):
        assert has_ink.any(dim=axis).sum(dim=1).min() > 0
        assert has_ink.any(dim=axis).sum(dim=1).max() <= 34
    with refusal("white: image 0 does not fit a canvas of 12 × 12 pixels"):
        affine_copies(white, 1, size=12)


def test_copies_of_one_stay_together(digits):
    train, val = affine_copies(digits, 3).train_val_split(0.2)
    assert not torch.isin(train.targets["original"], val.targets["original"]).any()


def test_an_empty_image_stays_empty():
    assert affine_copies(make_dots(2, value=0)).images.max() == 0


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: placed(make_source(), 9), ValueError, "size: expected at least 10, got 9"),
        (lambda: affine_copies(make_source(channels=3)), DataError, "toy: expected uint8 images"),
        (lambda: affine_copies(make_source(), 0), ValueError, "copies: expected at least 1, got 0"),
    ],
)
def test_arguments_out_of_range(make, error, words):
    with refusal(words, error):
        make()


def test_named_sets():
    placed_test = load_dataset("placed-digits", "test")
    affine_test = load_dataset("affine-digits", "test")
    assert isinstance(load_dataset("affine-digits").maker, PlaceMaker)
    assert placed_test.images.shape == (1_000, 1, 40, 40)
    assert affine_test.images.shape == (4_000, 1, 40, 40)
    assert affine_test.labels[::4].tolist() == placed_test.labels.tolist()
