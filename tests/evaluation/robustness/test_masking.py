from __future__ import annotations

import pytest
import torch
from torch import Tensor

from torchcaps.evaluation import MaskingReport, masking_report

from ..stubs import Linear

LABELS = torch.tensor([0, 1] * 10)
# Class 0 is bright on the left, class 1 on the right.
IMAGES = torch.where(
    LABELS.view(-1, 1, 1, 1) == 0, torch.tensor([0.75, 0.25]), torch.tensor([0.25, 0.75])
) + 0.1 * torch.rand(20, 1, 1, 2, generator=torch.Generator().manual_seed(0))


class Open(Linear):
    """A model that hides nothing."""

    def __init__(self) -> None:
        super().__init__(torch.tensor([4.0, -4.0]))


class Stairs(Open):
    """The same answers, in steps: no gradient anywhere."""

    def forward(self, images: Tensor) -> Tensor:
        return super().forward((images * 8).round() / 8 + 0 * images)


class Ripples(Open):
    """The same answers at first sight, with gradients that point the wrong way."""

    def forward(self, images: Tensor) -> Tensor:
        return super().forward((images * 8).round() / 8 - 0.01 * images)


def checks(report: MaskingReport) -> dict[str, bool | None]:
    return {check.name: check.passed for check in report.checks}


def test_an_honest_model_passes() -> None:
    found = masking_report(Open(), IMAGES, LABELS, eps=0.4)
    assert found.clean == 1
    assert found.fgsm == found.pgd == found.bim == found.large == 0
    assert found.noise > 0
    assert found.silent == 0
    assert found.passed
    assert list(found.losses) == sorted(found.losses)
    assert found.losses[0] == pytest.approx(float(_full_loss(Open()(IMAGES).detach())), rel=1e-5)
    assert "No sign" in found.verdict


def _full_loss(activation: Tensor) -> Tensor:
    own = activation.gather(1, LABELS[:, None]).squeeze(1)
    return ((1 - own).square() + 0.5 * (1 - own).square()).mean()


def test_a_model_without_gradients_is_found_out() -> None:
    found = masking_report(Stairs(), IMAGES, LABELS, eps=0.4)
    assert found.silent == 1
    assert not found.passed
    assert checks(found)["gradients are not zero"] is False
    assert checks(found)["a large attack leaves nothing"] is False
    assert "Do not quote" in found.verdict


def test_gradients_that_point_the_wrong_way_are_found_out() -> None:
    found = masking_report(Ripples(), IMAGES, LABELS, eps=0.4, other=Open())
    assert found.silent == 0
    assert found.transfer == 0  # images made for the open model fool this one
    assert checks(found)["the own gradient is better than another model's"] is False
    assert checks(found)["the loss rises with eps"] is False


def test_what_cannot_be_asked_is_neither_passed_nor_failed() -> None:
    found = masking_report(Open(), IMAGES, LABELS, eps=0.4)
    assert found.transfer is None
    assert checks(found)["the own gradient is better than another model's"] is None
    assert found.to_dict()["passed"] is True


def test_the_large_attack_is_the_larger() -> None:
    with pytest.raises(ValueError, match=r"large_eps: expected between 0.4 and 1, got 0.2"):
        masking_report(Open(), IMAGES, LABELS, eps=0.4, large_eps=0.2)
