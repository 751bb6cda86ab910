"""Sentences on the files of a set: what was left out and why, how large the classes are."""

from collections import Counter
from collections.abc import Mapping, Sequence

from torchcaps.errors import DamagedImageError

NAMED_FILES = 3  # that a note names of each reason
NAMED_DAMAGED = 20  # damaged files that an error or a note names
IMBALANCE = 3  # times the smallest class, from which the largest one is much larger


class Omissions:
    """Files that are left out of a set, by the reason in one or two words ("broken link")."""

    def __init__(self) -> None:
        self.files: dict[str, list[str]] = {}

    def add(self, reason: str, file: str) -> None:
        """Count a file."""
        self.files.setdefault(reason, []).append(file)

    def notes(self, name: str) -> tuple[str, ...]:
        """One sentence on all of them; none where nothing is left out.

        Args:
            name: of the set.
        """
        parts = []
        for reason, files in self.files.items():
            parts.append(f"{counted(len(files), reason)} ({join_names(files, NAMED_FILES)})")
        return (f"{name}: left out {', '.join(parts)}",) if parts else ()


def counted(number: int, noun: str) -> str:
    """`1 image`, `2 images`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def join_names(names: Sequence[str], limit: int) -> str:
    """The first names, as many as `limit`, and an ellipsis where there are more."""
    ellipsis = ", …" if len(names) > limit else ""
    return ", ".join(names[:limit]) + ellipsis


def imbalance_notes(name: str, labels: Sequence[str]) -> tuple[str, ...]:
    """A sentence where the largest class has more than three times the images of the smallest.

    Args:
        name: of the set.
        labels: the class of each training image.
    """
    sizes = Counter(labels).most_common()
    if not sizes or sizes[0][1] <= IMBALANCE * sizes[-1][1]:
        return ()
    (largest, most), (smallest, fewest) = sizes[0], sizes[-1]
    return (
        f"{name}: the largest class, {largest!r}, has {counted(most, 'image')}, the smallest, "
        f"{smallest!r}, has {fewest:,}; weigh them with --class-weights auto, or draw them equally "
        "often with --balance",
    )


def damage_notes(
    name: str, problems: Mapping[str, str], num_images: int, skip_damaged: bool
) -> tuple[str, ...]:
    """A sentence on files that cannot be read; none where there are none.

    Args:
        name: of the set.
        problems: by file, what is wrong with it, a text that begins with its path.
        num_images: number of files of the set.
        skip_damaged: whether they are left out.

    Raises:
        DamagedImageError: there are such files, and they are not left out. It names up to 20.
    """
    if not problems:
        return ()
    texts = list(problems.values())
    remedy = "repair or delete the file, or leave such files out with skip_damaged (--skip-damaged)"
    share = f"{len(texts):,} of {counted(num_images, 'image')}"
    listed = "; ".join(texts[:NAMED_DAMAGED])
    if len(texts) > NAMED_DAMAGED:
        listed = f"{listed}; and {len(texts) - NAMED_DAMAGED:,} more"
    if skip_damaged:
        return (f"{name}: left out {share} that cannot be read: {listed}",)
    if len(texts) == 1:
        raise DamagedImageError(f"{texts[0]}; {remedy}")
    raise DamagedImageError(
        f"{name}: {share} cannot be read; {remedy.replace('the file', 'them')}: {listed}"
    )
