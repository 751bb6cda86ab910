from __future__ import annotations

import io

import pytest
import torch
from PIL import Image

from torchcaps.data import make_pairs
from torchcaps.errors import DataError
from torchcaps.evaluation import reconstructions
from torchcaps.explorer import Motion, Session, overlay, pictures
from torchcaps.explorer.pictures import read_picture
from torchcaps.models import create_model
from torchcaps.nn import record_routing

from .conftest import CLASSES, SIZE, bars, named, png, small


def test_a_look_is_what_the_model_says(session, image):
    found = session.view("infer").run(image)
    with torch.inference_mode():
        capsules = session.model.capsules(image[None].float() / 255)
    assert torch.allclose(found.activation, capsules.activation[0], atol=1e-6)
    assert torch.allclose(found.pose, capsules.pose[0], atol=1e-6)
    assert found.shown == (int(capsules.activation.argmax()),)
    wanted = reconstructions(session.model, image[None].float() / 255)
    assert torch.allclose(found.reconstructions, wanted.images, atol=1e-6)


def test_classes_are_decoded_one_at_a_time(session, image):
    found = session.view("infer").run(image, (2, 0))
    for label, drawn in zip((2, 0), found.reconstructions, strict=True):
        assert torch.allclose(
            drawn, session.view("pose").run(found.pose[label][None], label)[0], atol=1e-6
        )
    assert not torch.allclose(*found.reconstructions)
    assert session.view("infer").run(image, count=2).shown == tuple(
        found.activation.topk(2).indices.tolist()
    )


def test_decoding_follows_the_pose(session, image):
    pose = session.view("infer").run(image).pose[1]
    moved = pose.repeat(2, 1)
    moved[1, 3] += 0.3
    first, second = session.view("pose").run(moved, 1)
    assert first.shape == session.shape
    assert (first - second).abs().max() > 0


def test_without_routing_couplings_are_uniform_and_the_model_is_left_as_it_was(session, image):
    trained, uniform = (
        session.view("infer").run(image),
        session.view("infer").run(image, uniform=True),
    )
    assert not torch.allclose(trained.activation, uniform.activation, atol=1e-6)
    assert torch.equal(session.view("infer").run(image).activation, trained.activation)
    steps = session.view("routing").run(image, 0, uniform=True).steps
    assert len(steps) == 1
    assert steps[0].spread == pytest.approx(0, abs=1e-6)
    assert torch.allclose(steps[0].share, torch.tensor(1 / 3), atol=1e-6)


def test_routing_steps_end_where_the_model_ends(session, image):
    found = session.view("routing").run(image, 2)
    assert [len(found.steps), found.layer, found.children] == [3, "class_capsules", 2 * 1 * 2]
    with record_routing(session.model) as record, torch.inference_mode():
        activation = session.model(image[None].float() / 255)[0]
    coupling = record.last()["class_capsules"].coupling[0]
    last = found.steps[-1]
    assert torch.allclose(last.activation, activation, atol=1e-6)
    assert torch.allclose(last.coupling, coupling.mean(dim=0), atol=1e-6)
    assert torch.allclose(last.share.flatten(), coupling[:, 2].reshape(2, 2).mean(dim=1), atol=1e-6)
    assert torch.allclose(found.steps[0].coupling, torch.tensor(1 / 3), atol=1e-6)


def test_the_map_is_the_class_taken_apart(session, image):
    # Coupled votes sum to s, which has the direction of the pose: their cosines, weighted by amount, sum to |s|.
    found = session.view("routing").run(image, 1, uniform=True).steps[0]
    length = session.view("infer").run(image, uniform=True).activation[1]
    total = (found.amount * found.agreement).sum()
    assert float(total**2 / (1 + total**2)) == pytest.approx(float(length), abs=1e-4)
    assert found.agreement.abs().max() <= 1 + 1e-5


def test_places_look_at_their_receptive_fields():
    model = Session(small(size=(20, 20)), "square")
    found = model.view("routing").run(torch.zeros(1, 20, 20, dtype=torch.uint8), 0)
    assert found.steps[0].amount.shape == (2, 2)
    assert found.fields == ((8.0, 2, 17), (8.0, 2, 17))


def test_matrix_capsules_route_step_by_step_and_have_no_decoder():
    torch.manual_seed(0)
    small_caps = {
        "channels": 4,
        "primary_types": 2,
        "types": (2, 2),
        "num_classes": 3,
        "in_chans": 2,
        "img_size": 21,
    }
    model = Session(named(create_model("matrix_caps", **small_caps), (21, 21), 2), "matrix")
    picture = torch.randint(0, 255, (2, 21, 21), dtype=torch.uint8)
    found, look = model.view("routing").run(picture, 1), model.view("infer").run(picture)
    assert len(found.steps) == 3
    assert torch.allclose(found.steps[-1].activation, look.activation, atol=1e-5)
    rows, columns = found.steps[0].amount.shape
    assert found.children == rows * columns * 2
    assert found.fields[0].first + found.fields[0].step * (rows - 1) <= 21
    assert look.reconstructions is None
    assert model.pose_dim == 16
    assert (
        model.describe()["activation"] == "activation"
    )  # activations of their own, not lengths of poses
    with pytest.raises(ValueError, match="no decoder"):
        model.view("pose").run(torch.zeros(1, 16), 0)


def test_a_cnn_has_probabilities_and_nothing_else(plain, image):
    found = plain.view("infer").run(image)
    assert found.activation.sum() == pytest.approx(1, abs=1e-5)
    assert found.pose is None
    assert found.reconstructions is None
    assert plain.views.keys() == {"infer", "overlap", "transform"}
    for ask in (
        lambda: plain.view("routing").run(image, 0),
        lambda: plain.view("infer").run(image, uniform=True),
        lambda: plain.view("pose").run(torch.zeros(1, 16), 0),
    ):
        with pytest.raises(
            ValueError, match="^(pose|routing|uniform): (this model has no|the votes for)"
        ):
            ask()
    assert plain.view("transform").run(image, Motion(), [0.0], 0).pose is None


def test_a_sweep_passes_through_the_input(session, image):
    found = session.view("transform").run(image, Motion(changing="degrees"), [-30.0, 0.0, 30.0], 1)
    here = session.view("infer").run(image)
    assert torch.allclose(found.activation[1], here.activation, atol=1e-5)
    assert torch.allclose(found.pose[1], here.pose[1], atol=1e-5)
    assert not torch.allclose(found.activation[0], here.activation, atol=1e-6)


def test_overlaid_light_adds_up_and_clips(image):
    assert torch.equal(overlay(image, torch.zeros_like(image)), image)
    assert overlay(image, torch.full_like(image, 255)).min() == 255
    moved = overlay(torch.zeros_like(image), image, right=3, down=-2)
    assert torch.equal(moved[:, :-2, 3:], image[:, 2:, :-3])
    assert moved[:, -2:].max() == 0


def test_examples_by_index_and_by_class(session):
    picture, labels = session.example(4)
    assert torch.equal(picture, session.examples.images[4])
    assert labels == (1,)
    assert session.examples_of(1).tolist() == [1, 4, 7]
    for index in (-1, 9):
        with pytest.raises(ValueError, match="index: expected between 0 and 8"):
            session.example(index)


def test_an_image_file_becomes_a_picture_of_the_model(session, color):
    assert read_picture(png(), session.preprocess).shape == (1, *SIZE)
    assert read_picture(png(), session.preprocess).min() == 255
    red = read_picture(png(color="red", kind="JPEG"), color.preprocess)
    assert red.shape == (3, *SIZE)
    assert red[0].min() > 200
    assert red[1:].max() < 60


def test_what_is_no_image_is_refused(session):
    tiff = io.BytesIO()
    Image.new("L", (4, 4)).save(tiff, "TIFF")
    for file, why in [
        (b"hello", "not an image"),
        (b"", "not an image"),
        (png()[:60], "image"),
        (tiff.getvalue(), "expected PNG"),
    ]:
        with pytest.raises(DataError, match=why):
            read_picture(file, session.preprocess)


def test_a_large_image_is_refused_before_it_is_decoded(session, monkeypatch):
    monkeypatch.setattr(pictures, "MAX_PIXELS", 100)
    monkeypatch.setattr(pictures, "decode_image", lambda *_, **__: pytest.fail("decoded"))
    with pytest.raises(DataError, match="at most 100 pixels, got 30 × 24"):
        read_picture(png(), session.preprocess)


def test_a_picture_is_fitted_to_another_model(color, session, image):
    assert color.fit(image).shape == (3, *SIZE)
    assert torch.equal(session.fit(image), image)


@pytest.mark.parametrize(
    ("ask", "why"),
    [
        (lambda s, i: s.view("infer").run(i[:, :5]), "image: expected"),
        (lambda s, i: s.view("infer").run(i, (3,)), "class: expected between 0 and 2"),
        (lambda s, i: s.view("infer").run(i, (0,) * 100), "classes: expected at most"),
        (lambda s, i: s.view("infer").run(i, count=4), "count: expected"),
        (lambda s, i: s.view("routing").run(i, -1), "class: expected"),
        (lambda s, i: s.view("pose").run(torch.zeros(1, 5), 0), "poses: expected"),
        (lambda s, i: s.view("pose").run(torch.zeros(65, 16), 0), "poses: expected between"),
        (
            lambda s, i: s.view("transform").run(i, Motion(), [0.0] * 42, 0),
            "values: expected between",
        ),
        (
            lambda s, i: s.view("transform").run(i, Motion(), [400.0], 0),
            "degrees: expected between",
        ),
        (lambda s, i: Motion(changing="color"), "unknown motion 'color'"),
        (lambda s, i: Motion(scale=float("nan")), "scale: expected between"),
    ],
)
def test_what_does_not_fit_is_one_sentence(session, image, ask, why):
    with pytest.raises(ValueError, match=why):
        ask(session, image)


def test_a_session_says_what_it_has(session, color):
    about = session.describe()
    assert (about["classes"], about["data"]) == (list(CLASSES), "bars")
    assert about["views"]["examples"]["count"] == 9
    assert about["views"]["pose"] == {"title": "Pose", "dim": 16, "decoder": True}
    assert color.describe()["views"]["pose"]["decoder"] is False
    assert list(session.views) == ["infer", "examples", "pose", "routing", "overlap", "transform"]
    assert (about["activation"], about["several"]) == ("length", 1)
    pairs = Session(session.model, "pairs", make_pairs(bars(), pad=0))
    assert pairs.describe()["several"] == 2
    assert len(pairs.example(0)[1]) == 2
    assert color.describe()["note"] == "No test images: none."
    with pytest.raises(ValueError, match="there are none"):
        color.example(0)


def test_a_model_that_was_not_loaded_is_refused():
    with pytest.raises(ValueError, match="as torchcaps.load gives them"):
        Session(create_model("capsnet", channels=4, primary_types=2), "bare", bars())
