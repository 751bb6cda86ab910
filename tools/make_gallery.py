"""Make docs/gallery.md and its pictures: one entry for every public function of `torchcaps.viz`.

    python tools/make_gallery.py [RUN]

Every picture is drawn by the very code that stands beside it on the page. Runs that are not there are trained first,
which takes minutes. A new figure is one more `Entry`.
"""

from __future__ import annotations

import argparse
import io
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from PIL import Image

import torchcaps as tc
from torchcaps import evaluation, viz
from torchcaps.training import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ROOT = Path(__file__).resolve().parents[1]
PAGE, PICTURES = ROOT / "docs" / "gallery.md", ROOT / "docs" / "images" / "gallery"
MAX_BYTES = 60_000

MAIN = "runs/capsnet-digits"
SMALL = "capsnet --data digits --epochs 8 --lr 0.003 --option channels=32 --option primary_types=4"
# What is trained where it is absent: arguments of `torchcaps train`.
RUNS = {
    MAIN: "capsnet-digits",
    "runs/small-dynamic": f"{SMALL} --option routing=dynamic",
    "runs/small-uniform": f"{SMALL} --option routing=uniform",
    "runs/capsnet-pairs": "capsnet --data multi-digits --shift 0 --epochs 5",
    "runs/transforming-digits": "transforming_autoencoder --data digits --epochs 20 --batch-size 64",
    "runs/planes": "canonical-capsules",
}


class Entry(NamedTuple):
    """A figure of the page.

    Attributes:
        name: of the function in `torchcaps.viz`.
        about: what the figure shows.
        source: where its numbers are from.
        code: what draws it, ending with `figure = ...`; the names of `SETUP` are known.
        dpi: of the picture.
        colors: of its palette; few will do for pictures in gray, whose bytes are many.
    """

    name: str
    about: str
    source: str
    code: str
    dpi: int = 90
    colors: int = 128


SETUP = """\
import torch
import torchcaps as tc
from torchcaps import evaluation, tasks, viz

task, digits = tc.reporting.open_task("runs/capsnet-digits", device="cpu")
model = task.model
examples = evaluation.example_indices(digits.labels, 2, seed=0)  # two test digits of each class
images, labels, classes = digits.float_images(examples), digits.labels[examples], digits.classes
scores = tc.evaluate(model, digits)
packaged = tc.load(tc.models.weights_file())  # the small CapsNet of the package


def epochs(run):
    rows = tc.training.Run(run).epochs
    return [
        row | {"train_loss": row["train_margin"]} for row in rows
    ]  # the loss of the classes, as in validation"""

TRANSFORMING = """\
auto = tc.load("runs/transforming-digits")
test = digits.float_images()
pairs = tasks.transformed_pairs(test, generator=torch.Generator().manual_seed(1))
known = tasks.evaluate_transforming(auto, pairs)
"""
TEST = "the 1,000 embedded test digits"

SECTIONS: dict[str, list[Entry]] = {
    "What a capsule encodes": [
        Entry(
            "reconstructions",
            "Test digits above their reconstructions, each decoded from the sixteen numbers of one capsule.",
            "two test digits of each class",
            """\
drawings = evaluation.reconstructions(model, images)
figure = viz.reconstructions(
    images, drawings.images, labels, predictions=drawings.predictions, classes=classes
)""",
            84,
            32,
        ),
        Entry(
            "perturbations",
            "The meaning of pose dimensions: each row changes one dimension, and ends with the change.",
            "the packaged small CapsNet and a test digit of class 4",
            """\
sweep = evaluation.perturb(packaged, images[8:9], labels[8:9], steps=5)
figure = viz.perturbations(
    sweep.reconstructions[0],
    sweep.offsets,
    title="pose of the capsule of class 4",
    names=sweep.names[0],
)""",
            72,
            64,
        ),
        Entry(
            "activation_bars",
            "The lengths of all class capsules under each image; here the worst mistakes.",
            TEST,
            """\
worst = evaluation.worst_mistakes(scores.activations, scores.labels)[:5]
lengths = scores.activations[worst]
figure = viz.activation_bars(
    digits.float_images(worst), lengths, scores.labels[worst], classes=classes
)""",
        ),
    ],
    "What routing does": [
        Entry(
            "coupling_map",
            "Where on the image the votes for the winning class come from.",
            "one test digit of each class",
            """\
maps = evaluation.coupling_maps(model, images[::2])
lengths = maps.activations.amax(dim=1)
figure = viz.coupling_map(
    images[::2], maps.maps, labels[::2], selected=maps.selected, lengths=lengths, classes=classes
)""",
        ),
        Entry(
            "vote_paths",
            "All votes for each class, times their couplings, tip to tail: votes that agree make a straight line.",
            "the packaged small CapsNet and a test digit",
            """\
paths = evaluation.vote_paths(packaged, images[14])
figure = viz.vote_paths(
    paths.coupling, paths.votes, paths.activation, classes=classes, image=images[14]
)""",
            80,
            64,
        ),
        Entry(
            "vote_film",
            "The same as one rosette that moves; here its last picture. `torchcaps animate RUN IMAGE` writes a GIF.",
            "the same",
            """\
paths = evaluation.vote_paths(packaged, images[14])
film = viz.vote_film(
    paths.coupling, paths.votes, paths.activation, classes=classes, image=images[14]
)
*_, (figure, _) = film""",
            80,
            64,
        ),
        Entry(
            "diagnosis",
            "The effect of routing: accuracy without it, straightness of votes, couplings, idle capsules.",
            "128 test digits",
            """\
figure = viz.diagnosis(evaluation.diagnose(model, digits, count=128))""",
            80,
        ),
    ],
    "Course of a training": [
        Entry(
            "curves",
            "Loss and accuracy over epochs, training beside validation.",
            "the metrics of the run",
            """\
figure = viz.curves(epochs("runs/capsnet-digits"))""",
        ),
        Entry(
            "overlaid_curves",
            "Several runs in one figure.",
            "three runs: as above, and a small network with routing and with uniform coupling",
            """\
names = ("capsnet-digits", "small-dynamic", "small-uniform")
figure = viz.overlaid_curves({name: epochs(f"runs/{name}") for name in names})""",
        ),
    ],
    "Quality of a classifier": [
        Entry(
            "confusion_matrix",
            "Counts of true against predicted classes.",
            TEST,
            """\
figure = viz.confusion_matrix(scores.confusion, classes)""",
        ),
        Entry(
            "per_class_bars",
            "Accuracy of each class.",
            TEST,
            """\
rows = scores.per_class
figure = viz.per_class_bars(
    [row["accuracy"] for row in rows], classes, [row["count"] for row in rows]
)""",
        ),
        Entry(
            "calibration",
            "Whether a length can be read as a confidence.",
            TEST,
            """\
figure = viz.calibration(scores.to_dict()["calibration"])""",
        ),
        Entry(
            "affine_curves",
            "Accuracy on images that are rotated, resized or moved, with a panel for each change; or "
            "against any other quantity, such as the strength of an attack.",
            "100 test digits; the training images were shifted by up to 2 pixels and not changed otherwise",
            """\
subset = digits.subset(torch.arange(0, 1000, 10))
ranges = {"rotation": range(-60, 61, 20), "scale": range(60, 141, 20), "shift": range(0, 9, 2)}
sweeps = {
    name: evaluation.affine_sweep(
        tc.load(f"runs/{name}"), subset.float_images(), subset.labels, **ranges
    ).curves
    for name in ("capsnet-digits", "small-dynamic", "small-uniform")
}
lines = {
    name: {kind: (c.amounts, c.accuracy) for kind, c in sweep.items()}
    for name, sweep in sweeps.items()
}
units = {kind: curve.unit for kind, curve in sweeps["capsnet-digits"].items()}
figure = viz.affine_curves(lines, units=units, chance=0.1)""",
            80,
        ),
    ],
    "Overlapping digits": [
        Entry(
            "overlaps",
            "Two digits of one picture, separated: one capsule is drawn in magenta, the other in green.",
            "composites of the embedded test digits",
            """\
apart, composites = tc.reporting.open_task("runs/capsnet-pairs", data="multi-digits", device="cpu")
pictures, label_pairs = composites.float_images(range(16)), composites.labels[:16]
drawings = evaluation.match_segments(evaluation.segment(apart, pictures), label_pairs)
figure = viz.overlaps(
    pictures,
    drawings.images,
    label_pairs,
    selected=drawings.selected,
    lengths=drawings.lengths,
    classes=classes,
)""",
            80,
            64,
        ),
    ],
    "The transforming auto-encoder": [
        Entry(
            "image_rows",
            "Inputs, drawings after a known shift, and targets.",
            "the embedded test digits, shifted by up to 4 pixels each way",
            f"""\
{TRANSFORMING}with torch.inference_mode():
    drawings = auto(pairs.source[:10], pairs.transformation[:10])
rows = {"input": pairs.source[:10], "output": drawings, "target": pairs.target[:10]}
figure = viz.image_rows(rows, longest=0.8)""",
            84,
            32,
        ),
        Entry(
            "predicted_transformations",
            "Whether poses change as much as the images were shifted.",
            "the same",
            """\
figure = viz.predicted_transformations(
    known.true, known.predicted, names=known.names, unit="pixels"
)""",
        ),
        Entry(
            "generation_weights",
            "What the generation units of a capsule draw.",
            "the weights of the five capsules most often present",
            """\
often = known.presence.argsort(descending=True)[:5]
figure = viz.generation_weights(auto.strokes()[often, :8], title="what the generation units draw")""",
            80,
            96,
        ),
        Entry(
            "point_sets",
            "Sets of points in the input pose, in the canonical pose, and as capsules draw them.",
            "four test planes, moved three times",
            """\
task, planes = tc.reporting.open_task("runs/planes", device="cpu")
items = task.report_items(tc.tasks.evaluate_task(task, planes), planes)
figure = items[0].figure  # of viz.point_sets(rows)""",
        ),
    ],
    "Speed": [
        Entry(
            "ranked_accuracies",
            "Systems ranked by test error, with minutes of training; a bar is the standard deviation over runs.",
            "figures of [results](results.md)",
            """\
panels = {
    "MNIST": {
        "CapsNet, 5 epochs": (12.9, [0.9943, 0.9948]),
        "small CapsNet, 30 epochs": (50.9, [0.9941]),
        "small matrix capsules, 3 epochs": (3.3, [0.9893, 0.9887, 0.9868]),
    },
    "overlapping digits": {
        "CapsNet of 3.6 M parameters": (60.9, [0.8562]),
        "CNN of equal size": (20.3, [0.8704]),
    },
}
figure = viz.ranked_accuracies(panels)""",
        ),
    ],
}


def train_missing(main: str) -> None:
    """Train the runs that are not there."""
    for folder, settings in RUNS.items():
        if (ROOT / (main if folder == MAIN else folder) / "model.safetensors").exists():
            continue
        if folder == MAIN and main != MAIN:
            raise SystemExit(f"{main}: there is no trained run here")
        subprocess.run(
            [sys.executable, "-m", "torchcaps", "train", *settings.split(), "--output", folder],
            cwd=ROOT,
            check=True,
        )


def save(figure: Figure, path: Path, dpi: int, colors: int) -> int:
    """Write a PNG with a palette; returns its bytes."""
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=dpi)
    with Image.open(stream) as image:
        image.convert("RGB").quantize(colors, dither=Image.Dither.NONE).save(path, optimize=True)
    return path.stat().st_size


def draw(main: str, figures: set[str]) -> None:
    """Make the pictures: all, or those of these figures; the code of the page is what runs."""
    names: dict[str, Any] = {}
    exec(SETUP.replace(MAIN, main), names)
    for entry in (entry for entries in SECTIONS.values() for entry in entries):
        if figures and entry.name not in figures:
            continue
        exec(entry.code.replace(MAIN, main), names)
        size = save(names["figure"], PICTURES / f"{entry.name}.png", entry.dpi, entry.colors)
        print(f"{entry.name}: {size:,} bytes" + (", which is large" if size > MAX_BYTES else ""))


FILM = PICTURES.parent / "rosette.gif"
FILM_DIGITS = (0, 905)  # of the embedded test digits: one that is read well, and one in doubt


def draw_film() -> None:
    """Make the animation at the head of README.md."""
    model = tc.load(tc.models.weights_file())
    digits = tc.data.load_dataset("digits", "test")
    films = []
    for image in digits.float_images(FILM_DIGITS):
        paths = evaluation.vote_paths(model, image)
        film = viz.vote_film(
            paths.coupling, paths.votes, paths.activation, classes=digits.classes, image=image
        )
        films += list(film)
    size = tc.reporting.save_film(films, FILM).stat().st_size
    print(f"{FILM.name}: {size:,} bytes")


def wrapped(text: str) -> str:
    """A paragraph in lines of at most 100 characters."""
    return textwrap.fill(text, 100, break_long_words=False, break_on_hyphens=False)


def page(main: str) -> str:
    """The text of docs/gallery.md."""
    folders = [main, *(folder for folder in RUNS if folder != MAIN)]
    lines = [
        "# Gallery",
        "",
        wrapped(
            "Every figure of `torchcaps.viz`, with the code that draws it from a real run. "
            "`make gallery` writes this page and its pictures; it trains runs that are missing. "
            "The table says which runs the pictures show, which were trained beside other work; "
            "for accuracies to quote, which were measured later, see [results](results.md)."
        ),
        "",
        "A figure is a `matplotlib.figure.Figure`: a notebook shows it, `figure.savefig(path)` writes it.",
        "",
        "| run | command | result |",
        "|---|---|---|",
    ]
    for folder in folders:
        description = repr(Run(ROOT / folder)).split(": ", 1)[1].removesuffix(")")
        command = f"torchcaps train {RUNS.get(folder, RUNS[MAIN])}"
        lines.append(f"| `{folder}` | `{command}` | {description} |")
    lines += [
        "",
        wrapped(
            "If `runs/capsnet-pairs` is missing, `make gallery` trains it on pairs of the package's "
            "digits, so that nothing has to be downloaded; the drawings are then less exact."
        ),
        "",
        "The code below begins with this:",
        "",
        "```py",
        SETUP.replace(MAIN, main),
        "```",
    ]
    for section, entries in SECTIONS.items():
        lines += ["", f"## {section}"]
        for entry in entries:
            lines += [
                "",
                f"### `{entry.name}`",
                "",
                wrapped(f"{entry.about} From: {entry.source}."),
                "",
                wrapped(f"![{entry.about.rstrip('.')}](images/gallery/{entry.name}.png)"),
                "",
                "```py",
                entry.code.replace(MAIN, main),
                "```",
            ]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Train what is missing, draw, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "run", nargs="?", default=MAIN, help="run folder of a classifier of the embedded digits"
    )
    parser.add_argument(
        "--only", nargs="*", default=[], help="names of figures to draw anew; by default all"
    )
    options = parser.parse_args()
    PICTURES.mkdir(parents=True, exist_ok=True)
    train_missing(options.run)
    draw(options.run, set(options.only))
    if not options.only or "vote_film" in options.only:
        draw_film()
    PAGE.write_text(page(options.run), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
