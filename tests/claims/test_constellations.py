"""Constellations: what they are made of, and which networks do not mind a turn."""

import math

import pytest
import torch

import torchcaps as tc
from claims.constellations import TypedVotes
from claims.protocol import load_claim
from claims.sets.constellations import (
    CLASSES,
    FAMILIAR,
    NOVEL,
    NUM_TYPES,
    POSE,
    arrangements,
    draw_constellations,
    draw_parts,
    render_constellations,
    turn_poses,
)
from torchcaps.data import load_dataset
from torchcaps.functional.fields import DenseField
from torchcaps.testing import seeded
from torchcaps.types import Capsules

CAPSULES = "constellation_capsules"
SET_NETWORKS = [
    (CAPSULES, {}, 0),
    (CAPSULES, {"routing": "dynamic", "copies": 3}, 0),
    (CAPSULES, {"routing": "em"}, 0.01),
    ("constellation_transformer", {"width": 15}, 0.01),
    ("constellation_points", {"width": 42}, 0.01),
]


def network(name, options):
    torch.manual_seed(0)
    model = tc.create_model(name, num_classes=5, in_chans=POSE + 1, img_size=(12, 1), **options)
    return model.double().eval()


def sets(count=20, **options):
    return render_constellations("poses", draw_constellations(count, **options)).inputs.double()


@pytest.mark.parametrize(("name", "options", "least_change"), SET_NETWORKS)
def test_lengths_of_votes_stay_in_a_turn_and_nothing_minds_the_order(name, options, least_change):
    model = network(name, options)
    inputs = sets()
    logits = model.logits(inputs)
    order = torch.randperm(12, generator=seeded(1))
    torch.testing.assert_close(model.logits(inputs[:, :, order]), logits)
    turned = model.logits(turn_poses(inputs, torch.full((20,), 2.1).double()))
    change = float((turned - logits).abs().max().detach())
    assert change > least_change if least_change else change < 1e-12


def test_votes_turn_with_the_poses():
    votes = TypedVotes(12, 10).double()
    angles = torch.linspace(0, 6, 20).double()

    def votes_of(inputs):
        pose = inputs.squeeze(3).mT
        children = Capsules(pose, torch.ones_like(pose[..., 0]))
        return votes(children, DenseField()).dense().unflatten(3, (2, 3))

    rotations = torch.stack([angles.cos(), -angles.sin(), angles.sin(), angles.cos()], dim=1)
    expected = rotations.view(20, 1, 1, 2, 2) @ votes_of(sets())
    torch.testing.assert_close(votes_of(turn_poses(sets(), angles)), expected)


def test_parts_of_an_object_agree_and_distractors_do_not():
    """The inverse of a part's place in its object leads from its pose to that of the object."""
    drawn = draw_constellations(200, NOVEL, seed=3)
    frames = torch.from_numpy(arrangements())[:, :, None]
    inverse = torch.linalg.inv(square(frames))[torch.from_numpy(drawn.labels)]
    poses = square(torch.from_numpy(drawn.poses))
    types = torch.from_numpy(drawn.types)
    rows = torch.arange(200)[:, None]
    votes = poses @ inverse[rows, types, 0]
    middle = votes.median(dim=1, keepdim=True).values
    distances = (votes - middle).flatten(2).norm(dim=2)
    best = distances.sort(dim=1).values
    assert best[:, 3].median() < 0.25  # parts: jitter alone
    assert best[:, -1].median() > 1
    for kind in range(NUM_TYPES):
        assert ((types == kind).sum(dim=1) == 2).all()
    assert (abs(drawn.angles) >= 60 - 1e-9).all() and (abs(drawn.angles) <= 180 + 1e-9).all()
    low, high = FAMILIAR
    familiar = abs(draw_constellations(200).angles)
    assert low <= familiar.min() and familiar.max() <= high


def square(poses):
    """[A | t] as 3 × 3 matrices."""
    last = torch.tensor([0.0, 0.0, 1.0]).double().expand(*poses.shape[:-2], 1, 3)
    return torch.cat([poses, last], dim=-2)


def test_a_drawing_turns_with_its_poses():
    drawn = draw_constellations(10, distractors=0)
    poses = torch.from_numpy(drawn.poses)
    types = torch.from_numpy(drawn.types)
    quarter = torch.tensor([[0.0, -1.0], [1.0, 0.0]]).double()
    # With rows downwards a turn from x to y is clockwise on the page.
    turned = draw_parts(quarter @ poses, types).int()
    expected = draw_parts(poses, types).rot90(-1, (2, 3)).int()
    assert (turned - expected).abs().max() <= 1
    assert draw_parts(poses, types).max() > 200


def test_training_sets_are_turned_anew_and_test_sets_are_not():
    turned = load_dataset("constellations-turned", "train")
    assert turned.classes == CLASSES
    assert turned.maker is not None
    assert load_dataset("constellations-turned", "test").maker is None
    indices = torch.arange(50)
    batch = turned.maker.draw(turned, indices, seeded())
    plain = turned.inputs[:50]
    torch.testing.assert_close(batch.inputs[:, POSE], plain[:, POSE])
    # Distances from the middle stay, angles become any.
    for column in ([0, 3], [1, 4], [2, 5]):
        lengths = batch.inputs[:, column].norm(dim=1)
        torch.testing.assert_close(lengths, plain[:, column].norm(dim=1))
    before, after = (torch.atan2(sets[:, 3, 0], sets[:, 0, 0]) for sets in (plain, batch.inputs))
    moves = (after - before).remainder(2 * math.pi)
    assert moves.min() < 1
    assert moves.max() > 5


def test_votes_learn_from_few_and_extrapolate():
    training = load_dataset("constellations", "train").subset(torch.arange(100))
    test = load_dataset("constellations", "test").subset(torch.arange(500))
    accuracies = {}
    for name, options, _ in SET_NETWORKS[:1] + SET_NETWORKS[-1:]:
        model = tc.create_model(name, num_classes=5, in_chans=7, img_size=(12, 1), **options)
        tc.fit(
            model, training, epochs=1, epoch_size=64 * 120, batch_size=64, lr=0.01, shift=0, seed=0
        )
        answers = model(test.inputs).argmax(dim=1)
        accuracies[name] = float((answers == test.labels).float().mean())
    assert accuracies[CAPSULES] > 0.7
    assert accuracies["constellation_points"] < 0.4


def test_arms_have_equal_parameters():
    claim = load_claim("constellations")
    for arm in claim.arms:
        config = claim.config(arm, 0, "full")
        size = (40, 40) if arm.startswith("C") else (12, 1)
        channels = 1 if arm.startswith("C") else 7
        options = config.model.options
        model = tc.create_model(
            config.model.name, num_classes=5, in_chans=channels, img_size=size, **options
        )
        count = sum(parameter.numel() for parameter in model.parameters())
        expected = {"V": 271, "B": 68_101}.get(arm[0])
        assert count == expected if expected else 4_200 < count < 4_500, arm
