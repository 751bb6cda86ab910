"""Measure a run of a transforming auto-encoder and leave its figures and plots in its folder."""

from __future__ import annotations

from pathlib import Path

import torch

from torchcaps.data import load_dataset
from torchcaps.evaluation import TransformingEvaluation, evaluate_transforming
from torchcaps.models import TransformedPairs, TransformingAutoencoder
from torchcaps.report.plots import PLOTS, can_plot, save_figure
from torchcaps.training import RunFolder, load_transforming, transformed_pairs
from torchcaps.training.checkpoint import write_json
from torchcaps.training.transforming_run import VIEWS, transforming_config

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
    config = transforming_config(run)
    model = load_transforming(run.path)
    images = load_dataset(config.data, "test", root or config.root).float_images()
    generator = torch.Generator().manual_seed(seed)
    pairs = transformed_pairs(images, config.pose, generator=generator, **config.part(VIEWS))
    found = evaluate_transforming(model, pairs)
    write_json(run.path / EVALUATION, found.to_dict())
    if can_plot():
        plot_transforming(run.path, found, model, pairs)
    return found


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
    from torchcaps import viz

    unit = "pixels" if model.pose == "translation" else ""
    some = slice(0, MOST_POINTS)
    weights = model.weight["draw"].detach().unflatten(-1, (model.in_chans, *model.img_size)).mean(dim=2)
    often = found.presence.argsort(descending=True)[:DRAWN_CAPSULES]
    figures = {
        "scatter": viz.predicted_transformations(found.true[some], found.predicted[some], names=found.names, unit=unit),
        "triplets": viz.transformed(pairs.source[:SHOWN], found.drawn[:SHOWN], pairs.target[:SHOWN]),
        "generation": viz.generation_weights(
            weights[often, :MOST_UNITS], title="what the generation units of the capsules most often present draw"
        ),
    }
    return [save_figure(figure, Path(folder) / PLOTS / f"{name}.png") for name, figure in figures.items()]
