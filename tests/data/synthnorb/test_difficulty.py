"""Whether the rendered set is a task: neither solved nor out of reach.

Run with -s to see the errors.
"""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from torchcaps.data import center_crop, random_crop, render_synthnorb
from torchcaps.data.augment.changes import ColorJitterSettings, color_jitter
from torchcaps.data.sets.smallnorb import FAMILIAR
from torchcaps.functional import standardize

EPOCHS = 12
BATCH_SIZE = 64


def make_network():
    return nn.Sequential(
        nn.Conv2d(1, 32, 5, 2, 2),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, 2, 1),
        nn.ReLU(),
        nn.Conv2d(64, 64, 3, 2, 1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dropout(0.3),
        nn.Linear(1024, 128),
        nn.ReLU(),
        nn.Linear(128, 5),
    )


def train(images):
    torch.manual_seed(0)
    model = make_network()
    generator = torch.Generator().manual_seed(0)
    num_steps = len(images) // BATCH_SIZE
    optimizer = torch.optim.Adam(model.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=EPOCHS * num_steps)
    for _ in range(EPOCHS):
        order = torch.randperm(len(images), generator=generator)
        for index in order[: num_steps * BATCH_SIZE].split(BATCH_SIZE):
            batch = random_crop(images.float_images(index), 32, generator=generator)
            batch = color_jitter(batch, ColorJitterSettings(True), generator)
            loss = F.cross_entropy(model(standardize(batch)), images.labels[index])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    return model.eval()


@torch.no_grad()
def error_rate(model, images):
    pixels = center_crop(images.float_images(), 32)
    predictions = model(standardize(pixels)).argmax(dim=1)
    return float((predictions != images.labels).float().mean())


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_small_network_learns_the_views_it_knows_and_not_those_it_does_not():
    azimuths = FAMILIAR["azimuth"]
    model = train(render_synthnorb("train", azimuths=azimuths))
    familiar_views = render_synthnorb("test", azimuths=azimuths)
    novel_views = render_synthnorb("test", azimuths=range(6, 30, 2), elevations=(1, 5))
    familiar = error_rate(model, familiar_views)
    novel = error_rate(model, novel_views)
    print(f"familiar {100 * familiar:.1f} %, novel {100 * novel:.1f} %")
    assert 0.04 < familiar < 0.20
    assert familiar + 0.10 < novel < 0.60
