"""The folder of a run, held by the process that trains in it: made, resumed, cleared."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from torchcaps.errors import RunError
from torchcaps.settings import TrainConfig
from torchcaps.training.checkpoint import FORMAT
from torchcaps.training.environment import environment
from torchcaps.training.files import LOCK_FILE, exclusive, make_folder, write_json
from torchcaps.training.run import (
    CONFIG_FILE,
    ENVIRONMENT_FILE,
    EVALUATION_FILE,
    Run,
    is_run,
)


def check_new(run: Run) -> None:
    """Raise RunError if there is a run already, or a file that a run would replace."""
    if is_run(run.path):
        with exclusive(run.path):  # names the process that is training here
            pass
    _check_empty(run)


@contextmanager
def create(run: Run, config: TrainConfig) -> Iterator[None]:
    """Hold the folder of a new run; after an error without a checkpoint it is removed.

    Args:
        run: that is not there yet.
        config: the resolved configuration.

    Raises:
        RunError: there is a run already, or the folder cannot be made.
        TrainingError: the folder cannot be written to.
    """
    with exclusive(run.path):
        _check_empty(run)
        try:
            make_folder(run.checkpoint_path.parent)
            write_json(run.path / ENVIRONMENT_FILE, environment())
            # The configuration comes last: it makes the folder a run.
            write_json(run.path / CONFIG_FILE, {"format": FORMAT} | config.to_dict())
            yield
        except Exception:
            _discard_empty(run)
            raise


@contextmanager
def resume(run: Run, config: TrainConfig | None = None) -> Iterator[None]:
    """Hold the folder of a run that goes on; a lost environment is written anew.

    Args:
        run: to continue.
        config: of a run that is extended; it takes the place of the one in the folder. The figures
            of the test images, which are those of the shorter training, are then removed.

    Raises:
        RunError: another process holds it.
        TrainingError: the folder cannot be written to.
    """
    with exclusive(run.path):
        make_folder(run.checkpoint_path.parent)  # copying may leave out empty folders
        if run.environment.get("threads") is None:
            write_json(run.path / ENVIRONMENT_FILE, environment() | run.environment)
        if config is not None and config != run.config:
            (run.path / EVALUATION_FILE).unlink(missing_ok=True)
            write_json(run.path / CONFIG_FILE, {"format": FORMAT} | config.to_dict())
        yield


def _check_empty(run: Run) -> None:
    if is_run(run.path):
        raise RunError(
            f"{run.path}: there is a run here already; "
            "continue it with --resume, or name another --output"
        )
    obstacles: list[Path] = [run.metrics_path, run.model_path]
    obstacles += sorted(run.checkpoint_path.parent.glob("*.safetensors"))
    if "torchcaps" not in run.environment:  # else it is of a start that was killed
        obstacles.append(run.path / ENVIRONMENT_FILE)
    for file in obstacles:
        if file.exists():
            raise RunError(f"{file}: is in the way, and no part of a run; name another --output")


def _discard_empty(run: Run) -> None:
    """Remove what a run without model and checkpoint wrote; other files stay, and the folder."""
    checkpoints = (run.model_path, run.checkpoint_path, run.previous_checkpoint_path)
    if any(file.exists() for file in checkpoints):
        return
    with suppress(OSError):  # such as a folder that holds something else
        for file in (run.path / CONFIG_FILE, run.path / ENVIRONMENT_FILE, run.metrics_path):
            file.unlink(missing_ok=True)
        run.initial_path.unlink(missing_ok=True)
        run.checkpoint_path.parent.rmdir()
        (run.path / LOCK_FILE).unlink(missing_ok=True)
        run.path.rmdir()
