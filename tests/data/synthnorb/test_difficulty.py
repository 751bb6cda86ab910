"""Whether the rendered set is a task: neither solved nor out of reach. Run with -s to see the figures."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from torchcaps.data import center_crop, color_jitter, random_crop, render_synthnorb
from torchcaps.data.sets.smallnorb import FAMILIAR
from torchcaps.functional import standardize

EPOCHS, BATCH = 12, 64


def network():
    return nn.Sequential(
        *(nn.Conv2d(1, 32, 5, 2, 2), nn.ReLU()),
        *(nn.Conv2d(32, 64, 3, 2, 1), nn.ReLU()),
        *(nn.Conv2d(64, 64, 3, 2, 1), nn.ReLU(), nn.Flatten()),
        *(nn.Dropout(0.3), nn.Linear(1024, 128), nn.ReLU(), nn.Linear(128, 5)),
    )


def trained(images, seed):
    torch.manual_seed(seed)
    model, generator = network(), torch.Generator().manual_seed(seed)
    steps = len(images) // BATCH
    optimizer = torch.optim.Adam(model.parameters())
    rate = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=EPOCHS * steps)
    for _ in range(EPOCHS):
        for index in torch.randperm(len(images), generator=generator)[: steps * BATCH].split(BATCH):
            batch = color_jitter(
                random_crop(images.float_images(index), 32, generator=generator),
                generator=generator,
            )
            optimizer.zero_grad()
            F.cross_entropy(model(standardize(batch)), images.labels[index]).backward()
            optimizer.step()
            rate.step()
    return model.eval()


@torch.no_grad()
def error(model, images):
    found = model(standardize(center_crop(images.float_images(), 32))).argmax(dim=1)
    return float((found != images.labels).float().mean())


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_small_network_learns_the_views_it_knows_and_not_those_it_does_not():
    azimuths = FAMILIAR["azimuth"]
    model = trained(render_synthnorb("train", azimuths=azimuths), seed=0)
    familiar = error(model, render_synthnorb("test", azimuths=azimuths))
    novel = error(model, render_synthnorb("test", azimuths=range(6, 30, 2), elevations=(1, 5)))
    print(f"familiar {100 * familiar:.1f} %, novel {100 * novel:.1f} %")
    assert 0.04 < familiar < 0.20
    assert familiar + 0.10 < novel < 0.60
