"""The page on loops of one's own and other trainers: each of its examples runs as it stands."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import torchcaps as tc
from torchcaps.functional import margin_loss
from torchcaps.testing import seeded
from torchcaps.training import defaults

PAGE = Path(__file__).resolve().parents[2] / "docs" / "own-training.md"
MAX_LINES = 25  # of an example, without empty ones
SEEDS = [0] + [pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 5)]


def examples():
    """The code of each section, by its heading."""
    sections = PAGE.read_text(encoding="utf-8").split("\n## ")[1:]
    codes = {}
    for section in sections:
        heading, _, text = section.partition("\n")
        [codes[heading]] = re.findall(r"^```py(?:thon)?\n(.*?)^```", text, re.M | re.S)
    return codes


@pytest.fixture(scope="module")
def plain():
    """The names that the plain loop leaves."""
    names = {}
    torch.manual_seed(0)
    exec(examples()["A plain loop"], names)
    return names


@pytest.fixture
def run_example(plain, tmp_path, monkeypatch):
    """A function that runs the example of a section after the plain loop; gives its names."""
    monkeypatch.chdir(tmp_path)

    def run(heading):
        names = plain | {"folder": str(tmp_path), "__name__": __name__}
        torch.manual_seed(0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            exec(examples()[heading], names)
        return names

    return run


def loss_of(names):
    """Margin loss of the images that the example has trained with; 0.52 says nothing of classes."""
    model = names["model"].cpu().eval()
    with torch.inference_mode():
        return float(margin_loss(model(names["images"]), names["labels"]))


def test_examples_are_short():
    for heading, code in examples().items():
        assert len([line for line in code.splitlines() if line]) <= MAX_LINES, heading


def test_the_plain_loop_learns(plain):
    assert loss_of(plain) < 0.3
    assert plain["schedule"].get_last_lr() == [0.0]


@pytest.mark.parametrize(
    ("packages", "heading"),
    [
        (("lightning",), "Lightning"),
        (("transformers", "accelerate"), "The trainer of transformers"),
        (("skorch",), "skorch"),
    ],
)
def test_another_trainer_learns(packages, heading, run_example):
    for package in packages:
        pytest.importorskip(package, reason=f"needs {package}: make test-trainers")
    assert loss_of(run_example(heading)) < 0.3


def test_contributions_sum_to_the_change_of_a_length(run_example):
    pytest.importorskip("captum", reason="needs captum: make test-trainers")
    names = run_example("Captum")
    pictures, targets = names["pictures"], names["targets"]
    lengths = names["model"](pictures) - names["model"](torch.zeros_like(pictures))
    change = lengths.gather(1, targets.unsqueeze(1)).squeeze(1)
    torch.testing.assert_close(names["contributions"].sum((1, 2, 3)), change, rtol=0, atol=0.02)
    assert names["heat"].shape[:2] == (4, 1)


def test_probabilities_of_lengths_are_taken_by_scikit_learn(run_example):
    metrics = pytest.importorskip(
        "sklearn.metrics", reason="needs scikit-learn: make test-trainers"
    )
    names = run_example("Probabilities and metrics of scikit-learn")
    test = names["test"]
    assert names["by_class"] == pytest.approx([row["auroc"] for row in test.per_class])
    assert 0.99 < names["total"] <= 1
    with pytest.raises(ValueError, match="Target scores need to be probabilities"):
        metrics.roc_auc_score(test.labels, test.activations, multi_class="ovr")


@pytest.fixture(scope="module")
def digits():
    images = tc.data.load_dataset("digits", "train").subset(range(512))
    return images.float_images(range(512)), images.labels


def build(**options):
    generator = seeded()
    return tc.create_model("capsnet", generator=generator, channels=8, primary_types=2, **options)


@pytest.mark.parametrize("decoder", [True, False])
@pytest.mark.parametrize("loss", [{}, {"loss": "spread"}])
@pytest.mark.parametrize(
    "rate", [{}, {"optimizer": "sgd", "lr": 0.01, "lr_scale": {"conv.*": 0.5}}]
)
def test_a_loop_with_the_defaults_is_the_training_of_fit(digits, decoder, loss, rate):
    loader = DataLoader(TensorDataset(*digits), batch_size=64)
    options = {"validation": digits, "epochs": 1, "precision": "fp32", "verbose": False}
    expected, _ = tc.fit(build(decoder=decoder), loader, **options, **loss, **rate)

    model = build(decoder=decoder).train()
    compute_losses = defaults.create_losses(model, **loss)
    limit = defaults.gradient_limit(model, **loss)
    optimizer = defaults.create_optimizer(model, **rate)
    schedule = defaults.create_schedule(optimizer, 8)
    for step, batch in enumerate(loader):
        losses = compute_losses(*batch, step / 8)
        optimizer.zero_grad()
        losses["loss"].backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), limit)
        optimizer.step()
        schedule.step()
    for name, weight in model.state_dict().items():
        torch.testing.assert_close(weight, expected.state_dict()[name], rtol=0, atol=1e-4)


def margin_losses(data, seed, *, clips, rises):
    """Of 24 steps of Adam at 0.001, as users of the library wrote them."""
    images, labels = data
    torch.manual_seed(seed)
    model = tc.create_model("capsnet_small", decoder=False)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    schedule = defaults.create_schedule(optimizer, 100) if rises else None
    losses = []
    for _ in range(24):
        rows = torch.randint(512, (32,))
        loss = margin_loss(model(images[rows]), labels[rows])
        optimizer.zero_grad()
        loss.backward()
        if clips:
            torch.nn.utils.clip_grad_norm_(model.parameters(), defaults.gradient_limit(model))
        optimizer.step()
        if schedule is not None:
            schedule.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("clips", [pytest.param(False, marks=pytest.mark.slow), True])
@pytest.mark.parametrize("rises", [False, True])
def test_a_rate_that_rises_keeps_capsules_from_saturation(digits, seed, clips, rises):
    """With -s it prints the figures of the page."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        losses = margin_losses(digits, seed, clips=clips, rises=rises)
    assert any("they are saturated" in str(warning.message) for warning in caught) != rises
    print(f"clips {clips}, rises {rises}, seed {seed}: {max(losses):.2f}, {losses[-1]:.2f}")
    assert (max(losses) > 3) != rises
    assert losses[-1] < 0.35 or not rises
