"""torchcaps bench."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

import torchcaps as tc
from torchcaps.cli.console import UsageError, note, print_json, print_table, usage
from torchcaps.cli.flags import Threads
from torchcaps.cli.settings import parse_options
from torchcaps.errors import check_range
from torchcaps.progress import progress_bar

RUNS_PER_REPEAT = 20  # of latency
QUICK_REPEATS = 3


@dataclass(frozen=True)
class BenchSettings:
    """Sizes and repeats."""

    model: Annotated[str | None, tyro.conf.arg(metavar="STR", help_behavior_hint="")] = None
    """Name of a model; by default the network of 2017."""
    batch: int = 128  # Images, or samples of the layer, at once.
    precision: tuple[Literal["fp32", "bf16"], ...] = ("fp32", "bf16")
    """fp32, bf16 (autocast), or both."""
    variants: tuple[str, ...] = ()
    """Of step and layer: auto, limit, triton, textbook, ...; by default those of this machine."""
    routers: tuple[str, ...] = ()  # Of routers: their names.
    impl: tuple[str, ...] = ("auto",)  # Of scaling: implementations.
    children: int = 1152  # Child capsules of layer and scaling.
    parents: int = 10  # Parent capsules.
    dim: int = 16  # Dimensions of a parent.
    in_dim: int = 8  # Dimensions of a child.
    iterations: int = 3  # Of the routing.
    repeats: int = 5  # Runs of each variant.
    quick: Annotated[bool, tyro.conf.FlagCreatePairsOff, tyro.conf.arg(help_behavior_hint="")] = (
        False
    )
    """Three repeats, smaller sizes, no torch.compile and no memory."""
    clock: Literal["wall", "cpu"] = "wall"
    """wall, or cpu for a busy machine."""
    threads: Threads = None


def bench(
    what: Annotated[
        Literal["step", "layer", "routers", "scaling", "latency", "all"],
        tyro.conf.Positional,
        tyro.conf.arg(metavar="[WHAT]"),
    ] = "step",
    /,
    settings: BenchSettings = BenchSettings(),
    option: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = (),
    output: Path | None = None,
    plots: Path | None = None,
    json: bool = False,
) -> int:
    """Measure speed and memory, beside a linear layer and textbook code.

    Example: torchcaps bench step --variants limit auto textbook --output step.json

    Args:
        what: step (a training step), layer (routing alone), routers (every routing in one
            layer), scaling (against each size), latency (of a trained network), or all.
        option: A model's own option, such as channels=64; may be given several times.
        output: JSON file for the figures and a description of the machine.
        plots: Folder for pictures.
        json: Print JSON instead of tables.
    """
    with usage():
        job = _Job(settings, option)
    _make_folders(output, plots)
    machine = tc.bench.timing.machine()
    parts = {}
    with progress_bar("measuring") as bar:
        task = bar.add_task("", total=None)
        job.log = lambda line: bar.update(task, description=line)
        names = tuple(BENCHMARKS) if what == "all" else (what,)
        for name in names:
            parts[name] = BENCHMARKS[name][0](job)
    settings_used = asdict(settings) | {"option": list(option)}
    document = {"settings": settings_used, "machine": machine, **parts}
    if output is not None:
        tc.training.files.write_json(output, document)
    if json:
        print_json(document)
    else:
        _print_tables(parts, machine)
    if plots is not None:
        for name, part in parts.items():
            figure = getattr(tc.viz, BENCHMARKS[name][1])(part["rows"])
            figure.savefig(plots / f"{name}.png")
            note(str(plots / f"{name}.png"))
    return 0


class _Job:
    """The settings of a command line as the benchmarks take them.

    Raises UsageError or ValueError for what cannot be measured.
    """

    def __init__(self, settings: BenchSettings, option: tuple[str, ...]) -> None:
        select = tc.bench.baselines.select
        for name in ("batch", "repeats"):
            check_range(f"--{name}", getattr(settings, name), low=1)
        if settings.threads is not None:
            tc.training.environment.check_threads("--threads", settings.threads)
        if not settings.precision:
            raise UsageError("--precision: expected fp32 or bf16, got nothing")
        select("variant", settings.variants, tc.bench.step.STEPS)
        self.impls = select("impl", settings.impl, tc.bench.baselines.VARIANTS)
        self.routers = tc.bench.layer.routers_known(settings.routers)
        self.settings = settings
        self.log: Callable[[str], None] = note
        self.repeats = QUICK_REPEATS if settings.quick else settings.repeats
        self.precisions = tuple(dict.fromkeys(settings.precision))
        names = tc.bench.Sizes.__dataclass_fields__
        self.sizes = tc.bench.Sizes(**{name: getattr(settings, name) for name in names})
        model = settings.model or tc.training.TrainConfig().model.name
        self.workload = tc.bench.Workload(model, parse_options(option), settings.batch)
        try:
            self.workload.build()
        except TypeError as error:
            raise UsageError(f"--option: {error}") from error
        self.clock = tc.bench.timing.use_clock(settings.clock, settings.threads)

    def without_slow(self, variants: list[str]) -> list[str]:
        """Without torch.compile, with --quick and without --variants."""
        is_quick = self.settings.quick and not self.settings.variants
        return [name for name in variants if name != "compiled" or not is_quick]


def _step(job: _Job) -> dict[str, Any]:
    """Training steps with each class-capsule layer."""
    step = tc.bench.step
    variants = job.without_slow(step.step_variants(job.workload, job.settings.variants, note))
    errors = step.verify_steps(variants, job.workload)
    memory = not job.settings.quick
    rows = step.benchmark_steps(
        job.workload,
        variants,
        job.precisions,
        job.repeats,
        memory,
        job.clock,
        job.log,
    )
    return {"rows": rows, "errors": errors}


def _layer(job: _Job) -> dict[str, Any]:
    """Each class-capsule layer alone, and the rates of the machine."""
    layer = tc.bench.layer
    names = [name for name in job.settings.variants if name in layer.VARIANTS]  # not of step alone
    variants = job.without_slow(layer.layer_variants(job.sizes, names, note))
    errors = tc.bench.verify(variants, job.sizes.layer())
    rates = layer.machine_rates(job.repeats, job.clock)
    memory = not job.settings.quick
    rows = layer.benchmark_layers(
        job.sizes,
        variants,
        job.repeats,
        memory,
        rates,
        job.clock,
        job.log,
    )
    return {"rows": rows, "errors": errors, "rates": rates._asdict()}


def _routers(job: _Job) -> dict[str, Any]:
    """Each router in the same layer."""
    rows = tc.bench.benchmark_routers(job.sizes, job.routers, job.repeats, job.clock, log=job.log)
    return {"rows": rows}


def _scaling(job: _Job) -> dict[str, Any]:
    """The routed layer against each of its sizes."""
    quick = job.settings.quick
    middle = job.sizes
    if quick and middle == tc.bench.Sizes():
        middle = tc.bench.scaling.QUICK
    errors = tc.bench.verify(job.impls, middle.layer())
    num_sizes = 3 if quick else 5
    rows = tc.bench.benchmark_scaling(job.impls, middle, job.repeats, job.clock, num_sizes, job.log)
    return {"rows": rows, "errors": errors, "middle": asdict(middle)}


def _latency(job: _Job) -> dict[str, Any]:
    """Answers of the network at each batch size."""
    runs = RUNS_PER_REPEAT * job.repeats
    rows = tc.bench.benchmark_latency(job.workload, job.precisions, runs, job.clock, log=job.log)
    return {"rows": rows}


# Name -> the function that measures, and that of `viz` which draws.
BENCHMARKS: dict[str, tuple[Callable[[_Job], dict[str, Any]], str]] = {
    "step": (_step, "throughput_bars"),
    "layer": (_layer, "layer_bars"),
    "routers": (_routers, "layer_bars"),
    "scaling": (_scaling, "scaling_curves"),
    "latency": (_latency, "latency_curves"),
}


def _make_folders(output: Path | None, plots: Path | None) -> None:
    """Fail before the work, not after it, for places that cannot be written to or drawn into."""
    if output is not None:
        if output.is_dir():
            raise UsageError(f"--output: expected a file, got the folder {output}")
        output.parent.mkdir(parents=True, exist_ok=True)
    if plots is not None:
        _ = tc.viz  # needs matplotlib
        plots.mkdir(parents=True, exist_ok=True)


def _print_tables(parts: dict[str, dict[str, Any]], machine: Any) -> None:
    """Print a table of each benchmark, and the machine."""
    for name, part in parts.items():
        if len(parts) > 1:
            print(f"{name}:")
        print_table(tc.bench.timing.cells(part["rows"]))
        if rates := part.get("rates"):
            print(
                f"\ncopies {rates['copy'] / 1e9:.1f} GB/s, "
                f"matrix products {rates['product'] / 1e9:.0f} billion multiply-adds/s"
            )
        print()
    print(
        f"{machine['processor']}, {machine['threads']} threads, torch {machine['torch']}, "
        f"{machine['date']}"
    )
