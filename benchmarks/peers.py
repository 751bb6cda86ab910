"""CapsNet's training step beside the network that a good tutorial would write.

`EinsumCapsNet` is CapsNet of MNIST in plain torch, with stored votes and every sum an einsum. It is
timed as it is, under `torch.compile` and, on a GPU, under `torch.compile` with graphs. The library
takes the same step as `torchcaps train` does: the same sizes, losses and optimizer. Steps take
turns in one process. The ratio of a row is the time of that network over the time of the library.
"""

import argparse
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.report import Row, finish, make_parser, parse, positive, run
from benchmarks.timing import Clock, add_timing, alternate, clock_of, spread
from benchmarks.workload import PRECISIONS, Workload, autocast, training_step

RESAMPLES = 2000
EPSILON = 1e-8  # below roots, whose gradient is infinite at zero
WAYS: dict[str, Callable[[nn.Module], Any]] = {
    "eager": lambda model: model,
    "compiled": torch.compile,
    "graphs": lambda model: torch.compile(model, mode="reduce-overhead"),
}


def squash(s: Tensor) -> Tensor:
    """Equation 1 of arXiv 1710.09829 for vectors in the last axis."""
    squared = s.square().sum(dim=-1, keepdim=True) + EPSILON
    return s * squared.sqrt() / (1 + squared)


class EinsumCapsNet(nn.Module):
    """CapsNet of MNIST with its decoder; returns its loss (arXiv 1710.09829, section 4)."""

    def __init__(self, iterations: int = 3) -> None:
        super().__init__()
        self.iterations = iterations
        self.stem = nn.Conv2d(1, 256, 9)
        self.primary = nn.Conv2d(256, 256, 9, stride=2)
        self.weight = nn.Parameter(0.05 * torch.randn(1152, 10, 16, 8))
        self.decoder = nn.Sequential(
            nn.Linear(160, 512),
            nn.ReLU(),
            nn.Linear(512, 1024),
            nn.ReLU(),
            nn.Linear(1024, 784),
            nn.Sigmoid(),
        )

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        """The loss of images `[b, 1, 28, 28]` with labels `[b]`."""
        maps = self.primary(self.stem(images).relu())
        children = squash(maps.movedim(1, -1).unflatten(-1, (32, 8)).flatten(1, 3))
        parents = self.route(torch.einsum("bik,ijdk->bijd", children, self.weight))
        present = F.one_hot(labels, 10).float()
        lengths = (parents.square().sum(dim=-1) + EPSILON).sqrt()
        margins = present * (0.9 - lengths).relu().square()
        margins = margins + 0.5 * (1 - present) * (lengths - 0.1).relu().square()
        drawing = self.decoder((parents * present.unsqueeze(-1)).flatten(1))
        errors = (drawing - images.flatten(1)).square().sum(dim=1)
        return margins.sum(dim=1).mean() + 0.0005 * errors.mean()

    def route(self, votes: Tensor) -> Tensor:
        """Parents `[b, j, d]` of votes `[b, i, j, d]`, by agreement."""
        logits = votes.new_zeros(votes.shape[:3])
        for _ in range(self.iterations - 1):
            sums = torch.einsum("bij,bijd->bjd", logits.softmax(dim=-1).to(votes.dtype), votes)
            logits = logits + torch.einsum("bijd,bjd->bij", votes, squash(sums).to(votes.dtype))
        return squash(torch.einsum("bij,bijd->bjd", logits.softmax(-1).to(votes.dtype), votes))


def peer_step(way: str, images: Tensor, labels: Tensor, precision: str) -> Callable[[], None]:
    """A function that makes one training step of `EinsumCapsNet`, run in one of `WAYS`."""
    torch.manual_seed(0)
    model = EinsumCapsNet().to(images.device)
    compute_loss = WAYS[way](model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with autocast(images.device, precision):
            loss = compute_loss(images, labels)
        loss.backward()
        optimizer.step()

    return step


def benchmark_peers(
    batch: int, ways: Sequence[str], precision: str, repeats: int, clock: Clock
) -> list[Row]:
    """Time steps by turns.

    Args:
        batch: number of images.
        ways: names of `WAYS`.
        precision: "fp32" or "bf16".
        repeats: number of timed steps of each.
        clock: see `clock_of`.

    Returns:
        A row for the library and one for each way: times, images per second, and the median ratio
        of the pairs with its 95 % interval by bootstrap.
    """
    workload = Workload(batch=batch)
    model = workload.build()
    images, labels = workload.data(model)
    work = {"library": training_step(model, images, labels, precision)}
    for way in ways:
        work[way] = peer_step(way, images, labels, precision)
    seconds = alternate(work, repeats, warm_up=3, clock=clock)
    rows: list[Row] = []
    for name, times in seconds.items():
        pairs = zip(times, seconds["library"], strict=True)
        ratio, low, high = ratio_interval([time / base for time, base in pairs])
        row = {"network": name, "precision": precision, "batch": batch, **spread("ms", times)}
        row |= {"img/s": 1e3 * batch / row["ms"], "ratio": ratio, "low": low, "high": high}
        rows.append(row)
    return rows


def ratio_interval(ratios: Sequence[float]) -> tuple[float, float, float]:
    """The median of ratios, and its 95 % interval by a seeded bootstrap."""
    values = torch.tensor(ratios, dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    draws = torch.randint(len(values), (RESAMPLES, len(values)), generator=generator)
    medians = values[draws].quantile(0.5, dim=1)
    low, high = medians.quantile(torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    return median(ratios), low, high


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add what this command takes beside `add_timing`."""
    parser.add_argument("--batch", type=positive, default=64, help="images at once")
    parser.add_argument("--precision", nargs="+", choices=PRECISIONS, default=PRECISIONS)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=["eager", "compiled"])


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = make_parser(__doc__, "peers")
    add_options(parser)
    add_timing(parser, repeats=30)
    options = parse(parser, arguments)
    clock = clock_of(options)
    rows = []
    for precision in options.precision:
        rows += benchmark_peers(options.batch, options.ways, precision, options.repeats, clock)
    return finish(options, {"rows": rows})


if __name__ == "__main__":
    run(main)
