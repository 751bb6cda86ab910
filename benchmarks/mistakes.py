"""What common mistakes of tutorials cost: small networks, trained with each and without it.

    python -m benchmarks.mistakes [--epochs 3] [--seeds 1] [--only NAME]

Every network sees the packaged digits in the same order. Prints the table of
docs/tutorial-mistakes.md.
"""

import argparse
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from statistics import mean
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

import torchcaps as tc
from torchcaps.functional import squash_with_length
from torchcaps.functional.routing import em
from torchcaps.functional.votes import Votes
from torchcaps.nn import Router
from torchcaps.types import Capsules, Routed

PAPER_WEIGHT = 0.0005  # of the summed squared error of a drawing
PIXELS = 784
SMALL = {"channels": 32, "primary_types": 4, "decoder": (128, 256), "impl": "reference"}
SMALL_EM = {
    "num_classes": 10,
    "in_chans": 1,
    "img_size": 28,
    "channels": 32,
    "primary_types": 4,
    "types": (4, 8),
    "iterations": 2,
    "impl": "reference",
}


class KeptLogits(Router):
    """Routing by agreement whose logits go on from one batch to the next."""

    def __init__(self, iterations: int = 3) -> None:
        super().__init__()
        self.iterations = iterations
        self.logits: Tensor | None = None

    def route(self, votes: Votes, parents: Capsules | None) -> Routed:
        b = self.logits
        for _ in range(self.iterations):
            c = votes.couple(None if b is None else b.expand(len(votes.activation), -1, -1))
            v, length = squash_with_length(votes.weighted(c))
            agreement = votes.agreement(v).mean(dim=0, keepdim=True)
            b = agreement if b is None else b + agreement
        self.logits = None if b is None else b.detach()
        return Routed(v, length, c)


def density_with_deviation(V: Tensor, mu: Tensor, var: Tensor) -> Tensor:
    """log N with the deviation where the variance belongs."""
    mu = mu.unsqueeze(-3)
    var = var.unsqueeze(-3)
    return -0.5 * (var.log() + (V - mu).square() / var.sqrt()).sum(dim=-1)


def capsnet(**options: Any) -> Callable[[], nn.Module]:
    """A maker of a small CapsNet."""
    return lambda: tc.create_model("capsnet", **{**SMALL, **options})


def matrix_caps(**options: Any) -> Callable[[], nn.Module]:
    """A maker of a small network with EM routing."""
    return lambda: tc.create_model("matrix_caps", **{**SMALL_EM, **options})


# Name: the network, the settings of its training, and what is patched meanwhile.
Case = tuple[Callable[[], nn.Module], dict[str, Any], Callable[[], AbstractContextManager[Any]]]
CASES: dict[str, Case] = {
    "CapsNet, as published": (capsnet(), {}, nullcontext),
    "softmax over children": (capsnet(over="children"), {}, nullcontext),
    "logits kept between batches": (capsnet(routing=KeptLogits()), {}, nullcontext),
    "mean in place of sum in the reconstruction": (
        capsnet(),
        {"reconstruction": PAPER_WEIGHT / PIXELS},
        nullcontext,
    ),
    "EM routing, as published": (matrix_caps(), {}, nullcontext),
    "EM routing: σ for σ² in the density": (
        matrix_caps(),
        {},
        lambda: patch.object(em, "_log_density", density_with_deviation),
    ),
    "EM routing: competition within one window": (
        matrix_caps(convention="type"),
        {},
        nullcontext,
    ),
}


def measure(case: Case, epochs: int, seed: int) -> tuple[float, float, float]:
    """Accuracy in batches of 100 and one by one, and error of a drawing (NaN: no decoder)."""
    make, settings, patched = case
    model: Any
    train = tc.data.load_dataset("digits", "train")
    test = tc.data.load_dataset("digits", "test")
    torch.manual_seed(seed)
    with patched():
        model, _ = tc.fit(
            make(),
            train,
            epochs=epochs,
            seed=seed,
            batch_size=64,
            lr=0.003,
            verbose=False,
            **settings,
        )
        model.eval()
        indices = torch.arange(len(test))
        with torch.inference_mode():
            batches = [model(test.float_images(part)) for part in indices.split(100)]
            some = indices[:: len(test) // 200]
            singles = torch.cat([model(test.float_images(index[None])) for index in some])
            error = float("nan")
            if tc.types.spec_of(model).decoder:
                images = test.float_images(some)
                capsules = model.capsules(images)
                error = float((model.reconstruct(capsules) - images).square().sum() / len(some))
    labels = torch.as_tensor(test.labels)
    accuracy = (torch.cat(batches).argmax(dim=1) == labels).double().mean()
    alone = (singles.argmax(dim=1) == labels[some]).double().mean()
    return float(accuracy), float(alone), error


def main(arguments: list[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--only", default="", help="cases whose name contains this")
    options = parser.parse_args(arguments)
    print("| network | accuracy | one image at a time | squared error of a drawing |")
    print("|---|---|---|---|")
    for name, case in CASES.items():
        if options.only not in name:
            continue
        runs = [measure(case, options.epochs, seed) for seed in range(options.seeds)]
        accuracy, alone, error = map(mean, zip(*runs, strict=True))
        drawing = "-" if error != error else f"{error:.1f}"
        print(f"| {name} | {accuracy:.1%} | {alone:.1%} | {drawing} |", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
