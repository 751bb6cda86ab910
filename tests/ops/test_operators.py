"""The factory of fused operators, on a small one of its own; and what every fast path made by it promises."""

from typing import NamedTuple

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from torchcaps import ops
from torchcaps.functional import ConvField, DenseField
from torchcaps.functional.votes import RoutingContext
from torchcaps.kernels.operator import define_operator
from torchcaps.kernels.support import HAS_NUMBA
from torchcaps.nn import RoutedLayer
from torchcaps.nn.map_routing import KernelVotes, MapRouting, per_position
from torchcaps.testing.random import random_votes
from torchcaps.types import LayerSizes

from .makers import FAST, NAMES, Layer, gradients, routed


class Scaled(NamedTuple):
    x: Tensor
    factor: Tensor
    missing: Tensor | None
    times: int
    powers: list[float]


def forward(given):
    assert not torch.is_autocast_enabled("cpu")
    exponential = (given.x @ given.factor).exp() * given.times
    return exponential, given.x.sum(dim=0), exponential.clone()


def backward(given, kept, grads, wanted):
    inner = grads[0] * kept[0]
    whole = (inner @ given.factor.t() + grads[1]).expand(2, *given.x.shape)[
        :1
    ]  # sums to the shape of x
    return whole, given.x.t() @ inner if wanted[1] else None, None


def reference(given):
    return (given.x @ given.factor).exp() * given.times, given.x.sum(dim=0)


def shapes(given):
    y = given.x.new_empty(given.x.shape[0], given.factor.shape[1])
    return y, given.x.new_empty(given.x.shape[1]), torch.empty_like(y)


scaled = define_operator(
    "test_scaled",
    Scaled,
    3,
    forward=forward,
    backward=backward,
    shapes=shapes,
    reference=reference,
    num_saved=1,
)


def test_value_gradients_and_what_is_not_wanted():
    x, factor = torch.rand(4, 3, requires_grad=True), torch.rand(3, 2, requires_grad=True)

    def outcome(factor):
        with torch.autocast("cpu", torch.bfloat16):
            y, total, _ = scaled(Scaled(x, factor, None, 2, [1.0]))
        return y.square().sum() + total.sum()

    truth = (2 * (x @ factor).exp()).square().sum() + x.sum()
    torch.testing.assert_close(outcome(factor), truth)
    expected = torch.autograd.grad(truth, (x, factor))
    torch.testing.assert_close(torch.autograd.grad(outcome(factor), (x, factor)), expected)
    torch.testing.assert_close(torch.autograd.grad(outcome(factor.detach()), x)[0], expected[0])


def test_as_pytorch_sees_it():
    given = (
        torch.rand(4, 3, requires_grad=True),
        torch.rand(3, 2, requires_grad=True),
        None,
        2,
        [1.0, 2.0],
    )
    utils = ("test_schema", "test_faketensor", "test_autograd_registration")
    torch.library.opcheck(torch.ops.torchcaps.test_scaled.default, given, test_utils=utils)
    schema = str(torch.ops.torchcaps.test_scaled_backward.default._schema)
    assert schema == (
        "torchcaps::test_scaled_backward(Tensor x, Tensor factor, Tensor? missing, SymInt times, float[] powers, "
        "Tensor[] kept, Tensor[] grads, bool[] wanted) -> (Tensor, Tensor, Tensor)"
    )


class Watch(TorchDispatchMode):
    """Keeps the calls of this library's operators."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "torchcaps":
            self.calls.append((func, args, kwargs or {}))
        return func(*args, **(kwargs or {}))


def opcheck(forward, backward):
    """Hold a pair of calls against all that PyTorch can check."""
    op, args, kwargs = forward
    leaves = [x.detach().requires_grad_() if isinstance(x, Tensor) else x for x in args]
    torch.library.opcheck(op, tuple(leaves), kwargs)
    torch.library.opcheck(*backward, test_utils=("test_schema", "test_faketensor"))


LINEAR = Layer(types=6, bias=True, dtype=torch.float32)
CONVOLUTION = Layer(ConvField(4, 4, 3, padding=1), types=2, bias=True, dtype=torch.float32)
MATRICES = Layer(ConvField(4, 4, 3), types=2, matrices=(2, 2, 2), shift=(1, 1))
CASES = [
    ("dynamic", "blocked", LINEAR),
    ("dynamic", "blocked", CONVOLUTION),
    *([("em", "numba", MATRICES)] if HAS_NUMBA else []),
]


@pytest.mark.parametrize(("routing", "impl", "layer"), CASES)
@pytest.mark.parametrize("wanted", [False, True])
def test_schema_fake_and_autograd(routing, impl, layer, wanted):
    tensors = layer.tensors()
    votes = layer.votes(tensors).bind(RoutingContext(needs_coupling=wanted))
    with Watch() as watch:
        found = routed(routing, votes, tensors, impl)
        gradients([x for x in found if x is not None], tensors)
    opcheck(*watch.calls)


def test_given_votes_as_an_operator():
    votes, bias = (
        random_votes(2, 6, 5, 3).requires_grad_(),
        torch.full((5, 3), 0.1, requires_grad=True),
    )
    with Watch() as watch:
        ops.dynamic_routing(votes, bias=bias, impl="blocked", leaky=True).pose.sum().backward()
    opcheck(*watch.calls)


@pytest.mark.parametrize(
    ("routing", "impl"), [(name, impl) for name in FAST for impl in ("auto", *FAST[name])]
)
@pytest.mark.parametrize("place", [DenseField(), ConvField(3, 3, 2, convention="type")])
def test_second_derivatives(routing, impl, place):
    """They equal finite differences of the first ones."""
    layer = Layer(place, batch=2, types=1 + 2 * isinstance(place, DenseField), parents=2)
    layer.matrices = MATRICES.matrices  # compiled loops are shared with other tests
    layer.bias = routing == "dynamic"
    names = ("pose", "weight", "bias") if routing == "dynamic" else NAMES[:5]
    tensors = {name: layer.tensors()[name] for name in names}

    def route(*leaves):
        given = layer.tensors() | dict(zip(tensors, leaves, strict=True))
        return tuple(routed(routing, layer.votes(given), given, impl, iterations=2))

    assert torch.autograd.gradgradcheck(route, [*tensors.values()], atol=1e-5, fast_mode=True)


@pytest.mark.parametrize("impl", ["auto", "blocked"])
def test_second_derivatives_of_a_convolution(impl):
    x, weight, bias = (
        torch.randn(size, dtype=torch.float64, requires_grad=True)
        for size in ((1, 8, 5, 5), (8, 8, 4, 4), (8,))
    )
    assert torch.autograd.gradgradcheck(
        lambda *operands: ops.conv2d(*operands, impl=impl), (x, weight, bias), fast_mode=True
    )


@pytest.mark.skipif(not HAS_NUMBA, reason="numba is not installed")
def test_second_derivatives_of_maps():
    router = MapRouting(2, local=True, impl="numba")
    layer = RoutedLayer(KernelVotes(LayerSizes(2, 2, 2, 2)), router, per_position).double()
    pose = torch.randn(1, 2, 2, 2, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(lambda x: layer(x).pose, (pose,))


def test_a_penalty_on_gradients_trains():
    """The gradient of a gradient, as such a penalty takes it: that of the reference."""
    found = []
    for impl in ("auto", "reference"):
        tensors = LINEAR.tensors()
        pose = routed("dynamic", LINEAR.votes(tensors), tensors, impl).pose
        (gradient,) = torch.autograd.grad(pose.square().sum(), tensors["pose"], create_graph=True)
        gradient.square().sum().backward()
        found.append(tensors["weight"].grad)
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("impl", ["reference", "blocked"])
@pytest.mark.parametrize("frozen", ["pose", "weight"])
def test_frozen_weights_and_frozen_inputs(impl, frozen):
    tensors = LINEAR.tensors()
    whole = gradients(routed("dynamic", LINEAR.votes(tensors), tensors, impl), tensors)
    tensors[frozen] = tensors[frozen].detach()
    part = gradients(routed("dynamic", LINEAR.votes(tensors), tensors, impl), tensors)
    for name, grad in part.items():
        torch.testing.assert_close(grad, whole[name])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("routing", "impl", "layer"), [*CASES, ("dynamic", "auto", LINEAR), ("em", "blocked", MATRICES)]
)
def test_compiles_whole_with_gradients(routing, impl, layer):
    def outcome(*given):
        named = dict(zip(tensors, given, strict=True))
        return tuple(routed(routing, layer.votes(named), named, impl))

    torch._dynamo.reset()  # all cases share the code of `outcome`
    compiled = torch.compile(outcome, fullgraph=True, backend="aot_eager")
    for repeats in (1, 2):
        tensors = layer.tensors()
        for name in ("pose", "activation"):
            tensors[name] = (
                tensors[name].detach().repeat_interleave(repeats, dim=0).requires_grad_()
            )
        expected, found = outcome(*tensors.values()), compiled(*tensors.values())
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(gradients(found, tensors), gradients(expected, tensors))


def test_explain_and_survey():
    votes = LINEAR.votes(LINEAR.tensors())
    name, reason = ops.choose("dynamic_routing", votes)
    assert name == "blocked"
    assert ops.explain("dynamic_routing", votes) == f"dynamic_routing runs as {name!r} ({reason})"
    assert "asked for by name" in ops.explain("dynamic_routing", votes, impl="reference")
    assert [*ops.survey(torch.device("cpu"))] == [
        "conv2d",
        "dynamic_routing",
        "em_routing",
        "map_routing",
    ]
    found = {op: name for op, (name, _) in ops.survey(torch.device("cpu")).items()}
    maps = "numba" if HAS_NUMBA else "reference"
    assert found == {
        "conv2d": "blocked",
        "dynamic_routing": "blocked",
        "em_routing": FAST["em"][-1],
        "map_routing": maps,
    }
    assert {name for name, _ in ops.survey(torch.device("meta")).values()} == {"reference"}
    assert ops.implementations("conv2d") == ["auto", "reference", "blocked"]
    assert {"blocked", "numba"} < set(ops.implementations("em_routing"))


@pytest.mark.slow
def test_an_exported_program_has_no_operators_of_its_own():
    class Routing(torch.nn.Module):
        def forward(self, pose, weight):
            named = LINEAR.tensors() | {
                "pose": pose,
                "weight": weight,
                "activation": pose[..., 0],
                "bias": None,
            }
            return ops.dynamic_routing(LINEAR.votes(named)).pose

    tensors = LINEAR.tensors()
    program = torch.export.export(Routing(), (tensors["pose"].detach(), tensors["weight"].detach()))
    assert "torchcaps" not in str(program.graph)


def test_transforms_of_torch_func_are_for_the_reference():
    tensors = {
        n: None if x is None else x.detach() for n, x in Layer(DenseField()).tensors().items()
    }

    def loss(pose, impl):
        return ops.dynamic_routing(
            Layer().votes(tensors | {"pose": pose}), impl=impl
        ).activation.sum()

    assert torch.func.grad(loss)(tensors["pose"], "auto").isfinite().all()
    with pytest.raises(
        ValueError,
        match=r"^impl: 'blocked' cannot run \w+ within torch.func transforms; 'auto' takes",
    ):
        torch.func.grad(loss)(tensors["pose"], "blocked")
