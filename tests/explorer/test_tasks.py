"""The explorer knows tasks and specs: capsules that are no classes, and systems unknown to it."""

from __future__ import annotations

import base64
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from torchcaps.explorer import Session, open_session, open_views
from torchcaps.models import create_model
from torchcaps.settings import TrainConfig
from torchcaps.tasks import Task
from torchcaps.training import save
from torchcaps.types import Capsules, ModelSpec, model_metadata, set_model_metadata

from .conftest import SIZE, as_loaded, client_of, make_bars, make_capsnet, run


class Spots(nn.Module):
    """Five capsules of a presence and a place, which are no classes; each draws a spot."""

    spec = ModelSpec(
        pose=True, activation="probability", decoder=True, task="spots", loss="reconstruction"
    )

    def __init__(self):
        super().__init__()
        self.find = nn.Linear(SIZE[0] * SIZE[1], 15)

    def capsules(self, images):
        outputs = self.find(images.flatten(1)).unflatten(1, (5, 3))
        return Capsules(outputs[..., :2], outputs[..., 2].sigmoid())

    def reconstruct(self, capsules, labels=None):
        rows = torch.arange(SIZE[0]).unsqueeze(1) - SIZE[0] / 2
        columns = torch.arange(SIZE[1]) - SIZE[1] / 2
        x, y = capsules.pose[..., None, None].unbind(dim=2)
        spots = (-((columns - x) ** 2 + (rows - y) ** 2) / 8).exp()
        presence = capsules.activation
        if labels is not None:
            presence = presence * nn.functional.one_hot(labels, 5)
        return (presence[..., None, None] * spots).sum(dim=1, keepdim=True)


class FindSpots(Task):
    name, losses, labeled = "spots", ("reconstruction",), False
    capabilities = frozenset({"decode", "sweep"})


class Brightness(nn.Module):
    """No capsules, no classes: one number for an image."""

    spec = ModelSpec(activation="none", task="brightness", loss="error")

    def forward(self, images):
        return images.mean(dim=(1, 2, 3))


class MeasureBrightness(Task):
    name, losses, labeled = "brightness", ("error",), False


def make_spots_session():
    torch.manual_seed(0)
    task = FindSpots(as_loaded(Spots(), classes=()), TrainConfig())
    return Session(task, "spots", make_bars())


def make_brightness_session():
    task = MeasureBrightness(as_loaded(Brightness(), classes=()), TrainConfig())
    return Session(task, "brightness", make_bars())


@pytest.fixture(scope="module")
def spots():
    return make_spots_session()


def post(session, name, **body):
    return client_of(session).post(f"/api/{name}", json=body)


def describe(session):
    """What the page is told of a model."""
    [description] = client_of(session).get("/api/describe").json()["models"]
    return description


def refusal(session, name, **body):
    """The sentence of a request that is refused."""
    response = post(session, name, **body)
    assert response.status_code == 400
    return response.json()["error"]


def test_capsules_that_are_no_classes_are_numbered_and_examples_have_no_labels(spots):
    description = describe(spots)
    assert description["classes"] == [f"capsule {k}" for k in range(1, 6)]
    assert (description["task"], description["activation"]) == ("spots", "activation")
    assert (description["labeled"], description["routed"]) == (False, False)
    assert description["several"] == 1
    assert description["views"] == {
        "infer": {"title": ""},
        "examples": {"title": "", "count": 9},
        "pose": {"title": "Pose", "dim": 2, "decoder": True},
        "transform": {"title": "Transform"},
    }
    [example] = post(spots, "examples", index=1).json()["examples"]
    assert example["labels"] == []
    assert "have labels" in refusal(spots, "examples", label=1)


def test_a_drawing_is_weighted_by_the_presence_of_its_capsule(spots, image):
    draw = partial(run, "pose", spots, label=3)
    inference = run("infer", spots, image=image, classes=(3,))
    capsules = Capsules(inference.pose[None], inference.activation[None])
    expected = spots.model.reconstruct(capsules, torch.tensor([3]))
    pose = inference.pose[3][None]
    presence = inference.activation[3]
    assert 0 < presence < 1
    torch.testing.assert_close(inference.drawn, expected)
    torch.testing.assert_close(draw(poses=pose, activations=presence[None]).drawn, expected)
    torch.testing.assert_close(draw(poses=pose).drawn * presence, expected)


def test_presences_come_with_the_poses_that_are_drawn(spots):
    body = {"label": 2, "poses": [[1, -2], [0, 0]]}
    drawings = []
    for changes in ({}, {"activations": [0.5, 0.25]}):
        answer = post(spots, "pose", **body, **changes).json()
        pixels = b"".join(base64.b64decode(drawing) for drawing in answer["drawn"])
        drawings.append(np.frombuffer(pixels, np.uint8).reshape(2, -1))
    bright, dim = drawings
    assert bright.max() > 200
    np.testing.assert_allclose(bright * [[0.5], [0.25]], dim, atol=1)
    for activations in ([0.5], [0.5, "1"], 1, [0.5, 1e9]):
        problem = refusal(spots, "pose", **body, activations=activations)
        assert problem.startswith("activations: expected")


def test_views_that_the_task_does_not_offer_are_refused_in_one_sentence(spots, image, picture):
    assert run("transform", spots, image=image, values=[0.0, 5.0], label=4).pose.shape == (2, 2)
    assert "step by step" in refusal(spots, "routing", image=picture, label=0)
    assert "no routing" in refusal(spots, "infer", image=picture, uniform=True)
    with pytest.raises(ValueError, match="transform: the task brightness does not offer it"):
        run("transform", make_brightness_session())


def test_a_model_file_without_images_keeps_its_task(tmp_path):
    model = create_model("capsnet", num_classes=3, img_size=SIZE, channels=4, primary_types=2)
    set_model_metadata(model, replace(model_metadata(model), task="multilabel"))
    session = open_session(save(model, tmp_path / "model"))
    assert session.examples is None
    assert session.describe()["task"] == "multilabel"


class Reading(Task):
    """Classes of a capsule network, and no looking inside."""

    name, losses = "reading", ("margin",)
    capabilities = frozenset({"classes"})


def test_a_task_may_offer_less_than_its_model_has(image):
    session = Session(Reading(make_capsnet(), TrainConfig()), "small", make_bars())
    description = describe(session)
    assert (description["labeled"], description["routed"]) == (True, False)
    assert description["views"].keys() == {"infer", "examples", "pose", "overlap"}
    assert description["views"]["pose"]["decoder"] is False
    assert run("infer", session, image=image).drawn is None


def test_a_system_without_capsules_and_classes_is_served(picture):
    session = make_brightness_session()
    description = session.describe()
    assert (description["classes"], description["parameters"]) == ([], 0)
    assert open_views(session).keys() == {"infer", "examples"}
    answer = post(session, "infer", image=picture).json()
    del answer["image"]
    assert answer == {"activation": [], "pose": None, "drawn": None, "shown": []}
