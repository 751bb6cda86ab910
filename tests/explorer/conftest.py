from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from PIL import Image

from torchcaps.data import ImageSet, Preprocess
from torchcaps.explorer import Session
from torchcaps.models import create_model

CLASSES = ("zero", "one", "two")
SIZE = (18, 20)


def named(model, size=SIZE, channels=1, classes=CLASSES):
    """A model as `load` returns it."""
    model.classes, model.preprocess = classes, Preprocess(size, channels)
    return model.eval()


def small(channels=1, size=SIZE, **options):
    sizes = {"num_classes": len(CLASSES), "in_chans": channels, "img_size": size}
    return named(
        create_model("capsnet", **sizes, channels=4, primary_types=2, **options), size, channels
    )


def bars(channels=1, count=9):
    images = torch.randint(0, 40, (count, channels, *SIZE), dtype=torch.uint8)
    labels = torch.arange(count) % 3
    for image, label in zip(images, labels, strict=True):
        image[:, :, 6 * label : 6 * label + 6] += 200
    return ImageSet(images, labels, CLASSES, "bars")


def png(width=30, height=24, color="white", mode="RGB", kind="PNG"):
    """The bytes of an image file."""
    file = io.BytesIO()
    Image.new(mode, (width, height), color).save(file, kind)
    return file.getvalue()


@pytest.fixture(scope="session")
def session():
    torch.manual_seed(0)
    return Session(small(), "small", bars())


@pytest.fixture(scope="session")
def color():
    torch.manual_seed(0)
    return Session(small(channels=3, decoder=False), "color", note="No test images: none.")


@pytest.fixture(scope="session")
def plain():
    torch.manual_seed(0)
    return Session(
        named(
            create_model("cnn_matched", num_classes=3, in_chans=1, img_size=SIZE, match="capsnet")
        ),
        "cnn",
    )


@pytest.fixture
def image():
    return torch.from_numpy(np.random.default_rng(0).integers(0, 256, (1, *SIZE), dtype=np.uint8))
