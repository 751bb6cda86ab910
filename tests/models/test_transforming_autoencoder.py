"""The transforming auto-encoder: what a transformation does to poses, and what poses do to the drawing."""

import pytest
import torch

import torchcaps as tc
from torchcaps.models import TransformingAutoencoder
from torchcaps.testing import seeded
from torchcaps.types import Capsules

IMAGES = torch.rand(3, 1, 10, 12, generator=seeded())
SHIFTS = torch.tensor([[1.0, -2.0], [0.0, 0.0], [3.0, 1.0]])
KINDS = [{"pose": "translation"}, {"pose": "affine"}, {"pose": "affine", "constrained": True}]


def tiny(**options):
    return TransformingAutoencoder(
        1, (10, 12), **({"capsules": 4, "recognition": 5, "generation": 6} | options)
    )


def matrices(seed=0):
    last = torch.tensor([0.0, 0.0, 1.0]).expand(3, 1, 3)
    first = torch.eye(3)[:2] + 0.3 * torch.randn(3, 2, 3, generator=seeded(seed))
    return torch.cat([first, last], dim=1)


def transformation(model):
    return SHIFTS if model.pose == "translation" else matrices()


@pytest.mark.parametrize("options", KINDS)
def test_shapes_and_ranges(options):
    model = tiny(**options)
    capsules = model.capsules(IMAGES)
    assert capsules.pose.shape == (3, 4, model.pose_dim)
    assert capsules.activation.shape == (3, 4)
    assert 0 < capsules.activation.min() < capsules.activation.max() < 1
    assert model(IMAGES, transformation(model)).shape == IMAGES.shape


@pytest.mark.parametrize("options", KINDS)
def test_one_capsule_by_the_formulas_of_the_paper(options):
    model, k, image = tiny(**options).double(), 2, IMAGES[0].double()
    w, b = ({n: p[k] for n, p in part.items()} for part in (model.weight, model.bias))
    h = torch.sigmoid(image.flatten() @ w["recognize"] + b["recognize"])
    pose, presence = h @ w["place"] + b["place"], torch.sigmoid(h @ w["gate"] + b["gate"])
    if model.constrained:
        pose = torch.cat([pose, torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64)])
    done = transformation(model)[:1].double()
    moved = pose + done[0] if model.pose == "translation" else (done[0] @ pose.view(3, 3)).flatten()
    drawn = presence * (
        torch.sigmoid(moved @ w["generate"] + b["generate"]) @ w["draw"] + b["draw"]
    )
    capsules = model.capsules(image.unsqueeze(0))
    torch.testing.assert_close(capsules.pose[0, k], pose)
    others = torch.arange(4) != k
    alone = Capsules(capsules.pose, capsules.activation.masked_fill(others, 0.0))
    torch.testing.assert_close(model.reconstruct(model.move(alone, done))[0].flatten(), drawn)


@pytest.mark.parametrize("options", KINDS)
def test_the_transformation_reaches_the_drawing_through_poses_alone(options):
    model = tiny(**options)
    capsules, done = model.capsules(IMAGES), transformation(model)
    moved = model.move(capsules, done)
    torch.testing.assert_close(model(IMAGES, done), model.reconstruct(moved))
    assert torch.equal(moved.activation, capsules.activation)
    nothing = torch.zeros(3, 2) if model.pose == "translation" else torch.eye(3).expand(3, 3, 3)
    torch.testing.assert_close(model(IMAGES, nothing), model.reconstruct(capsules))
    torch.testing.assert_close(model(IMAGES), model.reconstruct(capsules))


@pytest.mark.parametrize("options", KINDS)
def test_drawings_of_single_capsules_add_up_to_that_of_all(options):
    model = tiny(**options)
    capsules = model.capsules(IMAGES)
    single = [model.reconstruct(capsules, torch.full((3,), k)) for k in range(4)]
    torch.testing.assert_close(torch.stack(single).sum(dim=0), model.reconstruct(capsules))
    mixed = model.reconstruct(capsules, torch.tensor([2, 0, 1]))
    torch.testing.assert_close(mixed, torch.stack([single[2][0], single[0][1], single[1][2]]))


@pytest.mark.parametrize("options", KINDS)
def test_under_autocast_poses_are_told_to_a_hundredth_of_a_pixel(options):
    model = tiny(**options).eval()
    capsules = model.capsules(IMAGES)
    with torch.autocast("cpu", torch.bfloat16):
        cast, drawn = model.capsules(IMAGES), model(IMAGES, transformation(model))
    assert cast.pose.dtype == cast.activation.dtype == drawn.dtype == torch.float32
    torch.testing.assert_close(cast.pose, capsules.pose, atol=0.01, rtol=0.0)
    torch.testing.assert_close(drawn, model(IMAGES, transformation(model)), atol=0.02, rtol=0.02)


def test_by_name_it_has_more_recognition_units_and_no_classes():
    model = tc.create_model(
        "transforming_autoencoder", num_classes=7, in_chans=3, img_size=(8, 10), pose="affine"
    )
    assert model.weight["recognize"].shape == (30, 3 * 8 * 10, 60)
    assert TransformingAutoencoder().weight["recognize"].shape == (30, 784, 10)
    assert (model.spec.task, model.spec.decoder, model.spec.pose) == ("transform", True, True)


def test_strokes_are_what_units_add():
    model = tiny(capsules=2, generation=3)
    strokes = model.strokes()
    assert strokes.shape == (2, 3, 10, 12)
    torch.testing.assert_close(strokes[1, 2].flatten(), model.weight["draw"][1, 2])


def test_bounded_drawings_are_the_sigmoid_of_the_sum():
    model, bounded = tiny(), tiny(bounded=True)
    bounded.load_state_dict(model.state_dict())
    torch.testing.assert_close(bounded(IMAGES, SHIFTS), model(IMAGES, SHIFTS).sigmoid())


def test_transformations_follow_one_another_from_the_left():
    model, first, second = tiny(pose="affine"), matrices(1), matrices(2)
    capsules = model.capsules(IMAGES)
    twice = model.move(model.move(capsules, first), second)
    torch.testing.assert_close(twice.pose, model.move(capsules, second @ first).pose)
    assert not torch.allclose(twice.pose, model.move(capsules, first @ second).pose)


def test_constrained_poses_stay_affine():
    model = tiny(pose="affine", constrained=True)
    moved = model.move(model.capsules(IMAGES), matrices())
    torch.testing.assert_close(moved.pose[..., 6:], torch.tensor([0.0, 0.0, 1.0]).expand(3, 4, 3))


@pytest.mark.parametrize("options", KINDS)
def test_every_parameter_is_reached(options):
    model = tiny(**options)
    model(IMAGES, transformation(model)).square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.any(), name


@pytest.mark.parametrize("options", KINDS)
def test_starts_in_the_range_of_images(options):
    torch.manual_seed(0)
    drawn = TransformingAutoencoder(**options)(
        torch.rand(8, 1, 28, 28, generator=seeded()),
        torch.zeros(8, 2) if options["pose"] == "translation" else torch.eye(3).expand(8, 3, 3),
    )
    assert 0.001 < drawn.std() < 0.5


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"pose": "afine"}, "unknown pose 'afine'; did you mean 'affine'"),
        ({"constrained": True}, "constrained: expected affine poses, got 'translation'"),
        ({"capsules": 0}, "capsules: expected at least 1, got 0"),
        ({"generation": 0}, "generation: expected at least 1, got 0"),
    ],
)
def test_wrong_options(options, complaint):
    with pytest.raises(ValueError, match=complaint):
        tiny(**options)


def test_wrong_arguments():
    model = tiny()
    with pytest.raises(
        ValueError, match=r"images: expected \[batch, channels=1, height=10, width=12\], got"
    ):
        model.capsules(IMAGES.mT)
    with pytest.raises(
        ValueError, match=r"transformation: expected \[batch=3, shift=2\], got \[3, 3, 3\]"
    ):
        model(IMAGES, matrices())
    with pytest.raises(
        ValueError, match=r"transformation: expected \[batch=3, rows=3, columns=3\], got"
    ):
        tiny(pose="affine")(IMAGES, SHIFTS)
    with pytest.raises(ValueError, match=r"capsules: expected \[batch=3, capsules=4, dim=2\], got"):
        model.reconstruct(tiny(capsules=5).capsules(IMAGES))
