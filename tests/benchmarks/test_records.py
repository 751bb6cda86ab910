"""When a record counts: on runs of known mean and deviation, and as a command on digits."""

import json

import pytest
import torch

from torchcaps.data import load_dataset

records = pytest.importorskip("benchmarks.records", reason="needs a checkout")


def runs(*accuracies):
    return [{"accuracy": x, "seconds": 20.0, "parameters": 1000} for x in accuracies]


def test_the_mean_must_be_above_the_claim_beyond_doubt():
    # t = (0.992 - 0.99) / (0.001 / sqrt 5) = 4.4721 with 4 degrees of freedom: p = 0.00553.
    verdict = records.verdict({"accuracy": 0.99}, runs(0.991, 0.991, 0.992, 0.993, 0.993))
    assert verdict["mean"] == pytest.approx(0.992)
    assert verdict["std"] == pytest.approx(0.001)
    assert verdict["p"] == pytest.approx(0.00553, abs=2e-5)
    assert verdict["counts"]
    wider = runs(0.991, 0.993, 0.992, 0.990, 0.994)
    assert not records.verdict({"accuracy": 0.991}, wider)["counts"]
    assert not records.verdict({"accuracy": 0.9}, runs(0.99))["counts"]


@pytest.mark.parametrize("limit", [{"seconds": 19}, {"parameters": 999}])
def test_every_run_must_be_within_the_limits(limit):
    good = runs(0.991, 0.992, 0.993)
    assert records.verdict({"accuracy": 0.98, **dict.fromkeys(limit, 1e9)}, good)["counts"]
    assert not records.verdict({"accuracy": 0.98, **limit}, good)["counts"]


def test_shifted_views_add_up():
    images = load_dataset("digits", "test").subset(list(range(20)))

    class Corner(torch.nn.Module):
        """Says class 1 where the pixel in a corner is lit, else class 0."""

        def forward(self, images):
            is_bright = (images[:, 0, 0, 0] > 0).float()
            return torch.stack([0.6 * torch.ones(len(images)), is_bright], dim=1)

    images.images.zero_()
    images.images[:, :, 1, 0] = 255  # lit in a corner only after a move up by one
    images.labels.zero_()
    assert records.accuracy(Corner(), images, 0) == 1.0  # 0.6 against 0
    assert records.accuracy(Corner(), images, 1) == 1.0  # 5 * 0.6 against 1
    # Lit in four of the five views.
    images.images[:, :, (0, -1), 0] = 255
    images.images[:, :, 0, 1] = 255
    assert records.accuracy(Corner(), images, 1) == 0.0  # 3.0 against 4


def test_a_log_of_other_settings_is_refused(tmp_path, monkeypatch, capsys):
    (tmp_path / "tiny.toml").write_text(
        'data = "digits"\nclaim = { accuracy = 0.01, seconds = 600 }\n[run]\nmodel = "capsnet"\n'
        "model_options = { channels = 8, primary_types = 2, decoder = false }\n"
        "epochs = 1\nepoch_size = 64\nbatch_size = 32\nholdout = 100\n"
    )
    monkeypatch.setattr(records, "FOLDER", tmp_path)
    assert records.main(["tiny", "--runs", "1", "--threads", "1"]) == 0
    log = json.loads((tmp_path / "tiny.json").read_text())
    assert log["runs"][0]["images"] == 64
    (tmp_path / "tiny.toml").write_text((tmp_path / "tiny.toml").read_text().replace("64", "96"))
    assert records.main(["tiny", "--runs", "1", "--threads", "1"]) == 1
    assert "other settings" in capsys.readouterr().err
