"""Overlapping digits of pairs that are never trained: what is drawn, and how it is measured."""

import pytest
import torch

import torchcaps as tc
from claims.measures.unseen_pairs import explain
from claims.protocol import load_claim
from claims.sets.unseen_pairs import (
    COUNTS,
    KINDS,
    NUM_CLASSES,
    are_neighbors,
    draw_overlaps,
    list_classes,
)
from claims.summed_drawings import SummedDrawings
from torchcaps.data import Batch, load_dataset
from torchcaps.testing import seeded
from torchcaps.types import Capsules

NAME = "unseen-pairs-digits"


def count_neighbors(labels):
    return int(are_neighbors(*labels.unbind(1)).sum())


def test_each_pair_is_trained_or_not_and_each_digit_alike_often():
    trained, unseen, triples = ({*list_classes(kind)} for kind in KINDS)
    assert (len(trained), len(unseen), len(triples)) == (35, 10, 50)
    assert not trained & unseen
    for sorts, uses in ((trained, 7), (unseen, 2), (triples, 15)):
        for digit in range(NUM_CLASSES):
            assert sum(digit in classes for classes in sorts) == uses
    for a, b, c in triples:
        assert {(a, b), (a, c), (b, c)} <= trained


def test_neighbors_are_never_drawn_in_training():
    training = load_dataset(NAME, "train")
    assert len(training) == COUNTS["digits"][0]
    parts = [training, *training.train_val_split(500, seed=3), training.to("cpu")]
    for part in parts:
        assert count_neighbors(part.targets["single_label"]) == 0
        generator = seeded()
        batch = part.maker.draw(part, torch.arange(len(part)), generator)
        labels = batch.targets["single_label"]
        assert count_neighbors(labels) == 0
        assert (labels[:, 0] != labels[:, 1]).all()
    # Each of the other digits is a partner, of each image of a class alike often.
    indices = torch.zeros(7000, dtype=torch.int64)
    labels = training.maker.draw(training, indices, generator).targets["single_label"]
    counts = labels[:, 1].bincount(minlength=NUM_CLASSES)
    first = int(labels[0, 0])
    near = {(first + step) % NUM_CLASSES for step in (-1, 0, 1)}
    for digit in range(NUM_CLASSES):
        assert (counts[digit] == 0) if digit in near else (850 < counts[digit] < 1150)
    sources = [len(part.maker.source) for part in parts]
    assert sources[1] + sources[2] == sources[0]  # no digit is on both sides


@pytest.mark.parametrize("kind", KINDS)
def test_test_images_have_their_digits_and_share_none(kind):
    source = load_dataset("digits", "test")
    images, singles, chosen = draw_overlaps(source, kind)
    labels = images.targets["single_label"]
    assert len(chosen.unique()) == chosen.numel()
    assert torch.equal(source.labels[chosen], labels)
    sorts, counts = labels.unique(dim=0, return_counts=True)
    assert [tuple(sort) for sort in sorts.tolist()] == list_classes(kind)
    assert len(counts.unique()) == 1
    assert (images.labels.sum(dim=1) == labels.shape[1]).all()
    assert images.labels.gather(1, labels).all()
    expected = singles.float().sum(dim=1).clamp(max=255)
    assert torch.equal(images.images.float(), expected)
    # The ink of a digit is that of its source: nothing is cut off.
    ink = source.images[chosen].float().sum(dim=(2, 3, 4))
    assert torch.equal(singles.float().sum(dim=(2, 3, 4)), ink)


def test_the_test_set_has_the_other_pairs():
    test = load_dataset(NAME, "test")
    assert len(test) == COUNTS["digits"][1] == count_neighbors(test.targets["single_label"])
    assert test.maker is None


def test_drawings_that_add_up_to_a_picture_explain_it():
    images, singles, _ = draw_overlaps(load_dataset("digits", "test"), "triples")
    labels = images.targets["single_label"]
    drawings = torch.rand(len(images), NUM_CLASSES, *images.images.shape[1:])
    drawings[torch.arange(len(images))[:, None], labels] = singles / 255
    answers = explain(drawings, images.float_images(), 3)
    assert torch.equal(answers, images.labels.bool())
    blank = explain(torch.zeros_like(drawings), images.float_images(), 3)
    assert (blank == (torch.arange(NUM_CLASSES) < 3)).all()


def test_summed_drawings_are_compared_with_the_picture():
    model = tc.create_model("cnn_decoder", img_size=(36, 36), channels=(2, 2), decoder=(2, 2))
    task = SummedDrawings(model)
    drawings = torch.tensor([0.25, 0.5, 0.75])
    model.reconstruct = lambda _capsules, column: drawings[column].view(-1, 1, 1, 1)
    labels = torch.tensor([[0, 1], [1, 2], [1, 2]])
    capsules = Capsules(torch.zeros(3, 10, 16), torch.zeros(3, 10))

    def error(*pictures):
        inputs = torch.tensor(pictures).view(-1, 1, 1, 1)
        batch = Batch(inputs, {"single_label": labels}, torch.arange(3))
        return float(task._reconstruction_error(capsules, batch))

    assert error(0.75, 1.0, 1.0) == 0  # 1.25 is as bright as 1
    assert error(0.25, 1.0, 0.5) == pytest.approx((0.5**2 + 0.75**2) / 3)


def test_arms_have_equal_parameters():
    claim = load_claim("unseen-pairs")
    counts = []
    for arm in claim.arms:
        model = claim.config(arm, 0, "full").model
        with torch.device("meta"):
            network = tc.create_model(model.name, img_size=(36, 36), **model.options)
        counts.append(sum(parameter.numel() for parameter in network.parameters()))
    assert max(counts) < 1.01 * min(counts)
