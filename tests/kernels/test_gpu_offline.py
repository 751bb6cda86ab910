"""What Triton makes of the GPU kernels for sm_80 and sm_90; nothing runs, no GPU is needed."""

import os
import sys
from functools import cache
from pathlib import Path

import pytest
import torch

from torchcaps.functional import DenseField, ProductVotes
from torchcaps.kernels.dynamic import triton as path
from torchcaps.types import Capsules

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
pytest.importorskip(
    "triton.backends.nvidia.compiler", reason="Triton is not installed (pip install triton)"
)
offline = pytest.importorskip("compile_kernels", reason="needs a checkout")
pytestmark = [
    pytest.mark.skipif(
        os.environ.get("TRITON_INTERPRET") == "1", reason="the interpreter compiles nothing"
    ),
    pytest.mark.skipif(
        torch.cuda.is_available(),
        reason="a GPU is at hand: the kernels run in triton_dynamic_test.py",
    ),
]


@pytest.fixture(autouse=True, scope="module")
def _compiled_anew(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.mktemp("triton")))
        yield


@cache
def figures_on_h100(kernel, dim, in_dim, precision):
    return offline.figures(kernel, dim, in_dim, precision, 90)


def assert_within_limits(row):
    """Check a row of the table."""
    assert row["shared B"] <= 160 * 1024, row
    assert row["spilled B"] <= 256, row
    assert (row["tensor-core"] > 0) == (row["precision"] != "fp32"), row


@pytest.mark.parametrize(
    ("children", "parents", "dim", "in_dim"),
    [
        (1152, 10, 16, 8),
        (1152, 17, 16, 8),
        (1152, 43, 16, 8),
        (1152, 100, 16, 8),
        (1152, 10, 16, 32),
    ],
)
def test_shapes_that_matter_are_accepted_and_among_those_compiled(
    children, parents, dim, in_dim, monkeypatch
):
    monkeypatch.setattr(path, "_is_interpreting", lambda: True)  # takes tensors on the CPU
    weight = torch.zeros(()).expand(children, parents, in_dim, dim)
    capsules = Capsules(torch.zeros(2, children, in_dim), torch.zeros(2, children))
    assert path.obstacle(ProductVotes(capsules, DenseField(), weight)) is None
    assert (dim, in_dim) in offline.MATTER


NAMES = {name.partition(",")[0] for name in [*offline.KERNELS, *offline.SQUASHES]}


@pytest.mark.parametrize("name", sorted(NAMES))
def test_batch_and_parents_are_no_part_of_a_compiled_kernel(name):
    kernel = getattr(offline._triton_passes, name)
    not_specialized = {param.name for param in kernel.params if param.do_not_specialize}
    assert {"batch", "parents"} <= not_specialized


@pytest.mark.parametrize(
    ("shape", "precision"),
    [
        ((16, 8), "bf16"),
        pytest.param((16, 8), "fp32", marks=pytest.mark.slow),
        pytest.param((16, 32), "tf32", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("kernel", offline.LARGEST)
def test_shapes_that_matter_fit_an_h100(kernel, shape, precision):
    assert_within_limits(figures_on_h100(kernel, *shape, precision))


@pytest.mark.slow
@pytest.mark.parametrize("shape", offline.SHAPES["all"])
def test_all_shapes_fit(shape):
    for row in offline.rows([shape]):
        assert_within_limits(row)


class Target:
    """A driver without a GPU, which says that there is one."""

    def get_current_device(self):
        return 0

    def get_current_stream(self, device):
        return 0

    def get_current_target(self):
        return offline.GPUTarget("cuda", 90, 32)


@pytest.fixture
def compiled_kernels(monkeypatch):
    """Names and shared bytes of the kernels that are launched; they are compiled, not run."""
    from triton.runtime import driver
    from triton.runtime.jit import JITFunction

    kernels = set()
    launch = JITFunction.run

    def compile_kernel(self, *args, grid, warmup, **options):
        binary = launch(self, *args, grid=grid, warmup=True, **options)
        kernels.add((self.__name__, binary.metadata.shared))

    monkeypatch.setattr(JITFunction, "run", compile_kernel)
    monkeypatch.setattr(driver, "_active", Target())
    return kernels


def test_launches_compile_the_kernels_of_the_table(compiled_kernels):
    """A forward and a backward pass, as far as they need no GPU: no warning, the same binaries."""
    pose = torch.zeros(1, 32, 8, dtype=torch.bfloat16, requires_grad=True)
    weight = torch.zeros(32, 3, 16, 8, dtype=torch.bfloat16, requires_grad=True)
    v, length, _, _ = torch.ops.torchcaps.dynamic_routing_triton(
        pose, weight, None, [], "type", 2, False, False, False
    )
    (v.sum() + length.sum()).backward()
    assert {name for name, _ in compiled_kernels} == NAMES
    squashes = [(kernel, "fp32") for kernel in offline.SQUASHES]
    for kernel, precision in [*((name, "bf16") for name in offline.LARGEST[1:]), *squashes]:
        row = figures_on_h100(kernel, 16, 8, precision)
        assert (row["kernel"].partition(",")[0], row["shared B"]) in compiled_kernels
