"""Cross-validation: a training for each fold of the training images, tested on that fold.

Of the images outside the fold, the part `holdout` chooses the epoch, as in any training: the images
of the fold are read once, at the end. The test images of the data set have no part in it.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from torchcaps.distributed import current
from torchcaps.errors import RunError
from torchcaps.evaluation.base import EvaluationResult, Json, TextTable
from torchcaps.reporting import evaluate
from torchcaps.reproduction.table import over_seeds
from torchcaps.training import Callback, Run, TrainConfig, default_folder, resolve_recipe, train
from torchcaps.training.files import make_folder, read_json, reading, write_json
from torchcaps.training.run import RESUME_OVERRIDES, is_run, resumed_config
from torchcaps.types import StrPath
from torchcaps.words import in_words

FOLDS_FILE = "folds.json"
DEFAULT_FOLDS = 5
Figures = dict[str, float]


@dataclass(frozen=True)
class CrossValidation(EvaluationResult):
    """What the trainings of all folds measured, each on its own fold.

    Attributes:
        config: of the trainings, without the number of a fold.
        runs: the run folder of each fold.
        figures: numbers by name for each fold. A figure that a fold does not have, such as the
            AUROC where it shows one class only, is missing in it.
        num_samples: number of images of each fold.
    """

    config: Json
    runs: list[str]
    figures: list[Figures]
    num_samples: list[int]

    derived = ("mean", "std")

    @classmethod
    def read(cls, folder: StrPath) -> "CrossValidation":
        """A cross-validation that is finished.

        Args:
            folder: of the cross-validation.

        Returns:
            What its folds measured.

        Raises:
            RunError: it is not there, not finished or not readable.
        """
        file = Path(folder) / FOLDS_FILE
        content = _read(file)
        try:
            return cls(
                content["config"], content["runs"], content["figures"], content["num_samples"]
            )
        except KeyError as error:
            raise RunError(
                f"{file}: the cross-validation is not finished; continue it with resume"
            ) from error

    @property
    def by_figure(self) -> dict[str, list[float]]:
        """The numbers of all folds that have the figure, by its name."""
        columns: dict[str, list[float]] = {}
        for row in self.figures:
            for name, number in row.items():
                columns.setdefault(name, []).append(number)
        return columns

    @property
    def mean(self) -> Figures:
        """Mean of each figure over folds."""
        return {name: mean(column) for name, column in self.by_figure.items()}

    @property
    def std(self) -> Figures:
        """Standard deviation of each figure over folds (of a sample, n - 1)."""
        return {name: stdev(column) for name, column in self.by_figure.items() if len(column) > 1}

    @property
    def summary(self) -> str:
        """One line."""
        return f"{len(self.runs)} folds of {sum(self.num_samples):,} images"

    def table(self) -> TextTable:
        """A row for each figure: mean ± standard deviation, the lowest and the highest fold."""
        rows = []
        for name, column in self.by_figure.items():
            cells = [over_seeds(name, part) for part in (column, [min(column)], [max(column)])]
            rows.append((in_words(name), *cells))
        return TextTable(("figure", "mean ± std over folds", "lowest", "highest"), rows)


def cross_validate(
    recipe_or_config: StrPath | TrainConfig,
    output: StrPath | None = None,
    resume: bool = False,
    *,
    callbacks: Sequence[Callback | str] = (),
    started: Callable[[str], None] | None = None,
    **settings: Any,
) -> CrossValidation:
    """Train once for each fold of the training images, and measure each model on its fold.

    Every class has its share of each fold, and images of one group are in one fold.

    Args:
        recipe_or_config: what to run; see `train`. With `resume`, the settings of the folder count.
        output: its folder; the run folders are `fold-1`, `fold-2`, ... in it. By default the next
            free name below `runs`; with `resume` the newest that is taken.
        resume: continue the cross-validation in `output`. Folds that are done are not repeated.
        callbacks: told of the training of each fold; see `train`.
        started: called with the name of each fold before it starts.
        settings: of the runs, by name, such as `folds=5`, which is the default; they take
            precedence.

    Returns:
        The figures of all folds, with `.mean`, `.std` and `.table()`; also in `folds.json`.

    Raises:
        RunError: for a folder that cannot be used.
        DataError, ValueError, TrainingError, Interrupted: see `train`.

    Example:
        >>> tc.cross_validate("capsnet", data="photos/", img_size=32, folds=5).mean["accuracy"]
        0.93
    """
    ranks = current()
    config = resolve_recipe(recipe_or_config).updated(**settings).filled({"folds": DEFAULT_FOLDS})
    if output is None:
        output = ranks.broadcast(default_folder(config, recipe_or_config, resume))
    folder = Path(output)
    config = ranks.broadcast(_open(folder, config, settings, resume) if ranks.is_main else config)
    runs = []
    documents = []
    for fold in range(1, int(config.data.folds or 0) + 1):
        run = Run(folder / f"fold-{fold}")
        if started is not None:
            started(f"fold {fold} of {config.data.folds}")
        try:
            documents.append(_measure(run, config.updated(fold=fold), callbacks))
        except Exception:
            if ranks.is_main and not is_run(folder / "fold-1"):
                # What `_open` wrote is removed; other files stay, and the folder.
                (folder / FOLDS_FILE).unlink(missing_ok=True)
                with suppress(OSError):  # it holds something else
                    folder.rmdir()
            raise
        runs.append(str(run.path))
    outcome = CrossValidation(
        config.to_dict(),
        runs,
        [
            # The single numbers, without the number of images.
            {
                name: float(figure)
                for name, figure in document.items()
                if isinstance(figure, int | float) and name != "num_samples"
            }
            for document in documents
        ],
        [int(document["num_samples"]) for document in documents],
    )
    if ranks.is_main:
        write_json(folder / FOLDS_FILE, outcome.to_dict())
    ranks.broadcast(None)  # the others wait for the file
    return outcome


def _measure(
    run: Run,
    config: TrainConfig,
    callbacks: Sequence[Callback | str],
) -> Json:
    """Train the run of a fold to its end and measure it; one that was measured is read."""
    ranks = current()
    document = ranks.broadcast(run.figures if ranks.is_main else None)
    if document is None:
        train(config, run.path, ranks.broadcast(is_run(run.path)), callbacks=callbacks)
        document = evaluate(
            run, root=config.data.root, device=config.training.device, output=run.path
        ).to_dict()
    return document


def _open(folder: Path, config: TrainConfig, settings: Json, resume: bool) -> TrainConfig:
    """The settings of a cross-validation: those of its folder, or new ones, which are written."""
    file = folder / FOLDS_FILE
    is_started = file.exists() and is_run(folder / "fold-1")
    if is_run(folder) or (is_started and not resume):
        raise RunError(
            f"{folder}: there is a run or a cross-validation here already; "
            "continue it with --resume, or name another --output"
        )
    if is_started:
        saved = TrainConfig.from_dict(_read(file)["config"])
        saved = resumed_config(saved, settings)
        changes = {name: config.flat()[name] for name in RESUME_OVERRIDES}
        if changes["device"] == "auto":
            del changes["device"]
        return saved.updated(**changes)
    make_folder(folder)
    write_json(file, {"config": config.to_dict()})
    return config


def _read(file: Path) -> Json:
    """The content of `folds.json`. Raises RunError if it is not readable."""
    with reading(file, "cross-validation"):
        content = read_json(file)
        if not isinstance(content.get("config"), dict):
            raise ValueError("it has no configuration")
        return content
