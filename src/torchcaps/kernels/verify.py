"""A fast path that no test can run everywhere is compared with its reference where it first runs.

GPUs and compilers differ, so a kernel may be wrong on one machine alone, or not compile there. The
first time that it would run on a device at the sizes of a layer, its values and gradients on random
numbers are compared with those of the reference. What is right is remembered on disk by device,
versions, source and sizes; what is wrong for as long as the process runs.
"""

import hashlib
import inspect
import json
import math
import warnings
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchcaps.functional.votes import ProductVotes, Votes
from torchcaps.kernels.registry import FastPath
from torchcaps.types import Capsules, Routed

FOLDER = Path.home() / ".cache" / "torchcaps" / "kernels"
MAX_SAMPLES = 8
MAX_NUMBERS = 1 << 26  # of the votes that the reference stores
# Largest error relative to the norm of the reference, by the type that products are made in. The
# kernels' own errors are a tenth of it and less.
LIMITS = {"float32": 1e-4, "tf32": 1e-2, "bfloat16": 3e-2}
SEED = 0

# Why a fast path must not run, by its problem; empty where it was right.
_verdicts: dict[str, str] = {}


def fault_of(operation: str, path: FastPath, votes: Votes, options: Mapping[str, Any]) -> str:
    """Why a fast path must not run on such votes; empty where it gives what the reference gives.

    The first time for such votes it is tried, and a warning says if it must not run.

    Args:
        operation: name of the operation.
        path: with a reference.
        votes: what it would run on. Votes on a CPU, or that are traced, are not looked at.
        options: further arguments of the operation.
    """
    if path.reference is None or not isinstance(votes, ProductVotes) or not _can_try(votes):
        return ""
    problem = _describe(operation, path, votes, options)
    key = hashlib.sha256(json.dumps(problem, sort_keys=True).encode()).hexdigest()[:32]
    if key not in _verdicts:
        file = FOLDER / f"{key}.json"
        fault = "" if file.exists() else _try(path, path.reference, votes, options)
        _verdicts[key] = fault
        if fault:
            warnings.warn(
                f"{operation}: the implementation {path.impl!r} is not used, {fault}", stacklevel=2
            )
        else:
            _remember(file, problem)
    return _verdicts[key]


def forget() -> None:
    """Forget what this process found; what was right stays on disk."""
    _verdicts.clear()


def _can_try(votes: ProductVotes) -> bool:
    """Whether votes are numbers on a device, and no operation is being recorded."""
    weight = votes.weight
    if weight.device.type == "cpu" or torch.compiler.is_compiling():
        return False
    if type(weight) not in (Tensor, torch.nn.Parameter):  # such as fake tensors
        return False
    return not (weight.is_cuda and torch.cuda.is_current_stream_capturing())


def _describe(
    operation: str, path: FastPath, votes: ProductVotes, options: Mapping[str, Any]
) -> dict[str, Any]:
    """What the outcome of a trial depends on, ready for JSON."""
    return {
        "operation": operation,
        "impl": path.impl,
        "source": _source_digest(path.run),
        "device": _device_name(votes.weight.device),
        "torch": torch.__version__,
        "triton": _package_version("triton"),
        "weight": [*votes.weight.shape],
        "pose": [*votes.children.pose.shape[1:]],
        "field": f"{votes.field!r} {votes.field.positions}",
        "types": [str(votes.weight.dtype), str(votes.children.pose.dtype)],
        "products": product_type(votes),
        "bias": votes.bias is not None,
        "options": {name: str(option) for name, option in options.items()},
    }


@cache
def _source_digest(run: Callable[..., Any]) -> str:
    """A digest of the files beside the one that a function is written in."""
    digest = hashlib.sha256()
    for file in sorted(Path(inspect.getfile(run)).parent.glob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()


@cache
def _device_name(device: torch.device) -> str:
    if device.type != "cuda":
        return str(device)
    properties = torch.cuda.get_device_properties(device)
    return f"{properties.name} {properties.major}.{properties.minor}"


@cache
def _package_version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def product_type(votes: ProductVotes) -> str:
    """In what type products of matrices are made, a key of `LIMITS`."""
    types = (votes.autocast_dtype, votes.weight.dtype, votes.children.pose.dtype)
    if torch.bfloat16 in types:
        return "bfloat16"
    is_tf32 = torch.backends.cuda.matmul.fp32_precision == "tf32"
    return "tf32" if is_tf32 or torch.float16 in types else "float32"


def _try(
    path: FastPath,
    reference: Callable[..., Routed],
    votes: ProductVotes,
    options: Mapping[str, Any],
) -> str:
    """Why a fast path is wrong or does not run; empty where it is right."""
    try:
        errors = relative_errors(path.run, reference, votes, options)
    except Exception as failure:  # a compiler may raise anything
        lines = str(failure).strip().splitlines() or [""]
        return f"because it failed when it was tried ({type(failure).__name__}: {lines[0]})"
    limit = LIMITS[product_type(votes)]
    for name, error in errors.items():
        if not error <= limit:  # nor NaN
            return (
                f"because its {name} differs from the reference by {error:.2g} of its norm, and "
                f"at most {limit:g} is rounding"
            )
    return ""


def relative_errors(
    run: Callable[..., Routed],
    reference: Callable[..., Routed],
    votes: ProductVotes,
    options: Mapping[str, Any],
) -> dict[str, float]:
    """Errors of values and gradients on random numbers, relative to the norms of the reference's."""
    with torch.inference_mode(False), torch.enable_grad():
        operands = _random_operands(votes)
        truth = _outcome(reference, votes, options, operands, None)
        outcome = _outcome(run, votes, options, operands, votes.autocast_dtype)
        errors = {}
        for name, expected in truth.items():
            difference = outcome[name].float() - expected
            scale = expected.norm().clamp(min=torch.finfo(torch.float32).tiny)
            errors[name] = (difference.norm() / scale).item()
        return errors


def _random_operands(votes: ProductVotes) -> dict[str, Tensor]:
    """Poses, matrices and bias of the shapes of these votes, with votes of length about 1."""
    generator = torch.Generator().manual_seed(SEED)
    pose_shape = votes.children.pose.shape
    numbers = math.prod(votes.field.positions) * votes.count * votes.parents * votes.dim
    num_samples = max(1, min(MAX_SAMPLES, pose_shape[0], MAX_NUMBERS // max(1, numbers)))
    operands = {
        "pose": torch.randn(num_samples, *pose_shape[1:], generator=generator),
        "weight": torch.randn(votes.weight.shape, generator=generator) / pose_shape[-1] ** 0.5,
    }
    types = {"pose": votes.children.pose.dtype, "weight": votes.weight.dtype}
    if votes.bias is not None:
        operands["bias"] = 0.1 * torch.randn(votes.bias.shape, generator=generator)
        types["bias"] = votes.bias.dtype
    device = votes.weight.device
    return {name: x.to(device, types[name]) for name, x in operands.items()}


def _outcome(
    route: Callable[..., Routed],
    votes: ProductVotes,
    options: Mapping[str, Any],
    operands: Mapping[str, Tensor],
    autocast_dtype: torch.dtype | None,
) -> dict[str, Tensor]:
    """Values and gradients by name; the reference, without autocast, in float32."""
    device = votes.weight.device.type
    leaves = {name: x.detach().clone().requires_grad_() for name, x in operands.items()}
    autocast: AbstractContextManager[Any] = nullcontext()
    if autocast_dtype is not None:
        autocast = torch.autocast(device, autocast_dtype)
    with autocast:
        pose = leaves["pose"]
        children = Capsules(pose, pose.detach().norm(dim=-1))
        trial = ProductVotes(children, votes.field, leaves["weight"], bias=leaves.get("bias"))
    with torch.autocast(device, enabled=False):
        routed = route(trial.bind(votes.context), **options)
        generator = torch.Generator().manual_seed(SEED + 1)
        upstream = torch.randn(routed.pose.shape, generator=generator).to(routed.pose.device)
        loss = (routed.pose.float() * upstream).sum() + routed.activation.float().square().sum()
        gradients = torch.autograd.grad(loss, [*leaves.values()])
    values = {"pose": routed.pose.detach(), "activation": routed.activation.detach()}
    by_leaf = zip(leaves, gradients, strict=True)
    return values | {f"gradient of the {name}": gradient for name, gradient in by_leaf}


def _remember(file: Path, problem: Mapping[str, Any]) -> None:
    """Write a problem that a fast path solves; where that is impossible it is tried again."""
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(problem, indent=2) + "\n", encoding="utf-8")
