"""How the files of published weights lay out their tensors, and which model each of them is."""

from collections.abc import Callable
from math import isqrt
from typing import Any, NamedTuple

NETWORKS = {
    9: "efficient_capsnet",
    8: "efficient_capsnet_smallnorb",
    5: "efficient_capsnet_multimnist",
}
LEAVES = (".weight", ".prior", ".running_mean", ".running_var", ".num_batches_tracked")
Sizes = dict[str, int]  # letters of a table -> numbers of a file
Described = tuple[
    str, int, int, int, dict[str, Any]
]  # model, classes, channels, side of the images, options


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
    own = {
        "channels": sizes["a"],
        "primary_types": types,
        "primary_dim": sizes["d"],
        "class_dim": sizes["D"],
    }
    return (
        "capsnet",
        sizes["J"],
        sizes["c"],
        isqrt(sizes["o"] // sizes["c"]),
        own | {"bias": False} | options,
    )


def _efficient(sizes: Sizes, **options: Any) -> Described:
    """Strides stand in no file: they are those of the published network with this depthwise kernel."""
    if sizes["k"] not in NETWORKS:
        raise ValueError(
            f"expected a depthwise kernel of {', '.join(map(str, NETWORKS))} pixels, got {sizes['k']}"
        )
    side = 8 * isqrt(sizes["s"]) - 16 if "s" in sizes else isqrt(sizes["o"] // sizes["c"])
    return NETWORKS[sizes["k"]], sizes["J"], sizes["c"], side, options


WIDTHS = (
    ("c", 32),
    (32, 64),
    (64, 64),
    (64, 128),
)  # channels below and above of Efficient-CapsNet's convolutions
KERAS_DECODER = (
    "i 512 > decoder.layers.0 \n 512 1024 > decoder.layers.2 \n 1024 o > decoder.layers.4 > drawn"
)
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
    Layout(
        "XifengGuo/CapsNet-Keras",
        _entries(
            f"""
        9 9 c a > conv
        9 9 a p > primary.conv
        J N D d > class_capsules.votes.weight > 1023
        {KERAS_DECODER}""",
            keras=True,
        ),
        _capsnet,
    ),
    Layout(
        "XifengGuo/CapsNet-Pytorch",
        _entries(
            f"""
        a c 9 9 > conv
        p a 9 9 > primary.conv
        J N D d > class_capsules.votes.weight > 1023
        {DECODER}""",
            keras=False,
        ),
        lambda sizes: _capsnet(sizes, grouping="flat", detach=True),
    ),
    Layout(
        "gram-ai/capsule-networks",
        _entries(
            f"""
        a c 9 9 > conv
        {EACH}
        J N d D > class_capsules.votes.weight > types
        {DECODER}""",
            keras=False,
        ),
        lambda sizes: _capsnet(sizes, over="children"),
    ),
    Layout(
        "EscVM/Efficient-CapsNet (smallNORB)",
        _entries(
            f"""{_keras_efficient(7)}
        i s > decoder.dense
        3 3 1 64 > decoder.convolutions.0
        3 3 64 128 > decoder.convolutions.1
        3 3 128 128 > decoder.convolutions.2
        3 3 128 c > decoder.convolutions.3""",
            keras=True,
        ),
        _efficient,
    ),
    Layout(
        "EscVM/Efficient-CapsNet (MNIST, MultiMNIST)",
        _entries(
            _keras_efficient(5)
            + "".join(
                f"{above} > stem.{3 * n + 2}.running_{what} \n"
                for n, (_, above) in enumerate(WIDTHS)
                for what in ("mean", "var")
            )
            + KERAS_DECODER,
            keras=True,
        ),
        _efficient,
    ),
    Layout(
        "akhdanfadh/efficient-capsnet-pytorch",
        _entries(
            "".join(
                f"{above} {below} {3 if n else 5} {3 if n else 5} > stem.{3 * n} \n {above} > stem.{3 * n + 1} \n"
                f"{above} > stem.{3 * n + 1}.running_mean \n {above} > stem.{3 * n + 1}.running_var \n"
                f"> stem.{3 * n + 1}.num_batches_tracked \n"
                for n, (below, above) in enumerate(WIDTHS)
            )
            + f"""128 1 k k > primary
        J 16 8 16 > class_capsules.votes.weight > 1032
        J 16 1 > class_capsules.router.prior > prior
        {DECODER}""",
            keras=False,
        ),
        lambda sizes: _efficient(sizes, norm_first=True, epsilon=1e-5),
    ),
]
