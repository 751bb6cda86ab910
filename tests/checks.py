"""Steps that tests of many packages share."""

import torch


def column(rows, name):
    """The entries of one column of a table whose rows are dictionaries."""
    return [row[name] for row in rows]


def assert_finite(tensors):
    """Every number of every tensor is finite; the tensors are in a dictionary by name."""
    for name, tensor in tensors.items():
        assert tensor.isfinite().all(), f"{name} has a NaN or an infinity"


def assert_equal(actual, expected):
    """Tensors, or lists and dictionaries of tensors, are equal bit for bit."""
    torch.testing.assert_close(actual, expected, rtol=0, atol=0)
