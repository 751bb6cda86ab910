"""torch.compile and torch.export of whole models and of a training step."""

import shutil

import pytest
import torch
import torch._dynamo.testing

import torchcaps as tc
from torchcaps.data import ImageBatch
from torchcaps.nn import set_impl
from torchcaps.settings import TrainConfig
from torchcaps.tasks import create_task

from .small import SMALL

CAPSNET = {"channels": 16, "primary_types": 4}


def capsnet(**options):
    torch.manual_seed(0)
    return tc.create_model("capsnet", **CAPSNET | options)


def check_compiled(model):
    images = torch.rand(4, model.in_chans, *model.img_size)
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(images), model(images), atol=1e-5, rtol=1e-4)


def check_exported(model):
    """The exported program takes batches of any size."""
    images = torch.rand(4, model.in_chans, *model.img_size)
    batch = torch.export.Dim("batch")
    program = torch.export.export(model, (images,), dynamic_shapes=({0: batch},))
    for count in (4, 7):
        others = torch.rand(count, *images.shape[1:])
        torch.testing.assert_close(program.module()(others), model(others))
    return program


def test_a_training_step_compiles_whole_and_once():
    model = capsnet(impl="blocked")
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


def test_an_exported_program_is_torchs_own_operations():
    model = capsnet().eval()
    set_impl(model, "reference")
    program = check_exported(model)
    spaces = {
        node.target.namespace for node in program.graph.nodes if hasattr(node.target, "namespace")
    }
    assert "torchcaps" not in spaces


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", SMALL)
def test_every_network_compiles_whole(name):
    check_compiled(tc.create_model(name, **SMALL[name]).eval())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["efficient_capsnet", "resnet20", "sr_capsnet"])
def test_others_are_exported_too(name):
    check_exported(tc.create_model(name, **SMALL[name]).eval())


@pytest.mark.slow
@pytest.mark.parametrize("impl", ["reference", "blocked"])
def test_another_batch_size_does_not_compile_again(impl):
    """From 16 on: torch's own convolution asks on which side of 16 the batch is, and a batch of one is special."""
    model = capsnet(impl=impl).eval()
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend=counter)
    for batch in (16, 20, 33):
        images = torch.rand(batch, 1, 28, 28)
        torch.testing.assert_close(compiled(images), model(images))
    assert counter.frame_count == 1


@pytest.mark.slow
@pytest.mark.skipif(
    not any(map(shutil.which, ("g++", "c++", "clang++"))), reason="Inductor needs a C++ compiler"
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own
@pytest.mark.parametrize("impl", ["reference", "blocked", "numba"])
def test_machine_code_gives_the_same(impl):
    if impl == "numba":
        pytest.importorskip("numba")
    model = capsnet(impl=impl)
    compiled = torch.compile(model, fullgraph=True, dynamic=True)
    for batch in (16, 24):
        images = torch.rand(batch, 1, 28, 28)
        for found in (compiled(images), compiled(images).detach()):
            torch.testing.assert_close(found, model(images), atol=1e-5, rtol=1e-4)
