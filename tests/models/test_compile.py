"""torch.compile and torch.export of whole models and of a training step."""

import shutil

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch.testing import assert_close

import torchcaps as tc
from torchcaps.data import Batch
from torchcaps.nn import CapsuleLinear, DynamicRouting
from torchcaps.settings import TrainConfig
from torchcaps.tasks import create_task

from .small import SMALL

# Of the networks that compile in `make test`: convolutions and routing by operators of this
# library, and another routing.
FAST = ["capsnet", "efficient_capsnet"]


def small_capsnet(**options):
    return tc.create_model("capsnet", **{"channels": 16, "primary_types": 4} | options)


def check_compiled(model):
    """Compiled whole, a network has the same outputs and gradients."""
    images = torch.rand(4, *model.image_shape)
    weights = torch.randn(model(images).shape)
    parameters = [weight for weight in model.parameters() if weight.requires_grad]

    def run(network):
        outputs = network(images)
        loss = (outputs * weights).sum()
        gradients = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
        return outputs, gradients

    torch._dynamo.reset()
    outputs, gradients = run(torch.compile(model, fullgraph=True, backend="aot_eager"))
    expected_outputs, expected_gradients = run(model)
    assert_close(outputs, expected_outputs, atol=1e-5, rtol=1e-4)
    assert_close(gradients, expected_gradients, atol=1e-5, rtol=1e-3)


def check_exported(model):
    """The exported program takes batches of any size."""
    images = torch.rand(4, *model.image_shape)
    batch = torch.export.Dim("batch")
    program = torch.export.export(model, (images,), dynamic_shapes=({0: batch},))
    for count in (4, 7):
        images = torch.rand(count, *model.image_shape)
        outputs = program.module()(images)
        assert_close(outputs, model(images), atol=1e-5, rtol=1e-4)
    return program


def gradients_of(step, model, batch):
    model.zero_grad()
    step(batch, 0.0)["loss"].backward()
    return [parameter.grad.clone() for parameter in model.parameters()]


def test_a_training_step_compiles_whole_and_once():
    model = small_capsnet(impl="blocked", decoder=False, iterations=2)
    step = create_task(model, TrainConfig()).training_step
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(step, fullgraph=True, dynamic=True, backend=counter)
    frames = []
    for count in (16, 24):
        batch = Batch(
            torch.rand(count, 1, 28, 28),
            {"label": torch.arange(count) % 10},
            torch.arange(count),
        )
        gradients = gradients_of(compiled, model, batch)
        expected = gradients_of(step, model, batch)
        assert_close(gradients, expected, atol=1e-6, rtol=1e-4)
        frames.append(counter.frame_count)
    assert frames[0] == frames[1]


def test_an_exported_program_is_torchs_own_operations():
    program = check_exported(small_capsnet(decoder=False, iterations=2).eval())
    for node in program.graph.nodes:
        assert getattr(node.target, "namespace", "aten") != "torchcaps"


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", FAST)
def test_networks_compile_whole(name):
    check_compiled(tc.create_model(name, **SMALL[name]).eval())


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", [name for name in SMALL if name not in FAST])
def test_every_other_network_compiles_whole(name):
    check_compiled(tc.create_model(name, **SMALL[name]).eval())


@pytest.mark.filterwarnings("default")
def test_a_break_of_the_graph_in_a_router():
    class BrokenRouting(DynamicRouting):
        def route(self, votes, parents):
            torch._dynamo.graph_break()
            return super().route(votes, parents)

    layer = CapsuleLinear(6, 4, 5, 3, BrokenRouting(iterations=2))
    pose = torch.randn(3, 6, 4)
    torch._dynamo.reset()
    parents = torch.compile(layer, backend="aot_eager")(pose)
    assert_close(parents.pose, layer(pose).pose)


@pytest.mark.slow
@pytest.mark.skipif(
    not any(map(shutil.which, ("g++", "c++", "clang++"))), reason="Inductor needs a C++ compiler"
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own
@pytest.mark.parametrize("impl", ["reference", "blocked"])
def test_machine_code_gives_the_same(impl):
    model = small_capsnet(impl=impl)
    compiled = torch.compile(model, fullgraph=True, dynamic=True)
    for batch in (16, 24):
        images = torch.rand(batch, 1, 28, 28)
        assert_close(compiled(images), model(images), atol=1e-5, rtol=1e-4)


def test_a_model_takes_the_memory_format_of_its_maps():
    """Its buffers too: torch refuses those of five axes."""
    for name in ("matrix_caps", "vb_caps"):
        model = tc.create_model(name, **SMALL[name]).eval()
        images = torch.rand(2, *model.image_shape)
        expected = model(images)
        model.to(memory_format=torch.channels_last)
        assert_close(model(images), expected, atol=1e-5, rtol=1e-4)
