"""torchcaps bench."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

import torchcaps as tc
from torchcaps.cli.console import UsageError, note, print_json, print_table, progress_bar, usage
from torchcaps.cli.settings import _options
from torchcaps.errors import check_range

RUNS_PER_REPEAT, QUICK_REPEATS = 20, 3


@dataclass(frozen=True)
class BenchSettings:
    """What is measured, and how often."""

    model: str | None = None  # Of `torchcaps models`; by default the network of 2017.
    batch: int = 128  # Images, or samples of the layer, at once.
    precision: tuple[Literal["fp32", "bf16"], ...] = (
        "fp32",
        "bf16",
    )  # One or both; bf16 is autocast.
    variants: tuple[str, ...] = ()
    """step, layer: limit, auto, numba, blocked, triton, reference, einsum, compiled, textbook, and for step
    limit-torch and textbook-network; by default all that can run here."""
    routers: tuple[str, ...] = ()  # routers: which; by default all.
    impl: tuple[str, ...] = ("auto",)  # scaling: whose curves.
    children: int = 1152  # layer, scaling: child capsules (scaling: the middle of the sizes).
    parents: int = 10  # Parent capsules.
    dim: int = 16  # Dimensions of a parent.
    in_dim: int = 8  # Dimensions of a child.
    iterations: int = 3  # Of the routing.
    repeats: int = 5  # Runs of each, taking turns; the median counts. For latency 20 times as many.
    quick: bool = False  # Three repeats, no torch.compile, no memory; a smaller layer and three sizes for scaling.
    clock: Literal["wall", "cpu"] = (
        "wall"  # cpu, with --threads 1: for a machine that others keep busy.
    )
    threads: int | None = None  # Processor threads; by default torch's choice.


def bench(
    what: Annotated[
        Literal["step", "layer", "routers", "scaling", "latency", "memory", "all"],
        tyro.conf.Positional,
    ] = "step",
    /,
    settings: BenchSettings = BenchSettings(),
    option: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = (),
    output: Path | None = None,
    plots: Path | None = None,
    json: bool = False,
) -> int:
    """Measure speed and memory on this machine, beside a plain linear layer and the code that tutorials copy.

    Example: torchcaps bench step --variants limit auto textbook textbook-network --output step.json

    Args:
        what: step (a training step), layer (routing alone, and the least that it could take), routers (every routing in
            the same layer), scaling (against each size), latency (answers of a trained network), memory (predicted
            beside measured), or all.
        settings: What is measured.
        option: A model's own option, such as channels=64; may be given several times.
        output: JSON file for the figures and the machine they belong to.
        plots: Folder for pictures.
        json: Print JSON instead of tables.
    """
    with usage():
        job = _Job(settings, option)
    _check_places(output, plots)
    machine = tc.bench.timing.machine()
    document = {"settings": asdict(settings) | {"option": list(option)}, "machine": machine}
    with progress_bar("measuring") as bar:
        task = bar.add_task("", total=None)
        job.tell = lambda text: bar.update(task, description=text)
        found = {name: PARTS[name][0](job) for name in (PARTS if what == "all" else (what,))}
    document |= found
    if output is not None:
        tc.training.files.write_json(output, document)
    if json:
        print_json(document)
    else:
        _print(found, machine)
    if plots is not None:
        for name, part in found.items():
            getattr(tc.viz, PARTS[name][1])(part["rows"]).savefig(plots / f"{name}.png")
            note(str(plots / f"{name}.png"))
    return 0


class _Job:
    """The settings of a command line as the benchmarks take them. UsageError, ValueError: what cannot be measured."""

    def __init__(self, settings: BenchSettings, option: tuple[str, ...]) -> None:
        select, sizes = tc.bench.baselines.select, tc.bench.Sizes.__dataclass_fields__
        for name in ("batch", "repeats"):
            check_range(f"--{name}", getattr(settings, name), low=1)
        if settings.threads is not None:
            tc.training.environment.check_threads("--threads", settings.threads)
        if not settings.precision:
            raise UsageError("--precision: expected fp32 or bf16, got nothing")
        select("variant", settings.variants, tc.bench.step.STEPS)
        self.impls = select("impl", settings.impl, tc.bench.baselines.VARIANTS)
        self.routers = tc.bench.layer.routers_known(settings.routers)
        self.settings, self.tell = settings, note
        self.repeats, self.memory = (
            (QUICK_REPEATS, False) if settings.quick else (settings.repeats, True)
        )
        self.precisions = tuple(dict.fromkeys(settings.precision))
        self.sizes = tc.bench.Sizes(**{name: getattr(settings, name) for name in sizes})
        self.subject = tc.bench.Workload(
            settings.model or tc.training.TrainConfig().model.name, _options(option), settings.batch
        )
        try:
            self.subject.build()
        except TypeError as error:
            raise UsageError(f"--option: {error}") from error
        self.clock = tc.bench.timing.use_clock(settings.clock, settings.threads)

    def variants(self, known: list[str]) -> list[str]:
        """These variants; with --quick, and none asked for by name, without torch.compile."""
        left_out = ("compiled",) if self.settings.quick and not self.settings.variants else ()
        return [name for name in known if name not in left_out]


def _step(job: _Job) -> dict[str, Any]:
    step = tc.bench.step
    variants = job.variants(step.step_variants(job.subject, job.settings.variants, note))
    errors = step.verify_steps(variants, job.subject)
    rows = step.benchmark_steps(
        job.subject, variants, job.precisions, job.repeats, job.memory, job.clock, job.tell
    )
    return {"rows": rows, "errors": errors}


def _layer(job: _Job) -> dict[str, Any]:
    layer = tc.bench.layer
    asked = [
        name for name in job.settings.variants if name in layer.VARIANTS
    ]  # the others are networks
    variants = job.variants(layer.layer_variants(job.sizes, asked, note))
    errors = tc.bench.verify(variants, job.sizes.layer())
    rates = layer.machine_rates(job.repeats, job.clock)
    rows = layer.benchmark_layers(
        job.sizes, variants, job.repeats, job.memory, rates, job.clock, job.tell
    )
    return {"rows": rows, "errors": errors, "rates": rates._asdict()}


def _routers(job: _Job) -> dict[str, Any]:
    return {
        "rows": tc.bench.benchmark_routers(
            job.sizes, job.routers, job.repeats, job.clock, log=job.tell
        )
    }


def _scaling(job: _Job) -> dict[str, Any]:
    scaling, quick = tc.bench.scaling, job.settings.quick
    middle = scaling.QUICK if quick and job.sizes == type(job.sizes)() else job.sizes
    errors = tc.bench.verify(job.impls, middle.layer())
    rows = scaling.benchmark_scaling(
        job.impls, middle, job.repeats, job.clock, 3 if quick else 5, job.tell
    )
    return {"rows": rows, "errors": errors, "middle": asdict(middle)}


def _latency(job: _Job) -> dict[str, Any]:
    runs = RUNS_PER_REPEAT * job.repeats
    return {
        "rows": tc.bench.benchmark_latency(
            job.subject, job.precisions, runs, job.clock, log=job.tell
        )
    }


def _memory(job: _Job) -> dict[str, Any]:
    if not tc.bench.timing.can_measure_memory():
        raise UsageError(
            "memory: expected a system that tells the high-water mark of a process in /proc, got another"
        )
    batches = sorted({max(1, job.subject.batch // 4), job.subject.batch})
    return {"rows": tc.bench.benchmark_memory(job.subject, batches, job.precisions, job.tell)}


# Name -> what measures, and what of `viz` draws.
PARTS: dict[str, tuple[Callable[[_Job], dict[str, Any]], str]] = {
    "step": (_step, "throughput_bars"),
    "layer": (_layer, "layer_bars"),
    "routers": (_routers, "layer_bars"),
    "scaling": (_scaling, "scaling_curves"),
    "latency": (_latency, "latency_curves"),
    "memory": (_memory, "memory_bars"),
}


def _check_places(output: Path | None, plots: Path | None) -> None:
    """Fail before the work, not after it, for places that cannot be written and plots that cannot be drawn."""
    if output is not None:
        if output.is_dir():
            raise UsageError(f"--output: expected a file, got the folder {output}")
        output.parent.mkdir(parents=True, exist_ok=True)
    if plots is not None:
        _ = tc.viz
        plots.mkdir(parents=True, exist_ok=True)


def _print(found: dict[str, dict[str, Any]], machine: Any) -> None:
    for name, part in found.items():
        if len(found) > 1:
            print(f"{name}:")
        print_table(tc.bench.timing.cells(part["rows"]))
        if "rates" in part:
            copy, product = (part["rates"][key] / 1e9 for key in ("copy", "product"))
            print(
                f"\ncopies {copy:.1f} GB/s, matrix products {product:.0f} billion multiply-adds/s"
            )
        print()
    print(
        f"{machine['processor']}, {machine['threads']} threads, torch {machine['torch']}, {machine['date']}"
    )
