"""Why an implementation cannot take some operands, in words."""

from importlib.util import find_spec

import torch
from torch import Tensor

from torchcaps.functional.fields import ConvField, Field
from torchcaps.functional.votes import ProductVotes, Votes
from torchcaps.kernels.registry import Support

# Looked for once, without importing them: numba alone takes half a second.
HAS_NUMBA, HAS_TRITON = (find_spec(name) is not None for name in ("numba", "triton"))
NO_NUMBA = "numba is not installed (pip install 'torchcaps[fast]')"
FULL = (torch.float32, torch.float64)
HALF = (torch.bfloat16, torch.float16)


def device_mismatch(tensors: dict[str, Tensor | None], device: torch.device) -> str | None:
    """The first tensor that is not on that device."""
    for name, tensor in tensors.items():
        if tensor is not None and tensor.device != device:
            return f"{name} is on {tensor.device}, not on {'the CPU' if device.type == 'cpu' else device}"
    return None


def wrong_dtype(name: str, tensor: Tensor, types: tuple[torch.dtype, ...]) -> str | None:
    """Why a tensor of another type than these cannot be taken."""
    if tensor.dtype in types:
        return None
    return f"{name} is {tensor.dtype}; supported here: {', '.join(dict.fromkeys(str(t) for t in types))}"


def vote_operands(votes: Votes) -> dict[str, Tensor | None]:
    """The tensors that votes are made from, by name."""
    if not isinstance(votes, ProductVotes):
        return {"votes": votes.dense(), "bias": votes.bias}
    pose, activation = votes.children
    return {
        "pose": pose,
        "activation": activation,
        "weight": votes.weight,
        "shift": votes.shift,
        "bias": votes.bias,
    }


def padded_windows(field: Field) -> ConvField | None:
    """The same windows on the map that `field.pad` makes, where no child is absent; None for another field."""
    if not isinstance(field, ConvField):
        return None
    return ConvField(*field.padded, field.kernel, field.layout.step, convention=field.convention)


def needs_reference(votes: Votes) -> str | None:
    """Why no fast path can take votes whose couplings are fixed or traced."""
    if votes.context.trace is not None:
        return "the couplings of every iteration are asked for"
    if votes.context.fixed is not None:
        return "the couplings are fixed for an ablation"
    return None


def dtype_mismatch(
    votes: Votes, types: tuple[torch.dtype, ...], device: torch.device
) -> str | None:
    """Why the tensors that votes are made from cannot be taken: another device, or other types than these."""
    reason, pose = device_mismatch(vote_operands(votes), device), votes.children.pose
    if not isinstance(votes, ProductVotes):
        return reason or wrong_dtype("votes", votes.dense(), types)
    return (
        reason
        or wrong_dtype("weight", votes.weight, types)
        or wrong_dtype("pose", pose, (votes.weight.dtype, *HALF))
    )


def recomputable(votes: Votes) -> Support:
    """Whether blocks of samples can be routed one after the other, and their votes made once more for the gradient."""
    device = votes.children.pose.device
    reason = needs_reference(votes)
    if reason is None and not votes.recomputable:
        reason = "the votes are given, not made of poses and matrices"
    if reason is None and isinstance(votes, ProductVotes):
        reason = device_mismatch(vote_operands(votes), device)
    return in_blocks(votes, reason)


def in_blocks(votes: Votes, reason: str | None) -> Support:
    """That votes are routed in blocks of samples, unless a reason speaks against it, or they hold no numbers."""
    if reason is None and votes.children.pose.is_meta:
        reason = "tensors on meta hold no numbers"
    return Support(
        reason is None, reason or "blocked over samples: the votes of a batch are never stored"
    )
