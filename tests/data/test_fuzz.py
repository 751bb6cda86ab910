"""Damaged sets of every format: a set, or one sentence on one line. Nothing else comes out of the readers."""

import random
import shutil
import warnings

import pytest

from torchcaps.data import ImageSet, load_dataset
from torchcaps.errors import DataError

from .makers import SETS

ROUNDS = 40


def flipped(data, draw):
    for _ in range(draw.choice((1, 1, 3, 10))):
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)


def cut(data, draw):
    del data[draw.randrange(len(data)) :]


def inflated(data, draw):
    """A number near the beginning, where sizes are, becomes a large one."""
    width = draw.choice((1, 2, 4, 8))
    at = draw.randrange(min(len(data), 512))
    value = draw.choice((2 ** (8 * width) - 1, 2 ** (8 * width - 1), 2 ** (4 * width) + 1))
    data[at : at + width] = value.to_bytes(width, draw.choice(("little", "big")))


def repeated(data, draw):
    at = draw.randrange(len(data))
    data[at:at] = data[at : at + draw.randrange(1, 600)] * draw.randrange(1, 4)


def in_digits(data, draw):
    """A digit of a text becomes many."""
    at = next(
        (i for i in range(draw.randrange(len(data)), len(data)) if data[i : i + 1].isdigit()), 0
    )
    data[at : at + 1] = b"9" * draw.choice((5, 30, 5000))


IN_A_PROCESS = ("svhn", "affnist")  # MATLAB files, each read in a process of its own


@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=[pytest.mark.slow] * (kind in IN_A_PROCESS)) for kind in SETS],
)
def test_damage_gives_a_set_or_one_line(tmp_path, kind):
    draw = random.Random(kind)
    (tmp_path / "whole").mkdir()
    whole = SETS[kind](tmp_path / "whole")
    assert isinstance(load_dataset(whole), ImageSet)
    for turn in range(ROUNDS):
        place = tmp_path / str(turn)
        shutil.copytree(tmp_path / "whole", place)
        victim = draw.choice(sorted(file for file in place.rglob("*") if file.is_file()))
        data, harm = (
            bytearray(victim.read_bytes()),
            draw.choice((flipped, cut, inflated, repeated, in_digits)),
        )
        harm(data, draw)
        victim.write_bytes(data)
        check(
            place / whole.relative_to(tmp_path / "whole"),
            f"{harm.__name__} {victim} in round {turn}",
        )
        shutil.rmtree(place)


def check(path, what):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a person sees them once; they are no answer
        try:
            assert isinstance(load_dataset(path, "train"), ImageSet)
        except DataError as error:
            assert len(str(error)) <= 2_000, what
            assert str(error).isprintable(), what
