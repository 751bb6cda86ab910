"""The explorer knows tasks and specs: capsules that are no classes, and systems that it has never heard of."""

from __future__ import annotations

import base64

import numpy as np
import pytest
import torch
from torch import nn

pytest.importorskip("starlette.testclient", reason="needs starlette and httpx")

from starlette.testclient import TestClient

from torchcaps.explorer import VIEWS, Motion, Session, View, register_view
from torchcaps.explorer.server import make_app
from torchcaps.settings import TrainConfig
from torchcaps.tasks import Task
from torchcaps.types import Capsules, ModelSpec

from .conftest import CLASSES, SIZE, bars, named, small

HOME = "http://127.0.0.1:8700"


class Spots(nn.Module):
    """Five capsules of a presence and a place, which are no classes; each draws a spot as bright as it is present."""

    spec = ModelSpec(
        pose=True, activation="probability", decoder=True, task="spots", loss="reconstruction"
    )

    def __init__(self):
        super().__init__()
        self.find = nn.Linear(SIZE[0] * SIZE[1], 15)

    def capsules(self, images):
        found = self.find(images.flatten(1)).unflatten(1, (5, 3))
        return Capsules(found[..., :2], found[..., 2].sigmoid())

    def reconstruct(self, capsules, labels=None):
        rows, columns = (
            torch.arange(size).view(shape)
            for size, shape in zip(SIZE, ((-1, 1), (1, -1)), strict=True)
        )
        x, y = (capsules.pose[..., k, None, None] for k in (0, 1))
        spots = (-((columns - SIZE[1] / 2 - x) ** 2 + (rows - SIZE[0] / 2 - y) ** 2) / 8).exp()
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


class TellBrightness(Task):
    name, losses, labeled = "brightness", ("error",), False


class Halves(nn.Module):
    """Two classes by logits, left and right, without a word about itself."""

    def forward(self, images):
        return torch.stack([half.mean(dim=(1, 2, 3)) for half in images.chunk(2, dim=3)], dim=1)


@pytest.fixture(scope="module")
def spots():
    torch.manual_seed(0)
    return Session(FindSpots(named(Spots(), classes=()), TrainConfig()), "spots", bars())


@pytest.fixture
def picture(image):
    return base64.b64encode(image.numpy().tobytes()).decode()


def client_of(*sessions):
    return TestClient(make_app(sessions), base_url=HOME)


def about(client):
    return client.get("/api/describe").json()["models"][0]


def test_capsules_that_are_no_classes_are_numbered_and_examples_have_no_labels(spots):
    client = client_of(spots)
    found = about(client)
    assert found["classes"] == [f"capsule {k}" for k in range(1, 6)]
    assert (found["task"], found["labeled"], found["routed"]) == ("spots", False, False)
    assert (found["activation"], found["several"]) == ("activation", 1)
    assert found["views"] == {
        "infer": {"title": ""},
        "examples": {"title": "", "count": 9},
        "pose": {"title": "Pose", "dim": 2, "decoder": True},
        "transform": {"title": "Transform"},
    }
    [example] = client.post("/api/examples", json={"index": 1}).json()["examples"]
    assert example["labels"] == []
    answer = client.post("/api/examples", json={"label": 1})
    assert (answer.status_code, "have labels" in answer.json()["error"]) == (400, True)


def test_a_drawing_is_weighted_by_the_presence_of_its_capsule(spots, image):
    found = spots.view("infer").run(image, (3,))
    own = Capsules(found.pose[None], found.activation[None])
    wanted = spots.model.reconstruct(own, torch.tensor([3]))
    assert 0 < found.activation[3] < 1
    assert torch.allclose(found.reconstructions, wanted, atol=1e-6)
    pose = found.pose[3][None]
    assert torch.allclose(spots.view("pose").run(pose, 3, found.activation[3:4]), wanted, atol=1e-6)
    assert torch.allclose(spots.view("pose").run(pose, 3) * found.activation[3], wanted, atol=1e-6)


def test_lengths_follow_the_pose_whatever_activation_is_given(session, image):
    pose = session.view("infer").run(image).pose[1][None]
    assert torch.equal(
        session.view("pose").run(pose, 1), session.view("pose").run(pose, 1, torch.tensor([7.0]))
    )


def test_presences_come_with_the_poses_that_are_drawn(spots, picture):
    client = client_of(spots)
    body = {"label": 2, "poses": [[1, -2], [0, 0]]}
    full, half = (
        [np.frombuffer(base64.b64decode(text), np.uint8) for text in answer.json()["drawn"]]
        for answer in (
            client.post("/api/pose", json=body | more)
            for more in ({}, {"activations": [0.5, 0.25]})
        )
    )
    assert full[0].max() > 200
    assert np.allclose(full[0] * 0.5, half[0], atol=1)
    assert np.allclose(full[1] * 0.25, half[1], atol=1)
    for wrong in ([0.5], [0.5, "1"], 1, [0.5, 1e9]):
        answer = client.post("/api/pose", json=body | {"activations": wrong})
        assert (answer.status_code, answer.json()["error"].startswith("activations: expected")) == (
            400,
            True,
        )


def test_what_the_task_does_not_offer_is_refused_in_one_sentence(spots, image, picture):
    assert spots.view("transform").run(image, Motion(), [0.0, 5.0], 4).pose.shape == (2, 2)
    client = client_of(spots)
    for name, body in {"routing": {"label": 0}, "infer": {"uniform": True}}.items():
        assert client.post(f"/api/{name}", json={"image": picture} | body).status_code == 400
    session = Session(TellBrightness(named(Brightness(), classes=()), TrainConfig()), "b")
    with pytest.raises(ValueError, match="transform: the task brightness does not offer it"):
        session.view("transform").run(image, Motion(), [0.0], 0)


class Reading(Task):
    """Classes of a capsule network, and no looking inside."""

    name, losses = "reading", ("margin",)
    capabilities = frozenset({"classes"})


def test_a_task_may_offer_less_than_its_model_has(image):
    session = Session(Reading(small(), TrainConfig()), "small", bars())
    found = session.describe()
    assert (found["labeled"], found["routed"]) == (True, False)
    assert found["views"].keys() == {"infer", "examples", "pose", "overlap"}
    assert found["views"]["pose"]["decoder"] is False
    assert session.view("infer").run(image).reconstructions is None
    with pytest.raises(ValueError, match="transform: the task reading does not offer it"):
        session.view("transform").run(image, Motion(), [0.0], 0)


def test_a_system_without_capsules_and_classes_is_served(picture):
    client = client_of(
        Session(TellBrightness(named(Brightness(), classes=()), TrainConfig()), "b", bars())
    )
    found = about(client)
    assert (found["classes"], found["task"], found["parameters"]) == ([], "brightness", 0)
    assert found["views"].keys() == {"infer", "examples"}
    answer = client.post("/api/infer", json={"image": picture})
    assert answer.status_code == 200, answer.text
    assert answer.json() | {"image": ""} == {
        "activation": [],
        "pose": None,
        "drawn": None,
        "shown": [],
        "image": "",
    }


def test_a_module_that_declares_nothing_is_a_classifier(picture):
    client = client_of(Session(named(Halves(), classes=CLASSES[:2]), "halves"))
    assert (about(client)["task"], about(client)["activation"]) == ("classify", "probability")
    found = client.post("/api/infer", json={"image": picture}).json()
    assert sum(found["activation"]) == pytest.approx(1, abs=1e-4)


def test_the_places_of_routing_maps_reach_the_page(session, image, picture):
    answer = client_of(session).post("/api/routing", json={"image": picture, "label": 0}).json()
    down, right = session.view("routing").run(image, 0).fields
    assert answer["fields"] == [
        {"first": down.first, "step": 2, "size": 17},
        {"first": right.first, "step": 2, "size": 17},
    ]


def test_a_view_of_ones_own_is_asked_like_ours(session, image, picture):
    with VIEWS.restored():

        @register_view("brightness")
        class BrightnessView(View):
            """The mean of a picture."""

            @classmethod
            def missing(cls, session):
                return "" if session.shape[0] == 1 else "this model does not take gray pictures"

            def answer(self, request):
                return {"mean": float(request.image().float().mean())}

        own = Session(session.model, "own")
        assert own.describe()["views"]["brightness"] == {"title": ""}
        answer = client_of(own).post("/api/brightness", json={"image": picture}).json()
        assert answer["mean"] == pytest.approx(float(image.float().mean()))
    assert client_of(session).post("/api/brightness", json={}).status_code == 404
