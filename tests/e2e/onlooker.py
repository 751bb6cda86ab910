"""A plug-in, for --import: it records the images of each process, has batch norm, and makes data."""

import hashlib
import os
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn

from torchcaps import data, models
from torchcaps.tasks import Classify, register_task
from training.makers import write_bars

CLASSES = ("left", "middle", "right")
digests = []  # of each step a digest for each image


@register_task("onlooker")
class Onlooker(Classify):
    """Classification that records the images and labels of its steps."""

    def training_step(self, batch, share):
        digests.append(list(map(digest, batch.inputs, batch.targets["label"])))
        return super().training_step(batch, share)


def digest(image, label):
    return hashlib.sha1(image.contiguous().numpy().tobytes()).hexdigest() + str(int(label))


class Normed(nn.Module):
    """A small convolutional network with batch norm."""

    def __init__(self, in_chans, num_classes):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(in_chans, 8, 5, 2, bias=False),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.Conv2d(8, 8, 3, bias=False),
            nn.BatchNorm2d(8),
            nn.ReLU(),
        )
        self.top = nn.Linear(8, num_classes)

    def forward(self, images):
        return self.top(self.layers(images).mean((2, 3)))


INFO = models.ModelInfo(
    title="Of a test",
    year=2026,
    arxiv="",
    img_size=(18, 20),
    in_chans=1,
    num_classes=3,
    parameters=0,
    published="",
)


@models.register_model(INFO)
def normed(*, in_chans, num_classes, img_size, generator=None):
    """With batch norm."""
    del img_size
    with torch.random.fork_rng():
        torch.manual_seed(0 if generator is None else generator.initial_seed())
        return Normed(in_chans, num_classes)


def make_info(name):
    """The description of a data set."""
    return data.DatasetInfo(
        name=name,
        title="bars",
        classes=CLASSES,
        image_shape=(1, 18, 20),
        train=60,
        test=60,
        license="none",
        source="computed",
        sha256={},
        embedded=Path.cwd(),
    )


@data.register_dataset(make_info("made"))
def read_bars(folder, request):
    """Made by the first process that reads it, whose rank stands in a file."""
    file = Path(os.environ["MADE"]) / f"{request.split}.npz"
    if not file.exists():
        with open(file.with_suffix(".makers"), "a") as makers:
            makers.write(os.environ.get("RANK", "0"))
        time.sleep(0.5)  # a process that did not wait would find no file
        write_bars(file)
    with np.load(file) as arrays:
        images = torch.from_numpy(arrays["images"])
        labels = torch.from_numpy(arrays["labels"])
    return data.Dataset(images.unsqueeze(1), {"label": labels}, CLASSES, "made")


@data.register_dataset(make_info("unlike"))
def read_unlike(folder, request):
    """Other images in other processes."""
    random = torch.Generator().manual_seed(int(os.environ.get("RANK", "0")))
    images = torch.randint(0, 255, (60, 1, 18, 20), dtype=torch.uint8, generator=random)
    return data.Dataset(images, {"label": torch.arange(60) % 3}, CLASSES, "unlike")
