"""Errors name their argument, and survive a process boundary."""

import pickle

import pytest
import torch

from torchcaps.errors import (
    ArgumentError,
    UnknownNameError,
    check_known,
    check_positive,
    check_range,
    check_shape,
    one_line,
)


@pytest.mark.parametrize(
    ("check", "message"),
    [
        (lambda: check_range("lr", 2, high=1), "lr: expected at most 1, got 2"),
        (lambda: check_range("lr", float("nan"), 0, 1), "lr: expected between 0 and 1, got nan"),
        (lambda: check_positive(count=0), "count: expected at least 1, got 0"),
        (lambda: check_known("model", "capsnt", ["capsnet"]), "did you mean 'capsnet'?"),
        (
            lambda: check_shape("votes", torch.ones(2, 3), ("a", "b"), b=4),
            "votes: expected [a, b=4], got [a=2, b=3]",
        ),
    ],
)
def test_a_check_names_its_argument(check, message):
    with pytest.raises(ArgumentError) as error:
        check()
    assert message in str(error.value)
    assert error.value.argument in ("lr", "count", "model", "votes")


def test_a_message_is_one_printable_line():
    assert one_line("a\n\n b\x00\u202e\udcff ß") == "a b\\x00\\u202e\\udcff ß"
    assert len(one_line("long " * 1000)) <= 800


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("capsnte", "did you mean 'capsnet'?"),
        ("cnn", "did you mean 'cnn_baseline' or 'cnn_matched'?"),
        ("zzzz", f"known: {', '.join(f'a{number:02}' for number in range(30))}, and 13 more"),
    ],
)
def test_an_unknown_name_is_answered_with_what_may_be_meant(name, hint):
    known = ["capsnet", "cnn_baseline", "cnn_matched", *(f"a{number:02}" for number in range(40))]
    assert str(UnknownNameError("model", name, known)) == f"unknown model {name!r}; {hint}"


def test_errors_are_pickled():
    error = ArgumentError("lr", "expected a number, got 'a'")
    copied = pickle.loads(pickle.dumps(error))
    assert (type(copied), copied.argument) == (ArgumentError, "lr")
    assert str(copied) == str(error) == "lr: expected a number, got 'a'"
    unknown = UnknownNameError("model", "capsnt", ["capsnet"], note="a plug-in failed")
    assert str(pickle.loads(pickle.dumps(unknown))) == str(unknown)
    assert "did you mean 'capsnet'? (a plug-in failed)" in str(unknown)
