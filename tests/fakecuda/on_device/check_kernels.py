"""A kernel is compared with its reference where it first runs, and not used where it is wrong."""

import pytest
import torch

import torchcaps as tc
from fakecuda import gpu
from torchcaps.functional import DenseField, ProductVotes, dynamic_routing
from torchcaps.kernels import registry, verify
from torchcaps.kernels.dynamic import triton
from torchcaps.types import Capsules, Routed


def right(votes, **options):
    return dynamic_routing(votes, **options)


def wrong_value(votes, **options):
    routed = dynamic_routing(votes, **options)
    return routed._replace(activation=routed.activation * 1.01)


def wrong_gradient(votes, **options):
    routed = dynamic_routing(votes, **options)
    if routed.pose.requires_grad:
        routed.pose.register_hook(lambda gradient: 1.1 * gradient)
    return routed


def failing(votes, **options):
    raise RuntimeError("ptxas: no such file")


def unwritten(votes, **options):
    routed = dynamic_routing(votes, **options)
    pose = torch.where(routed.pose > 0.5, torch.empty_like(routed.pose), routed.pose)
    return Routed(pose, routed.activation, routed.coupling)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Where outcomes are remembered; nothing is known yet."""
    monkeypatch.setattr(verify, "FOLDER", tmp_path)
    verify.forget()
    yield tmp_path
    verify.forget()


@pytest.fixture
def install(monkeypatch):
    """A function that makes another function the implementation "triton"."""

    def replace(run):
        calls = []

        def counted_run(votes, **options):
            calls.append(len(votes.children.pose))
            return run(votes, **options)

        path = registry.FastPath("triton", counted_run, triton.supports, 5, dynamic_routing)
        others = [path for path in registry.PATHS["dynamic_routing"] if path.impl != "triton"]
        monkeypatch.setitem(registry.PATHS, "dynamic_routing", [path, *others])
        return calls

    monkeypatch.setattr(triton, "HAS_TRITON", True)
    return replace


def make_votes(children=6, dtype=torch.float32, autocast=None):
    pose = torch.randn(3, children, 4).to("cuda", dtype)
    weight = torch.randn(children, 5, 4, 2).to("cuda", dtype)
    with torch.autocast("cuda", autocast or torch.bfloat16, enabled=autocast is not None):
        return ProductVotes(Capsules(pose, pose.norm(dim=-1)), DenseField(), weight)


def test_a_right_kernel_is_used_and_remembered(install, folder):
    calls = install(right)
    for _ in range(2):
        tc.ops.dynamic_routing(make_votes())
    assert calls == [3, 3, 3]  # tried once, and run twice
    assert len(list(folder.iterdir())) == 1
    verify.forget()  # as in another process
    tc.ops.dynamic_routing(make_votes())
    assert len(calls) == 4
    tc.ops.dynamic_routing(make_votes(children=7))  # other sizes
    tc.ops.dynamic_routing(make_votes(), iterations=2)  # another number of passes
    assert len(calls) == 8
    assert len(list(folder.iterdir())) == 3


@pytest.mark.parametrize(
    ("run", "complaint"),
    [
        (wrong_value, "its activation differs from the reference by 0.01"),
        (wrong_gradient, "its gradient of the pose differs from the reference by"),
        (unwritten, "its pose differs from the reference by nan"),
        (failing, r"it failed when it was tried \(RuntimeError: ptxas: no such file\)"),
    ],
)
def test_a_wrong_kernel_is_not_used(run, complaint, install, folder):
    calls = install(run)
    votes = make_votes()
    with pytest.warns(UserWarning, match=f"'triton' is not used, because {complaint}"):
        routed = tc.ops.dynamic_routing(votes)
    torch.testing.assert_close(routed.pose, dynamic_routing(votes).pose)
    tc.ops.dynamic_routing(votes)  # said once
    assert len(calls) == 1
    assert not list(folder.iterdir())
    assert "triton is not used because" in tc.ops.explain("dynamic_routing", votes)
    with pytest.raises(ValueError, match=f"'triton' cannot run dynamic_routing here.*{complaint}"):
        tc.ops.dynamic_routing(votes, impl="triton")


def test_rounding_of_half_precision_is_no_fault(install):
    def rounded(votes, **options):
        routed = dynamic_routing(votes, **options)
        return Routed(routed.pose.bfloat16().float(), routed.activation, routed.coupling)

    install(rounded)
    votes = make_votes(autocast=torch.bfloat16)
    assert tc.ops.choose("dynamic_routing", votes)[0] == "triton"
    with pytest.warns(UserWarning, match="its pose differs"):
        assert tc.ops.choose("dynamic_routing", make_votes())[0] == "blocked"


@pytest.mark.parametrize(
    ("capability", "autocast", "reason"),
    [
        ((6, 1), None, "compute capability 6.1; Triton needs 7.0"),
        ((7, 5), torch.bfloat16, "compute capability 7.5; products in bfloat16 needs 8.0"),
        ((7, 5), None, ""),
        ((8, 0), torch.bfloat16, ""),
    ],
)
def test_kernels_know_what_a_gpu_can(capability, autocast, reason, install):
    install(right)
    votes = make_votes(autocast=autocast)
    with gpu.capability(*capability):
        support = triton.supports(votes)
    assert support.usable == (not reason)
    assert reason in support.reason


@pytest.mark.parametrize(
    ("architecture", "is_usable"), [("gfx942:sramecc+", True), ("gfx906", False)]
)
def test_kernels_know_the_architectures_of_amd(architecture, is_usable, install, monkeypatch):
    install(right)
    monkeypatch.setattr(torch.version, "hip", "6.4")
    monkeypatch.setattr(gpu.PROPERTIES, "gcnArchName", architecture)
    assert triton.supports(make_votes()).usable == is_usable


def test_a_missing_compiler_is_said(install, monkeypatch):
    install(right)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("CC", raising=False)
    assert tc.ops.choose("dynamic_routing", make_votes())[0] == "blocked"
    with pytest.raises(ValueError, match="Triton needs a C compiler"):
        tc.ops.choose("dynamic_routing", make_votes(), impl="triton")
