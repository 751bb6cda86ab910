"""Reasons why an implementation cannot take some operands, in words."""

from importlib.util import find_spec

import torch
from torch import Tensor

from torchcaps.functional.fields import ConvField, Field
from torchcaps.functional.votes import ProductVotes, Votes

# Looked for once, without an import: numba alone takes half a second.
HAS_NUMBA = find_spec("numba") is not None
HAS_TRITON = find_spec("triton") is not None
BLOCKED = "blocked over samples: the votes of a batch are never stored"
NO_NUMBA = "numba is not installed (pip install 'torchcaps[fast]')"
FULL_PRECISION = (torch.float32, torch.float64)
HALF_PRECISION = (torch.bfloat16, torch.float16)


def device_mismatch(tensors: dict[str, Tensor | None], device: torch.device) -> str | None:
    """Reason that names the first tensor on another device; None if there is none."""
    expected = "the CPU" if device.type == "cpu" else str(device)
    for name, tensor in tensors.items():
        if tensor is not None and tensor.device != device:
            return f"{name} is on {tensor.device}, not on {expected}"
    return None


def wrong_dtype(name: str, tensor: Tensor, dtypes: tuple[torch.dtype, ...]) -> str | None:
    """Reason for a tensor of another type than these; None if it is one of them."""
    if tensor.dtype in dtypes:
        return None
    supported = ", ".join(dict.fromkeys(map(str, dtypes)))
    return f"{name} is {tensor.dtype}; supported here: {supported}"


def vote_operands(votes: Votes) -> dict[str, Tensor | None]:
    """The tensors that votes are made from, by name."""
    if not isinstance(votes, ProductVotes):
        return {"votes": votes.dense(), "bias": votes.bias}
    return {
        "pose": votes.children.pose,
        "activation": votes.children.activation,
        "weight": votes.weight,
        "shift": votes.shift,
        "bias": votes.bias,
    }


def padded_windows(field: Field) -> ConvField | None:
    """The same windows on the map that `field.pad` makes, where no child is absent.

    None for a field that is no convolution.
    """
    if not isinstance(field, ConvField):
        return None
    height, width = field.padded
    step = field.layout.step
    return ConvField(height, width, field.kernel, step, convention=field.convention)


def competes_apart(field: Field) -> str | None:
    """Reason for a field whose parents compete neither at one position nor in windows."""
    if field.local or padded_windows(field) is not None:
        return None
    return f"parents of {type(field).__name__} compete in a way of their own"


def needs_reference(votes: Votes) -> str | None:
    """Reason why no fast path can take votes: their couplings are fixed, traced or masked."""
    if votes.context.trace is not None:
        return "the couplings of every iteration are asked for"
    if votes.context.fixed is not None:
        return "the couplings are fixed for an ablation"
    if votes.present is not None and votes.field.convention == "patch":
        return "children are masked, and children compete with each other (convention 'patch')"
    return None


def dtype_mismatch(votes: Votes, device: torch.device) -> str | None:
    """Reason for operands on another device, or of other types than full precision."""
    reason = device_mismatch(vote_operands(votes), device)
    if not isinstance(votes, ProductVotes):
        return reason or wrong_dtype("votes", votes.dense(), FULL_PRECISION)
    reason = reason or wrong_dtype("weight", votes.weight, FULL_PRECISION)
    return reason or wrong_dtype("pose", votes.children.pose, (votes.weight.dtype, *HALF_PRECISION))


def not_recomputable(votes: Votes) -> str | None:
    """Reason why blocks of samples cannot be routed in turn, their votes made again."""
    reason = needs_reference(votes)
    if reason is None and not votes.recomputable:
        reason = "the votes are given, not made of poses and matrices"
    if reason is None and isinstance(votes, ProductVotes):
        reason = device_mismatch(vote_operands(votes), votes.children.pose.device)
    return reason or without_numbers(votes)


def without_numbers(votes: Votes) -> str | None:
    """Reason why votes on meta cannot be routed in blocks."""
    return "tensors on meta hold no numbers" if votes.children.pose.is_meta else None
