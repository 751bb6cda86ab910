"""Slots that take overlapping digits apart: the measures by hand, and the network."""

from types import SimpleNamespace

import pytest
import torch

import torchcaps as tc
from claims.measures.separation import INK, adjusted_rand, separation, slots_used
from claims.protocol import load_claim
from claims.slots import Parts, Slots
from torchcaps.data import Batch, load_dataset
from torchcaps.testing import seeded

NAME = "slot_autoencoder"


def index_of(truth, answer, mask=None):
    """Adjusted Rand index of one image; partitions as digits."""
    truth, answer = (torch.tensor([[*map(int, text)]]) for text in (truth, answer))
    mask = torch.ones_like(truth) if mask is None else torch.tensor([[*map(int, mask)]])
    return float(adjusted_rand(truth, answer, mask.bool()))


@pytest.mark.parametrize(
    ("truth", "answer", "expected"),
    [
        ("000111", "001111", 0.324324),
        ("000111", "111000", 1),
        ("000111", "000111", 1),
        ("000111", "222000", 1),
        ("000111", "000000", 0),
        ("0011", "0101", -0.5),
        ("0000", "1111", 1),
        ("0000000000111222", "0000000000112222", 0.914966),
    ],
)
def test_the_adjusted_rand_index_by_hand(truth, answer, expected):
    assert index_of(truth, answer) == pytest.approx(expected, abs=1e-6)


def test_pixels_outside_the_mask_do_not_count():
    assert index_of("0001112", "0011110", mask="1111110") == pytest.approx(0.324324, abs=1e-6)
    assert index_of("00110011", "00111100", mask="11110000") == 1


def test_a_random_assignment_has_an_index_of_zero_on_average():
    generator = seeded()
    truth, answer = torch.randint(3, (2, 500, 200), generator=generator)
    indices = adjusted_rand(truth, answer, torch.ones_like(truth, dtype=torch.bool))
    assert indices.mean().abs() < 0.002
    assert indices.std() < 0.02


def test_slots_that_win_a_percent_of_the_ink_are_used():
    answer = torch.tensor([[0] * 99 + [1] + [2] * 50, [1] * 100 + [2] * 50])
    mask = torch.arange(150).expand(2, 150) < 100
    torch.testing.assert_close(slots_used(answer, mask, 4), torch.tensor([0.5, 0.25]).double())


@pytest.mark.parametrize("swapped", [False, True])
def test_digits_that_are_drawn_alone_are_separated(swapped):
    """Also with the slots in another order; with equal coupling, all digits in one slot."""
    images = load_dataset("multi-digits", "test", img_size=18).subset(torch.arange(60))
    singles = images.maker.singles(images, torch.arange(60)) / 255
    blank = torch.full_like(singles[:, :1], INK - 0.001)  # wins where there is no ink
    drawings = torch.cat([blank, singles.flip(1) if swapped else singles], dim=1)
    model = create()

    def parts(batch):
        drawn = drawings
        if model.layer.router.fixed is not None:
            drawn = torch.zeros_like(drawings)
            drawn[:, 0] = drawings.sum(dim=1)
        return Parts(drawn, drawn.mean(dim=2), batch)

    model.parts = parts
    figures = separation(SimpleNamespace(images=images, model=model, subset=lambda _: images))
    assert figures["ari"] == figures["ari_all"] == figures["explained"] == 1
    assert figures["slots_used"] == pytest.approx(2 / 3)
    assert figures["uniform_slots_used"] == pytest.approx(1 / 3)
    assert figures["uniform_ari"] == 0
    assert 0 < figures["ari_stripes"] < 0.4
    ink = singles.amax(dim=2) >= INK
    shared = ink.all(dim=1).sum() / ink.any(dim=1).sum()
    assert figures["excluded"] == pytest.approx(float(shared))


def create(**options):
    torch.manual_seed(0)
    return tc.create_model(NAME, in_chans=1, img_size=(18, 18), **options).eval()


@pytest.mark.parametrize("merge", ["add", "mixture"])
def test_drawings_are_merged(merge):
    model = create(merge=merge)
    images = torch.rand(2, 1, 18, 18, generator=seeded())
    parts = model.parts(images)
    assert parts.drawings.shape == (2, 3, 1, 18, 18)
    if merge == "add":
        torch.testing.assert_close(parts.image, parts.drawings.sum(dim=1))
        assert torch.equal(parts.shares, parts.drawings[:, :, 0])
    else:
        torch.testing.assert_close(parts.shares.sum(dim=1), torch.ones(2, 18, 18))
        mixed = (parts.shares.unsqueeze(2) * parts.drawings).sum(dim=1)
        torch.testing.assert_close(parts.image, mixed)
    assert torch.equal(model(images), parts.image)
    task = Slots(model)
    batch = Batch(images, {}, torch.arange(2))
    errors = task.eval_step(batch)["error"]
    loss = float(task.training_step(batch, 0.0)["loss"].detach())
    assert 18**2 * float(errors.mean().detach()) == pytest.approx(loss, rel=1e-5)


def test_equal_couplings_give_each_slot_the_same_children():
    images = torch.rand(1, 1, 18, 18, generator=seeded())
    for routing in ("slot_attention", "dynamic"):
        for uniform in (True, False):
            model = create(uniform=uniform, routing=routing)
            with tc.record_routing(model) as record:
                model(images)
            [[trace]] = record.values()
            assert trace.coupling.shape == (1, 81, 3)
            assert trace.coupling.allclose(torch.tensor(1 / 3), atol=1e-6) == uniform


def test_slots_learn_to_draw():
    """Better than the mean picture; drawings that turned black would be worse."""
    generator = seeded()
    model = create(dim=16, width=4)
    model.train()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
    for _ in range(200):
        images = bars(8, generator)
        error = (model(images) - images).square().mean()
        optimizer.zero_grad()
        error.backward()
        optimizer.step()
    images = bars(200, generator)
    variance = images.var(dim=0).mean()
    model.eval()
    assert (model(images) - images).square().mean() < 0.7 * variance


def bars(count, generator):
    """Pictures with a bar at one of four places."""
    images = torch.zeros(count, 1, 18, 18)
    for image, place in zip(images, torch.randint(4, (count,), generator=generator), strict=True):
        image[:, 3:15, 2 + 4 * place : 4 + 4 * place] = 1
    return images


def test_arms_have_their_routers_and_nearly_equal_parameters():
    claim = load_claim("slots-take-apart")
    for arm in claim.arms:
        options = claim.config(arm, 0, "full").model.options
        model = create(**options)
        count = sum(parameter.numel() for parameter in model.parameters())
        is_slots = arm[0] in "RL"
        assert 53_000 < count < 54_000 if is_slots else 38_000 < count < 39_000
        assert (model.merge == "mixture") == arm.endswith("m")
        assert (
            model.layer.router.describe()
            == {
                "R": "slot_attention",
                "L": "slot_attention",
                "I": "inverted_attention",
                "D": "uniform" if arm == "DU" else "dynamic",
            }[arm[0]]
        )
        if arm[1:2].isdigit():
            assert model.layer.router.num_iterations == int(arm[1])
        if is_slots:
            assert model.layer.router.start == ("learned" if arm[0] == "L" else "random")
            assert (model.layer.router.fixed is not None) == ("U" in arm)
