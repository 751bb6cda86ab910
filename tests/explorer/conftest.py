from __future__ import annotations

import base64
import io
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from torchcaps.data import Dataset, Preprocess
from torchcaps.explorer import VIEWS, Session
from torchcaps.models import create_model

HOME = "http://127.0.0.1:8700"
CLASSES = ("zero", "one", "two")
SIZE = (18, 20)


def as_loaded(model, size=SIZE, channels=1, classes=CLASSES):
    """A model with what `torchcaps.load` gives it."""
    model.classes = classes
    model.preprocess = Preprocess(size, channels)
    return model.eval()


def make_capsnet(channels=1, size=SIZE, **options):
    torch.manual_seed(0)
    model = create_model(
        "capsnet",
        num_classes=len(CLASSES),
        in_chans=channels,
        img_size=size,
        channels=4,
        primary_types=2,
        **options,
    )
    return as_loaded(model, size, channels)


def make_bars(count=9):
    """Images with a bright bar whose place is the class."""
    images = torch.randint(0, 40, (count, 1, *SIZE), dtype=torch.uint8)
    labels = torch.arange(count) % 3
    for image, label in zip(images, labels, strict=True):
        image[:, :, 6 * label : 6 * label + 6] += 200
    return Dataset(images, {"label": labels}, CLASSES, "bars")


def run(name, session, **arguments):
    """What a view answers; without arguments of a request that are not named."""
    [answer] = VIEWS[name].answer(session, [arguments])
    return SimpleNamespace(**answer)


def client_of(*sessions, **options):
    """A client of a page of these models; options are those of `make_app`."""
    testclient = pytest.importorskip("starlette.testclient", reason="needs starlette and httpx")
    from torchcaps.explorer.app import make_app

    return testclient.TestClient(make_app(sessions, **options), base_url=HOME)


def encode_image(color="white", mode="RGB", kind="PNG"):
    """The bytes of an image file of 30 × 24 pixels."""
    file = io.BytesIO()
    Image.new(mode, (30, 24), color).save(file, kind)
    return file.getvalue()


@pytest.fixture(scope="session")
def session():
    return Session(make_capsnet(), "small", make_bars())


@pytest.fixture(scope="session")
def color():
    model = make_capsnet(channels=3, decoder=False)
    return Session(model, "color", note="No test images: none.")


@pytest.fixture(scope="session")
def plain():
    torch.manual_seed(0)
    model = create_model("cnn_matched", num_classes=3, in_chans=1, img_size=SIZE, match="capsnet")
    return Session(as_loaded(model), "cnn")


@pytest.fixture
def image():
    pixels = np.random.default_rng(0).integers(0, 256, (1, *SIZE), dtype=np.uint8)
    return torch.from_numpy(pixels)


@pytest.fixture
def picture(image):
    """The image as a request has it."""
    return base64.b64encode(image.numpy().tobytes()).decode()
