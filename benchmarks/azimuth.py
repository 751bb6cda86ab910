"""A known factor as the target of poses: the azimuth of rendered toys, beside a CNN of equal size.

Sine and cosine of the azimuth supervise the pose of a capsule: two numbers of one capsule, or a
capsule for each of them, with routing and with uniform coupling. The CNN has two outputs, and as
many weights. All are trained in the same way on the training toys of one category, and measured on
its test toys, which no model has seen. A guess errs by 90 degrees on average.
"""

import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

import torchcaps as tc
from benchmarks.report import Row, finish, make_parser, parse, positive, run

SIZE = 32  # of a side of the images
VIEWS: Any = {"elevations": (1, 3, 5), "lightings": (0, 2, 4), "size": SIZE}
SMALL: Any = {"img_size": SIZE, "channels": 32, "primary_types": 4, "decoder": False}
DROPOUT = 0.0  # of the CNN, as of the capsules


class PoseCNN(nn.Module):
    """A CNN whose outputs are the pose of one capsule, so that the same task trains it."""

    spec = tc.ModelSpec(pose=True, activation="none", task="regress")

    def __init__(self, cnn: Any) -> None:
        super().__init__()
        self.cnn = cnn

    def capsules(self, images: Tensor) -> tc.Capsules:
        """One capsule, `[batch, 1, outputs]`."""
        pose = self.cnn.logits(images).unsqueeze(1)
        return tc.Capsules(pose, torch.ones_like(pose[..., 0]))

    def forward(self, images: Tensor) -> Tensor:
        """The pose, `[batch, outputs]`."""
        return self.capsules(images).pose.squeeze(1)


def make_models() -> dict[str, nn.Module]:
    """New models of about equal size, by name."""
    one = tc.create_model("capsnet_small", num_classes=1, class_dim=32, **SMALL)
    two = tc.create_model("capsnet_small", num_classes=2, **SMALL)
    uniform = tc.create_model("capsnet_small", num_classes=2, iterations=1, **SMALL)
    cnn = PoseCNN(tc.models.matched_cnn(two, dropout=DROPOUT))
    return {"one capsule": one, "a capsule a value": two, "uniform coupling": uniform, "CNN": cnn}


def read_toys(split: str, category: str) -> tc.data.Dataset:
    """Toys of a category, each with the sine and the cosine of its azimuth."""
    images = tc.data.render_synthnorb(split, **VIEWS)
    images = images.subset((images.labels == images.classes.index(category)).nonzero().flatten())
    angle = (images.targets["azimuth"] * 10.0).deg2rad()
    values = torch.stack([angle.sin(), angle.cos()], dim=1)
    # Views of all training toys are held out to choose the epoch by, not whole toys.
    return replace(images, targets={"value": values}, classes=("sine", "cosine"), groups=None)


def angle_errors(true: Tensor, predicted: Tensor) -> Tensor:
    """Degrees between the angles of (sine, cosine), `[n]` in [0, 180]."""
    first, second = (torch.atan2(*values.unbind(dim=1)) for values in (true, predicted))
    difference = (first - second).rad2deg()
    return ((difference + 180) % 360 - 180).abs()


def measure(category: str, names: Sequence[str], seeds: int, epochs: int) -> list[Row]:
    """A row for each model of these names: means over seeds."""
    train = read_toys("train", category)
    test = read_toys("test", category)
    rows = []
    for name in names:
        errors, scores, seconds = [], [], []
        for seed in range(seeds):
            torch.manual_seed(seed)
            model = make_models()[name]
            start = time.perf_counter()
            tc.fit(model, train, epochs=epochs, seed=seed, verbose=False)
            seconds.append(time.perf_counter() - start)
            evaluation: Any = tc.evaluate(model, test)
            scores.append(evaluation.r2)
            errors.append(float(angle_errors(evaluation.true, evaluation.predicted).mean()))
        row = {
            "model": name,
            "category": category,
            "weights": sum(weight.numel() for weight in model.parameters()),
            "error_degrees": statistics.mean(errors),
            "std_degrees": statistics.stdev(errors) if seeds > 1 else None,
            "r2": statistics.mean(scores),
            "seconds": statistics.mean(seconds),
            "errors": errors,
        }
        print({key: figure for key, figure in row.items() if key != "errors"}, flush=True)
        rows.append(row)
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = make_parser(__doc__, "azimuth", threads=1)
    parser.add_argument("--category", default="animal", help="of synthnorb")
    parser.add_argument("--seeds", type=positive, default=5)
    parser.add_argument("--epochs", type=positive, default=10, help="of each training")
    parser.add_argument("--models", nargs="+", choices=[*make_models()], help="by default all")
    options = parse(parser, arguments)
    names = options.models or [*make_models()]
    rows = measure(options.category, names, options.seeds, options.epochs)
    return finish(options, {"rows": rows})


if __name__ == "__main__":
    run(main)
