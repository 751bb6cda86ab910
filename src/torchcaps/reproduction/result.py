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
    """What one run of an experiment measured.

    Attributes:
        recipe: name of the recipe.
        row: name of the row of the recipe's table.
        budget: how much was run.
        seed: of the run.
        figures: by name; numbers, and whole measurements under the names of their measures.
        shown: names of the figures that the table shows.
        published: the paper's figures, by name.
        parameters: number of parameters of the model.
        epochs: number of epochs that were trained.
        images_per_second: mean over epochs; None if no epoch was measured.
        seconds: of training, without evaluations.
        machine: processor or GPU, and threads.
        torch: its version.
        command: repeats the run.
    """

    recipe: str
    row: str
    budget: str
    seed: int
    figures: dict[str, Any]
    shown: list[str]
    published: dict[str, str]
    parameters: int
    epochs: int
    images_per_second: float | None
    seconds: float
    machine: str
    torch: str
    command: str

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
    """Every result below a folder, in the order of their paths.

    Raises RunError for a result that cannot be read.
    """
    files = sorted(Path(output).glob(f"*/*/*/*/{RESULT_FILE}"))
    return [Result.read(file.parent) for file in files]
