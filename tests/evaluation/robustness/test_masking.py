import pytest
import torch

from torchcaps.evaluation import full_margin_loss, masking_report

from ..stubs import Linear

LABELS = torch.tensor([0, 1] * 10)
# Class 0 is bright on the left, class 1 on the right.
BRIGHTNESS = torch.tensor([[0.75, 0.25], [0.25, 0.75]])[LABELS][:, None, None, :]
IMAGES = BRIGHTNESS + 0.1 * torch.rand(20, 1, 1, 2, generator=torch.Generator().manual_seed(0))


class Open(Linear):
    """A model that hides nothing."""

    def __init__(self):
        super().__init__(torch.tensor([4.0, -4.0]))


class Stairs(Open):
    """The same answers, in steps: no gradient anywhere."""

    def forward(self, images):
        return super().forward((images * 8).round() / 8 + 0 * images)


class Ripples(Open):
    """The same answers at first sight, with gradients that point the wrong way."""

    def forward(self, images):
        return super().forward((images * 8).round() / 8 - 0.01 * images)


def failed_checks(report):
    return {check["name"] for check in report.checks if not check["passed"]}


def test_an_honest_model_passes():
    report = masking_report(Open(), IMAGES, LABELS, eps=0.4)
    assert report.clean == 1
    assert report.fgsm == report.pgd == report.bim == report.large == 0
    assert report.noise > 0
    assert report.silent == 0
    assert report.passed
    assert list(report.losses) == sorted(report.losses)
    loss = float(full_margin_loss(Open()(IMAGES).detach(), LABELS))
    assert report.losses[0] == pytest.approx(loss, rel=1e-5)
    assert "No sign" in report.verdict
    assert report.to_dict()["passed"] is True


def test_a_model_without_gradients_fails():
    report = masking_report(Stairs(), IMAGES, LABELS, eps=0.4)
    assert report.silent == 1
    assert not report.passed
    assert {"gradients are not zero", "a large attack leaves nothing"} <= failed_checks(report)
    assert "Do not quote" in report.verdict


def test_gradients_that_point_the_wrong_way_fail():
    report = masking_report(Ripples(), IMAGES, LABELS, eps=0.4)
    assert report.silent == 0
    assert "the loss rises with eps" in failed_checks(report)
