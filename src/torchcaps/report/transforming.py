"""A run of a transforming auto-encoder: its figures and plots in its folder, and its part of a report."""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from torchcaps.data import load_dataset
from torchcaps.errors import RunError, read_text
from torchcaps.evaluation import TransformingEvaluation, evaluate_transforming
from torchcaps.models import TransformedPairs, TransformingAutoencoder
from torchcaps.report.markup import Html, Section, join, name, paragraph, picture, table, text
from torchcaps.report.plots import PLOTS, can_plot, evenly, save_figure
from torchcaps.report.sections import configured
from torchcaps.report.words import counted, duration
from torchcaps.training import RunFolder, TransformingConfig, load_transforming, transformed_pairs
from torchcaps.training.checkpoint import write_json
from torchcaps.training.run_folder import CONFIG
from torchcaps.training.transforming_run import KIND, VIEWS, transforming_config

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EVALUATION = "evaluation.json"
SHOWN, DRAWN_CAPSULES, MOST_UNITS, MOST_POINTS = 14, 10, 20, 2000


def finish_transforming(run: RunFolder, *, root: str | None = None, seed: int = 99) -> TransformingEvaluation:
    """Measure a finished run on pairs made of its test images, once each; write evaluation.json and plots/.

    Args:
        run: left by `training.run_transforming`.
        root: where a named data set is looked for first; by default as for the run.
        seed: of the pairs, whose ranges are those of the run's training.

    Raises:
        RunError, TrainingError: if the folder cannot be read or written to. DataError: if the images cannot be had.
    """
    found, model, pairs = _measured(run, transforming_config(run), root, seed)
    write_json(run.path / EVALUATION, found.to_dict())
    if can_plot():
        plot_transforming(run.path, found, model, pairs)
    return found


def _measured(
    run: RunFolder, config: TransformingConfig, root: str | None, seed: int
) -> tuple[TransformingEvaluation, TransformingAutoencoder, TransformedPairs]:
    model = load_transforming(run.path)
    images = load_dataset(config.data, "test", root or config.root).float_images()
    generator = torch.Generator().manual_seed(seed)
    pairs = transformed_pairs(images, config.pose, generator=generator, **config.part(VIEWS))
    return evaluate_transforming(model, pairs), model, pairs


def plot_transforming(
    folder: str | Path, found: TransformingEvaluation, model: TransformingAutoencoder, pairs: TransformedPairs
) -> list[Path]:
    """Write scatter.png, triplets.png and, of the capsules that are most often present, generation.png.

    Args:
        folder: the plots go into plots/ in it.
        found: what `evaluate_transforming` made of `model` and `pairs`.
        model: the model.
        pairs: the pairs.

    Raises:
        RunError, TrainingError: if the folder cannot be written to.
    """
    figures = transforming_figures(found, model, pairs)
    return [save_figure(figure, Path(folder) / PLOTS / f"{name}.png") for name, figure in figures.items()]


def transforming_figures(
    found: TransformingEvaluation, model: TransformingAutoencoder, pairs: TransformedPairs
) -> dict[str, Figure]:
    """The figures of `plot_transforming`, by their names."""
    from torchcaps import viz

    unit = "pixels" if model.pose == "translation" else ""
    some = slice(0, MOST_POINTS)
    weights = model.weight["draw"].detach().unflatten(-1, (model.in_chans, *model.img_size)).mean(dim=2)
    often = found.presence.argsort(descending=True)[:DRAWN_CAPSULES]
    return {
        "scatter": viz.predicted_transformations(found.true[some], found.predicted[some], names=found.names, unit=unit),
        "triplets": viz.transformed(pairs.source[:SHOWN], found.drawn[:SHOWN], pairs.target[:SHOWN]),
        "generation": viz.generation_weights(
            weights[often, :MOST_UNITS], title="what the generation units of the capsules most often present draw"
        ),
    }


def is_transforming(run: RunFolder) -> bool:
    """Whether this is a run of a transforming auto-encoder; a configuration that cannot be read is none."""
    try:
        found = json.loads(read_text(run.path / CONFIG))
    except (OSError, ValueError):
        return False
    return isinstance(found, dict) and found.get("kind") == KIND


def transforming_parts(run: RunFolder, *, root: str | None = None, seed: int = 99) -> tuple[Html, list[Section]]:
    """What a report says under its title, and its sections.

    Args:
        run: finished.
        root, seed: as for `finish_transforming`, whose figures these are.

    Raises:
        RunError: for a run that is not finished, or as `finish_transforming`.
    """
    config, rows = transforming_config(run), [row for row in run.rows() if row["kind"] == "epoch"]
    if len(rows) < config.epochs:
        raise RunError(f"{run.path}: this run is not finished, it has done {len(rows)} of {config.epochs} epochs")
    found, model, pairs = _measured(run, config, root, seed)
    drawn = transforming_figures(found, model, pairs)
    lead = (
        f"A transforming auto-encoder on {config.data}: on average a capsule's pose follows the transformation with a "
        f"correlation of {_rounded(found.mean_correlation)}, on {len(found.true):,} pairs made of the test images."
    )
    return paragraph(text(lead)), [
        _summary(config, found, model, rows),
        _poses(found, drawn["scatter"]),
        _drawings(found, drawn["triplets"]),
        _capsules(found, drawn["generation"]),
        configured(config.to_dict(), TransformingConfig().to_dict(), run.environment()),
    ]


def _summary(
    config: TransformingConfig,
    found: TransformingEvaluation,
    model: TransformingAutoencoder,
    rows: list[dict[str, float]],
) -> Section:
    (height, width), took = model.img_size, sum(row["images"] / row["images_per_second"] for row in rows)
    parameters = sum(p.numel() for p in model.parameters())
    facts = {
        "Model": f"transforming auto-encoder (2011), {config.capsules} capsules, {parameters:,} parameters",
        "Pose": "two numbers, moved by a shift"
        if config.pose == "translation"
        else "3 × 3 matrices, moved by a matrix",
        "Data": f"{config.data}, {width} × {height} pixels (width × height); labels have no part in it",
        "Training": f"{counted(len(rows), 'epoch')} in about {duration(took)}, batches of {config.batch_size}, "
        f"learning rate {config.lr:g}, seed {config.seed}",
        "Capsules in use": f"{found.alive} of {len(found.presence)}",
    }
    told = table("The run", [text("What"), text("Value")], [(text(k), name(v)) for k, v in facts.items()], kind="words")
    some = [rows[k] for k in evenly(torch.arange(len(rows)), 10).tolist()]
    lines = [(text(f"{row['epoch']:g}"), text(f"{row['train_loss']:.2f}")) for row in some]
    about = "The loss is the squared error of a drawing, summed over its pixels: a mean over the epoch."
    loss = table("Training", [text("Epoch"), text("Loss")], lines, kind="figures")
    return Section("summary", "Summary", join(told, paragraph(text(about)), loss))


def _poses(found: TransformingEvaluation, scatter: Figure) -> Section:
    about = (
        "Each image is paired with itself transformed. The capsules, weighted by their presence in both, say what was "
        "done; it is known what was. A correlation and a slope of 1 would be right. R² is a mean over single capsules."
    )
    lines = [
        (text(key), *(text(_rounded(of[key])) for of in (found.correlation, found.slope, found.mean_r2)))
        for key in found.names
    ]
    heads = [text(head) for head in ("Number", "Correlation", "Slope", "R² of a capsule")]
    alt = f"Told against true {' and '.join(found.names)} of each pair, a panel each."
    body = join(paragraph(text(about)), table("All capsules together", heads, lines, kind="figures"),
                picture(scatter, alt, kind="webp"))  # fmt: skip
    return Section("poses", "Do capsules know what was done?", body)


def _drawings(found: TransformingEvaluation, triplets: Figure) -> Section:
    about = (
        "The network sees the first row and is told the transformation; it draws the second, and should draw the third."
    )
    errors: Mapping[str, float] = {
        "the drawing": found.error, "the input as it is": found.copy_error,
        "the input, itself transformed": found.moved_error, "the mean of all targets": found.mean_error,
    }  # fmt: skip
    lines = [(text(key), text(f"{value:.5f}")) for key, value in errors.items()]
    heads = [text("Beside the target"), text("Mean squared error per pixel")]
    alt = "Test images, what the network draws when told a transformation, and the images so transformed."
    body = join(
        paragraph(text(about)), picture(triplets, alt, kind="webp"), table("Errors", heads, lines, kind="figures")
    )
    return Section("drawings", "What it draws", body)


def _capsules(found: TransformingEvaluation, generation: Figure) -> Section:
    about = (
        f"{found.alive} of {len(found.presence)} capsules are present in more than one image of a hundred. Presence "
        f"changes by {found.presence_change:.3f} on average when the image is transformed; it ought to stay. Below, a "
        "row for each of those most often present: what its generation units draw."
    )
    alt = "What the generation units of the capsules most often present draw, a row a capsule."
    return Section("capsules", "The capsules", join(paragraph(text(about)), picture(generation, alt, kind="webp")))


def _rounded(value: float) -> str:
    return f"{value:.3f}" if isfinite(value) else "–"
