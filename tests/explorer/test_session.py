from __future__ import annotations

import io
from functools import partial

import pytest
import torch
from PIL import Image

from torchcaps.errors import DataError
from torchcaps.evaluation import reconstructions
from torchcaps.explorer import VIEWS, Motion, Session, open_views, overlay, session as pictures
from torchcaps.explorer.session import move, read_picture
from torchcaps.models import create_model
from torchcaps.nn import record_routing

from .conftest import CLASSES, SIZE, as_loaded, encode_image, make_bars, make_capsnet, run


@pytest.fixture
def infer(session):
    return partial(run, "infer", session)


@pytest.fixture
def route(session):
    return partial(run, "routing", session)


def test_an_inference_is_what_the_model_computes(session, infer, image):
    inference = infer(image=image)
    pixels = image[None].float() / 255
    with torch.inference_mode():
        capsules = session.model.capsules(pixels)
    torch.testing.assert_close(inference.activation, capsules.activation[0])
    torch.testing.assert_close(inference.pose, capsules.pose[0])
    assert inference.shown == (int(capsules.activation.argmax()),)
    expected = reconstructions(session.model, pixels).images
    torch.testing.assert_close(inference.drawn, expected)


def test_classes_are_decoded_one_at_a_time(session, infer, image):
    inference = infer(image=image, classes=(2, 0))
    for label, drawing in zip((2, 0), inference.drawn, strict=True):
        pose = inference.pose[label].unsqueeze(0)
        torch.testing.assert_close(drawing, run("pose", session, poses=pose, label=label).drawn[0])
    assert not torch.allclose(*inference.drawn)
    assert infer(image=image, count=2).shown == tuple(inference.activation.topk(2).indices.tolist())


def test_without_routing_couplings_are_uniform_and_the_model_stays(infer, route, image):
    inference = infer(image=image)
    uniform = infer(image=image, uniform=True)
    assert not torch.allclose(inference.activation, uniform.activation)
    repeated = infer(image=image)
    assert torch.equal(repeated.activation, inference.activation)
    [step] = route(image=image, label=0, uniform=True).steps
    assert step["spread"] == pytest.approx(0, abs=1e-6)
    torch.testing.assert_close(step["share"], torch.full_like(step["share"], 1 / 3))


def test_routing_steps_end_where_the_model_ends(session, route, image):
    routing = route(image=image, label=2)
    assert (len(routing.steps), routing.layer) == (3, "class_capsules")
    assert routing.children == 2 * 1 * 2
    with record_routing(session.model) as record, torch.inference_mode():
        activation = session.model(image[None].float() / 255)[0]
    coupling = record.last()["class_capsules"].coupling[0]
    last = routing.steps[-1]
    torch.testing.assert_close(last["activation"], activation)
    torch.testing.assert_close(last["coupling"], coupling.mean(dim=0))
    assert last["spread"] == pytest.approx(float(coupling.std(correction=0)), rel=1e-4)
    torch.testing.assert_close(last["share"].flatten(), coupling[:, 2].reshape(2, 2).mean(dim=1))
    torch.testing.assert_close(routing.steps[0]["coupling"], torch.full((3,), 1 / 3))


def test_the_map_is_the_class_taken_apart(infer, route, image):
    # Coupled votes sum to s, which has the direction of the pose: their cosines, weighted by
    # amount, sum to |s|.
    [step] = route(image=image, label=1, uniform=True).steps
    inference = infer(image=image, uniform=True)
    length = float(inference.activation[1])
    total = float((step["amount"] * step["agreement"]).sum())
    assert total**2 / (1 + total**2) == pytest.approx(length, abs=1e-4)
    assert step["agreement"].abs().max() <= 1 + 1e-5


def test_places_look_at_their_receptive_fields():
    square = Session(make_capsnet(size=(20, 20)), "square")
    routing = run("routing", square, image=square.blank, label=0)
    assert routing.steps[0]["amount"].shape == (2, 2)
    assert routing.fields == [{"first": 8.0, "step": 2, "size": 17}] * 2


def test_matrix_capsules_route_step_by_step_and_have_no_decoder():
    torch.manual_seed(0)
    sizes = {"num_classes": 3, "in_chans": 2, "img_size": 21}
    model = create_model("matrix_caps", **sizes, channels=4, primary_types=2, types=(2, 2))
    session = Session(as_loaded(model, (21, 21), 2), "matrix")
    image = torch.randint(0, 255, (2, 21, 21), dtype=torch.uint8)
    routing = run("routing", session, image=image, label=1)
    inference = run("infer", session, image=image)
    assert len(routing.steps) == 3
    torch.testing.assert_close(routing.steps[-1]["activation"], inference.activation)
    rows, columns = routing.steps[0]["amount"].shape
    assert routing.children == rows * columns * 2
    assert routing.fields[0]["first"] + routing.fields[0]["step"] * (rows - 1) <= 21
    assert inference.drawn is None
    # Activations of their own, not lengths of poses.
    assert (session.pose_dim, session.describe()["activation"]) == (16, "activation")
    with pytest.raises(ValueError, match="pose: this model has no decoder"):
        run("pose", session, poses=torch.zeros(1, 16), label=0)


def test_a_cnn_has_probabilities_and_nothing_else(plain, image):
    infer = partial(run, "infer", plain)
    inference = infer(image=image)
    assert inference.activation.sum() == pytest.approx(1, abs=1e-5)
    assert (inference.pose, inference.drawn) == (None, None)
    assert open_views(plain).keys() == {"infer", "overlap", "transform"}
    for name, problem in {"routing": "the votes for", "pose": "this model has no"}.items():
        with pytest.raises(ValueError, match=f"{name}: {problem}"):
            run(name, plain)
    with pytest.raises(ValueError, match="uniform: this model has no routing"):
        infer(image=image, uniform=True)
    assert run("transform", plain, image=image, values=[0.0], label=0).pose is None


def test_a_sweep_passes_through_the_input(session, infer, image):
    path = run("transform", session, image=image, values=[-30.0, 0.0, 30.0], label=1)
    inference = infer(image=image)
    torch.testing.assert_close(path.activation[1], inference.activation, atol=1e-4, rtol=0)
    torch.testing.assert_close(path.pose[1], inference.pose[1], atol=1e-4, rtol=0)
    assert (path.activation[0] - path.activation[2]).abs().max() > 0


def test_an_overlay_is_a_sum_that_ends_at_white(image):
    assert torch.equal(overlay(image, torch.zeros_like(image)), image)
    assert torch.equal(overlay(image, image), (2 * image.int()).clamp(max=255).to(torch.uint8))
    shifted = overlay(torch.zeros_like(image), image, right=3, down=-2)
    assert torch.equal(shifted[:, :-2, 3:], image[:, 2:, :-3])
    assert shifted[:, -2:].max() == 0
    white = torch.full_like(image, 255)
    half = move(white, Motion(scale=0.5)).float().mean()
    assert float(half) == pytest.approx(255 / 4, rel=0.02)


def test_examples_by_index_and_by_class(session):
    picture, labels = session.example(4)
    assert torch.equal(picture, session.examples.images[4])
    assert labels == (1,)
    assert session.examples_of(1).tolist() == [1, 4, 7]
    with pytest.raises(ValueError, match="index: expected between 0 and 8"):
        session.example(9)


def test_an_image_file_becomes_a_picture_of_the_model(session, color):
    white = read_picture(encode_image(), session.preprocess)
    assert torch.equal(white, torch.full((1, *SIZE), 255, dtype=torch.uint8))
    red = read_picture(encode_image(color="red", kind="JPEG"), color.preprocess)
    assert red.shape == (3, *SIZE)
    assert red[0].min() > 200
    assert red[1:].max() < 60


def test_bytes_that_are_no_image_are_refused(session):
    tiff = io.BytesIO()
    Image.new("L", (4, 4)).save(tiff, "TIFF")
    files = {b"hello": "not an image", b"": "not an image", encode_image()[:60]: "image"}
    for file, problem in {**files, tiff.getvalue(): "expected PNG"}.items():
        with pytest.raises(DataError, match=problem):
            read_picture(file, session.preprocess)


def test_a_large_image_is_refused_before_it_is_decoded(session, monkeypatch):
    monkeypatch.setattr(pictures, "MAX_PIXELS", 100)
    monkeypatch.setattr(pictures, "decode_image", lambda *_, **__: pytest.fail("decoded"))
    with pytest.raises(DataError, match="at most 100 pixels, got 30 × 24"):
        read_picture(encode_image(), session.preprocess)


def test_a_session_says_what_it_has(session, color):
    description = session.describe()
    assert (description["classes"], description["data"]) == (list(CLASSES), "bars")
    assert (description["activation"], description["several"]) == ("length", 1)
    views = open_views(session)
    assert list(views) == ["infer", "examples", "pose", "routing", "overlap", "transform"]
    assert views["examples"].describe(session)["count"] == 9
    assert views["pose"].describe(session) == {"dim": 16, "decoder": True}
    assert VIEWS["pose"].describe(color)["decoder"] is False
    assert color.describe()["note"] == "No test images: none."
    with pytest.raises(ValueError, match="there are none"):
        color.example(0)


def test_a_model_that_was_not_loaded_is_refused():
    with pytest.raises(ValueError, match="as torchcaps.load gives them"):
        Session(create_model("capsnet", channels=4, primary_types=2), "bare", make_bars())
