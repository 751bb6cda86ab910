"""Logs of a training for other programs; mlflow's client is a stand-in unless it is there."""

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace

import pytest

from checks import assert_equal
from torchcaps.data import load_dataset
from torchcaps.errors import TrainingError, UnknownNameError
from torchcaps.training import Interrupted, load, logs, train

from .makers import Watch, resume, stop_after, tiny, train_until


class Client:
    """Keeps what a client of MLflow is told."""

    def __init__(self):
        self.parameters, self.figures, self.pictures = {}, {}, {}

    def get_experiment_by_name(self, name):
        return SimpleNamespace(experiment_id=name)

    def create_run(self, number, run_name):
        return SimpleNamespace(info=SimpleNamespace(run_id=f"{number} {run_name}"))

    def log_param(self, run, name, value):
        self.parameters[name] = value

    def log_metric(self, run, name, value, step):
        self.figures[name, step] = value

    def log_image(self, run, pixels, path):
        self.pictures[path] = pixels

    def set_terminated(self, run):
        self.ended = run


@pytest.fixture
def client(monkeypatch):
    """The client of a module that stands for MLflow."""
    client = Client()
    module = ModuleType("mlflow")
    module.MlflowClient = lambda: client
    module.MlflowException = KeyError
    module.__spec__ = ModuleSpec("mlflow", None)
    monkeypatch.setitem(sys.modules, "mlflow", module)
    monkeypatch.setattr(logs, "LOG_INTERVAL", 2)
    return client


def test_a_run_logs_losses_figures_drawings_and_settings(bars, tmp_path, client):
    run = train(tiny(bars, log=("mlflow",)), tmp_path / "bars")
    assert client.ended == "torchcaps bars"
    assert client.parameters["batch_size"] == 16
    for epoch, row in enumerate(run.epochs, start=1):
        for name in ("train_loss", "val_loss", "val_accuracy"):
            assert client.figures[f"epoch/{name}", 3 * epoch] == row[name]
    assert {step for name, step in client.figures if name == "step/loss"} == {2, 4, 6}
    # Six held-out images side by side, above their drawings.
    height, width = load_dataset(bars).img_size
    assert client.pictures["drawings/000003.png"].shape == (2 * height, 6 * width, 1)


def test_a_store_that_refuses_ends_the_run_in_a_sentence(bars, tmp_path, client, monkeypatch):
    def refuse(*_, **__):
        raise KeyError("no such store")

    monkeypatch.setattr(client, "create_run", refuse, raising=False)
    with pytest.raises(TrainingError, match="log: mlflow: .*no such store"):
        train(tiny(bars, log=("mlflow",)), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_log_changes_no_weights(bars, finished, tmp_path, client):
    run = train(tiny(bars, log=("mlflow",)), tmp_path / "run")
    assert_equal(load(run.path).state_dict(), load(finished).state_dict())


def test_tensorboard_shows_a_run_that_was_resumed(bars, tmp_path, monkeypatch):
    pytest.importorskip("tensorboard", reason="TensorBoard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    monkeypatch.setattr(logs, "LOG_INTERVAL", 2)
    config = tiny(bars, log=("tensorboard",))
    train_until(5, config, tmp_path / "run")
    run = resume(tmp_path / "run")
    events = EventAccumulator(str(run.path / "tensorboard")).Reload()
    assert [event.step for event in events.Scalars("step/loss")] == [2, 4, 6]
    values = [event.value for event in events.Scalars("epoch/val_loss")]
    assert values == pytest.approx([row["val_loss"] for row in run.epochs])
    assert [event.step for event in events.Images("drawings")] == [3, 6]


def fail(trainer, losses):
    if losses["step"] == 6:
        raise OSError("cut off")


@pytest.mark.parametrize("callback", [stop_after(3), Watch(fail)], ids=["stopped", "cut-off"])
def test_each_step_of_a_resumed_run_is_shown_once(bars, tmp_path, monkeypatch, callback):
    shown = []

    class Writer:
        """Shows what TensorBoard does: of earlier rows those before `purge_step`."""

        def __init__(self, folder, purge_step=None):
            if purge_step is not None:
                shown[:] = [(name, step) for name, step in shown if step < purge_step]

        def add_scalar(self, name, value, step):
            shown.append((name, step))

        def add_image(self, name, picture, step):
            shown.append((name, step))

        def close(self):
            pass

    module = ModuleType("tensorboard")
    module.SummaryWriter = Writer
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    monkeypatch.setattr(logs, "find_spec", lambda _: module)
    monkeypatch.setattr(logs, "LOG_INTERVAL", 1)
    config = tiny(bars, log=("tensorboard",))
    with pytest.raises((Interrupted, OSError)):
        train(config, tmp_path / "run", callbacks=[callback])
    resume(tmp_path / "run")
    steps = {"step/loss": [1, 2, 3, 4, 5, 6], "epoch/val_loss": [3, 6], "drawings": [3, 6]}
    for name, expected in steps.items():
        assert [step for one, step in shown if one == name] == expected


def test_a_program_that_is_unknown_or_absent_is_one_sentence(bars, tmp_path, monkeypatch):
    with pytest.raises(UnknownNameError, match="unknown callback 'wandb'; known: .*tensorboard"):
        train(tiny(bars, log=("wandb",)), tmp_path / "run")
    monkeypatch.setattr(logs, "find_spec", lambda _: None)
    with pytest.raises(ImportError, match="log: mlflow is not there: pip install"):
        train(tiny(bars, log=("mlflow",)), tmp_path / "run")
    assert not (tmp_path / "run").exists()
