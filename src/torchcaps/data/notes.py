"""Sentences on the files of a set that are left out, and why."""

from collections.abc import Mapping

from torchcaps.errors import DamagedImageError
from torchcaps.words import counted, join_names

NAMED_FILES = 3  # that a note names of each reason
NAMED_DAMAGED = 20  # damaged files that an error or a note names


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
    share = f"{len(texts):,} of {num_images:,} images"
    listed = "; ".join(texts[:NAMED_DAMAGED])
    if len(texts) > NAMED_DAMAGED:
        listed = f"{listed}; and {len(texts) - NAMED_DAMAGED:,} more"
    if skip_damaged:
        return (f"{name}: left out {share} that cannot be read: {listed}",)
    raise DamagedImageError(
        f"{name}: {share} cannot be read; repair or delete them, or leave such files out with "
        f"skip_damaged (--skip-damaged): {listed}"
    )
