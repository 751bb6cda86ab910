import pytest
import torch
from torch import nn

from torchcaps.errors import ArgumentError
from torchcaps.evaluation import bim, fgsm, full_margin_loss, pgd, sign_noise, vote_attack
from torchcaps.functional import margin_loss

from ..stubs import Linear, RoutedPixels, assert_model_is_back

WEIGHT = torch.tensor([1.0, -2.0, 0.5, 3.0])
LABELS = torch.tensor([0, 1, 0, 1, 0])
POSES = torch.rand(4, 1, 6, 4, generator=torch.Generator().manual_seed(0))
POSE_LABELS = torch.tensor([0, 1, 2, 0])


@pytest.fixture
def images():
    return torch.rand(5, 1, 2, 2) * 0.5 + 0.25


def optimum(images, eps):
    """The images within eps that a linear model likes least."""
    side = torch.where(LABELS == 0, -1.0, 1.0).view(-1, 1, 1, 1)
    return (images + side * eps * WEIGHT.sign().view(2, 2)).clamp(0, 1)


@pytest.mark.parametrize("attack", [fgsm, bim, pgd])
@pytest.mark.parametrize("loss", [full_margin_loss, nn.functional.cross_entropy])
@pytest.mark.parametrize("eps", [0.2, 0.6])
def test_on_a_linear_model_attacks_reach_the_optimum(attack, loss, eps, images):
    changed = attack(Linear(WEIGHT), images, LABELS, eps, loss=loss)
    assert torch.allclose(changed, optimum(images, eps), atol=1e-6)


@pytest.mark.parametrize("attack", [fgsm, bim, pgd])
@pytest.mark.parametrize("eps", [0.0, 0.03, 0.4])
def test_no_attack_leaves_the_ball_or_the_range(attack, eps):
    images = POSES.clone()
    images[0] = 0
    images[1] = 1
    before = images.clone()
    model = RoutedPixels(6, 3).train()
    options = {} if attack is fgsm else {"steps": 5}
    changed = attack(model, images, POSE_LABELS, eps, **options)
    assert (changed - images).abs().max() <= eps + 1e-6
    assert changed.min() >= 0
    assert changed.max() <= 1
    assert not changed.requires_grad
    assert torch.equal(images, before)
    assert_model_is_back(model)


def test_pgd_starts_at_random_and_the_same_for_a_seed(images):
    model = Linear(torch.zeros(4))  # no gradient: images stay where they start
    first = pgd(model, images, LABELS, 0.1, seed=3)
    assert torch.equal(first, pgd(model, images, LABELS, 0.1, seed=3))
    assert not torch.equal(first, pgd(model, images, LABELS, 0.1, seed=4))
    assert 0.05 < (first - images).abs().max() <= 0.1


def test_the_loss_of_training_is_blind_where_the_loss_of_attacks_is_not(images):
    labels = torch.zeros(5, dtype=torch.int64)  # surely class 0
    certain = Linear(20 * WEIGHT.abs())
    assert torch.equal(fgsm(certain, images, labels, 0.1, loss=margin_loss), images)
    assert not torch.equal(fgsm(Linear(2 * WEIGHT.abs()), images, labels, 0.1), images)


def test_noise_is_as_large_as_it_says():
    images = torch.full((3, 1, 4, 4), 0.5)
    change = sign_noise(images, 0.25) - images
    assert sorted(change.unique().tolist()) == [-0.25, 0.25]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"eps": 1.5}, "eps: expected between 0 and 1, got 1.5"),
        ({"steps": 0}, "steps: expected at least 1, got 0"),
        ({"labels": LABELS + 1}, "labels: expected between 0 and 1, got 2"),
        ({"images": torch.full((5, 1, 2, 2), 255.0)}, "images: expected between 0 and 1, got 255"),
        ({"loss": lambda a, _: a.detach().sum()}, "loss: expected a value with a gradient"),
    ],
)
def test_arguments_that_do_not_fit(options, message, images):
    arguments = {"images": images, "labels": LABELS, "eps": 0.1} | options
    with pytest.raises(ArgumentError, match=message):
        pgd(Linear(WEIGHT), **arguments)


def test_the_vote_attack_goes_by_the_model_without_routing():
    model = RoutedPixels(6, 3, iterations=3)
    nn.init.normal_(model.layers[0].weight, std=2.0)
    twin = RoutedPixels(6, 3, iterations=1)
    twin.load_state_dict(model.state_dict())
    arguments = (POSES, POSE_LABELS, 0.1)
    changed = vote_attack(model, *arguments, steps=3)
    assert torch.equal(changed, pgd(twin, *arguments, steps=3))
    assert not torch.equal(changed, pgd(model, *arguments, steps=3))
    assert model.layers[0].router.iterations == 3
    with pytest.raises(
        ArgumentError, match="expected a capsule network with routed layers, got Linear"
    ):
        vote_attack(Linear(WEIGHT), *arguments)
