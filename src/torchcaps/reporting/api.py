"""Measurements of a trained model, and pictures of what its capsules encode.

Each function takes a model or a run.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from importlib.util import find_spec
from io import BytesIO
from itertools import chain
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any

import torch
from numpy.typing import ArrayLike
from PIL import Image
from torch import Tensor, nn

from torchcaps import evaluation
from torchcaps.data import Dataset, load_dataset, match_classes
from torchcaps.data.classes import first_labels
from torchcaps.data.inputs import list_inputs
from torchcaps.distributed import current, main_first
from torchcaps.errors import ArgumentError, DataError, RunError
from torchcaps.evaluation.base import EvaluationResult, Progress
from torchcaps.models._pretrained import FOLDER
from torchcaps.reporting.prediction import ModelOrRun as ModelOrRun, load_model
from torchcaps.tasks import Task, create_task, evaluate_task, evenly, task_class
from torchcaps.training import Run, TrainConfig
from torchcaps.training.files import MODEL_FILE, atomic, make_folder, read_header, write_json
from torchcaps.training.inputs import as_set, expected_target
from torchcaps.training.run import EVALUATION_FILE, is_run
from torchcaps.training.sampling import cropped, select_fold
from torchcaps.types import StrPath, model_metadata, spec_of
from torchcaps.words import UniqueNames

if TYPE_CHECKING:
    from matplotlib.figure import Figure


PLOTS = "plots"
Data = Dataset | tuple[ArrayLike | Tensor, ArrayLike | Tensor] | StrPath
"""Images with labels; or the name or path of a data set."""


def open_task(
    model_or_run: ModelOrRun,
    data: Data | None = None,
    *,
    root: str | None = None,
    split: str = "test",
    device: str = "auto",
    **options: Any,
) -> tuple[Task, Dataset]:
    """The task around a trained model, and images for it.

    Args:
        model_or_run: a model; a run, or its folder; or a file of weights.
        data: by default the data set that the run was trained on; a model has none. Its classes are
            matched with the model's by name; some of them may be absent. Of a path without splits
            that is not the one of the run, all images are taken.
        root: where a named set is looked for first.
        split: "test" or "train".
        device: "auto" leaves a model where it is.
        options: how image files of other data are read, as `load_dataset` takes them.

    Returns:
        The task, which holds the model, and the set of images.

    Raises:
        RunError: for no such run.
        DataError: if the data cannot be read, or has images of a class that the model does not know.
        ArgumentError: for a model without data, or data that its task does not take.
    """
    model = load_model(model_or_run, device)
    metadata = model_metadata(model)
    path = None if isinstance(model_or_run, nn.Module) else Path(model_or_run)
    has_run = path is not None and is_run(path)
    config = Run(path).config if path and has_run else TrainConfig.of(task=metadata.task)
    own = config.data
    is_own = data is None
    if has_run and isinstance(data, StrPath):  # it may be written in another way
        is_own = Path(data).resolve() == Path(own.name).resolve()
    has_fold = is_own and own.folds is not None
    if data is None:
        data = own.name if has_run else _shown_data(path)
    if is_own:
        root = root or own.root
        options = {"max_bytes": own.max_bytes, **own.options, **options}
    elif has_run:  # of a model alone, nobody knows what it has seen
        options["classes"] = metadata.classes
        if isinstance(data, StrPath) and Path(data).suffix.lower() == ".csv":
            options.setdefault("value_column", own.value_column)
    if isinstance(data, StrPath):
        preprocess = metadata.preprocess
        sizes = preprocess or model
        options |= {"img_size": sizes.img_size, "in_chans": sizes.in_chans, "storage": "auto"}
        with main_first():
            # The test images of a fold are training images of the data set.
            images = load_dataset(str(data), "train" if has_fold else split, root, **options)
        if preprocess is not None:  # cropped as in its training
            images = cropped(images, preprocess.crop)
    else:
        target = expected_target(model, metadata.task)
        images = as_set(data, target=target, classes=metadata.classes)
    if has_fold:
        images = select_fold(images, config, is_tested=split == "test")

    if task_class(config.task.name, model, images).labeled and metadata.classes:
        images = match_classes(images, metadata.classes)
    # Such as overlapping digits, for a model of single ones.
    if not task_class(config.task.name, model, images).supports(images):
        config = config.updated(task="auto")
    return create_task(model, config, images), images


def _shown_data(path: Path | None) -> str:
    """The data set of weights that come with the package."""
    if path is None:
        raise ArgumentError("data", "expected a data set for a model without a run, got None")
    file = path / MODEL_FILE if path.is_dir() else path
    name = read_header(file)[1].get("weights", {}).get("shown")
    if name is None:
        raise RunError(
            f"{path}: a model file does not say what data it was trained on; give --data"
        )
    return str(name)


def evaluate(
    model_or_run: ModelOrRun,
    data: Data | None = None,
    *,
    root: str | None = None,
    split: str = "test",
    device: str = "auto",
    output: StrPath | None = None,
    progress: Progress | None = None,
    emit: Callable[[str], None] | None = None,
    **options: Any,
) -> EvaluationResult:
    """Measure a trained model on images that were not used in training.

    Args:
        model_or_run: a model; a run, or its folder; or a file of weights.
        data: a `Dataset`, (images, labels), or the name or path of a data set; by default the one
            that the run was trained on. Its classes are matched with the model's by name. Those
            without images have no accuracy. Of a path without train and test that is not the one
            of the run, all images are measured.
        root: where a named set is looked for first.
        split: "test" or "train".
        device: "auto" leaves a model where it is.
        output: a folder for evaluation.json and, where matplotlib is installed, plots. The first
            process writes them.
        progress: called with (images done, images in all).
        emit: called with each sentence on what was read and what was left out.
        options: how image files are read, as `load_dataset` takes them: `skip_damaged`,
            `label_column`, ...; by default as in the training where that was with the same data.
            The columns of values are those of the training in another table too.

    Returns:
        What the task measures: of a classifier `accuracy`, per class and overall, loss, calibration
        and confusions; of any task `to_dict()`, `summary` and `table()`.

    Raises:
        RunError: for no run, or, before anything is measured, an output folder that cannot be
            written to.
        DataError: if the data cannot be read, or has images of a class that the model does not
            know.
        ArgumentError: for a model without data, or data that its task does not take.

    Example:
        >>> tc.evaluate("runs/capsnet-digits").accuracy
        0.985
    """
    task, images = open_task(model_or_run, data, root=root, split=split, device=device, **options)
    if emit is not None:
        for sentence in images.notes:
            emit(sentence)
    writes = output is not None and current().is_main
    folder = Path(output or "")
    if writes:
        make_folder(folder)
        try:
            with TemporaryFile(dir=folder):
                pass
        except OSError as error:
            raise RunError(f"{folder}: cannot be written to ({error.strerror})") from error
    evaluated = evaluate_task(task, images, progress=progress)
    if not writes:
        return evaluated

    write_json(folder / EVALUATION_FILE, evaluated.to_dict())
    if can_plot():
        for item in task.report_items(evaluated, images):
            if item.figure is not None:
                save_figure(item.figure, folder / PLOTS / f"{item.key}.png")
        if isinstance(model_or_run, Run):
            save_figure(model_or_run.curves(), folder / PLOTS / "curves.png")
    return evaluated


def diagnose(
    model_or_run: ModelOrRun,
    data: Data | None = None,
    *,
    baseline: ModelOrRun | None = None,
    count: int = 256,
    seed: int = 0,
    root: str | None = None,
    split: str = "test",
    device: str = "auto",
) -> evaluation.Diagnosis:
    """Measure what routing does in a trained model, with a verdict in words for each measure.

    Args:
        model_or_run: a model; a run, or its folder; or a file of weights.
        data: a data set, its name or its path; by default the one that the run was trained on.
        count: number of random images, at least 2.
        seed: of the choice of these images, 0 or more.
        root: where a named set is looked for first.
        split: "test" or "train", of a named set.
        baseline: a model or run to compare with on the same images, such as a CNN of equal size.
        device: "auto" leaves a model where it is.

    Returns:
        The measures of `evaluation.diagnose`.

    Raises:
        ArgumentError: for a model without routed layers.
        RunError: for no such run, or data whose classes are not the model's.
        DataError: if the data cannot be read.
    """
    task, images = open_task(model_or_run, data, root=root, split=split, device=device)
    rival = None if baseline is None else load_model(baseline, device)
    return evaluation.diagnose(task.model, images, baseline=rival, count=count, seed=seed)


def evaluation_folder(run: StrPath, data: str | None = None, split: str = "test") -> Path:
    """The folder that an evaluation belongs in.

    Args:
        run: a run folder or a file of weights; weights of the package belong in the present folder.
        data: name or path of a data set that is not the run's own.
        split: "test" or "train".

    Returns:
        The run folder for its own test images, else a folder in it named after data and split.
    """
    folder = Path(run)
    if folder.parent == FOLDER:
        folder = Path()
    elif not folder.is_dir():
        folder = folder.parent
    if data is None and split == "test":
        return folder
    source = Path(data or "own").name.split(".")[0]
    return folder / "evaluations" / f"{source}-{split}"


def can_plot() -> bool:
    """Whether matplotlib is installed; without it a run has its figures, but no plots."""
    return find_spec("matplotlib") is not None


def save_figure(figure: Figure, path: StrPath) -> Path:
    """Write a figure atomically; missing folders are made.

    Args:
        figure: of matplotlib.
        path: the file; its ending names the format, which is PNG without one.

    Returns:
        Path of the file, with its ending.

    Raises:
        ArgumentError: for an ending that is no picture format.
        RunError: if the folder cannot be made.
        TrainingError: if the file cannot be written.
    """
    path = Path(path)
    file_format = path.suffix.removeprefix(".").lower() or "png"
    formats = figure.canvas.get_supported_filetypes()
    if file_format not in formats:
        endings = ", ".join(sorted(formats))
        raise ArgumentError(
            "output", f"expected a file ending in one of {endings}, got {path.name}"
        )
    make_folder(path.parent)
    with atomic(path) as partial:
        figure.savefig(partial, format=file_format, dpi=120)
    return path


MAX_PAIRS = 80


def reconstruct_run(
    run: StrPath,
    images: Sequence[StrPath] = (),
    *,
    per_class: int = 2,
    output: StrPath | None = None,
    **options: Any,
) -> Path:
    """Write a picture of originals over their reconstructions from the longest capsule.

    Of more than 80 images, 80 evenly spread ones are drawn.

    Args:
        run: a run folder or a file of weights.
        images: own image files or folders; without them, test images.
        per_class: number of test images of each class.
        output: the picture; by default plots/reconstructions.png in the run folder.
        options: of test images: `data`, name or path of another data set than the run's own;
            `root`, where a named one is looked for first; and `seed`, 0 or more.

    Returns:
        The picture.

    Raises:
        RunError: for no run, or a model without a decoder.
        DataError: if the images cannot be read.
    """
    from torchcaps import viz

    model, originals, labels, _ = _choose_examples(run, images, per_class, **options)
    indices = evenly(torch.arange(len(originals)), MAX_PAIRS)
    decoded = evaluation.reconstructions(model, originals[indices])
    figure = viz.reconstructions(
        originals[indices],
        decoded.images,
        decoded.predictions if labels is None else labels[indices],
        predictions=decoded.predictions,
        classes=model_metadata(model).classes,
    )
    return save_figure(figure, output or evaluation_folder(run) / PLOTS / "reconstructions.png")


def perturb_run(
    run: StrPath,
    images: Sequence[StrPath] = (),
    *,
    span: float = 0.25,
    steps: int = 11,
    output: StrPath | None = None,
    **options: Any,
) -> list[Path]:
    """Write a grid of reconstructions of each image: a row per pose dimension, a column per offset.

    Args:
        run: a run folder or a file of weights.
        images: own image files or folders; without them, one test image of each class.
        span: each dimension moves from -span to span.
        steps: number of offsets, at least 2.
        output: folder of the pictures; by default plots/ in the run folder.
        options: of test images, see `reconstruct_run`.

    Returns:
        The pictures.

    Raises:
        ValueError: for `span` or `steps` out of range.
        RunError, DataError: see `reconstruct_run`.
    """
    from torchcaps import viz

    model, originals, labels, names = _choose_examples(run, images, **options)
    folder = Path(output or evaluation_folder(run) / PLOTS)
    classes = viz.canvas.drawable(model_metadata(model).classes)
    unique_name = UniqueNames()
    pictures = []
    for index, name in enumerate(names):
        one = slice(index, index + 1)
        label = None if labels is None else labels[one]
        perturbed = evaluation.perturb(model, originals[one], label, span=span, steps=steps)
        figure = viz.perturbations(
            perturbed.reconstructions[0],
            perturbed.offsets,
            title=f"pose of class capsule {classes[int(perturbed.selected)]!r}, "
            "one dimension at a time",
            names=perturbed.names[0],
        )
        file = unique_name(re.sub(r"[^\w-]", "_", name))
        pictures.append(save_figure(figure, folder / f"perturb_{file}.png"))
    return pictures


HOLD = 1400  # milliseconds of a picture that shows an iteration
PASS = 70  # milliseconds of one in between


def animate_run(
    run: StrPath,
    images: Sequence[StrPath] = (),
    *,
    output: StrPath | None = None,
    **options: Any,
) -> Path:
    """Write a GIF of the votes of images for their classes, iteration by iteration.

    Args:
        run: a run folder or a file of weights.
        images: own image files or folders; without them, one test image of each class.
        output: the file; by default plots/votes.gif in the run folder.
        options: of test images, see `reconstruct_run`.

    Returns:
        The file.

    Raises:
        ArgumentError: see `evaluation.vote_paths`.
        RunError, DataError: see `reconstruct_run`.
    """
    from torchcaps import viz

    model, originals, _, _ = _choose_examples(run, images, draws=False, **options)
    films = []
    for image in originals:
        paths = evaluation.vote_paths(model, image)
        films.append(
            viz.vote_film(
                paths.coupling,
                paths.votes,
                paths.activation,
                classes=model_metadata(model).classes,
                image=image,
                gaussian=paths.agreement,
            )
        )
    return save_film(
        chain.from_iterable(films), output or evaluation_folder(run) / PLOTS / "votes.gif"
    )


def save_film(film: Iterable[tuple[Figure, bool]], path: StrPath) -> Path:
    """Write figures as a GIF, atomically; missing folders are made.

    Args:
        film: figures of one size, at least one, and whether each is held for longer.
        path: the file.

    Returns:
        The file.

    Raises:
        RunError, TrainingError: see `save_figure`.
    """
    frames = []
    durations = []
    for figure, is_held in film:
        stream = BytesIO()
        figure.savefig(stream, format="png", dpi=110)
        with Image.open(stream) as picture:
            frames.append(picture.convert("RGB").quantize(255))
        durations.append(HOLD if is_held else PASS)
    path = Path(path)
    make_folder(path.parent)
    with atomic(path) as partial:
        frames[0].save(
            partial,
            format="GIF",
            save_all=True,
            append_images=frames[1:],
            duration=durations,
            loop=0,
        )
    return path


def _choose_examples(
    run: StrPath,
    images: Sequence[StrPath],
    per_class: int = 1,
    draws: bool = True,
    *,
    data: str | None = None,
    root: str | None = None,
    seed: int = 0,
) -> tuple[Any, Tensor, Tensor | None, list[str]]:
    """Own images, or test images of each class.

    Returns:
        The model, whose decoder can draw them if `draws`; the images `[n, channels, height, width]`; their labels
        `[n]`, None for own images; and names of their classes or files.

    Raises:
        RunError: for a model without a decoder of class capsules.
    """
    test_images = None
    if images:
        model = load_model(run)
    else:
        task, test_images = open_task(run, data=data, root=root, device="cpu")
        model = task.model
    spec = spec_of(model)
    metadata = model_metadata(model)
    if draws and not (spec.decoder and metadata.classes and not spec.is_dense):
        raise RunError(f"{run}: this model has no decoder of class capsules, so it cannot draw")
    if test_images is not None:
        labels = first_labels(test_images.labels)
        indices = evaluation.example_indices(labels, per_class, seed)
        names = [test_images.classes[label] for label in labels[indices].tolist()]
        return model, test_images.float_images(indices), labels[indices], names
    pixels = []
    names = []
    for element in list_inputs(images, metadata.preprocess):
        if isinstance(element.source, DataError):
            raise element.source
        pixels.append(metadata.preprocess(element.source, element.name))
        names.append(Path(str(element.name)).stem)
    return model, torch.stack(pixels), None, names
