"""Temperature and threshold from held-out images."""

import json

import pytest
import torch
from scipy.stats import beta

from torchcaps.errors import ArgumentError
from torchcaps.evaluation import HeldOutCalibration, calibrate, doubt, reliability
from torchcaps.testing import seeded

LOGITS = torch.randn(4000, 5, generator=seeded(0), dtype=torch.float64)


def sample_labels(logits, seed=1):
    """Labels that follow the softmax of logits."""
    generator = seeded(seed)
    return logits.softmax(dim=1).multinomial(1, generator=generator).squeeze(1)


@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_the_temperature_of_the_labels_is_recovered(temperature):
    labels = sample_labels(2 * LOGITS / temperature)
    calibration = calibrate((2 * LOGITS).softmax(dim=1), labels)
    assert calibration.temperature == pytest.approx(temperature, rel=0.06)
    assert calibration.error < 0.03 < calibration.error_before


def test_the_temperature_is_the_best_of_a_grid():
    activations = LOGITS[:50].softmax(dim=1)
    labels = sample_labels(LOGITS[:50])
    targets = torch.nn.functional.one_hot(labels, 5) * (1 - 1 / 52) + 1 / 52 / 5  # after Platt
    temperatures = torch.logspace(-1, 1, 20_001, dtype=torch.float64)
    powers = activations.log().unsqueeze(0) / temperatures.view(-1, 1, 1)
    likelihoods = (targets * powers.log_softmax(dim=2)).sum(dim=(1, 2))
    best = float(temperatures[likelihoods.argmax()])
    assert calibrate(activations, labels).temperature == pytest.approx(best, rel=3e-4)


def test_probabilities_of_new_images_are_right_as_often_as_they_say():
    # Lengths whose fifth powers are odds: they sum to more than one.
    lengths = (0.9 * LOGITS.sigmoid()).float()
    labels = sample_labels(5 * lengths.double().log())
    calibration = calibrate(lengths[:2000], labels[:2000])
    probabilities = calibration.probabilities(lengths[2000:])
    torch.testing.assert_close(probabilities.sum(dim=1), torch.ones(2000, dtype=torch.float64))
    is_correct = probabilities.argmax(dim=1) == labels[2000:]
    assert reliability(probabilities.amax(dim=1), is_correct).error < 0.04
    assert probabilities.argmax(dim=1).equal(lengths[2000:].argmax(dim=1))


def test_images_without_a_mistake_do_not_make_every_answer_certain():
    labels = torch.arange(20) % 2
    activations = torch.full((20, 2), 0.1)
    activations[torch.arange(20), labels] = 0.9
    calibration = calibrate(activations, labels)
    assert calibration.temperature > 0.1
    assert 0.9 < float(calibration.probabilities(activations).amax()) < 0.99


def test_dead_capsules_are_an_even_guess():
    calibration = calibrate(torch.zeros(8, 4), torch.arange(8) % 4)
    assert calibration.probabilities(torch.zeros(1, 4))[0].tolist() == pytest.approx([0.25] * 4)


@pytest.mark.parametrize(("num_samples", "num_rejected"), [(200, 10), (39, 1), (19, 0), (1, 0)])
def test_the_threshold_rejects_a_twentieth(num_samples, num_rejected):
    lengths = torch.linspace(0.9, 0.2, num_samples)
    activations = torch.stack([lengths, torch.full_like(lengths, 0.1)], dim=1)
    calibration = calibrate(activations, torch.zeros(num_samples, dtype=torch.int64))
    assert int((lengths < calibration.threshold).sum()) == num_rejected
    assert calibration.rejected == pytest.approx(num_rejected / num_samples)
    assert calibration.num_samples == num_samples


def test_the_interval_is_that_of_the_sixth_of_a_hundred_lengths():
    lengths = torch.rand(100, 1, generator=seeded(0))
    activations = torch.cat([lengths, lengths / 2], dim=1)
    calibration = calibrate(activations, torch.zeros(100, dtype=torch.int64))
    expected = beta.interval(0.95, 6, 95)
    assert (calibration.rejected_low, calibration.rejected_high) == pytest.approx(expected)


def test_json_holds_everything():
    calibration = calibrate(LOGITS.softmax(dim=1).requires_grad_(), sample_labels(LOGITS))
    document = json.loads(json.dumps(calibration.to_dict()))
    assert HeldOutCalibration.from_dict(document) == calibration
    for name, figure in (
        ("threshold", None),
        ("threshold", float("nan")),
        ("num_samples", True),
        ("temperature", 0),
        ("error", "0.1"),
    ):
        with pytest.raises(ArgumentError, match=f"^{name}: "):
            HeldOutCalibration.from_dict(document | {name: figure})


@pytest.mark.parametrize(("kind", "num_outside"), [("unchanged", 19), ("changed", 239)])
def test_each_limit_leaves_out_a_share_of_the_images(kind, num_outside):
    activations = LOGITS.softmax(dim=1)
    errors = torch.rand(4000, generator=seeded(2))
    limits = calibrate(activations, sample_labels(LOGITS), errors).limits[kind]
    first, second = activations.topk(2).values.unbind(dim=1)
    for name, column in (("length", first), ("margin", first - second), ("error", errors)):
        only = {name: limits[name]}
        assert sum(doubt({name: figure}, only) != "" for figure in column.tolist()) == num_outside


def test_limits_need_images_and_what_they_are_of():
    labels = sample_labels(LOGITS)
    assert set(calibrate(LOGITS.softmax(dim=1), labels).limits["changed"]) == {"length", "margin"}
    assert calibrate(LOGITS[:99].softmax(dim=1), labels[:99]).limits == {}


LIMITS = {"length": 0.5, "margin": 0.25, "error": 6.0}


@pytest.mark.parametrize(
    ("length", "margin", "error", "reason"),
    [
        (0.5, 0.25, 6.0, ""),
        (0.49, 0.25, 6.0, "its length, 0.49, is below 0.5"),
        (0.5, 0.2, 6.0, "its margin, 0.2, is below 0.25"),
        (0.5, 0.25, 6.5, "the error of its reconstruction, 6.5, is above 6"),
    ],
)
def test_a_doubt_names_the_figure_and_its_limit(length, margin, error, reason):
    figures = {"length": length, "margin": margin, "error": error}
    assert doubt(figures, LIMITS) == reason
    assert doubt(figures, {}) == ""


@pytest.mark.parametrize("limits", [5, {"changed": 1}, {"changed": {"length": "x"}}])
def test_limits_that_are_none_are_refused(limits):
    figures = calibrate(LOGITS.softmax(dim=1), sample_labels(LOGITS)).to_dict()
    with pytest.raises(ArgumentError, match="limits|length"):
        HeldOutCalibration.from_dict(figures | {"limits": limits})
