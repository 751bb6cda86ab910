from __future__ import annotations

import pytest
import torch

from torchcaps.errors import RunError
from torchcaps.training.device import resolve_device, resolve_precision


def test_auto_is_the_gpu_of_a_machine_that_has_one():
    assert resolve_device("cpu") == torch.device("cpu")
    assert resolve_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.parametrize("name", ["nonsense", "meta", "cuda:99"])
def test_a_device_that_is_not_here_is_refused(name):
    with pytest.raises(RunError, match=f"device: '{name}' cannot be used here"):
        resolve_device(name)


def test_auto_is_bf16_where_the_hardware_has_it(monkeypatch):
    cpu = torch.device("cpu")
    assert resolve_precision("fp32", cpu) == "fp32"
    assert resolve_precision("bf16", cpu) == "bf16"
    for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"):
        monkeypatch.setattr(torch.cpu, name, lambda: False, raising=False)
    assert resolve_precision("auto", cpu) == "fp32"
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: True, raising=False)
    assert resolve_precision("auto", cpu) == "bf16"
