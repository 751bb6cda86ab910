"""Errors name their argument, and survive a process boundary."""

from __future__ import annotations

import pickle

import pytest

from torchcaps.errors import (
    ArgumentError,
    UnknownNameError,
    check_known,
    check_positive,
    check_range,
    check_shape,
)


@pytest.mark.parametrize(
    ("check", "argument"),
    [
        (lambda: check_range("lr", 2, high=1), "lr"),
        (lambda: check_positive(count=0), "count"),
        (lambda: check_known("model", "capsnt", ["capsnet"]), "model"),
        (lambda: check_shape("votes", pytest.importorskip("torch").ones(2), ("a", "b")), "votes"),
    ],
)
def test_a_check_names_its_argument(check, argument):
    with pytest.raises(ArgumentError) as raised:
        check()
    assert raised.value.argument == argument


def test_errors_are_pickled():
    error = pickle.loads(pickle.dumps(ArgumentError("lr", "expected a number, got 'a'")))
    assert (type(error), error.argument) == (ArgumentError, "lr")
    assert str(error) == "lr: expected a number, got 'a'"
    unknown = UnknownNameError("model", "capsnt", ["capsnet"], note="a plug-in failed")
    assert str(pickle.loads(pickle.dumps(unknown))) == str(unknown)
    assert "did you mean 'capsnet'? (a plug-in failed)" in str(unknown)
