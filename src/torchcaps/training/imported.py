"""Weights that others have published, as model files of this library; nothing in their files is run.

A source is known by the shapes of its tensors in their order: Keras numbers its layers anew in every session.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isqrt, prod
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchcaps.data import Preprocess
from torchcaps.errors import RunError, TorchcapsError, check_regular, one_line
from torchcaps.training.checkpoint import build_model, check_fit, check_numbers, describe_model, save_tensors

HDF5 = b"\x89HDF\r\n\x1a\n"
MOST = 1 << 28  # numbers in a file: 1 GiB
NETWORKS = {9: "efficient_capsnet", 8: "efficient_capsnet_smallnorb", 5: "efficient_capsnet_multimnist"}
LEAVES = (".weight", ".prior", ".running_mean", ".running_var", ".num_batches_tracked")
Sizes = dict[str, int]  # letters of a table -> numbers of a file
Described = tuple[str, int, int, int, dict[str, Any]]  # model, classes, channels, side of the images, options


class Entry(NamedTuple):
    """A tensor of a source: its axes as numbers and letters, its name in our model, and how its axes are turned."""

    axes: list[str]
    target: str
    turn: str


class Layout(NamedTuple):
    """A source: its name, its tensors in their order, and which model they are."""

    source: str
    entries: list[Entry]
    describe: Callable[[Sizes], Described]


def _entries(table: str, *, keras: bool) -> list[Entry]:
    """`axes > name > turn` in each line. The name of a module stands for its weight and its bias, of as many numbers
    as the last axis in Keras, the first in PyTorch; Keras' kernels are turned."""
    found = []
    for line in filter(None, map(str.strip, table.splitlines())):
        axes, target, turn = (word.strip() for word in f"{line} > ".split(">")[:3])
        sizes, turn = axes.split(), turn or {4: "3201", 2: "10"}.get(keras * len(axes.split()), "")
        pair = not target.endswith(LEAVES)
        found.append(Entry(sizes, f"{target}.weight" if pair else target, turn))
        if pair:
            kept = turn if turn in ("drawn", "each") else ""
            found.append(Entry(sizes[-1:] if keras else sizes[:1], f"{target}.bias", kept))
    return found


def _capsnet(sizes: Sizes, **options: Any) -> Described:
    types = sizes["t"] if "t" in sizes else sizes["p"] // sizes["d"]
    own = {"channels": sizes["a"], "primary_types": types, "primary_dim": sizes["d"], "class_dim": sizes["D"]}
    return "capsnet", sizes["J"], sizes["c"], isqrt(sizes["o"] // sizes["c"]), own | {"bias": False} | options


def _efficient(sizes: Sizes, **options: Any) -> Described:
    """Strides stand in no file: they are those of the published network with this depthwise kernel."""
    if sizes["k"] not in NETWORKS:
        raise ValueError(f"expected a depthwise kernel of {', '.join(map(str, NETWORKS))} pixels, got {sizes['k']}")
    side = 8 * isqrt(sizes["s"]) - 16 if "s" in sizes else isqrt(sizes["o"] // sizes["c"])
    return NETWORKS[sizes["k"]], sizes["J"], sizes["c"], side, options


WIDTHS = (("c", 32), (32, 64), (64, 64), (64, 128))  # channels below and above of Efficient-CapsNet's convolutions
KERAS_DECODER = "i 512 > decoder.layers.0 \n 512 1024 > decoder.layers.2 \n 1024 o > decoder.layers.4 > drawn"
EACH = "t a 9 9 > primary.conv > each\n" * 8
DECODER = "512 i > decoder.layers.0 \n 1024 512 > decoder.layers.2 \n o 1024 > decoder.layers.4"


def _keras_efficient(first: int) -> str:
    stem = (
        f"{3 if n else first} {3 if n else first} {below} {above} > stem.{3 * n} \n {above} > stem.{3 * n + 2} \n"
        for n, (below, above) in enumerate(WIDTHS)
    )
    return f"""{"".join(stem)} k k 1 128 > primary
        J 16 8 16 > class_capsules.votes.weight > 1032
        J 16 1 > class_capsules.router.prior > prior
        """


LAYOUTS = [
    Layout("XifengGuo/CapsNet-Keras", _entries(f"""
        9 9 c a > conv
        9 9 a p > primary.conv
        J N D d > class_capsules.votes.weight > 1023
        {KERAS_DECODER}""", keras=True), _capsnet),
    Layout("XifengGuo/CapsNet-Pytorch", _entries(f"""
        a c 9 9 > conv
        p a 9 9 > primary.conv
        J N D d > class_capsules.votes.weight > 1023
        {DECODER}""", keras=False), lambda sizes: _capsnet(sizes, grouping="flat", detach=True)),
    Layout("gram-ai/capsule-networks", _entries(f"""
        a c 9 9 > conv
        {EACH}
        J N d D > class_capsules.votes.weight > types
        {DECODER}""", keras=False), lambda sizes: _capsnet(sizes, over="children")),
    Layout("EscVM/Efficient-CapsNet (smallNORB)", _entries(f"""{_keras_efficient(7)}
        i s > decoder.dense
        3 3 1 64 > decoder.convolutions.0
        3 3 64 128 > decoder.convolutions.1
        3 3 128 128 > decoder.convolutions.2
        3 3 128 c > decoder.convolutions.3""", keras=True), _efficient),
    Layout("EscVM/Efficient-CapsNet (MNIST, MultiMNIST)", _entries(_keras_efficient(5) + "".join(
        f"{above} > stem.{3 * n + 2}.running_{what} \n"
        for n, (_, above) in enumerate(WIDTHS) for what in ("mean", "var")
    ) + KERAS_DECODER, keras=True), _efficient),
    Layout("akhdanfadh/efficient-capsnet-pytorch", _entries("".join(
        f"{above} {below} {3 if n else 5} {3 if n else 5} > stem.{3 * n} \n {above} > stem.{3 * n + 1} \n"
        f"{above} > stem.{3 * n + 1}.running_mean \n {above} > stem.{3 * n + 1}.running_var \n"
        f"> stem.{3 * n + 1}.num_batches_tracked \n"
        for n, (below, above) in enumerate(WIDTHS)
    ) + f"""128 1 k k > primary
        J 16 8 16 > class_capsules.votes.weight > 1032
        J 16 1 > class_capsules.router.prior > prior
        {DECODER}""", keras=False), lambda sizes: _efficient(sizes, norm_first=True, epsilon=1e-5)),
]  # fmt: skip


def import_weights(path: str | Path, output: str | Path | None = None) -> tuple[Path, str]:
    """Write the model file of published weights, which `torchcaps.load` takes.

    Its classes are named by their numbers.

    Args:
        path: an HDF5 file of Keras' `save_weights`, or a `state_dict` that PyTorch has saved.
        output: the file; by default `path` with the ending `.safetensors`.

    Returns:
        The file, and the source that the weights are of.

    Raises:
        RunError: for a file that cannot be read without running its code, or whose tensors are those of no known
            source; or where the file to write is there already. TrainingError: it cannot be written.
    """
    path = Path(path)
    output = path.with_suffix(".safetensors") if output is None else Path(output)
    if output.exists():
        raise RunError(f"{output}: is there already; name another --output")
    layout, sizes, tensors = _recognised(path)
    try:
        name, classes, channels, side, options = layout.describe(sizes)
        names = tuple(map(str, range(classes)))
        about = describe_model(name, options, names, Preprocess(img_size=(side, side), in_chans=channels))
        state = _state(layout, sizes, list(tensors.values()))
        with torch.device("meta"):
            bare = build_model(about)
        counters = (name for name in bare.state_dict() if name.endswith(".num_batches_tracked"))
        state = {name: torch.zeros((), dtype=torch.int64) for name in counters} | state  # Keras does not count
        check_fit({k: ([*x.shape], "F32" if x.is_floating_point() else "I64") for k, x in state.items()}, bare)
        check_numbers(state)
    except (ValueError, TorchcapsError) as error:
        raise RunError(f"{path}: its tensors do not fit together, taken for {layout.source} ({error})") from error
    save_tensors(output, state, about)
    return output, layout.source


def _recognised(path: Path) -> tuple[Layout, Sizes, dict[str, Tensor]]:
    """The source of a file, its sizes, and its tensors by their names there."""
    try:
        check_regular(path)
        with open(path, "rb") as file:
            front = file.read(len(HDF5))
        tensors = _read_keras(path) if front == HDF5 else _read_state(path)
    except OSError as error:
        raise RunError(f"{path}: cannot be read ({error.strerror or one_line(str(error))})") from error
    for tensor in tensors.values():
        if 0 in tensor.shape:
            raise RunError(f"{path}: expected tensors with numbers in them, got one of {list(tensor.shape)}")
    fits = [(*_fit(layout, tensors), layout) for layout in LAYOUTS]
    good, sizes, wrong, layout = max(fits, key=lambda fit: (fit[2] == "", fit[0]))
    if not good:
        known = ", ".join(layout.source for layout in LAYOUTS)
        raise RunError(f"{path}: holds the weights of no known source ({wrong}); known: {known}")
    if wrong:
        raise RunError(f"{path}: {wrong} (taken for {layout.source})")
    return layout, sizes, tensors


def _fit(layout: Layout, tensors: dict[str, Tensor]) -> tuple[int, Sizes, str]:
    """How many tensors, from the first, are those of a source; its sizes; and what is wrong with the next, or ""."""
    sizes: Sizes = {}
    found = list(tensors.items())
    for number, entry in enumerate(layout.entries):
        want = ", ".join(f"{axis}={sizes[axis]}" if axis in sizes else axis for axis in entry.axes)
        if number == len(found):
            return number, sizes, f"expected one more tensor [{want}], for {entry.target}"
        name, shape = found[number][0], found[number][1].shape
        numbers = [int(axis) if axis.isdigit() else sizes.get(axis) for axis in entry.axes]
        if len(shape) != len(numbers) or any(n not in (None, m) for n, m in zip(numbers, shape, strict=True)):
            return number, sizes, f"{name}: expected [{want}], for {entry.target}, got {list(shape)}"
        sizes |= {axis: n for axis, n in zip(entry.axes, shape, strict=True) if not axis.isdigit()}
    extra = list(tensors)[len(layout.entries) :]
    return len(layout.entries), sizes, f"{extra[0]}: expected no more tensors" if extra else ""


def _state(layout: Layout, sizes: Sizes, tensors: list[Tensor]) -> dict[str, Tensor]:
    """The state of our model."""
    parts: dict[str, list[Tensor]] = {}
    for entry, tensor in zip(layout.entries, tensors, strict=True):
        parts.setdefault(entry.target, []).append(_turned(tensor, entry.turn, sizes))
    # Of several convolutions, each makes one dimension of every type's capsule.
    return {name: torch.stack(some, dim=1).flatten(0, 1) if some[1:] else some[0] for name, some in parts.items()}


def _turned(x: Tensor, turn: str, sizes: Sizes) -> Tensor:
    match turn:
        case "" | "each":
            return x
        case "prior":  # [parents, children, 1]
            return x[..., 0].T
        case "types":  # children type after type, to position after position
            return x.permute(1, 0, 3, 2).unflatten(0, (sizes["t"], -1)).transpose(0, 1).flatten(0, 1)
        case "drawn":  # pixels with their channels last, to one channel after another
            x = x.T if x.dim() == 2 else x
            return x.unflatten(0, (-1, sizes["c"])).transpose(0, 1).flatten(0, 1)
        case _:
            return x.permute(*map(int, turn))


def _read_keras(path: Path) -> dict[str, Tensor]:
    try:
        import h5py
    except ImportError:
        how = "install it with: pip install 'torchcaps[h5]'"
        raise RunError(f"{path}: reading Keras' weights needs h5py; {how}") from None
    try:
        with h5py.File(path, "r") as file:
            root, found = file.get("model_weights", file), {}
            for layer in map(_text, root.attrs["layer_names"]):
                for name in map(_text, root[layer].attrs["weight_names"]):
                    found[f"{layer}/{name}"] = root[layer][name]
            if sum(prod(part.shape) for part in found.values()) > MOST:
                raise ValueError(f"expected at most {MOST} numbers")
            return {name: torch.from_numpy(part.astype("float32")[()]) for name, part in found.items()}
    except (KeyError, ValueError, TypeError, AttributeError, RuntimeError) as error:
        raise RunError(f"{path}: holds no readable weights of Keras ({one_line(str(error))})") from error


def _text(name: Any) -> str:
    return name.decode() if isinstance(name, bytes) else str(name)


def _read_state(path: Path) -> dict[str, Tensor]:
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except OSError:
        raise
    except Exception as error:  # torch, pickle and zip fail in many ways at what another hand wrote
        reason = one_line(str(error).strip().partition("\n")[0])
        raise RunError(f"{path}: holds no weights that can be read without running code ({reason})") from error
    found = found.get("state_dict", found) if isinstance(found, dict) else found
    if not isinstance(found, dict) or not all(isinstance(x, Tensor) for x in found.values()):
        raise RunError(f"{path}: expected tensors by name, got {one_line(repr(type(found).__name__))}")
    return {str(name): x.float() if x.is_floating_point() else x for name, x in found.items()}
