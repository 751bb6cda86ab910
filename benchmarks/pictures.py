"""What prediction says of pictures that are not as the training images: known things, and others.

Digits are test digits of the package, drawn and photographed in eight ways; garments are test
images of Fashion-MNIST in three ways, for a network that is trained here. The others are none of
them: letters that no digit looks like, shapes, textures, noise and photographs. Every picture goes
through `torchcaps.Predictor` as a Pillow image.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont
from scipy import ndimage

import torchcaps as tc
from benchmarks.report import Row, finish, make_parser, parse, positive, run

Pixels = np.ndarray  # uint8 [height, width]
Way = Callable[[Pixels, np.random.Generator], Image.Image]
LETTERS = "ACEFHJKLMNPRTUVWXYacdefhjkmnprtuvwxy"
SCALE = 8  # of digits whose strokes are changed
DARK = 0.75  # of the paper's brightness that ink takes
TRAINED = 12_000  # garments


def enlarged(pixels: Pixels, factor: int) -> Pixels:
    """An image `factor` times as large, smooth."""
    height, width = pixels.shape
    picture = Image.fromarray(pixels)
    return np.asarray(picture.resize((width * factor, height * factor), Image.Resampling.BICUBIC))


def dark(pixels: Pixels, _random: np.random.Generator) -> Image.Image:
    """Dark on light, in the size of the data set."""
    return Image.fromarray(255 - pixels)


def paper(pixels: Pixels, random: np.random.Generator) -> Image.Image:
    """Somewhere on a page that is lit from one side, with noise."""
    side = int(random.integers(150, 260))
    ink = enlarged(pixels, int(random.integers(3, 5))) / 255
    page = np.zeros((side, side))
    top, left = random.integers(0, side - len(ink) + 1, 2)
    page[top : top + len(ink), left : left + len(ink)] = ink
    row, column = np.mgrid[:side, :side] / side - 0.5
    angle = random.uniform(0, 2 * np.pi)
    light = 0.75 + 0.25 * (np.cos(angle) * column + np.sin(angle) * row)
    photo = light * (1 - DARK * page) + random.normal(0, 0.03, page.shape)
    return gray(photo).convert("RGB")


def transparent(pixels: Pixels, _random: np.random.Generator) -> Image.Image:
    """Black ink in the alpha channel."""
    black = Image.new("L", pixels.shape[::-1], 0)
    return Image.merge("RGBA", (black, black, black, Image.fromarray(pixels)))


def large(pixels: Pixels, _random: np.random.Generator) -> Image.Image:
    """Dark on light in RGB, 15 times as large."""
    return Image.fromarray(255 - enlarged(pixels, 15)).convert("RGB")


def off_center(pixels: Pixels, random: np.random.Generator) -> Image.Image:
    """Dark on a light page of four times the size, at any place."""
    height, width = pixels.shape
    page = np.full((4 * height, 4 * width), 255, np.uint8)
    top, left = random.integers(0, 3 * height + 1, 2)
    page[top : top + height, left : left + width] = 255 - pixels
    return Image.fromarray(page)


def thin(pixels: Pixels, _random: np.random.Generator) -> Image.Image:
    """Strokes of four tenths of their width."""
    depth = ndimage.distance_transform_edt(enlarged(pixels, SCALE) > 127)
    middle = ndimage.maximum_filter(depth, 3 * SCALE + 1)
    return stroked((depth > 0) & (depth >= 0.6 * middle))


def thick(pixels: Pixels, _random: np.random.Generator) -> Image.Image:
    """Strokes that are wider by two pixels of the data set."""
    return stroked(ndimage.distance_transform_edt(enlarged(pixels, SCALE) <= 127) <= SCALE)


def faint(pixels: Pixels, _random: np.random.Generator) -> Image.Image:
    """Gray 60 on gray 200."""
    return Image.fromarray((200 - pixels * 0.55).astype(np.uint8))


def stroked(marks: np.ndarray) -> Image.Image:
    """Marks as dark ink with soft edges."""
    return gray(1 - ndimage.gaussian_filter(marks.astype(float), 1))


def gray(values: np.ndarray) -> Image.Image:
    """A picture of values in [0, 1]; others are cut off."""
    return Image.fromarray((values.clip(0, 1) * 255).astype(np.uint8))


def letter(index: int, random: np.random.Generator) -> Image.Image:
    """A printed letter, slightly turned."""
    picture = Image.new("L", (200, 200), 255)
    font = ImageFont.load_default(int(random.integers(80, 150)))
    color = int(random.integers(0, 60))
    draw = ImageDraw.Draw(picture)
    draw.text((100, 100), LETTERS[index % len(LETTERS)], color, font, anchor="mm")
    return picture.rotate(float(random.uniform(-10, 10)), fillcolor=255)


def shape(index: int, random: np.random.Generator) -> Image.Image:
    """A disc, triangle, square, star, cross, hexagram, arrow, or three bars."""
    picture = Image.new("L", (200, 200), 255)
    draw = ImageDraw.Draw(picture)
    center, size = random.uniform(80, 120, 2), random.uniform(40, 70)

    def corners(count: int, inner: float = 1.0) -> list[tuple[float, float]]:
        angles = 2 * np.pi * np.arange(count) / count
        radius = size * np.where(np.arange(count) % 2, inner, 1)
        x, y = center[0] + radius * np.sin(angles), center[1] - radius * np.cos(angles)
        return list(zip(x.tolist(), y.tolist(), strict=True))

    def at(*places: tuple[float, float]) -> list[tuple[float, float]]:
        return [(center[0] + x * size, center[1] + y * size) for x, y in places]

    match index % 8:
        case 0:
            draw.ellipse(at((-1, -1), (1, 1)), 0)
        case 1:
            draw.polygon(corners(3), 0)
        case 2:
            draw.rectangle(at((-1, -1), (1, 1)), 0)
        case 3:
            draw.polygon(corners(10, 0.45), 0)
        case 4:
            draw.line(at((-1, 0), (1, 0)), 0, 14)
            draw.line(at((0, -1), (0, 1)), 0, 14)
        case 5:
            draw.polygon(corners(6), outline=0, width=8)
            draw.polygon(corners(3), outline=0, width=8)
        case 6:
            tip = ((0, -0.25), (0, -1), (1, 0), (0, 1), (0, 0.25))
            draw.polygon(at((-1, -0.25), *tip, (-1, 0.25)), 0)
        case _:
            for y in (-0.7, 0, 0.7):
                draw.rectangle(at((-1, y - 0.15), (1, y + 0.15)), 0)
    return picture


def texture(index: int, random: np.random.Generator) -> Image.Image:
    """Waves, a checkerboard, clouds, bumps, or a grid, turned by any angle."""
    row, column = np.mgrid[:128, :128]
    period, angle = random.uniform(6, 30), random.uniform(0, np.pi)
    u = (np.cos(angle) * column + np.sin(angle) * row) / period
    v = (np.cos(angle) * row - np.sin(angle) * column) / period
    waves = np.sin(2 * np.pi * u), np.sin(2 * np.pi * v)
    clouds = ndimage.gaussian_filter(random.normal(size=(128, 128)), period / 4)
    values = (
        0.5 + 0.5 * waves[0],
        (np.floor(u) + np.floor(v)) % 2,
        (clouds - clouds.min()) / np.ptp(clouds),
        0.5 + 0.25 * sum(waves),
        ((u % 1 < 0.25) | (v % 1 < 0.25)).astype(float),
    )
    return gray(values[index % 5])


def noise(index: int, random: np.random.Generator) -> Image.Image:
    """Uniform noise in color, or normal noise in gray and in the size of the data set."""
    if index % 2:
        return Image.fromarray(random.integers(0, 256, (100, 100, 3), dtype=np.uint8))
    return gray(random.normal(0.5, 0.16, (28, 28)))


DIGITS: Mapping[str, Way] = {
    "dark on light": dark,
    "on paper": paper,
    "ink in the alpha channel": transparent,
    "large": large,
    "off center": off_center,
    "thin": thin,
    "thick": thick,
    "gray on gray": faint,
}
GARMENTS: Mapping[str, Way] = {"dark on light": dark, "large": large, "gray on gray": faint}
OTHERS = {"letters": letter, "shapes": shape, "textures": texture, "noise": noise}


def others(count: int, photographs: str | None) -> dict[str, list[Image.Image]]:
    """Pictures that are none, by kind."""
    random = np.random.default_rng(1)
    pictures = {kind: [draw(i, random) for i in range(count)] for kind, draw in OTHERS.items()}
    if photographs is not None:
        photos = tc.data.load_dataset(photographs, "test").subset(range(count)).float_images()
        color = (photos.movedim(1, -1) * 255).byte().numpy()
        pictures["photographs"] = [Image.fromarray(photo) for photo in color]
    return pictures


def measure(predictor: tc.Predictor, pictures: Any, labels: Sequence[str] = ()) -> Row:
    """The share of pictures that get an answer, and of right ones among the answers."""
    rows = predictor(pictures)
    answers = [row["label"] not in ("unknown", "empty") for row in rows]
    share = np.mean(answers)
    if not labels:
        return {"pictures": len(rows), "answered": "", "right": "", "unknown": f"{1 - share:.1%}"}
    pairs = zip(rows, labels, strict=True)
    right = np.mean([row["label"] == label for row, label in pairs if label]) / share
    return {
        "pictures": len(rows),
        "answered": f"{share:.1%}",
        "right": f"{right:.1%}",
        "unknown": f"{1 - share:.1%}",
    }


def rows_of(
    name: str,
    model: Any,
    images: tc.data.Dataset,
    ways: Mapping[str, Way],
    count: int,
    strangers: Mapping[str, Sequence[Image.Image]],
) -> list[Row]:
    """A row for the test images, for each way, and for each kind of other pictures."""
    predictor = tc.Predictor(model)
    labels = [images.classes[label] for label in images.labels.tolist()]
    rows = [{"network": name, "pictures of": "test images"}]
    rows[0] |= measure(predictor, images.images, labels)
    for way, draw in ways.items():
        random = np.random.default_rng(0)
        pictures = [draw(pixels, random) for pixels in images.images[:count, 0].numpy()]
        rows.append({"network": name, "pictures of": way})
        rows[-1] |= measure(predictor, pictures, labels[:count])
    for kind in strangers:
        rows.append({"network": name, "pictures of": kind} | measure(predictor, strangers[kind]))
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = make_parser(__doc__, "pictures", threads=2)
    parser.add_argument("--count", type=positive, default=200, help="pictures of each kind")
    parser.add_argument("--root", type=Path, help="where the folder of Fashion-MNIST is")
    parser.add_argument("--photographs", help="path of a set of photographs, such as CIFAR-10")
    parser.add_argument("--epochs", type=positive, default=5, help="of the network for garments")
    options = parse(parser, arguments)
    strangers = others(options.count, options.photographs)
    digits = tc.data.load_dataset("digits", "test")
    rows = []
    for name in tc.list_models(pretrained=True):
        model = tc.create_model(name, pretrained=True)
        rows += rows_of(name, model, digits, DIGITS, options.count, strangers)
    if options.root is not None:
        garments = tc.data.load_dataset("fashion-mnist", "train", options.root)
        images = garments.subset(range(TRAINED))
        model = tc.create_model("capsnet_small")
        tc.fit(model, images, epochs=options.epochs, seed=0, verbose=False)
        garments = tc.data.load_dataset("fashion-mnist", "test", options.root)
        strangers["digits"] = [
            Image.fromarray(x) for x in digits.images[: options.count, 0].numpy()
        ]
        name = "capsnet_small, garments"
        rows += rows_of(name, model, garments, GARMENTS, options.count, strangers)
    if options.photographs is not None:
        options.photographs = Path(options.photographs).name  # where it lies says nothing
    return finish(options, {"rows": rows})


if __name__ == "__main__":
    run(main)
