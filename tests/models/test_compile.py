"""torch.compile and torch.export of whole models and of a training step."""

import shutil

import pytest
import torch
import torch._dynamo.testing

import torchcaps
from torchcaps.data import ImageBatch
from torchcaps.nn import set_impl
from torchcaps.settings import TrainConfig
from torchcaps.tasks import create_task

SMALL = {"channels": 16, "primary_types": 4}


def small(**options):
    torch.manual_seed(0)
    return torchcaps.create_model("capsnet", **SMALL | options)


@pytest.mark.parametrize("impl", ["reference", "blocked"])
def test_another_batch_size_does_not_compile_again(impl):
    """From 16 on: torch's own convolution asks on which side of 16 the batch is, and a batch of one is special."""
    model = small(impl=impl).eval()
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend=counter)
    for batch in (16, 20, 33):
        images = torch.rand(batch, 1, 28, 28)
        torch.testing.assert_close(compiled(images), model(images))
    assert counter.frame_count == 1


def test_a_training_step_compiles_whole_and_once():
    model = small(impl="blocked")
    task = create_task(model, TrainConfig())
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(task, fullgraph=True, dynamic=True, backend=counter)
    frames = []
    for batch in (16, 24):
        images, labels = torch.rand(batch, 1, 28, 28), torch.arange(batch) % 10
        gradients = []
        for run in (task, compiled):
            model.zero_grad()
            run(ImageBatch(images, labels), 0.0)["loss"].backward()
            gradients.append([p.grad.clone() for p in model.parameters()])
        for found, expected in zip(*gradients, strict=True):
            torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-4)
        frames.append(counter.frame_count)
    assert frames[0] == frames[1]


@pytest.mark.slow
@pytest.mark.skipif(
    not any(map(shutil.which, ("g++", "c++", "clang++"))), reason="Inductor needs a C++ compiler"
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own
@pytest.mark.parametrize("impl", ["reference", "blocked", "numba"])
def test_machine_code_gives_the_same(impl):
    if impl == "numba":
        pytest.importorskip("numba")
    model = small(impl=impl)
    compiled = torch.compile(model, fullgraph=True, dynamic=True)
    for batch in (16, 24):
        images = torch.rand(batch, 1, 28, 28)
        for found in (compiled(images), compiled(images).detach()):
            torch.testing.assert_close(found, model(images), atol=1e-5, rtol=1e-4)


def test_an_exported_program_is_torchs_own_operations():
    model = small().eval()
    images = torch.rand(4, 1, 28, 28)
    program = torch.export.export(
        model, (images,), dynamic_shapes=({0: torch.export.Dim("batch")},)
    )
    spaces = {
        node.target.namespace for node in program.graph.nodes if hasattr(node.target, "namespace")
    }
    assert "torchcaps" not in spaces
    set_impl(model, "reference")
    for batch in (4, 7):
        other = torch.rand(batch, 1, 28, 28)
        torch.testing.assert_close(program.module()(other), model(other))
