"""What cases give, and models that compute in float64."""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from typing import Any

import torch
from adapter import RENAMED_WEIGHTS, standard_key
from torch import Tensor, nn


class Record:
    """Tensors of a case by quantity, and groups of named tensors, whose order and names count."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self.groups: dict[str, list[tuple[str, Tensor]]] = {}

    def add(self, quantity: str, content: Any) -> None:
        """Keep tensors and numbers, also in tuples and mappings, by standard names; nothing else."""
        if isinstance(content, Tensor):
            self.tensors[quantity] = content.detach().clone()
        elif isinstance(content, bool | int | float):
            self.tensors[quantity] = torch.tensor(content, dtype=torch.float64)
        elif isinstance(content, Mapping):
            for key, part in content.items():
                self.add(f"{quantity}.{standard_key(str(key))}", part)
        elif isinstance(content, tuple | list):
            for index, part in enumerate(content):
                self.add(f"{quantity}.{index}", part)

    def add_group(self, quantity: str, named_tensors: Iterable[tuple[str, Tensor]]) -> None:
        group = []
        for name, tensor in named_tensors:
            for pattern, replacement in RENAMED_WEIGHTS.items():
                name = re.sub(pattern, replacement, name)
            group.append((name, tensor.detach().clone()))
        self.groups[quantity] = group

    def digests(self) -> dict[str, Any]:
        return {
            "tensors": {name: digest(tensor) for name, tensor in self.tensors.items()},
            "groups": {name: group_digests(group) for name, group in self.groups.items()},
        }


def group_digests(group: Iterable[tuple[str, Tensor]]) -> list[list[str]]:
    return [[name, digest(tensor)] for name, tensor in group]


def digest(tensor: Tensor) -> str:
    """Of shape, type and bytes."""
    content = tensor.contiguous().reshape(-1).view(torch.uint8).numpy()
    head = f"{list(tensor.shape)} {tensor.dtype} "
    return hashlib.blake2b(head.encode() + content.tobytes(), digest_size=16).hexdigest()


def checksum(tensor: Tensor) -> Tensor:
    """A digest as a tensor, for what is too large to be kept."""
    return torch.tensor([int(digest(tensor)[:12], 16)])


class NotApplicable(Exception):
    """This tree does not have the case."""


def map_tensors(content: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The same nested tuples, lists and mappings with every tensor changed."""
    if isinstance(content, Tensor):
        return change(content)
    if isinstance(content, dict):
        return {key: map_tensors(part, change) for key, part in content.items()}
    if isinstance(content, tuple) and hasattr(content, "_fields"):
        return type(content)(*(map_tensors(part, change) for part in content))
    if isinstance(content, tuple | list):
        return type(content)(map_tensors(part, change) for part in content)
    if dataclasses.is_dataclass(content) and not isinstance(content, type):
        fields = {f.name: getattr(content, f.name) for f in dataclasses.fields(content) if f.init}
        return dataclasses.replace(content, **map_tensors(fields, change))
    return content


def to_float64(tensor: Tensor) -> Tensor:
    return tensor.double() if tensor.dtype == torch.float32 else tensor


def casting(method: Callable[..., Any]) -> Callable[..., Any]:
    """The method, which casts float32 tensors among its arguments first."""

    @wraps(method)
    def cast(self: Any, *args: Any, **kwargs: Any) -> Any:
        args, kwargs = map_tensors((args, kwargs), to_float64)
        return method(self, *args, **kwargs)

    return cast


def in_float64(model: nn.Module) -> Any:
    """The model in float64, whose public methods also take float32 tensors."""
    model = model.double()
    kind = type(model)
    methods = {}
    for ancestor in reversed(kind.__mro__):
        if ancestor in nn.Module.__mro__:
            continue
        for name, member in vars(ancestor).items():
            is_hook = name.startswith("_") or (name != "forward" and hasattr(nn.Module, name))
            if inspect.isfunction(member) and not is_hook:
                methods[name] = casting(member)
    model.__class__ = type(kind.__name__, (kind,), methods)
    return model


def random_tensor(*shape: int, seed: int = 1) -> Tensor:
    """Normal numbers in float64."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def random_images(*shape: int, seed: int = 1) -> Tensor:
    """Numbers in [0, 1) in float64."""
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(shape, generator=generator, dtype=torch.float64)


def add_gradients(
    record: Record,
    quantity: str,
    outputs: Mapping[str, Tensor],
    leaves: Mapping[str, Tensor],
) -> None:
    """Gradients of a sum of the outputs, each number with a random weight of its own."""
    total = torch.zeros((), dtype=torch.float64)
    for seed, tensor in enumerate(outputs.values(), start=100):
        total = total + (tensor * random_tensor(*tensor.shape, seed=seed)).sum()
    trainable = {name: leaf for name, leaf in leaves.items() if leaf.requires_grad}
    gradients = torch.autograd.grad(total, list(trainable.values()), allow_unused=True)
    named_gradients = zip(trainable, gradients, strict=True)
    record.add_group(quantity, [(n, g) for n, g in named_gradients if g is not None])
