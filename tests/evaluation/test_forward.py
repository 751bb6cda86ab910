from __future__ import annotations

import pytest
import torch
from torch import nn

from torchcaps.evaluation.forward import device_of, evaluating


def test_every_submodule_gets_its_own_flag_back() -> None:
    model = nn.Sequential(nn.Dropout(), nn.BatchNorm1d(2)).train()
    model[1].eval()  # frozen statistics, as in fine-tuning
    with evaluating(model):
        assert [module.training for module in model.modules()] == [False, False, False]
        assert torch.is_inference_mode_enabled()
    assert [module.training for module in model.modules()] == [True, True, False]


def test_flags_come_back_after_an_error() -> None:
    model = nn.Dropout().train()
    with pytest.raises(RuntimeError, match="inside"), evaluating(model):
        raise RuntimeError("inside")
    assert model.training


def test_device_of_parameters_buffers_and_nothing() -> None:
    assert device_of(nn.Linear(1, 1, device="meta")).type == "meta"
    assert device_of(nn.BatchNorm1d(1, affine=False, device="meta")).type == "meta"
    assert device_of(nn.ReLU()).type == "cpu"
