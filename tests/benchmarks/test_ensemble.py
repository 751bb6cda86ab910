"""Several networks as one: activations whose accuracies are known, and the command on runs."""

import json
import shutil

import pytest
import torch

from torchcaps.training import train
from training.makers import edit_config, tiny, write_bars

ensemble = pytest.importorskip("benchmarks.ensemble", reason="needs a checkout")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    bars = write_bars(folder / "bars.npz")
    for seed in (0, 1):
        train(tiny(bars, epochs=1, seed=seed), folder / str(seed))
    return folder


def test_the_surer_network_decides():
    labels = torch.tensor([0, 1, 1, 0])
    # One network is wrong about images 1 and 3, the other one about images 0 and 3.
    a = torch.tensor([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8], [0.4, 0.6]])
    b = torch.tensor([[0.4, 0.6], [0.1, 0.9], [0.3, 0.7], [0.2, 0.8]])
    figures = ensemble.ensemble_accuracy([a, b], labels)
    assert figures == {"each": [0.5, 0.5], "mean": 0.5, "std": 0.0, "together": 0.75}
    middle = ensemble.ensemble_accuracy([a[1:3], b[1:3]], labels[1:3])
    assert middle["std"] == pytest.approx(0.5**0.5 / 2)


def test_the_command_prints_the_accuracies_of_runs(runs, capsys):
    assert ensemble.main([str(runs / "0"), str(runs / "1")]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["mean"] == pytest.approx(sum(figures["each"]) / 2)
    for seed, accuracy in enumerate(figures["each"]):
        assert ensemble.main([str(runs / str(seed))]) == 0
        assert json.loads(capsys.readouterr().out)["together"] == accuracy


def test_runs_of_other_data_and_absent_runs_are_refused(runs, capsys):
    shutil.copytree(runs / "1", runs / "other")
    edit_config(runs / "other", data=str(write_bars(runs / "other.npz", seed=5)))
    assert ensemble.main([str(runs / "0"), str(runs / "other")]) == 2
    assert "runs: expected runs with the same data" in capsys.readouterr().err
    assert ensemble.main([str(runs / "absent")]) == 2
    assert str(runs / "absent") in capsys.readouterr().err
