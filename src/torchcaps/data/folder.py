"""A folder of class folders of images, with or without a level train/ and test/ above them."""

from collections.abc import Iterator
from pathlib import Path

from torchcaps.data.budget import door
from torchcaps.data.dataset import ImageSet
from torchcaps.data.entries import Entry, natural, read_entries
from torchcaps.data.images import SUFFIXES, is_image_name
from torchcaps.data.pixels import Size
from torchcaps.data.tree import BETWEEN, checked
from torchcaps.errors import DataError


@door
def read_folder(
    root: str | Path, split: str = "train", *, img_size: Size = None, in_chans: int | None = None
) -> ImageSet:
    """Read `root/<class>/*.png`, or `root/train/<class>/*` and `root/test/<class>/*`; the folder names the set.

    Folders of class folders, all of one depth, make a label tree: the images of `root/clothing/tops/shirt/` are of the
    class "clothing/tops/shirt"; see `label_tree`.

    Classes and files come in natural order ("2" before "10"). Hidden files, and files that are not images by their
    ending, are skipped. Without a level train/ and test/, 20 % of each class are the test split, by `holdout` with
    seed 0. See `decode_image` for how pixels are read.

    Args:
        img_size: (height, width) or one side of a square to resize to; None requires all to have one size.
        in_chans: 1 or 3; None is 1 when every image of both splits is grey, otherwise 3.

    Raises:
        DataError: no class folders, one class only, an empty class, class folders at several depths or of one name
            with two parents, an unreadable image, or mixed sizes.
    """
    root = Path(root)
    return read_entries(root.resolve().name, list(checked(root, _entries(root))), split, img_size, in_chans)


def _entries(root: Path) -> Iterator[Entry]:
    levels = {f.name.lower(): f for f in _folders(root) if f.name.lower() in ("train", "test") and _folders(f)}
    for split, folder in levels.items():
        if len(levels) == 1:
            other = "test" if split == "train" else "train"
            raise DataError(f"{root}: {folder.name}/ has no {other}/ beside it; add it, or give {folder} to split that")
        yield from _class_entries(folder, split)
    if not levels:
        yield from _class_entries(root, None)


def _class_entries(folder: Path, split: str | None, above: str = "") -> Iterator[Entry]:
    classes = _folders(folder)
    if not classes:
        raise DataError(f"{folder}: no class folders in it; expected {folder.name}/<class>/<image>")
    for place in classes:
        files = [f for f in place.iterdir() if is_image_name(f.name) and f.is_file()]
        if not files and _folders(place):
            yield from _class_entries(place, split, f"{above}{place.name}{BETWEEN}")
        elif not files:
            raise DataError(f"{place}: class {place.name!r} is empty; expected images ({', '.join(sorted(SUFFIXES))})")
        yield from (Entry(str(f), above + place.name, split) for f in files)


def _folders(folder: Path) -> list[Path]:
    try:
        found = [f for f in folder.iterdir() if f.is_dir() and not f.name.startswith((".", "__"))]
    except OSError as error:
        raise DataError(f"{folder}: cannot be read ({error.strerror})") from None
    return sorted(found, key=lambda f: natural(f.name))
