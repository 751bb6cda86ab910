"""Networks together: activations whose accuracies are known, and the command on a run."""

import json

import numpy as np
import pytest
import torch

from torchcaps.training import TrainConfig, train

ensemble = pytest.importorskip("benchmarks.ensemble", reason="needs a checkout")


def test_the_surer_network_decides():
    labels = torch.tensor([0, 1, 1, 0])
    one = torch.tensor(
        [[0.9, 0.1], [0.6, 0.4], [0.2, 0.8], [0.4, 0.6]]
    )  # wrong about the second and the last
    other = torch.tensor(
        [[0.4, 0.6], [0.1, 0.9], [0.3, 0.7], [0.2, 0.8]]
    )  # about the first and the last
    found = ensemble.together([one, other], labels)
    assert found == {"each": [0.5, 0.5], "mean": 0.5, "std": 0.0, "together": 0.75}
    assert ensemble.together([one[:3], other[:3]], labels[:3])["std"] == 0.0
    assert ensemble.together([one[1:3], other[1:3]], labels[1:3])["std"] == pytest.approx(
        0.5**0.5 / 2
    )


def test_the_command(capsys, tmp_path):
    how = {
        "model": "efficient_capsnet",
        "model_options": {"decoder": False},
        "epochs": 1,
        "epoch_size": 64,
    }
    for seed in (0, 1):
        train(TrainConfig.of(**how, batch_size=16, seed=seed), tmp_path / str(seed))
    assert ensemble.main([str(tmp_path / "0"), str(tmp_path / "1")]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["mean"] == pytest.approx(sum(found["each"]) / 2)
    for seed, accuracy in enumerate(found["each"]):
        assert ensemble.main([str(tmp_path / str(seed))]) == 0
        assert json.loads(capsys.readouterr().out)["together"] == accuracy


def test_runs_of_other_data_are_refused(capsys, tmp_path):
    how = {
        "model": "efficient_capsnet",
        "model_options": {"decoder": False},
        "epochs": 1,
        "epoch_size": 16,
    }
    train(TrainConfig.of(**how), tmp_path / "one")
    path, noise = tmp_path / "own.npz", np.random.default_rng(0).random((40, 28, 28))
    np.savez(path, images=noise, labels=np.arange(40) % 3)
    train(TrainConfig.of(**how, data=str(path)), tmp_path / "other")
    assert ensemble.main([str(tmp_path / "one"), str(tmp_path / "other")]) == 2
    assert "runs: expected runs with the same data" in capsys.readouterr().err
    assert ensemble.main([str(tmp_path / "none")]) == 2
    assert str(tmp_path / "none") in capsys.readouterr().err
