"""Label trees: classes whose names are paths, coarse to fine, such as `clothing/tops/shirt`.

A set carries its tree in the names of its classes, and so do its subsets, its splits, and models trained on it.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from torchcaps.data.entries import Entry
from torchcaps.errors import DataError

BETWEEN = "/"  # levels of a path


class LabelTree(NamedTuple):
    """The levels of a label tree, two or more."""

    levels: tuple[tuple[str, ...], ...]  # coarse to fine, the paths of their classes; the last are those of the set
    parents: tuple[tuple[int, ...], ...]  # of each level but the first, the places of its classes' parents above

    @property
    def sizes(self) -> tuple[int, ...]:
        """Classes of each level."""
        return tuple(map(len, self.levels))

    @property
    def ancestors(self) -> list[list[int]]:
        """Of each class of the set, its place in every level, coarse to fine: `[classes][levels]`."""
        found = [[k] for k in range(self.sizes[-1])]
        for parents in reversed(self.parents):
            found = [[parents[path[0]], *path] for path in found]
        return found


def label_tree(classes: Sequence[str]) -> LabelTree | None:
    """The tree that the names of classes tell of; None unless all are paths of one depth, at least 2."""
    depths = {len(name.split(BETWEEN)) for name in classes}
    if len(depths) != 1 or depths == {1}:
        return None
    levels, parents = [tuple(classes)], list[tuple[int, ...]]()
    for _ in range(depths.pop() - 1):
        above = [name.rpartition(BETWEEN)[0] for name in levels[0]]
        levels.insert(0, tuple(dict.fromkeys(above)))
        place = {name: index for index, name in enumerate(levels[0])}
        parents.insert(0, tuple(place[name] for name in above))
    return LabelTree(tuple(levels), tuple(parents))


def checked(where: object, entries: Iterable[Entry]) -> Iterator[Entry]:
    """The same entries; DataError, naming `where`, unless their labels are of one depth, each with one parent."""
    first: Entry | None = None
    known: dict[tuple[int, str], str] = {}
    for entry in entries:
        first, parts = first or entry, entry.label.split(BETWEEN)
        if entry.label.count(BETWEEN) != first.label.count(BETWEEN):
            found = f"{first.file} in {first.label!r} and {entry.file} in {entry.label!r}"
            raise DataError(f"{where}: expected every image at one depth, got {found}")
        for depth, name in enumerate(parts):
            above = BETWEEN.join(parts[:depth])
            before = known.setdefault((depth, name), above)
            if before != above:
                parents = f"two parents, {before!r} and {above!r}"
                raise DataError(
                    f"{where}: label {name!r} has {parents}; a label needs one, so give the two different names"
                )
        yield entry
