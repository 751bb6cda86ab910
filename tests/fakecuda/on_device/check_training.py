"""Training on the fake GPU: precision, late losses, memory, devices without float64."""

import json

import pytest
import torch

import torchcaps as tc
from fakecuda import gpu, runs
from torchcaps.data import label_tree
from torchcaps.errors import TrainingError
from torchcaps.tasks.classify import Classify
from torchcaps.tasks.tree import path_figures
from torchcaps.testing import seeded
from training.makers import Watch, assert_resumes

TINY = {"img_size": 12, "channels": (4, 6), "kernels": (5, 3), "hidden": (8,)}
pytestmark = pytest.mark.filterwarnings("default")


@pytest.fixture
def images():
    generator = seeded()
    labels = torch.arange(40) % 3
    pixels = 0.3 * torch.rand(40, 1, 12, 12, generator=generator)
    pixels[torch.arange(40), 0, 3 * labels] += 0.6
    return pixels, labels


def make_model():
    generator = seeded(1)
    return tc.create_model("cnn_baseline", num_classes=3, generator=generator, **TINY)


def fit(images, device="cuda", **settings):
    """The weights of a model after a few steps, on the CPU, and the rows of its epochs."""
    run = {"epochs": 1, "batch_size": 8, "holdout": 8, "shift": 0, "optimizer": "sgd", "lr": 0.1}
    model, history = tc.fit(make_model(), *images, device=device, **(run | settings))
    return {name: weight.cpu() for name, weight in model.state_dict().items()}, history


def change(weights):
    """How far weights are from those at the start, as one vector."""
    start = make_model().state_dict()
    return torch.cat([(weights[name] - start[name]).flatten() for name in start])


def test_a_gpu_trains_as_the_cpu_does(images):
    weights, (row,) = fit(images, precision="fp32")
    expected, (expected_row,) = fit(images, "cpu", precision="fp32")
    torch.testing.assert_close(weights, expected)
    assert row["train_loss"] == pytest.approx(expected_row["train_loss"], rel=1e-5)


def relative_error(images, precision):
    update = change(fit(images, precision=precision)[0])
    exact = change(fit(images, precision="fp32")[0])
    return (update - exact).norm() / exact.norm()


def test_fp16_gives_the_updates_of_fp32(images):
    assert relative_error(images, "fp16") < 0.02


def test_a_gradient_that_stays_scaled_is_detected(images, monkeypatch):
    monkeypatch.setattr(torch.amp.GradScaler, "unscale_", lambda self, optimizer: None)
    assert relative_error(images, "fp16") > 0.5


def test_fp16_resumes_with_its_scale(tmp_path):
    config = runs.settings("cnn_baseline", "fp16").updated(checkpoint_every=2)
    assert_resumes(config, tmp_path, step=2)


def test_fp16_and_tf32_are_refused_on_a_cpu(images):
    for precision in ("fp16", "tf32"):
        with pytest.raises(ValueError, match=f"precision: {precision} is for GPUs.*bf16"):
            fit(images, "cpu", precision=precision)


@pytest.mark.parametrize(("precision", "rule"), [("fp32", "ieee"), ("tf32", "tf32")])
def test_products_and_convolutions_have_one_rule(precision, rule, images):
    rules = []

    def note(*_):
        backends = (torch.backends.cuda.matmul, torch.backends.cudnn.conv)
        rules.extend(backend.fp32_precision for backend in backends)
        rules.append(torch.get_deterministic_debug_mode())

    before = torch.backends.cudnn.conv.fp32_precision
    fit(images, precision=precision, callbacks=[Watch(note)], deterministic=precision == "tf32")
    assert set(rules) == {rule, 2 if precision == "tf32" else 0}
    assert torch.backends.cudnn.conv.fp32_precision == before
    assert torch.get_deterministic_debug_mode() == 0


def test_losses_are_read_late_and_completely(images, monkeypatch):
    reads = []
    step = tc.training.Trainer.step

    def counted_step(self, *arguments):
        with gpu.counted() as counts:
            outcome = step(self, *arguments)
        reads.append(counts.waits.total())
        return outcome

    monkeypatch.setattr(tc.training.Trainer, "step", counted_step)
    watch = Watch()
    monkeypatch.setattr(Watch, "is_late", True)
    fit(images, callbacks=[watch], epochs=6)
    assert sum(reads[1:]) == 0  # the first step warms up
    assert watch.steps == list(range(1, 25))


def test_a_loss_that_is_not_finite_is_reported_with_its_step(images, tmp_path, monkeypatch):
    training_step = Classify.training_step
    calls = []

    def poisoned(self, batch, fraction_trained):
        losses = training_step(self, batch, fraction_trained)
        calls.append(0)
        factor = float("nan") if len(calls) == 3 else 1.0
        return losses | {"loss": losses["loss"] * factor}

    monkeypatch.setattr(Classify, "training_step", poisoned)
    with pytest.raises(TrainingError, match="the loss became nan after step 2"):
        fit(images)
    assert len(calls) == 4  # found at the end of the epoch


def test_exhausted_memory_is_one_sentence(images):
    with (
        gpu.memory_limit(70_000),
        pytest.raises(TrainingError, match="the memory is exhausted; use a smaller batch_size"),
    ):
        fit(images, batch_size=24)


def test_a_device_without_float64_trains_and_evaluates(images):
    with gpu.without_float64():
        tc.transfer.widest_float.cache_clear()
        model, history = tc.fit(
            make_model(), *images, device="cuda", epochs=1, batch_size=8, holdout=8
        )
        evaluation = tc.evaluate(model, images)
        activations = model(images[0].to("cuda")).softmax(dim=1)
        labels = images[1].to("cuda")
        tc.evaluation.calibration(activations, labels)
        calibration = tc.evaluation.calibrate(activations, labels)
        paths = torch.stack([labels > 0, labels], dim=1).long()
        tree = label_tree(("a/0", "b/1", "b/2"))
        figures = path_figures(paths.flip(0), paths, tree)
    tc.transfer.widest_float.cache_clear()
    expected = tc.evaluation.calibrate(activations.cpu(), images[1])
    # Near its minimum a loss is flat: its rounding in float32, 1e-7, moves the minimum by the root
    # of it over the curvature, which is 0.01 or so for 40 images.
    assert calibration.temperature == pytest.approx(expected.temperature, rel=0.02)
    assert figures == pytest.approx(path_figures(paths.flip(0).cpu(), paths.cpu(), tree))
    assert history[0]["train_accuracy"] > 0
    assert 0 <= evaluation.accuracy <= 1


def test_auto_takes_the_first_kind_of_device(monkeypatch):
    resolve = tc.training.device.resolve_device
    assert resolve("auto").type == "cuda"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert resolve("auto").type == "cpu"
    monkeypatch.setattr(torch.mps, "is_available", lambda: True)
    assert resolve("auto").type == "mps"
    monkeypatch.setattr(torch.xpu, "is_available", lambda: True)
    assert resolve("auto").type == "xpu"


def test_bfloat16_is_chosen_where_the_gpu_has_it():
    resolve = tc.training.device.resolve_precision
    device = torch.device("cuda")
    assert resolve("auto", device) == "bf16"
    with gpu.capability(7, 5):
        assert resolve("auto", device) == "fp32"


def test_doctor_tells_of_the_device(capsys):
    from torchcaps.cli.main import main

    assert main(["doctor", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["gpu"] == gpu.PROPERTIES.name
    assert facts["kernel dynamic_routing"].startswith("triton: ")
