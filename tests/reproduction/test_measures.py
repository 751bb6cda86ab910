from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from torchcaps.data import load_dataset
from torchcaps.errors import DataError
from torchcaps.reporting.evaluated import evaluate_run
from torchcaps.reproduction import MEASURES, measures
from torchcaps.tasks import create_task
from torchcaps.training import TrainConfig, train
from torchcaps.types import ModelSpec

TINY = {"channels": 8, "primary_types": 2, "decoder": (16, 32)}


def trained(folder, **changes):
    settings = {
        "model": "capsnet",
        "model_options": TINY,
        "data": "digits",
        "epochs": 1,
        "epoch_size": 32,
        "batch_size": 16,
        "holdout": 40,
        "shift": 0,
        "device": "cpu",
    }
    config = TrainConfig.of(**(settings | changes))
    return evaluate_run(train(config, folder / "run"))


def limit_images(monkeypatch, count=8):
    monkeypatch.setattr(measures, "NUM_SUBSET", count)
    monkeypatch.setattr(measures, "NUM_ATTACKED", count)
    monkeypatch.setattr(measures, "STRENGTHS", (0.1,))


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("digits"))


@pytest.fixture(scope="module")
def cnn(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("cnn"), model="cnn_matched")


def test_random_test_images_are_the_same_for_every_model(digits, cnn):
    assert torch.equal(digits.subset(20).images, cnn.subset(20).images)
    assert not torch.equal(digits.subset(20).images, digits.images.images[:20])


def test_the_images_held_out_are_those_that_the_model_was_chosen_with(digits):
    row = digits.run.rows[-1]
    assert len(digits.held_out_images()) == 40
    assert MEASURES["validation"](digits)["validation_error"] == pytest.approx(
        1 - row["val_accuracy"], abs=0.05
    )


def test_robustness_of_a_capsule_network_and_of_a_cnn(digits, cnn, monkeypatch):
    limit_images(monkeypatch)
    robustness = MEASURES["robustness"](digits)
    cnn_robustness = MEASURES["robustness"](cnn)
    for name in (
        "affine_accuracy",
        "fgsm_accuracy",
        "bim_accuracy",
        "pgd_accuracy",
        "auroc_inverted",
        "auroc_noise",
    ):
        assert 0 <= robustness[name] <= 1, name
        assert 0 <= cnn_robustness[name] <= 1, name
    assert 0 <= robustness["detected"] <= 1
    assert "detected" not in cnn_robustness  # there is no decoder in a CNN


def test_routing_is_measured_only_in_networks_with_routing(digits, cnn, monkeypatch):
    limit_images(monkeypatch)
    for name in ("ablation", "diagnostics"):
        assert MEASURES[name](cnn) == {}
    assert 0 <= MEASURES["ablation"](digits)["uniform_at_test_error"] <= 1
    diagnostics = MEASURES["diagnostics"](digits)
    assert 0 <= diagnostics["coupling_entropy"] <= 1
    assert "verdicts" in diagnostics["diagnosis"]


def test_counting_products_leaves_the_operators_of_the_model(digits):
    layers = [module for module in digits.model.modules() if hasattr(module, "impl")]
    before = [layer.impl for layer in layers]
    assert MEASURES["products"](digits)["products"] > 0
    assert before
    assert [layer.impl for layer in layers] == before


def test_segmentation_is_measured_only_on_composites(digits, tmp_path, monkeypatch):
    limit_images(monkeypatch)
    assert MEASURES["segmentation"](digits) == {}
    pairs = trained(tmp_path, data="multi-digits")
    segmentation = MEASURES["segmentation"](pairs)
    assert 0 <= segmentation["iou"] <= 1
    assert segmentation["pixel_mse"] > 0
    assert segmentation["ink_absent"] > 0
    for name in ("placed", "viewpoints", "ablation", "diagnostics", "robustness"):
        assert MEASURES[name](pairs) == {}  # they need one class an image


def test_the_score_of_another_task_is_called_by_its_name(digits):
    class Sharpness(type(digits.task)):
        score = "sharpness"

        def compute_metrics(self, outputs):
            return {"loss": 0.0, "sharpness": 0.25}

    run = replace(digits, task=Sharpness(digits.model, digits.config))
    assert MEASURES["validation"](run) == {"validation_sharpness": 0.25}


def test_clean_digits_are_those_placed_and_not_transformed(tmp_path):
    run = trained(tmp_path, data="affine-digits")
    clean = MEASURES["placed"](run)["clean_error"]
    placed = load_dataset("placed-digits", "test")
    right = (run.model(placed.float_images()).argmax(dim=1) == placed.labels).float().mean()
    assert clean == pytest.approx(1 - float(right), abs=1e-6)
    assert len(run.images) == 4 * len(placed)


def measure_viewpoints(run, monkeypatch):
    """Figures of viewpoints, where digits replace familiar and novel views."""
    images = {"a-familiar": load_dataset("digits", "test").subset(range(20))}
    monkeypatch.setattr(
        "torchcaps.reporting.evaluated.load_dataset", lambda name, *_, **__: images[name]
    )
    return MEASURES["viewpoints"](replace(run, config=run.config.updated(data="a")))


def test_viewpoints_have_a_curve_over_the_stored_epochs(tmp_path, monkeypatch):
    run = trained(tmp_path, epochs=2, keep_epochs=True)
    figures = measure_viewpoints(run, monkeypatch)
    assert 0 <= figures["familiar_error"] <= 1
    novel = figures["curve"]["novel"]
    assert len(novel) == 2
    assert novel[run.run.best_epoch - 1] == pytest.approx(1 - figures["novel_error"])


def test_viewpoints_have_no_curve_without_stored_epochs(digits, monkeypatch):
    figures = measure_viewpoints(digits, monkeypatch)
    assert 0 <= figures["familiar_error"] <= 1
    assert "curve" not in figures


def test_affnist_is_measured_if_its_files_exist(digits, tmp_path, monkeypatch):
    elsewhere = replace(digits, config=digits.config.updated(root=str(tmp_path)))
    assert MEASURES["affnist"](elsewhere) == {}
    (tmp_path / "affnist" / "test_batches").mkdir(parents=True)
    (tmp_path / "affnist" / "test_batches" / "1.mat").write_bytes(b"no such file")
    with pytest.raises(DataError, match=r"1\.mat"):
        MEASURES["affnist"](elsewhere)
    images = load_dataset("digits", "test").subset(range(20))
    monkeypatch.setattr("torchcaps.reporting.evaluated.load_dataset", lambda name, *_, **__: images)
    right = (digits.model(images.float_images()).argmax(dim=1) == images.labels).float().mean()
    assert MEASURES["affnist"](digits)["affnist_error"] == pytest.approx(1 - float(right), abs=1e-6)


class Templates(torch.nn.Module):
    """Classifies digits by their distances from class means: accurate, and easy to attack."""

    spec = ModelSpec(activation="probability")

    def __init__(self, images):
        super().__init__()
        x = images.float_images().flatten(1)
        members = torch.nn.functional.one_hot(images.labels, 10).float()
        self.means = torch.nn.Parameter(members.T @ x / members.sum(dim=0).unsqueeze(1))

    def forward(self, images):
        logits = images.flatten(1) @ self.means.T - self.means.square().sum(dim=1) / 2
        return logits.softmax(dim=1)


def test_attack_success_is_of_rightly_answered_images(cnn, monkeypatch):
    limit_images(monkeypatch, 48)
    trained = replace(cnn, task=create_task(Templates(cnn.images), cnn.config))
    monkeypatch.setattr(measures, "SUCCESS_STRENGTH", 0.15)
    figures = MEASURES["attack_success"](trained)
    targeted = {"targeted_fgsm_success", "targeted_bim_success"}
    assert set(figures) == {"fgsm_success", "bim_success"} | targeted
    assert 0 < figures["targeted_fgsm_success"] < figures["fgsm_success"] < 1
    assert 0 < figures["targeted_bim_success"] < figures["bim_success"] < 1
    monkeypatch.setattr(measures, "SUCCESS_STRENGTH", 0.0)
    assert set(MEASURES["attack_success"](trained).values()) == {0.0}
    monkeypatch.setattr(measures, "SUCCESS_STRENGTH", 1.0)
    assert MEASURES["attack_success"](trained)["bim_success"] > 0.9
