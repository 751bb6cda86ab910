"""torchcaps bench."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from torchcaps.cli.console import UsageError, note, print_json, print_table, progress_bar, usage
from torchcaps.cli.settings import _options
from torchcaps.settings import ModelSettings

RUNS_PER_REPEAT, QUICK_REPEATS = 20, 3


@dataclass(frozen=True)
class BenchSettings:
    """What is measured, and how often."""

    model: str = ModelSettings.name
    """Of `torchcaps models`."""
    batch: int = 128
    """Images, or samples of the layer, at once."""
    precision: tuple[Literal["fp32", "bf16"], ...] = ("fp32", "bf16")
    """One or both; bf16 is autocast."""
    variants: tuple[str, ...] = ()
    """step, layer: limit, auto, numba, cpu, triton, reference, einsum, compiled, textbook, and for step
    limit-torch and textbook-network; by default all that can run here."""
    routers: tuple[str, ...] = ()
    """routers: which; by default all."""
    impl: tuple[str, ...] = ("auto",)
    """scaling: whose curves."""
    children: int = 1152
    """layer, scaling: child capsules (scaling: the middle of the sizes)."""
    parents: int = 10
    """Parent capsules."""
    dim: int = 16
    """Dimensions of a parent."""
    in_dim: int = 8
    """Dimensions of a child."""
    iterations: int = 3
    """Of the routing."""
    repeats: int = 5
    """Runs of each, taking turns; the median counts. For latency 20 times as many."""
    quick: bool = False
    """Three repeats, no torch.compile, no memory; a smaller layer and three sizes for scaling."""
    clock: Literal["wall", "cpu"] = "wall"
    """cpu, with --threads 1: for a machine that others keep busy."""
    threads: int | None = None
    """Processor threads; by default torch's choice."""


def bench(
    what: Annotated[
        Literal["step", "layer", "routers", "scaling", "latency", "memory", "all"], tyro.conf.Positional
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
    from torchcaps.bench.timing import machine

    document = {"settings": asdict(settings) | {"option": list(option)}, "machine": machine()}
    with progress_bar("measuring") as bar:
        task = bar.add_task("", total=None)
        job.tell = lambda text: bar.update(task, description=text)
        found = {name: PARTS[name](job) for name in (PARTS if what == "all" else (what,))}
    document |= found
    if output is not None:
        from torchcaps.training.checkpoint import write_json

        write_json(output, document)
    if json:
        print_json(document)
    else:
        _print(found, document["machine"])
    if plots is not None:
        _draw(found, plots)
    return 0


class _Job:
    """The settings of a command line as the benchmarks take them. UsageError, ValueError: what cannot be measured."""

    def __init__(self, settings: BenchSettings, option: tuple[str, ...]) -> None:
        from torchcaps.bench import Sizes, Workload, baselines, layer, step, timing
        from torchcaps.errors import check_range
        from torchcaps.training.environment import check_threads

        for name in ("batch", "repeats"):
            check_range(f"--{name}", getattr(settings, name), low=1)
        if settings.threads is not None:
            check_threads("--threads", settings.threads)
        if not settings.precision:
            raise UsageError("--precision: expected fp32 or bf16, got nothing")
        baselines.check_known("variant", settings.variants, step.STEPS)
        baselines.check_known("impl", settings.impl)
        layer.routers_known(settings.routers)
        self.settings, self.tell = settings, note
        self.repeats = QUICK_REPEATS if settings.quick else settings.repeats
        self.precisions = tuple(dict.fromkeys(settings.precision))
        self.sizes = Sizes(**{name: getattr(settings, name) for name in Sizes.__dataclass_fields__})
        self.subject = Workload(settings.model, _options(option), settings.batch)
        try:
            self.subject.build()
        except TypeError as error:
            raise UsageError(f"--option: {error}") from error
        self.clock = timing.use_clock(settings.clock, settings.threads)

    def variants(self, known: list[str]) -> list[str]:
        """These variants; with --quick, and none asked for by name, without torch.compile."""
        left_out = ("compiled",) if self.settings.quick and not self.settings.variants else ()
        return [name for name in known if name not in left_out]


def _step(job: _Job) -> dict[str, Any]:
    from torchcaps.bench import step

    variants = job.variants(step.step_variants(job.subject, job.settings.variants, note))
    errors = step.verify_steps(variants, job.subject)
    memory = not job.settings.quick
    rows = step.benchmark_steps(job.subject, variants, job.precisions, job.repeats, memory, job.clock, job.tell)
    return {"rows": rows, "errors": errors}


def _layer(job: _Job) -> dict[str, Any]:
    from torchcaps.bench import baselines, layer

    asked = [name for name in job.settings.variants if name in baselines.VARIANTS]  # the others are networks
    variants = job.variants(layer.layer_variants(job.sizes, asked, note))
    errors = baselines.verify(variants, job.sizes.layer())
    rates = layer.machine_rates(job.repeats, job.clock)
    rows = layer.benchmark_layers(job.sizes, variants, job.repeats, not job.settings.quick, rates, job.clock, job.tell)
    return {"rows": rows, "errors": errors, "rates": rates._asdict()}


def _routers(job: _Job) -> dict[str, Any]:
    from torchcaps.bench import layer

    names = layer.routers_known(job.settings.routers)
    return {"rows": layer.benchmark_routers(job.sizes, names, job.repeats, job.clock, log=job.tell)}


def _scaling(job: _Job) -> dict[str, Any]:
    from torchcaps.bench import scaling, verify

    quick = job.settings.quick
    middle = scaling.QUICK if quick and job.sizes == type(job.sizes)() else job.sizes
    impls = tuple(dict.fromkeys(job.settings.impl))
    errors = verify(impls, middle.layer())
    rows = scaling.benchmark_scaling(impls, middle, job.repeats, job.clock, 3 if quick else 5, job.tell)
    return {"rows": rows, "errors": errors, "middle": asdict(middle)}


def _latency(job: _Job) -> dict[str, Any]:
    from torchcaps.bench import benchmark_latency

    runs = RUNS_PER_REPEAT * job.repeats
    return {"rows": benchmark_latency(job.subject, job.precisions, runs, job.clock, log=job.tell)}


def _memory(job: _Job) -> dict[str, Any]:
    from torchcaps.bench import memory, timing

    if not timing.can_measure_memory():
        raise UsageError("memory: expected a system that tells the high-water mark of a process in /proc, got another")
    batches = sorted({max(1, job.subject.batch // 4), job.subject.batch})
    return {"rows": memory.benchmark_memory(job.subject, batches, job.precisions, job.tell)}


PARTS: dict[str, Callable[[_Job], dict[str, Any]]] = {
    "step": _step, "layer": _layer, "routers": _routers, "scaling": _scaling, "latency": _latency, "memory": _memory,
}  # fmt: skip


def _check_places(output: Path | None, plots: Path | None) -> None:
    """Fail before the work, not after it, for places that cannot be written and plots that cannot be drawn."""
    if output is not None:
        if output.is_dir():
            raise UsageError(f"--output: expected a file, got the folder {output}")
        output.parent.mkdir(parents=True, exist_ok=True)
    if plots is not None:
        import torchcaps.viz

        del torchcaps
        plots.mkdir(parents=True, exist_ok=True)


def _print(found: dict[str, dict[str, Any]], machine: Any) -> None:
    from torchcaps.bench.timing import cells

    for name, part in found.items():
        if len(found) > 1:
            print(f"{name}:")
        print_table(cells(part["rows"]))
        if "rates" in part:
            copy, product = (part["rates"][key] / 1e9 for key in ("copy", "product"))
            print(f"\ncopies {copy:.1f} GB/s, matrix products {product:.0f} billion multiply-adds/s")
        print()
    print(f"{machine['processor']}, {machine['threads']} threads, torch {machine['torch']}, {machine['date']}")


def _draw(found: dict[str, dict[str, Any]], folder: Path) -> None:
    from torchcaps import viz

    drawers = {
        "step": viz.throughput_bars, "layer": viz.layer_bars, "routers": viz.layer_bars, "scaling": viz.scaling_curves,
        "latency": viz.latency_curves, "memory": viz.memory_bars,
    }  # fmt: skip
    for name, part in found.items():
        drawers[name](part["rows"]).savefig(folder / f"{name}.png")
        note(str(folder / f"{name}.png"))
