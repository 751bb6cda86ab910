"""What one run of an experiment measured, as a file in its folder."""

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from torchcaps.errors import RunError, read_text
from torchcaps.training.files import write_json

RESULT_FILE = "result.json"


@dataclass(frozen=True)
class Result:
    """What one run of an experiment measured."""

    recipe: str  # its name
    row: str  # of the recipe's table
    budget: str  # how much was run
    seed: int
    figures: dict[
        str, Any
    ]  # by name; numbers, and whole measurements under the names of their measures
    shown: list[str]  # which of them the table shows
    published: dict[str, str]  # the paper's, by name
    parameters: int  # of the model
    epochs: int  # that were trained
    images_per_second: float | None  # mean over epochs; None if no epoch was measured
    seconds: float  # of training, evaluations left out
    machine: str  # processor or GPU, and threads
    torch: str  # its version
    command: str  # that repeats it

    @classmethod
    def read(cls, folder: Path) -> "Result":
        """The result in a run folder. Raises RunError if it cannot be read."""
        file = folder / RESULT_FILE
        try:
            content = json.loads(read_text(file))
            return cls(**{field.name: content[field.name] for field in fields(cls)})
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RunError(f"{file}: is no readable result ({error})") from error

    def write(self, folder: Path) -> None:
        """Write it into a run folder."""
        write_json(folder / RESULT_FILE, asdict(self))


def read_results(output: str | Path) -> list[Result]:
    """Every result below a folder, in the order of their paths. Raises RunError for a result that cannot be read."""
    return [
        Result.read(path.parent) for path in sorted(Path(output).glob(f"*/*/*/*/{RESULT_FILE}"))
    ]
