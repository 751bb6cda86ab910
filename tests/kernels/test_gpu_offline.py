"""What Triton's compiler makes of the GPU kernels for sm_80 and sm_90; nothing runs, and no GPU is needed."""

from __future__ import annotations

import os

import pytest
import torch

from torchcaps.functional import DenseField, ProductVotes
from torchcaps.kernels.dynamic import triton as path
from torchcaps.types import Capsules

pytest.importorskip(
    "triton.backends.nvidia.compiler", reason="Triton is not installed (pip install triton)"
)
offline = pytest.importorskip("benchmarks.offline", reason="needs a checkout")
pytestmark = [
    pytest.mark.skipif(
        os.environ.get("TRITON_INTERPRET") == "1", reason="the interpreter compiles nothing"
    ),
    pytest.mark.skipif(
        torch.cuda.is_available(),
        reason="a GPU is at hand: the kernels run in triton_dynamic_test.py",
    ),
]
# children, parents, dim, in_dim
THAT_MATTER = [
    (1152, 10, 16, 8),
    (1152, 17, 16, 8),
    (1152, 43, 16, 8),
    (1152, 100, 16, 8),
    (1152, 10, 16, 32),
]


@pytest.fixture(autouse=True, scope="module")
def _compiled_anew(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.mktemp("triton")))
        yield


def hold(row):
    """Hold a row of the table to its limits."""
    assert row["shared B"] <= 160 * 1024, row
    assert row["spilled B"] <= 256, row
    assert (row["tensor-core"] > 0) == (row["precision"] != "fp32"), row


@pytest.mark.parametrize("sizes", THAT_MATTER)
def test_shapes_that_matter_are_accepted_and_among_those_compiled(sizes, monkeypatch):
    monkeypatch.setattr(path, "_is_interpreting", lambda: True)  # takes tensors on the CPU
    children, parents, dim, in_dim = sizes
    weight = torch.zeros(()).expand(children, parents, in_dim, dim)
    some = Capsules(torch.zeros(2, children, in_dim), torch.zeros(2, children))
    found = path.supports(ProductVotes(some, DenseField(), weight))
    assert found.usable, found.reason
    assert (dim, in_dim) in offline.MATTER


def test_batch_and_parents_are_no_part_of_a_compiled_kernel():
    for name in {kernel.partition(",")[0] for kernel in offline.KERNELS}:
        one = getattr(offline._triton_passes, name)
        assert {"batch", "parents"} <= {p.name for p in one.params if p.do_not_specialize}


@pytest.mark.parametrize(
    ("shape", "precision"),
    [
        ((16, 8), "bf16"),
        pytest.param((16, 8), "fp32", marks=pytest.mark.slow),
        pytest.param((16, 32), "tf32", marks=pytest.mark.slow),
    ],
)
def test_shapes_that_matter_fit_an_h100(shape, precision):
    for kernel in offline.LARGEST:
        hold(offline.figures(kernel, *shape, precision, 90))


@pytest.mark.slow
@pytest.mark.parametrize("shape", offline.SHAPES["all"])
def test_all_shapes_fit(shape):
    for row in offline.rows([shape]):
        hold(row)


class Target:
    """A driver without a GPU, which says that there is one."""

    def get_current_device(self):
        return 0

    def get_current_stream(self, device):
        return 0

    def get_current_target(self):
        return offline.GPUTarget("cuda", 90, 32)


def test_launches_compile_what_the_table_shows(monkeypatch):
    """The launches of a forward and backward pass, as far as a GPU is not needed: no warning, the same binaries."""
    from triton.runtime import driver
    from triton.runtime.jit import JITFunction

    launch, compiled = JITFunction.run, set()

    def compile_only(self, *args, grid, warmup, **options):
        made = launch(self, *args, grid=grid, warmup=True, **options)
        compiled.add((self.__name__, made.metadata.shared))

    monkeypatch.setattr(JITFunction, "run", compile_only)
    monkeypatch.setattr(driver, "_active", Target())
    pose, weight = (
        torch.zeros(1, 32, 8, dtype=torch.bfloat16),
        torch.zeros(32, 3, 16, 8, dtype=torch.bfloat16),
    )
    inputs = [pose.requires_grad_(), weight.requires_grad_()]
    v, length, _, _ = torch.ops.torchcaps.dynamic_routing_triton(
        *inputs, None, [], "type", 2, False, False, False
    )
    (v.sum() + length.sum()).backward()
    assert {name for name, _ in compiled} == {
        "agreements",
        "sums",
        "pose_gradient",
        "weight_gradient",
    }
    table = [
        offline.figures(kernel, 16, 8, "bf16", 90) for kernel in offline.LARGEST[1:]
    ]  # without options
    assert compiled >= {(row["kernel"].partition(",")[0], row["shared B"]) for row in table}
