"""How the files of published weights lay out their tensors, and which model each of them is."""

from collections.abc import Callable
from math import isqrt
from typing import Any, NamedTuple

# Efficient-CapsNets by the side of their depthwise kernel.
NETWORKS = {
    9: "efficient_capsnet",
    8: "efficient_capsnet_smallnorb",
    5: "efficient_capsnet_multimnist",
}
TENSOR_ENDINGS = (".weight", ".prior", ".running_mean", ".running_var", ".num_batches_tracked")
KERAS_TURNS = {4: "3201", 2: "10"}  # of kernels, by their number of axes

Sizes = dict[str, int]  # letters of a table -> numbers of a file


class Entry(NamedTuple):
    """A tensor of a source.

    Attributes:
        axes: its axes, as numbers and letters.
        target: its name in our model.
        turn: how its axes are turned: their order as digits, or a name of `training.imported`.
    """

    axes: list[str]
    target: str
    turn: str


class Description(NamedTuple):
    """A model of this library.

    Attributes:
        name: of the model.
        num_classes: number of classes.
        in_chans: channels of the images.
        side: of the images in pixels.
        options: of the model.
    """

    name: str
    num_classes: int
    in_chans: int
    side: int
    options: dict[str, Any]


class Layout(NamedTuple):
    """A source of weights.

    Attributes:
        source: its name.
        entries: its tensors in their order.
        describe: function from the sizes of a file to the model.
    """

    source: str
    entries: list[Entry]
    describe: Callable[[Sizes], Description]


def parse_table(table: str, *, keras: bool) -> list[Entry]:
    """Entries of a table with `axes > name > turn` in each line.

    The name of a module stands for its weight and its bias, which has as many numbers as the last
    axis in Keras, the first in PyTorch. The kernels of Keras are turned.
    """
    entries = []
    for line in table.splitlines():
        if not line.strip():
            continue
        words, target, turn = (word.strip() for word in f"{line} > ".split(">")[:3])
        axes = words.split()
        if keras and not turn:
            turn = KERAS_TURNS.get(len(axes), "")
        if target.endswith(TENSOR_ENDINGS):
            entries.append(Entry(axes, target, turn))
            continue
        entries.append(Entry(axes, f"{target}.weight", turn))
        bias_turn = turn if turn in ("drawn", "each") else ""
        bias_axes = axes[-1:] if keras else axes[:1]
        entries.append(Entry(bias_axes, f"{target}.bias", bias_turn))
    return entries


def image_side(sizes: Sizes) -> int:
    """Side of the images that a dense decoder draws."""
    return isqrt(sizes["o"] // sizes["c"])


def describe_capsnet(sizes: Sizes, **options: Any) -> Description:
    """A CapsNet with these sizes and options."""
    widths = {
        "channels": sizes["a"],
        "primary_types": sizes["t"] if "t" in sizes else sizes["p"] // sizes["d"],
        "primary_dim": sizes["d"],
        "class_dim": sizes["D"],
        "bias": False,
    }
    return Description("capsnet", sizes["J"], sizes["c"], image_side(sizes), widths | options)


def describe_efficient(sizes: Sizes, **options: Any) -> Description:
    """An Efficient-CapsNet with these sizes and options.

    Strides stand in no file: they are those of the published network with this depthwise kernel.
    """
    kernel = sizes["k"]
    if kernel not in NETWORKS:
        raise ValueError(
            f"expected a depthwise kernel of {', '.join(map(str, NETWORKS))} pixels, got {kernel}"
        )
    side = 8 * isqrt(sizes["s"]) - 16 if "s" in sizes else image_side(sizes)
    return Description(NETWORKS[kernel], sizes["J"], sizes["c"], side, options)


# Channels below and above of Efficient-CapsNet's convolutions.
WIDTHS = (("c", 32), (32, 64), (64, 64), (64, 128))
KERAS_DECODER = """
    i 512 > decoder.layers.0
    512 1024 > decoder.layers.2
    1024 o > decoder.layers.4 > drawn"""
TORCH_DECODER = """
    512 i > decoder.layers.0
    1024 512 > decoder.layers.2
    o 1024 > decoder.layers.4"""
EIGHT_CONVOLUTIONS = "t a 9 9 > primary.conv > each\n" * 8
EFFICIENT_CLASSES = """
    J 16 8 16 > class_capsules.votes.weight > 1032
    J 16 1 > class_capsules.router.prior > prior"""


# A convolution of Efficient-CapsNet and the norm that is its next layer but one, or its next.
KERAS_LAYER = """
    {kernel} {kernel} {below} {above} > stem.{number}
    {above} > stem.{last}"""
# These stand after all weights.
KERAS_STATISTICS = """
    {above} > stem.{last}.running_mean
    {above} > stem.{last}.running_var"""
TORCH_LAYER = """
    {above} {below} {kernel} {kernel} > stem.{number}
    {above} > stem.{middle}
    {above} > stem.{middle}.running_mean
    {above} > stem.{middle}.running_var
    > stem.{middle}.num_batches_tracked"""


def stem_table(layer: str, first_kernel: int = 5) -> str:
    """The four convolutions of Efficient-CapsNet, of which the later kernels have side 3."""
    table = ""
    for n, (below, above) in enumerate(WIDTHS):
        table += layer.format(
            kernel=3 if n else first_kernel,
            below=below,
            above=above,
            number=3 * n,
            middle=3 * n + 1,
            last=3 * n + 2,
        )
    return table


def keras_encoder(first_kernel: int) -> str:
    """The encoder of Efficient-CapsNet in Keras, whose first kernel has this side."""
    return f"{stem_table(KERAS_LAYER, first_kernel)}\n k k 1 128 > primary {EFFICIENT_CLASSES}"


LAYOUTS = [
    Layout(
        "XifengGuo/CapsNet-Keras",
        parse_table(
            f"""
            9 9 c a > conv
            9 9 a p > primary.conv
            J N D d > class_capsules.votes.weight > 1023
            {KERAS_DECODER}""",
            keras=True,
        ),
        describe_capsnet,
    ),
    Layout(
        "XifengGuo/CapsNet-Pytorch",
        parse_table(
            f"""
            a c 9 9 > conv
            p a 9 9 > primary.conv
            J N D d > class_capsules.votes.weight > 1023
            {TORCH_DECODER}""",
            keras=False,
        ),
        lambda sizes: describe_capsnet(sizes, grouping="flat", detach=True),
    ),
    Layout(
        "gram-ai/capsule-networks",
        parse_table(
            f"""
            a c 9 9 > conv
            {EIGHT_CONVOLUTIONS}
            J N d D > class_capsules.votes.weight > types
            {TORCH_DECODER}""",
            keras=False,
        ),
        lambda sizes: describe_capsnet(sizes, over="children"),
    ),
    Layout(
        "EscVM/Efficient-CapsNet (smallNORB)",
        parse_table(
            f"""
            {keras_encoder(7)}
            i s > decoder.dense
            3 3 1 64 > decoder.convolutions.0
            3 3 64 128 > decoder.convolutions.1
            3 3 128 128 > decoder.convolutions.2
            3 3 128 c > decoder.convolutions.3""",
            keras=True,
        ),
        describe_efficient,
    ),
    Layout(
        "EscVM/Efficient-CapsNet (MNIST, MultiMNIST)",
        parse_table(keras_encoder(5) + stem_table(KERAS_STATISTICS) + KERAS_DECODER, keras=True),
        describe_efficient,
    ),
    Layout(
        "akhdanfadh/efficient-capsnet-pytorch",
        parse_table(
            f"{stem_table(TORCH_LAYER)}\n 128 1 k k > primary {EFFICIENT_CLASSES} {TORCH_DECODER}",
            keras=False,
        ),
        lambda sizes: describe_efficient(sizes, norm_first=True, norm_options={"eps": 1e-5}),
    ),
]
