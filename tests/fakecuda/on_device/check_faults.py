"""Ten faults that only a device shows: the run of a system finds each of them.

They are put into the task or the training of a tiny network.
"""

import pytest
import torch

import torchcaps as tc
from fakecuda import gpu, runs
from torchcaps.training import folder
from torchcaps.training.update import Updater

pytestmark = pytest.mark.filterwarnings("default")
SYSTEM = "cnn_baseline"


USE = runs.use


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A function that trains the system, and says what was found, a sentence."""
    monkeypatch.setattr(runs, "use", lambda folder, row: None)

    def run_system(precision="fp32"):
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        row = runs.run_system(SYSTEM, precision, folder, gpu.counted)
        if row["fault"]:
            return row["fault"]
        if row["waits"]:
            return f"the host waited: {[*row['waiting lines']]}"
        if row["leaked bytes"] > runs.LEAK:
            return f"a step leaked {row['leaked bytes']} bytes"
        return ""

    return run_system


def test_no_fault_is_found_where_there_is_none(run):
    assert run() == ""


def test_a_tensor_made_without_device(run, change_loss):
    change_loss(lambda loss, activation: loss + 0 * (activation + torch.zeros(10)).sum())
    assert "Expected all tensors to be on the same device" in run()


def test_a_generator_of_the_cpu(run, monkeypatch):
    reset = Updater.reset

    def reset_on_host(updater):
        reset(updater)
        updater.dropout = torch.Generator()

    monkeypatch.setattr(Updater, "reset", reset_on_host)
    monkeypatch.setitem(runs.SMALLER, SYSTEM, runs.SMALLER[SYSTEM] | {"dropout": 0.5})
    assert "Expected a 'cuda' device type for generator" in run()


def test_numpy_of_a_tensor_on_the_device(run, change_loss):
    change_loss(lambda loss, activation: loss + 0 * activation.numpy().sum())
    assert "can't convert cuda:0 device type tensor to numpy" in run()


def test_an_item_in_the_step(run, change_loss):
    change_loss(lambda loss, activation: loss + 0 * activation.sum().item())
    assert "the host waited" in run()


def test_uninitialized_memory(run, change_loss):
    change_loss(lambda loss, activation: loss + 0 * torch.empty_like(activation).sum())
    assert "the first loss was already nan" in run()


def test_a_wrong_map_location(run, monkeypatch):
    """Weights that are loaded stay on the CPU."""

    def use_without_moves(folder, row):
        monkeypatch.setattr(torch.nn.Module, "to", lambda module, *_: module)
        USE(folder, row)

    monkeypatch.setattr(runs, "use", use_without_moves)
    assert "Expected all tensors to be on the same device" in run()


def test_an_index_on_the_other_device(run, change_loss):
    def index(loss, activation):
        return loss + 0 * torch.ones(10)[activation.argmax(dim=1)].sum()

    change_loss(index)
    assert "on the same device as the indexed tensor" in run()


def test_float64_on_a_device_without_it(run, change_loss):
    change_loss(lambda loss, activation: loss.double())
    with gpu.without_float64():
        tc.transfer.widest_float.cache_clear()
        assert "does not support float64" in run()
    tc.transfer.widest_float.cache_clear()


def test_a_leak_of_a_megabyte_a_step(run, change_loss):
    leaked = []

    def leak(loss, activation):
        leaked.append(torch.zeros(1 << 18, device=activation.device))
        return loss

    change_loss(leak)
    assert "a step leaked" in run()


def test_a_state_restored_to_the_cpu(run, monkeypatch):
    restore = folder._restore

    def restore_on_host(tensors, updater):
        restore(tensors, updater)
        for entry in updater.optimizer.state.values():
            for name, tensor in entry.items():
                entry[name] = tensor.cpu()

    monkeypatch.setattr(folder, "_restore", restore_on_host)
    assert "same device" in run()
