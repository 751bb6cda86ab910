"""The sections of the report on one run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import sqrt
from typing import Any

import torch
from torch import Tensor

from torchcaps import evaluation
from torchcaps.evaluation import Diagnosis, example_indices
from torchcaps.models._registry import model_passport
from torchcaps.report.markup import Html, Section, heading, join, lengths, name, paragraph, picture, table, text
from torchcaps.report.markup import thumbnail as small
from torchcaps.report.subject import Subject
from torchcaps.report.words import counted, duration, percent, setting
from torchcaps.tasks.exhibits import evenly
from torchcaps.training import TrainConfig
from torchcaps.viz import drawable

MISTAKES, RIVALS, CONFUSIONS = 12, 4, 10
PAIRS, GRIDS, MAPS, OVERLAPS = 40, 10, 20, 24
SPAN, STEPS, MOST_TILES = 0.25, 5, 1024  # of perturbations
MOST_ROWS = 200  # of the per-class table

MEASURES = {
    "ablation": "With and without its routing",
    "iterations": "What the iterations do",
    "decay": "From the first capsules to the last",
    "children": "First capsules in use",
    "entropy": "How evenly children share themselves out",
    "dynamics": "Whether couplings follow the image",
    "tree": "Whether there is a parse tree",
    "parents": "Parents in use",
    "starvation": "Whether the gradient reaches the children",
    "sign": "Whether a pose and its negative differ",
}
NO_CAPSULES = "This model has no capsules, so there is no {what}."


def lead(run: Subject) -> Html:
    """Two sentences that say it all."""
    took = "" if run.seconds is None else f" in about {duration(run.seconds)} of training"
    ended = counted(len(run.epochs), "epoch")
    what = "have all their classes found" if run.several else "are right"
    return paragraph(
        Html(
            f"{text(run.config.model.name)} on {name(run.images.name)}: {text(ended + took)}. "
            f"<strong>{percent(run.accuracy)}</strong> of {run.figures['num_samples']:,} test images {what}."
        )
    )


def summary(run: Subject) -> Section:
    """What was trained, on what, how long, and what came out."""
    height, width = run.images.img_size
    passport = model_passport(run.config.model.name)
    options = ", ".join(f"{key} = {setting(value)}" for key, value in run.config.model.options.items())
    rows = {
        "Model": text(f"{run.config.model.name} ({passport.title}, {passport.year})"),
        "Its options": text(options or "none, so its defaults"),
        "Parameters": text(f"{run.parameters:,}"),
        "Data": name(run.config.data.name),
        "Images": text(f"{width} × {height} pixels (width × height), {_channels(run.images.in_chans)}"),
        "Classes": _classes(run.classes),
        "Training": text(_training(run)),
        "Time": text(_time(run)),
        "Model kept": text(f"that of epoch {run.best_epoch}, chosen by validation; test images had no part in it"),
    } | {label: text(value) for label, value in _results(run).items()}
    lines = [(text(label), value) for label, value in rows.items()]
    told = table("The run", _heads("What", "Value"), lines, kind="words")
    return Section("summary", "Summary", join(told, _notes(run)))


def curves(run: Subject) -> Section:
    """Loss and accuracy over epochs."""
    from torchcaps import viz

    epochs = [row | {"train_loss": row.get("train_margin")} for row in run.epochs]
    first, last = epochs[0]["val_accuracy"], epochs[-1]["val_accuracy"]
    alt = (
        f"Curves of loss and accuracy over {len(epochs)} epochs. Validation accuracy goes from {percent(first)} after "
        f"the first to {percent(last)} after the last."
    )
    about = (
        "Training figures are means over an epoch while the weights still change, with random shifts where the run has "
        f"them; validation figures are measured after it. {_loss(run)}"
    )
    warnings = [f"Epoch {row['epoch']}: {warning}" for row in epochs for warning in row.get("warnings", ())]
    told = [paragraph(text(sentence)) for sentence in (*run.notes, *warnings)]
    return Section("curves", "Training", join(paragraph(text(about)), picture(viz.curves(epochs), alt), *told))


def _loss(run: Subject) -> str:
    kind = getattr(run.model, "loss", "margin") if run.config.task.loss == "auto" else run.config.task.loss
    if kind == "margin":
        return "The loss is that of the classes, without reconstruction."
    rises = ", whose margin rises during training" if kind == "spread" else ""
    return (
        f"The training loss is the {kind.replace('_', ' ')} loss{rises}; the validation loss is the margin loss, as "
        "for every model, so the two lines cannot be compared."
    )


def classes(run: Subject) -> Section:
    """Which classes are found, and which are taken for which."""
    if run.several:
        return Section("classes", "Class by class", _found_by_class(run))
    from torchcaps import viz

    matrix = torch.tensor(run.figures["confusion_matrix"])
    right, total = int(matrix.trace()), int(matrix.sum())
    alt = f"Confusion matrix of {len(run.classes)} classes: {right:,} of {total:,} images on its diagonal are right."
    drawn = picture(viz.confusion_matrix(matrix.numpy(), drawable(run.classes)), alt)
    body = join(heading("Confusion matrix"), drawn, _names_note(run), _confusions(run.classes, matrix),
                heading("Per class"), class_table(run))  # fmt: skip
    return Section("classes", "Class by class", body)


def class_table(run: Subject) -> Html:
    """Accuracy and precision of each class, or of the least accurate ones."""
    rows = list(enumerate(run.figures["per_class"]))
    about = (
        "Accuracy is the share of the images of a class that are recognised; precision is the share of the images "
        "taken for it that are of it."
    )
    caption = f"All {len(rows)} classes"
    if len(rows) > MOST_ROWS:
        caption = f"The {MOST_ROWS} least accurate of {len(rows)} classes"
        rows.sort(key=lambda row: 2.0 if row[1]["accuracy"] is None else row[1]["accuracy"])
        rows = sorted(rows[:MOST_ROWS], key=lambda row: row[0])
    cells = [
        (name(row["name"]), text(index), text(percent(row["accuracy"])), text(f"{row['correct']:,}"),
         text(f"{row['count']:,}"), text(percent(row["precision"])))
        for index, row in rows
    ]  # fmt: skip
    heads = _heads("Class", "Number", "Accuracy", "Right", "Images", "Precision")
    return join(paragraph(text(about)), table(caption, heads, cells, kind="figures"))


def calibration(run: Subject) -> Section:
    """Whether lengths can be read as confidence."""
    if run.several:
        return Section(
            "calibration", "Calibration", paragraph(text("Calibration is measured for one class an image only."))
        )
    from torchcaps import viz

    found = run.figures["calibration"]
    errors = {key: table["error"] for key, table in found.items()}
    kind = "length" if run.has_lengths else "activation"
    about = (
        f"A calibrated model is right in 80 % of the cases in which it is 80 % sure. The {kind} of a capsule is no "
        f"probability, so both readings in use are shown: the largest {kind} divided by the sum of all, and as it is. "
        f"The expected calibration error is {percent(errors['normalised'])} for the first and "
        f"{percent(errors['length'])} for the second; 0 would be perfect."
        if run.has_capsules
        else "A calibrated model is right in 80 % of the cases in which it is 80 % sure. The expected calibration "
        f"error of its largest output is {percent(errors['length'])}; 0 would be perfect."
    )
    alt = "Reliability diagrams: accuracy by confidence, over the number of images at each confidence."
    return Section("calibration", "Calibration", join(paragraph(text(about)), picture(viz.calibration(found), alt)))


def mistakes(run: Subject) -> Section:
    """The wrong answers that the model was surest of."""
    worst, wrong = _worst(run)
    looked = f"{len(run.images):,} test images looked at"
    if not wrong:
        return Section("mistakes", "Worst mistakes", paragraph(text(f"None: all of the {looked} are right.")))
    longest, lengths = ("longest", "lengths") if run.has_lengths else ("most active", "activations")
    about = (
        f"{wrong:,} of the {looked} are wrong. These {len(worst)} are those where the {longest} capsule of a wrong "
        f"class exceeds that of the true one by most. The bars are {lengths}: the true class in blue, wrong answers in "
        "orange."
        if run.has_capsules
        else f"{wrong:,} of the {looked} are wrong. These {len(worst)} are those where the output for a wrong class "
        "exceeds that of the true one by most: the true class in blue, wrong answers in orange."
    )
    cards = "\n".join(f"<li>{_card(run, int(index))}</li>" for index in worst)
    body = join(paragraph(text(about)), Html(f'<ul class="cards">\n{cards}\n</ul>'))
    return Section("mistakes", "Worst mistakes", body)


def drawings(run: Subject) -> Section:
    """What the decoder makes of the longest capsules."""
    title = "Reconstructions"
    if (reason := _no_decoder(run, "reconstruction")) is not None:
        return Section("reconstructions", title, reason)
    from torchcaps import viz

    if run.several:
        return Section("reconstructions", title, _overlaps(run))
    some = evenly(example_indices(run.images.labels, 2, 0), PAIRS)
    shown, labels = run.images.float_images(some), run.images.labels[some].cpu()
    drawn = evaluation.reconstructions(run.model, shown)
    names = drawable(run.classes)
    figure = viz.reconstructions(shown, drawn.images, labels, predictions=drawn.predictions, classes=names)
    error = float((shown.cpu() - drawn.images).square().mean())
    about = (
        "What the decoder draws from the pose of the longest capsule alone. Mean squared error per value of a pixel, "
        f"over the images shown: {error:.4f}."
    )
    alt = f"{len(some)} test images above what the decoder draws of them."
    return Section("reconstructions", title, join(paragraph(text(about)), picture(figure, alt, kind="webp")))


def dimensions(run: Subject) -> Section:
    """What each pose dimension of a class capsule encodes, class by class."""
    title = "What pose dimensions encode"
    if (reason := _no_decoder(run, "pose to draw from")) is not None:
        return Section("dimensions", title, reason)
    from torchcaps import viz

    chosen = example_indices(run.labels[:, 0], 1, 0)
    some = evenly(chosen, GRIDS)
    labels = run.labels[some, 0]
    found = evaluation.perturb(run.model, run.images.float_images(some), labels, span=SPAN, steps=STEPS)
    dims = found.reconstructions.shape[1]
    if dims * STEPS > MOST_TILES:
        return Section("dimensions", title, paragraph(text(f"{dims} dimensions are too many to draw.")))
    names = drawable(run.classes)
    pictures = []
    for grid, label in zip(found.reconstructions, labels.tolist(), strict=True):
        figure = viz.perturbations(grid, found.offsets, title=f"class capsule {names[label]!r}")
        alt = (
            f"Drawings of an image of class {run.classes[label]}, a row for each of its {dims} pose dimensions, moved "
            f"from −{SPAN} to +{SPAN}."
        )
        pictures.append(picture(figure, alt, kind="webp"))
    shown = "" if len(some) == len(chosen) else f" Shown are {len(some)} of {len(chosen)} classes."
    about = (
        f"One test image a class; in each row one dimension of its class capsule is moved from −{SPAN} to +{SPAN}, and "
        f"the decoder draws what comes out. The framed column is the capsule as it is.{shown}"
    )
    return Section(
        "dimensions", title, join(paragraph(text(about)), Html(f'<div class="grids">\n{join(*pictures)}\n</div>'))
    )


def maps(run: Subject) -> Section:
    """Where on the image the votes for the winning class come from."""
    title = "Where the votes come from"
    if not run.has_capsules:
        return Section("maps", title, paragraph(text(NO_CAPSULES.format(what="vote to look at"))))
    from torchcaps import viz

    some = evenly(example_indices(run.labels[:, 0], max(1, MAPS // (2 * len(run.classes))), 0), MAPS)
    shown = run.images.float_images(some)
    try:
        found = evaluation.coupling_maps(run.model, shown)
    except ValueError as error:
        return Section("maps", title, paragraph(text(f"They cannot be drawn for this model: {error}.")))
    length = found.activations.gather(1, found.shown.unsqueeze(1)).squeeze(1)
    truth = torch.where((run.labels[some] == found.shown.unsqueeze(1)).any(dim=1), found.shown, run.labels[some, 0])
    figure = viz.coupling_map(
        shown, found.maps, truth, shown=found.shown, lengths=length, classes=drawable(run.classes)
    )  # fmt: skip
    rows, columns = found.positions.shape[1:]
    about = (
        "For the class capsule that wins: what each capsule below gives to it, coupling × strength of its vote × "
        f"agreement of the vote with the winner's pose, summed over capsule types at each of "
        f"{columns}\N{NO-BREAK SPACE}×\N{NO-BREAK SPACE}{rows} "
        "positions and spread over the pixels that a position sees. Each map has its own scale."
    )
    alt = f"{len(some)} test images above the same with a map of where the votes for their winning class come from."
    return Section("maps", title, join(paragraph(text(about)), picture(figure, alt, kind="webp")))


def routing(run: Subject, count: int, seed: int = 0) -> Section:
    """What routing does in this model, in sentences.

    Args:
        run: the run.
        count: test images to look at; 0 leaves the section out.
        seed: of their choice.
    """
    title = "Routing"
    if not run.has_capsules:
        return Section("routing", title, paragraph(text(NO_CAPSULES.format(what="routing to look at"))))
    if run.several:
        return Section("routing", title, paragraph(text("Its measures need one class an image.")))
    if not count:
        return Section("routing", title, paragraph(text("The measures of routing were left out of this report.")))
    from torchcaps import viz

    try:
        found = evaluation.diagnose(run.model, run.images, count=count, seed=seed)
    except ValueError as error:
        return Section("routing", title, paragraph(text(f"It cannot be measured for this model: {error}.")))
    about = (
        f"Measured on {found.num_samples} test images, {percent(found.accuracy)} of which are right. So few images "
        "tell large effects from none, not small ones. How each figure is defined stands in the documentation, under "
        "diagnostics."
    )
    alt = "Four panels: coupling entropy, activations by layer, share of capsules out of use, accuracy without routing."
    body = join(paragraph(text(about)), verdicts(found), picture(viz.diagnosis(found), alt))
    return Section("routing", title, body)


def verdicts(found: Diagnosis) -> Html:
    """Every measure with its sentence, for the whole model and then layer by layer."""
    parts: dict[str, list[tuple[Html, Html]]] = {}
    for key, sentence in found.verdicts().items():
        layer, _, measure = key.rpartition(": ")
        if measure == "baseline":
            continue  # beside another run, a comparison says it
        parts.setdefault(layer, []).append((text(MEASURES.get(measure, measure)), text(sentence)))
    heads = _heads("Question", "Answer")
    return join(
        *(table(f"Layer {layer}" if layer else "The whole model", heads, rows, kind="words")
          for layer, rows in parts.items())
    )  # fmt: skip


def configuration(run: Subject) -> Section:
    """All settings, those that are not the default in bold, and the machine."""
    return configured(run.config.to_dict(), TrainConfig().to_dict(), run.environment)


def configured(settings: Mapping[str, Any], default: Mapping[str, Any], environment: Mapping[str, Any]) -> Section:
    """The same of any kind of run."""
    rows = []
    for key, value in settings.items():
        shown = text(setting(value))
        rows.append((text(key), shown if value == default[key] else Html(f"<strong>{shown}</strong>")))
    machine = [(text(key), text(setting(value))) for key, value in environment.items()]
    told = (
        table("What the run was started with", _heads("What", "Version or kind"), machine, kind="words")
        if machine
        else paragraph(text("The environment was not recorded."))
    )
    body = join(
        table("Settings; bold where they are not the default", _heads("Setting", "Value"), rows, kind="words"),
        heading("Environment"), told,
    )  # fmt: skip
    return Section("configuration", "Configuration and environment", body)


def _heads(*titles: str) -> list[Html]:
    return [text(title) for title in titles]


def _classes(names: Sequence[str]) -> Html:
    shown = ", ".join(name(label) for label in names[:10])
    return Html(f"{len(names)}: {shown}{', …' if len(names) > 10 else ''}")


def _channels(count: int) -> str:
    return {1: "grey", 3: "colour"}.get(count, f"{count} channels")


def _training(run: Subject) -> str:
    config, planned = run.config, run.config.run.epochs
    epochs = counted(len(run.epochs), "epoch") + ("" if len(run.epochs) == planned else f" of at most {planned}")
    count = run.epochs[-1].get("images")
    images = "" if count is None else f" of {int(count):,} images"
    steps = f"batches of {config.run.batch_size}, learning rate {config.optimiser.lr:g} ({config.schedule.name}), seed {config.run.seed}"
    return f"{epochs}{images}, {steps}"


def _time(run: Subject) -> str:
    if run.seconds is None:
        return "not recorded"
    where = run.environment.get("gpu") or run.environment.get("processor") or "an unrecorded machine"
    threads = run.environment.get("threads")
    kind = f"{where}, {counted(threads, 'thread')}" if threads and not run.environment.get("gpu") else str(where)
    return f"about {duration(run.seconds)} of training steps, without validation, on {kind}"


def _results(run: Subject) -> dict[str, str]:
    found, n = run.figures, run.figures["num_samples"]
    if run.several:
        return {
            "All classes found": f"{percent(found['exact'])} of {n:,} test images "
            f"(error {percent(found['error'])}, standard error {percent(found['standard_error'])})",
            "At least one found": percent(found["almost"]),
            "Single classes found": percent(found["per_digit"]),
        }
    spread = percent(sqrt(found["error"] * found["accuracy"] / n))
    return {
        "Test accuracy": f"{percent(found['accuracy'])} of {n:,} images",
        "Test error": f"{percent(found['error'])}, {round(found['error'] * n):,} images (standard error {spread})",
        "Test loss": f"{found['loss']:.4f} (margin loss)",
    }


def _notes(run: Subject) -> Html:
    notes = []
    if len(run.images) < run.total:
        few = f"{len(run.images):,} evenly spread of {run.total:,} test images"
        notes.append(f"Mistakes and pictures are those of {few}.")
    elif run.recorded:
        again = float(run.measured.exact if isinstance(run.measured, evaluation.MultiLabel) else run.measured.accuracy)
        if round(again * run.total) != round(run.accuracy * run.figures["num_samples"]):
            notes.append(
                f"The figures are those of evaluation.json. Measured again for this report, {percent(again)} are right."
            )
    return join(*(paragraph(text(note)) for note in notes))


def _confusions(names: Sequence[str], matrix: Tensor) -> Html:
    wrong = matrix - matrix.diag().diag()
    counts, places = wrong.flatten().sort(descending=True, stable=True)
    often = [(int(c), int(p)) for c, p in zip(counts[:CONFUSIONS], places[:CONFUSIONS], strict=True) if c]
    if not often:
        return paragraph(text("No image was taken for another class."))
    rows = [
        (Html(f"{name(names[place // len(names)])} → {name(names[place % len(names)])}"), text(f"{count:,}"),
         text(percent(count / max(int(matrix[place // len(names)].sum()), 1))))
        for count, place in often
    ]  # fmt: skip
    heads = _heads("True class → taken for", "Images", "Of the true class")
    return table("The most frequent confusions", heads, rows, kind="figures")


def _found_by_class(run: Subject) -> Html:
    """For images of several classes: how often each is among the longest capsules where it is there."""
    labels = run.labels
    taken = evaluation.top_labels(run.activations, labels.shape[1])
    hit = (labels.unsqueeze(2) == taken.unsqueeze(1)).any(dim=2)
    rows = []
    for index, label in enumerate(run.classes):
        there = labels == index
        count, found = int(there.sum()), int((hit & there).sum())
        share = percent(found / count if count else None)
        rows.append((name(label), *map(text, (index, share, f"{found:,}", f"{count:,}"))))
    about = text(f"How often a class that is in an image is among its {labels.shape[1]} longest capsules.")
    caption = f"All classes, {len(run.images):,} images looked at"
    return join(
        paragraph(about), table(caption, _heads("Class", "Number", "Found", "Right", "Images"), rows, kind="figures")
    )


def _worst(run: Subject) -> tuple[list[int], int]:
    """The wrong answers that the model was surest of, and how many there are in all."""
    true = torch.zeros_like(run.activations, dtype=torch.bool).scatter(1, run.labels, True)
    rival = run.activations.masked_fill(true, -1.0).amax(dim=1)
    missed = run.activations.masked_fill(~true, 2.0).amin(dim=1)
    wrong = (~run.right).nonzero().squeeze(1)
    order = (rival - missed)[wrong].argsort(descending=True, stable=True)
    return wrong[order][:MISTAKES].tolist(), len(wrong)


def _card(run: Subject, index: int) -> Html:
    """One image, what it is, what it was taken for, and the lengths of the rival capsules."""
    from torchcaps.viz.images import pictures

    true, values = run.labels[index].tolist(), run.activations[index]
    taken = evaluation.top_labels(values.unsqueeze(0), len(true))[0].tolist()
    longest = values.topk(min(RIVALS, len(values))).indices.tolist()
    shown = sorted({*longest, *true}, key=lambda k: -float(values[k]))
    kinds = dict.fromkeys(taken, "wrong") | dict.fromkeys(true, "true")
    names = [" + ".join(run.classes[k] for k in ks) for ks in (true, taken)]
    image = pictures("images", run.images.float_images(torch.tensor([index])).cpu())[0]
    both = [Html(" + ".join(name(run.classes[k]) for k in ks)) for ks in (true, taken)]
    said = paragraph(Html(f"<strong>{both[0]}</strong>, taken for {both[1]}"))
    bars = lengths([(run.classes[k], float(values[k]), kinds.get(k, "")) for k in shown])
    alt = f"Test image of class {names[0]}, taken for {names[1]}"
    return Html(f"{small(image, alt)}<div>{said}{bars}</div>")


def _overlaps(run: Subject) -> Html:
    from torchcaps import viz

    if run.labels.shape[1] != 2 or not isinstance(run.images, PairSet):
        return paragraph(text("Drawings are made for images of two classes only."))
    some = evenly(torch.arange(len(run.images)), OVERLAPS)
    shown, labels = run.images.float_images(some), run.labels[some]
    drawn = evaluation.match_segments(evaluation.segment(run.model, shown), labels)
    figure = viz.overlaps(
        shown, drawn.images, labels, shown=drawn.shown, lengths=drawn.lengths, classes=drawable(run.classes)
    )
    about = (
        "What the decoder draws from the two longest capsules of each image, one at a time: the first in magenta, the "
        "second in green, white where both are."
    )
    alt = f"{len(some)} images of two overlapping classes, and what the decoder draws of each class alone."
    return join(paragraph(text(about)), picture(figure, alt, kind="webp"))


def _no_decoder(run: Subject, what: str) -> Html | None:
    if not run.has_capsules:
        return paragraph(text(NO_CAPSULES.format(what=what)))
    return None if run.has_decoder else paragraph(text(f"This model has no decoder, so there is no {what}."))


def _names_note(run: Subject) -> Html:
    if drawable(run.classes) == list(run.classes):
        return Html("")
    return paragraph(text("Where a name cannot be drawn in a picture, it says the class's number in the table below."))
