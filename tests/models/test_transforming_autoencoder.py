"""The transforming auto-encoder: what a transformation does to poses, and poses to the drawing."""

import pytest
import torch
from torch.testing import assert_close

import torchcaps as tc
from torchcaps.errors import ArgumentError
from torchcaps.models import TransformingAutoencoder
from torchcaps.testing import seeded
from torchcaps.types import Capsules

IMAGES = torch.rand(3, 1, 10, 12, generator=seeded())
SHIFTS = torch.tensor(
    [
        [1.0, -2.0],
        [0.0, 0.0],
        [3.0, 1.0],
    ]
)
SMALL = {
    "capsules": 4,
    "recognition": 5,
    "generation": 6,
}
LAST_ROW = torch.tensor([0.0, 0.0, 1.0])
KINDS = [{"pose": "translation"}, {"pose": "affine"}, {"pose": "affine", "constrained": True}]


def small_model(**options):
    return TransformingAutoencoder(1, (10, 12), **SMALL | options)


def sample_matrices(seed=0):
    upper = torch.eye(3)[:2] + 0.3 * torch.randn(3, 2, 3, generator=seeded(seed))
    return torch.cat([upper, LAST_ROW.expand(3, 1, 3)], dim=1)


def sample_transformation(model):
    return SHIFTS if model.pose == "translation" else sample_matrices()


@pytest.fixture(params=KINDS, ids=["translation", "affine", "constrained"])
def model(request):
    return small_model(**request.param)


def move_pose(pose, transformation):
    """`pose + shift`, or `T A`, of one capsule."""
    if len(pose) == 2:
        return pose + transformation
    return (transformation @ pose.view(3, 3)).flatten()


def test_one_capsule_by_the_formulas_of_the_paper(model):
    model = model.double()
    k = 2
    image = IMAGES[0].double()
    weight = {name: p[k] for name, p in model.weight.items()}
    bias = {name: p[k] for name, p in model.bias.items()}
    h = torch.sigmoid(image.flatten() @ weight["recognize"] + bias["recognize"])
    pose = h @ weight["place"] + bias["place"]
    presence = torch.sigmoid(h @ weight["gate"] + bias["gate"])
    if model.constrained:
        pose = torch.cat([pose, LAST_ROW.double()])
    transformation = sample_transformation(model)[:1].double()
    transformed = move_pose(pose, transformation[0])
    g = torch.sigmoid(transformed @ weight["generate"] + bias["generate"])
    contribution = presence * (g @ weight["draw"] + bias["draw"])

    capsules = model.capsules(image.unsqueeze(0))
    assert_close(capsules.pose[0, k], pose)
    presences = capsules.activation.masked_fill(torch.arange(4) != k, 0.0)
    single = model.move(Capsules(capsules.pose, presences), transformation)
    drawing = model.reconstruct(single)[0]
    assert_close(drawing.flatten(), contribution)


def test_the_transformation_reaches_the_drawing_through_poses_alone(model):
    capsules = model.capsules(IMAGES)
    transformation = sample_transformation(model)
    transformed = model.move(capsules, transformation)
    drawing = model(IMAGES, transformation)
    assert_close(drawing, model.reconstruct(transformed))
    assert torch.equal(transformed.activation, capsules.activation)


def test_without_a_transformation_it_draws_the_image(model):
    drawing = model.reconstruct(model.capsules(IMAGES))
    identity = torch.zeros(3, 2)
    if model.pose == "affine":
        identity = torch.eye(3).expand(3, 3, 3)
    assert_close(model(IMAGES, identity), drawing)
    assert_close(model(IMAGES), drawing)


def test_drawings_of_single_capsules_add_up_to_that_of_all(model):
    capsules = model.capsules(IMAGES)
    drawings = [model.reconstruct(capsules, torch.full((3,), k)) for k in range(4)]
    assert_close(sum(drawings), model.reconstruct(capsules))
    mixed = model.reconstruct(capsules, torch.tensor([2, 0, 1]))
    expected = torch.stack([drawings[2][0], drawings[0][1], drawings[1][2]])
    assert_close(mixed, expected)


def test_under_autocast_poses_are_within_a_hundredth_of_a_pixel(model):
    capsules = model.capsules(IMAGES)
    drawing = model(IMAGES, sample_transformation(model))
    with torch.autocast("cpu", torch.bfloat16):
        cast = model.capsules(IMAGES)
        cast_drawing = model(IMAGES, sample_transformation(model))
    assert cast.pose.dtype == cast.activation.dtype == cast_drawing.dtype == torch.float32
    assert_close(cast.pose, capsules.pose, atol=0.01, rtol=0.0)
    assert_close(cast_drawing, drawing, atol=0.02, rtol=0.02)


def test_by_name_it_has_more_recognition_units_and_no_classes():
    model = tc.create_model("transforming_autoencoder", num_classes=7, in_chans=3, img_size=(8, 10))
    assert model.weight["recognize"].shape == (30, 3 * 8 * 10, 60)
    assert TransformingAutoencoder().weight["recognize"].shape == (30, 784, 10)


def test_strokes_are_the_drawings_of_units():
    model = small_model(capsules=2, generation=3)
    strokes = model.strokes()
    assert strokes.shape == (2, 3, 10, 12)
    assert_close(strokes[1, 2].flatten(), model.weight["draw"][1, 2])


def test_bounded_drawings_are_the_sigmoid_of_the_sum():
    model = small_model()
    bounded = small_model(bounded=True)
    bounded.load_state_dict(model.state_dict())
    assert_close(bounded(IMAGES, SHIFTS), model(IMAGES, SHIFTS).sigmoid())


@pytest.mark.parametrize(
    ("pose", "transformation", "expected"),
    [
        ("translation", sample_matrices(), r"\[batch=3, shift=2\], got \[3, 3, 3\]"),
        ("affine", SHIFTS, r"\[batch=3, rows=3, columns=3\], got"),
    ],
)
def test_a_transformation_of_the_other_kind(pose, transformation, expected):
    with pytest.raises(ArgumentError, match=f"transformation: expected {expected}"):
        small_model(pose=pose)(IMAGES, transformation)


def test_capsules_of_another_model():
    capsules = small_model(capsules=5).capsules(IMAGES)
    with pytest.raises(
        ArgumentError, match=r"capsules: expected \[batch=3, capsules=4, dim=2\], got"
    ):
        small_model().reconstruct(capsules)


def test_recognition_alone():
    model = small_model(decoder=False)
    expected = small_model()
    expected.load_state_dict(model.state_dict(), strict=False)
    pose, presence = model.capsules(IMAGES)
    assert_close(pose, expected.capsules(IMAGES).pose)
    assert_close(presence, expected.capsules(IMAGES).activation)
    assert [*model.weight] == ["recognize", "place", "gate"]
