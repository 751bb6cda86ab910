"""Classes of very different numbers of images: 1,000, 60 and 8."""

import pytest
import torch
from torch import nn

from torchcaps import fit
from torchcaps.data import Dataset
from torchcaps.settings import TrainConfig
from torchcaps.tasks import create_task
from training.makers import Watch

SIZES = (1000, 60, 8)
NAMES = ("cat", "dog", "owl")
KEEP = {"shift": 0, "batch_size": 1068, "lr": 1e-9}  # one step an epoch, which changes nothing

LARGE_ONLY = [[3, 0, 0], [3, 1, 0], [3, 2, 0], [3, 0, 2]]
ALL_BUT_DARK_CATS = [[9, 0, 0], [0, 9, 0], [0, 9, 0], [0, 0, 9]]


class Table(nn.Module):
    """Logits by the one pixel of an image, from 0 to 3."""

    def __init__(self):
        super().__init__()
        self.logits = nn.Parameter(torch.tensor(LARGE_ONLY).float())

    def forward(self, images):
        return self.logits[(255 * images).round().long().flatten()]


def set_of(sizes=SIZES):
    """Images of one pixel: 0 or 1 (every fifth) of cats, 2 of dogs, 3 of owls."""
    labels = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    pixels = labels + 1
    pixels[labels == 0] = (torch.arange(sizes[0]) % 5 == 0).long()
    return Dataset(
        pixels.to(torch.uint8).view(-1, 1, 1, 1), {"label": labels}, NAMES[: len(sizes)], "animals"
    )


def fit_table(*tables, **settings):
    """Train with these tables of logits after the first, second, ... epoch; rows and messages."""
    steps = iter(tables)

    def set_table(trainer, _):
        with torch.no_grad():
            trainer.model.logits.copy_(torch.tensor(next(steps)).float())

    settings = KEEP | {"epochs": len(tables)} | settings
    watch = Watch(set_table)
    model, rows = fit(Table(), set_of(), callbacks=[watch], **settings)
    return model, rows, watch.messages


def test_the_epoch_is_chosen_by_balanced_accuracy_and_a_message_says_so():
    model, rows, messages = fit_table(ALL_BUT_DARK_CATS, LARGE_ONLY)
    assert [row["score"] for row in rows] == ["balanced_accuracy"] * 2
    assert rows[0]["val_accuracy"] < rows[1]["val_accuracy"] == pytest.approx(100 / 107)
    assert rows[1]["val_balanced_accuracy"] == pytest.approx(1 / 3)
    assert rows[0]["val_balanced_accuracy"] > 0.9
    assert [row["best"] for row in rows] == [True, False]
    assert model.logits.tolist() == ALL_BUT_DARK_CATS
    [message] = [text for text in messages if "balanced accuracy" in text]
    assert "from 7 (owl) to 900 (cat) images" in message


@pytest.mark.parametrize(
    ("sizes", "score"),
    [((30, 10, 12), "accuracy"), ((31, 10, 12), "balanced_accuracy"), ((30, 0, 12), "accuracy")],
)
def test_up_to_three_times_as_many_images_the_score_is_accuracy(sizes, score):
    task = create_task(Table(), TrainConfig(), set_of(sizes))
    assert task.score == score
    assert bool(task.score_reason) == (score != "accuracy")


def test_classes_that_are_never_predicted_are_named_in_the_second_half_of_a_training():
    _, rows, _ = fit_table(LARGE_ONLY, LARGE_ONLY, LARGE_ONLY, ALL_BUT_DARK_CATS)
    warnings = [row["warnings"] for row in rows]
    assert warnings[:2] == [[], []]
    assert len(warnings[2]) == 1
    assert warnings[2][0].startswith("no held-out image was taken for: dog, owl; ")
    assert warnings[3] == []
