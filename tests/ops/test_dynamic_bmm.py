"""Routing in products of matrices, without votes, against the reference."""

import pytest
import torch

from torchcaps import ops
from torchcaps.kernels import samples
from torchcaps.kernels.dynamic import bmm
from torchcaps.testing.compare import assert_close

from .makers import Layer, compare, run_layer

PAPER = (1, 8, 16)
AUTOCAST_ERROR = {torch.bfloat16: 2e-2, torch.float16: 1e-3}


def test_blocks_of_samples(monkeypatch):
    monkeypatch.setattr(samples, "BLOCK_BYTES", 2000)  # the layer has 576 bytes a sample
    assert compare(Layer(batch=8, bias=True), impls=["bmm"]) == ["bmm"]


@pytest.mark.parametrize("dtype", AUTOCAST_ERROR)
def test_autocast(dtype):
    layer = Layer(types=60, matrices=PAPER, dtype=torch.float32, scale=0.5)
    tensors = layer.tensors()
    # Poses that half precision holds: what differs are the products.
    tensors["pose"] = tensors["pose"].detach().to(dtype).float().requires_grad_()
    expected = run_layer(layer, "dynamic", "reference", tensors)
    with torch.autocast("cpu", dtype):
        outputs = run_layer(layer, "dynamic", "bmm", tensors)
    for name, tensor in expected.items():
        assert outputs[name].dtype == torch.float32, name
        assert_close(name, outputs[name], tensor, AUTOCAST_ERROR[dtype])


def test_a_whole_graph_for_the_compiler():
    layer = Layer(dtype=torch.float32)
    tensors = layer.tensors()

    def route_votes(pose):
        return ops.dynamic_routing(layer.votes(tensors | {"pose": pose}), impl="bmm").pose

    compiled = torch.compile(route_votes, backend="aot_eager", fullgraph=True)
    expected = route_votes(tensors["pose"])
    pose = compiled(tensors["pose"])
    assert torch.equal(pose, expected)
    gradients = [torch.autograd.grad(v.sum(), tensors["pose"])[0] for v in (pose, expected)]
    assert torch.equal(*gradients)


def test_auto_takes_it_before_blocks_on_a_gpu_alone():
    layer = Layer(dtype=torch.float32)
    votes = layer.votes(layer.tensors())
    assert "less memory on a CPU" in (bmm.drawback(votes) or "")
    ranks = {path.impl: path.rank for path in ops.registry.PATHS["dynamic_routing"]}
    assert ranks["triton"] < ranks["bmm"] < ranks["blocked"]
    assert ops.choose("dynamic_routing", votes)[0] != "bmm"
