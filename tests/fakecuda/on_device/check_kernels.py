"""What Triton's kernels need of a machine."""

import pytest
import torch

import torchcaps as tc
from fakecuda import gpu
from torchcaps.functional import DenseField, ProductVotes
from torchcaps.kernels.dynamic import triton
from torchcaps.types import Capsules


@pytest.fixture(autouse=True)
def has_triton(monkeypatch):
    """Triton is there, whether it is installed or not."""
    monkeypatch.setattr(triton, "HAS_TRITON", True)


def make_votes(autocast=None):
    pose = torch.randn(3, 6, 4).to("cuda")
    weight = torch.randn(6, 5, 4, 2).to("cuda")
    with torch.autocast("cuda", autocast or torch.bfloat16, enabled=autocast is not None):
        return ProductVotes(Capsules(pose, pose.norm(dim=-1)), DenseField(), weight)


@pytest.mark.parametrize(
    ("capability", "autocast", "reason"),
    [
        ((6, 1), None, "compute capability 6.1; Triton needs 7.0"),
        ((7, 5), torch.bfloat16, "compute capability 7.5; products in bfloat16 needs 8.0"),
        ((7, 5), None, ""),
        ((8, 0), torch.bfloat16, ""),
    ],
)
def test_kernels_know_what_a_gpu_can(capability, autocast, reason):
    votes = make_votes(autocast=autocast)
    with gpu.capability(*capability):
        obstacle = triton.obstacle(votes) or ""
    assert bool(obstacle) == bool(reason)
    assert reason in obstacle


@pytest.mark.parametrize(
    ("architecture", "is_usable"), [("gfx942:sramecc+", True), ("gfx906", False)]
)
def test_kernels_know_the_architectures_of_amd(architecture, is_usable, monkeypatch):
    monkeypatch.setattr(torch.version, "hip", "6.4")
    monkeypatch.setattr(gpu.PROPERTIES, "gcnArchName", architecture)
    assert (triton.obstacle(make_votes()) is None) == is_usable


def test_a_missing_compiler_is_said(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("CC", raising=False)
    assert tc.ops.choose("dynamic_routing", make_votes())[0] == "bmm"
    with pytest.raises(ValueError, match="Triton needs a C compiler"):
        tc.ops.choose("dynamic_routing", make_votes(), impl="triton")
