"""A page: one HTML file that draws, runs and explains a capsule network in any browser.

The network is in the page: its layers in words and its weights in float16, packed and in base64. The
files of the page are in the folder of the explorer.
"""

import base64
import hashlib
import json
import re
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn

import torchcaps
from torchcaps.data import Dataset, multi_hot
from torchcaps.errors import ArgumentError, DataError, RunError
from torchcaps.evaluation import iteration_dynamics, pose_axes
from torchcaps.evaluation.base import evaluating, image_activations
from torchcaps.evaluation.routing.coupling_maps import places_of
from torchcaps.evaluation.routing.layers import children_of
from torchcaps.exporting.formats import Answer, Subject, answer_of, register_export_format
from torchcaps.exporting.network import Network, describe_network
from torchcaps.exporting.weights import StoredWeights
from torchcaps.functional.geometry import receptive_field
from torchcaps.models.notebook import parameter_count
from torchcaps.reporting import open_task
from torchcaps.training import Run
from torchcaps.training.checkpoint import model_file
from torchcaps.training.files import read_header
from torchcaps.training.run import is_run
from torchcaps.types import Json, StrPath, model_metadata, spec_of

SMALL = 8192  # numbers of a tensor that stays in float32
STATIC = Path(torchcaps.__file__).parent / "explorer" / "static"
NUM_MEASURED = 500  # images that the axes of poses are measured on
NUM_STOPPED = 200  # images that routing is stopped early on
NUM_EXAMPLES = 4  # images of each class that are in the page
CONTENT = re.compile(r'<script type="application/json" id="content">(.*?)</script>', re.DOTALL)
PACKED = re.compile(r'<script type="text/plain" id="packed-(\d+)">(.*?)</script>', re.DOTALL)


class Content(NamedTuple):
    """A network as the page has it.

    Attributes:
        head: ready for JSON.
        arrays: of kinds "half", "float" and "byte" by their type, which `head` names by place.
    """

    head: Json
    arrays: list[np.ndarray]

    def keep(self, tensor: Tensor) -> int:
        """The place of an array."""
        self.arrays.append(tensor.numpy())
        return len(self.arrays) - 1


def describe(model: Any, data: Dataset | None, name: str, facts: Json) -> Content:
    """What the page says of a model, wherever it runs.

    Args:
        model: with `.classes` and `.preprocess`, on the CPU.
        data: images to show and to measure with, `[n, channels, height, width]`.
        name: of the model on the page.
        facts: what else is known of it; see `facts_of`.

    Returns:
        The description, with examples and, of a classifier with capsules and a decoder, the axes of
        the poses.
    """
    spec = spec_of(model)
    metadata = model_metadata(model)
    shape = (metadata.preprocess.in_chans, *metadata.preprocess.model_size)
    has_poses = spec.pose and not spec.is_dense
    names = list(metadata.classes)
    if has_poses:
        with evaluating(model):
            count = model.capsules(torch.zeros(shape).unsqueeze(0)).activation.shape[1]
        if count != len(names):  # capsules that are not the classes
            names = [f"capsule {k + 1}" for k in range(count)]
    head: Json = {
        "name": name,
        "classes": names,
        "shape": shape,
        "activation": spec.activation,
        "poses": has_poses,
        "decoder": spec.decoder and has_poses,
        "parameters": parameter_count(model),
        "accuracy": facts.get("accuracy"),
        "places": _places(model),
        "limits": facts.get("limits", {}),
        "axes": {},
        "stopped": None,
        "examples": None,
    }
    content = Content(head, [])
    is_labeled = data is not None and {"label", "labels"} & set(data.targets)
    if data is not None and is_labeled and not spec.is_dense and len(names) == len(data.classes):
        _add_measures(content, model, data)
    return content


def _places(model: nn.Module) -> Json | None:
    """Where the children of the class capsules are: rows and columns, and what each of them sees."""
    preprocess = model_metadata(model).preprocess
    try:
        with evaluating(model), places_of(model) as places, children_of(model) as children:
            model(torch.zeros(1, preprocess.in_chans, *preprocess.model_size))
    except ArgumentError:  # no routed layer
        return None
    capsules = places.map_of(list(children.values())[-1])
    if capsules is None or capsules.slides is None:
        return None
    rows, columns = capsules.capsules.pose.shape[1:3]
    fields = [receptive_field(capsules.slides, axis)._asdict() for axis in (0, 1)]
    return {"rows": rows, "columns": columns, "fields": fields}


def _add_measures(content: Content, model: Any, data: Dataset) -> None:
    """Examples, axes of poses, and what the model gives when its routing is stopped early."""
    head = content.head
    spread = torch.linspace(0, len(data) - 1, min(NUM_MEASURED, len(data))).long()
    images = data.float_images(spread).cpu()
    labels = data.labels[spread].cpu()
    truth = multi_hot(labels, len(head["classes"])).bool()
    activation = image_activations(model, images)
    shortest = activation.masked_fill(~truth, torch.inf).amin(dim=1)
    margin = shortest - activation.masked_fill(truth, -torch.inf).amax(dim=1)
    indices = [int(margin.argmax()), int(margin.abs().argmin())]  # a good one, and a doubtful one
    if labels.dim() == 1:
        for label in range(truth.shape[1]):
            indices += truth[:, label].nonzero().flatten()[:NUM_EXAMPLES].tolist()
    else:
        indices += margin.argsort(descending=True)[:: 1 + len(margin) // NUM_EXAMPLES].tolist()
        indices.append(int(margin.argmin()))
    indices = list(dict.fromkeys(indices))
    head["examples"] = {
        "images": content.keep(images[indices].mul(255).round().to(torch.uint8)),
        "labels": [row.nonzero().flatten().tolist() for row in truth[indices]],
    }
    if labels.dim() > 1 or not head["poses"]:
        return
    if head["decoder"]:
        for label, axes in pose_axes(model, images, labels).items():
            head["axes"][label] = {
                "mean": axes.mean.tolist(),
                "axes": axes.axes.tolist(),
                "deviations": axes.std.tolist(),
                "share": axes.share,
                "names": axes.names,
            }
    if head["places"] is not None:  # it has routing
        subset = slice(0, NUM_STOPPED)
        dynamics = iteration_dynamics(model, images[subset], labels[subset])
        head["stopped"] = {"images": len(labels[subset]), "accuracy": dynamics.accuracy}


def carry(model: Any, data: Dataset | None, name: str, facts: Json) -> Content:
    """A network with its weights, which the page itself runs.

    Args:
        model: one of those that a page carries.
        data: see `describe`.
        name: of the model on the page.
        facts: see `describe`.

    Returns:
        The network; weights of more than 8,192 numbers are in float16, others in float32.

    Raises:
        ExportError: for another model.
    """
    network = describe_network(model)
    content = describe(model, data, name, facts)
    places = [
        content.keep(tensor.half() if tensor.numel() > SMALL else tensor)
        for tensor in network.tensors
    ]
    content.head["network"] = {
        "layers": network.layers,
        "decoder": network.decoder,
        "drawn": network.draw_shape,
        "tensors": places,
    }
    return content


def assemble(
    contents: Sequence[Content], source: str = "local", frame: Path = STATIC / "index.html"
) -> str:
    """The page.

    Args:
        contents: its networks.
        source: "local" where the page runs them, "server" where it asks a server.
        frame: the template of the page; scripts and styles are beside it, or those of the explorer.

    Returns:
        HTML, with everything in it.
    """
    from jinja2 import Template

    networks = []
    packed = []
    for content in contents:
        table, text = pack(content.arrays)
        networks.append(content.head | {"arrays": table})
        packed.append(text)
    about = {"version": torchcaps.__version__, "source": source, "networks": networks}

    def code(file: str) -> str:
        path = frame.with_name(file)
        return (path if path.exists() else STATIC / file).read_text(encoding="utf-8")

    def digest(file: str) -> str:
        return base64.b64encode(hashlib.sha256(code(file).encode()).digest()).decode()

    return Template(code(frame.name), trim_blocks=True, keep_trailing_newline=True).render(
        code=code,
        digest=digest,
        source=source,
        content=json.dumps(about, allow_nan=False).replace("<", "\\u003c"),
        packed=packed,
    )


def pack(arrays: Sequence[np.ndarray]) -> tuple[list[Json], str]:
    """Arrays as a table of shapes and one text.

    The bytes of an array are sorted by their place in a number, which makes them compress better.

    Args:
        arrays: of float16, float32 or uint8.

    Returns:
        Kind, shape and first byte of each array; and the bytes, compressed, in base64.
    """
    table = []
    content = b""
    for array in arrays:
        kind = {2: "half", 4: "float", 1: "byte"}[array.itemsize]
        table.append({"kind": kind, "shape": array.shape, "at": len(content)})
        content += array.reshape(-1, 1).view(np.uint8).T.tobytes()
    return table, base64.b64encode(zlib.compress(content, 9)).decode()


def unpack(table: Sequence[Json], text: str) -> list[np.ndarray]:
    """The arrays of `pack`.

    Args:
        table: kind, shape and first byte of each.
        text: the bytes.

    Returns:
        The arrays.
    """
    content = zlib.decompress(base64.b64decode(text))
    arrays = []
    for entry in table:
        dtype = np.dtype({"half": "f2", "float": "f4", "byte": "u1"}[entry["kind"]])
        size = dtype.itemsize
        length = size * int(np.prod(entry["shape"]))
        planes = np.frombuffer(content, np.uint8, length, entry["at"]).reshape(size, -1)
        arrays.append(planes.T.copy().view(dtype).reshape(entry["shape"]))
    return arrays


def read_page(path: Path) -> Answer:
    """Open a page and run its first network by the layers that it names.

    Args:
        path: of the file.

    Returns:
        The function that it answers with.
    """
    html = path.read_text(encoding="utf-8")
    content = CONTENT.search(html)
    packed = PACKED.search(html)
    assert content is not None and packed is not None
    head = json.loads(content[1])["networks"][0]
    arrays = unpack(head["arrays"], packed[2])
    stored = head["network"]
    tensors = [torch.from_numpy(arrays[place]).float() for place in stored["tensors"]]
    network = Network(stored["layers"], stored["decoder"], stored["drawn"], tensors)
    return answer_of(network.answer)


@register_export_format(
    "page", ".html", read_page, reads=("half",), file="page/index.html", half_limit=SMALL
)
def write_page(subject: Subject, path: Path) -> None:
    """Write a page with the network in it.

    Args:
        subject: what to write.
        path: of the file.

    Raises:
        ExportError: a page does not carry the model.
    """
    origin = subject.origin
    name = subject.metadata["model"] or "capsules"
    data = None
    facts: Json = {}
    if not isinstance(origin, nn.Module):
        data = images_of(Path(origin), subject.root)
        facts = facts_of(Path(origin))
    model = cast(StoredWeights, subject.model).widened()
    path.write_text(assemble([carry(model, data, name, facts)]), encoding="utf-8")


def images_of(run: StrPath, root: str | None = None) -> Dataset | None:
    """The test images of a run, or of weights of the package; None where they are not at hand.

    Args:
        run: a run folder or a file of weights.
        root: where a named set is looked for first.

    Returns:
        The images.
    """
    try:
        return open_task(run, root=root, device="cpu")[1]
    except (DataError, RunError):
        return None


def facts_of(run: Path) -> Json:
    """What a run, or weights of the package, came with beside the model.

    Args:
        run: a run folder or a file of weights.

    Returns:
        "accuracy" on the test images, in [0, 1] or None; and "limits" beyond which an image is
        unknown: the least "length" and "margin" and the largest "error", of images that were
        "changed" into the form of the training images, and of others.
    """
    description = read_header(model_file(run))[1]
    figures = (Run(run).figures or {}) if is_run(run) else description.get("weights", {})
    limits = (description.get("calibration") or {}).get("limits", {})
    return {"accuracy": figures.get("accuracy", figures.get("exact")), "limits": limits}
