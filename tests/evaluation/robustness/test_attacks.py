from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from torchcaps.evaluation import bim, fgsm, full_margin_loss, pgd, sign_noise, vote_attack
from torchcaps.functional import margin_loss

from ..stubs import Linear, RoutedPixels

WEIGHT = torch.tensor([1.0, -2.0, 0.5, 3.0])


@pytest.fixture
def images() -> Tensor:
    return torch.rand(5, 1, 2, 2) * 0.5 + 0.25


LABELS = torch.tensor([0, 1, 0, 1, 0])


def worst(images: Tensor, eps: float) -> Tensor:
    """The point of the eps-ball where a linear model likes the true class least."""
    side = torch.where(LABELS == 0, -1.0, 1.0).view(-1, 1, 1, 1)
    return images + side * eps * WEIGHT.sign().view(2, 2)


@pytest.mark.parametrize("attack", [fgsm, bim, pgd])
@pytest.mark.parametrize("loss", [full_margin_loss, nn.functional.cross_entropy])
def test_on_a_linear_model_attacks_find_the_optimum(attack, loss, images: Tensor) -> None:
    found = attack(Linear(WEIGHT), images, LABELS, 0.2, loss=loss)
    assert torch.allclose(found, worst(images, 0.2), atol=1e-6)


def test_the_optimum_in_the_corner_is_clipped(images: Tensor) -> None:
    assert torch.allclose(
        fgsm(Linear(WEIGHT), images, LABELS, 0.6), worst(images, 0.6).clamp(0, 1), atol=1e-6
    )


@pytest.mark.parametrize("attack", [fgsm, bim, pgd])
@pytest.mark.parametrize("eps", [0.0, 0.03, 0.4])
def test_no_attack_leaves_the_ball_or_the_range(attack, eps: float) -> None:
    images, labels = torch.rand(4, 1, 6, 4), torch.tensor([0, 1, 2, 0])
    images[0] = 0
    images[1] = 1
    options = {} if attack is fgsm else {"steps": 5, "step_size": 0.15}
    before = images.clone()
    found = attack(RoutedPixels(6, 3), images, labels, eps, **options)
    assert (found - images).abs().max() <= eps + 1e-6
    assert found.min() >= 0
    assert found.max() <= 1
    assert torch.equal(images, before)
    assert not found.requires_grad


def test_pgd_starts_at_random_and_the_same_for_a_seed(images: Tensor) -> None:
    model = Linear(torch.zeros(4))  # no gradient: images stay where they start
    first, again = (pgd(model, images, LABELS, 0.1, seed=3, batch_size=size) for size in (5, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, pgd(model, images, LABELS, 0.1, seed=4))
    assert 0.05 < (first - images).abs().max() <= 0.1


def test_restarts_keep_what_fooled_the_model() -> None:
    # Flat everywhere: only the start decides, and it must cross 0.5.
    class Step(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            over = (images.flatten(1).mean(dim=1) > 0.5).float() + 0 * images.sum()
            return torch.stack([1 - over, over], dim=1)

    images, labels = torch.full((40, 1, 1, 1), 0.45), torch.zeros(40, dtype=torch.int64)
    once, often = (
        Step()(pgd(Step(), images, labels, 0.1, steps=1, restarts=r))[:, 1].sum() for r in (1, 8)
    )
    assert 0 < once < often


def test_the_loss_of_training_is_blind_where_the_loss_of_attacks_is_not(images: Tensor) -> None:
    model, labels = Linear(20 * WEIGHT.abs()), torch.zeros(5, dtype=torch.int64)  # surely class 0
    assert torch.equal(fgsm(model, images, labels, 0.1, loss=margin_loss), images)
    sure = Linear(2 * WEIGHT.abs())
    assert not torch.equal(fgsm(sure, images, labels, 0.1), images)


def test_noise_is_as_large_as_it_says() -> None:
    images = torch.full((3, 1, 4, 4), 0.5)
    noisy = sign_noise(images, 0.25, seed=1)
    assert torch.equal((noisy - images).abs(), torch.full_like(images, 0.25))
    assert (noisy > images).any()
    assert (noisy < images).any()


def test_mode_and_gradients_stay() -> None:
    model = RoutedPixels(6, 3).train()
    pgd(model, torch.rand(2, 1, 6, 4), torch.tensor([0, 1]), 0.1)
    assert model.training
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"eps": 1.5}, "eps: expected between 0 and 1, got 1.5"),
        ({"steps": 0}, "steps: expected at least 1, got 0"),
        ({"step_size": 0.0}, "step_size: expected above 0, got 0.0"),
        ({"restarts": 0}, "restarts: expected at least 1, got 0"),
        ({"labels": LABELS + 1}, "labels: expected class indices from 0 to 1, got 2"),
        (
            {"images": torch.full((5, 1, 2, 2), 255.0)},
            r"images: expected pixels in \[0, 1\], got values from 255",
        ),
        ({"loss": lambda a, _: a.detach().sum()}, "loss: expected a value with a gradient"),
    ],
)
def test_arguments_that_do_not_fit(options, message: str, images: Tensor) -> None:
    given = {"images": images, "labels": LABELS, "eps": 0.1} | options
    with pytest.raises(ValueError, match=message):
        pgd(Linear(WEIGHT), **given)


def test_the_vote_attack_goes_by_the_model_without_routing() -> None:
    model, images, labels = (
        RoutedPixels(6, 3, iterations=3),
        torch.rand(4, 1, 6, 4),
        torch.tensor([0, 1, 2, 0]),
    )
    nn.init.normal_(model.layers[0].weight, std=2.0)
    twin = RoutedPixels(6, 3, iterations=1)
    twin.load_state_dict(model.state_dict())
    found = vote_attack(model, images, labels, 0.1, steps=3)
    assert torch.equal(found, pgd(twin, images, labels, 0.1, steps=3))
    assert not torch.equal(found, pgd(model, images, labels, 0.1, steps=3))
    assert model.layers[0].router.iterations == 3
    with pytest.raises(
        ValueError, match="expected a capsule network with routed layers, got Linear"
    ):
        vote_attack(Linear(WEIGHT), images, labels, 0.1)
