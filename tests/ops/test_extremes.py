"""Finite numbers of any size and type: every implementation, in value and gradient."""

import pytest
import torch

from checks import assert_finite
from torchcaps import functional, ops
from torchcaps.functional import ConvField
from torchcaps.functional.bounds import clamp_finite, factor_limit, gradient_limit
from torchcaps.nn import CapsuleLinear, ConvCaps, create_router
from torchcaps.testing import PropertyError, assert_close, seeded
from torchcaps.testing.compare import named_tensors, relative_rms
from torchcaps.types import Capsules

from .makers import (
    FAST,
    PAPER_MATRICES,
    Layer,
    add_gradients,
    as_leaves,
    run_layer,
)

EM_IMPLS = ["reference", *FAST["em"]]
ROUTINGS = [("dynamic", "reference"), ("dynamic", "blocked")]
ROUTINGS += [("em", impl) for impl in EM_IMPLS]
LARGEST = torch.finfo(torch.float32).max
SCALES = (1e7, 1e10, 1e15, 1e19, 1e25, 1e30, LARGEST)


def assert_finite_pass(routed, leaves):
    """Check the outputs, and the gradients of leaves by name."""
    outputs = named_tensors(routed)
    assert_finite(add_gradients(outputs, leaves, outputs))


def uniform_leaf(*shape, scale, seed):
    """Numbers between -scale and scale."""
    unit = 2 * torch.rand(shape, generator=seeded(seed)) - 1
    return (unit * scale).requires_grad_()


def em_routing(votes):
    return functional.em_routing(votes, torch.rand(2, 5, generator=seeded(1)), 0.0, 0.0)


def blocked_routing(votes):
    return ops.dynamic_routing(votes, impl="blocked", want_coupling=True)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize(
    "route",
    [
        functional.dynamic_routing,
        functional.uniform_routing,
        functional.random_routing,
        blocked_routing,
        em_routing,
    ],
)
def test_votes_of_any_size(route, scale):
    for seed in range(3):
        votes = uniform_leaf(2, 5, 4, 3, scale=scale, seed=seed)
        assert_finite_pass(route(votes), {"votes": votes})
    equal_votes = torch.full((2, 5, 4, 3), scale).requires_grad_()
    assert_finite_pass(route(equal_votes), {"votes": equal_votes})


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize(("routing", "impl"), ROUTINGS)
def test_linear_layers_of_any_size(routing, impl, scale):
    matrices = (1, 4, 5) if routing == "dynamic" else PAPER_MATRICES
    for seed in range(3):
        layer = Layer(matrices=matrices, dtype=torch.float32, seed=seed)
        tensors = layer.tensors()
        tensors["pose"] = uniform_leaf(*tensors["pose"].shape, scale=scale, seed=seed)
        assert_finite(run_layer(layer, routing, impl, tensors))
        tensors["weight"] = uniform_leaf(*tensors["weight"].shape, scale=scale, seed=seed)
        assert_finite(run_layer(layer, routing, impl, tensors))


def add_outliers(tensors, scale, seed):
    """Leaves with poses and shifts of up to `scale`, and children of nearly no activation."""
    pose, activation, shift = tensors["pose"], tensors["activation"], tensors["shift"]
    is_outlier = torch.rand(activation.shape, generator=seeded(seed + 9)) < 0.2
    tensors["pose"] = torch.where(is_outlier.unsqueeze(-1), pose.clamp(-1, 1) * scale, pose)
    tensors["activation"] = torch.where(activation < 0.4, activation**30, activation)
    if shift is not None:
        tensors["shift"] = shift.clamp(-1, 1) * scale
    return as_leaves(tensors)


@pytest.mark.parametrize(("routing", "impl"), ROUTINGS)
@pytest.mark.parametrize("convention", ["all", "type", "space", "patch"])
def test_windows_of_any_size(convention, routing, impl):
    field = ConvField(4, 4, 3, convention=convention)
    shift = (1, 1) if routing == "em" else None
    for seed, scale in enumerate(SCALES):
        layer = Layer(field, 2, 2, 3, PAPER_MATRICES, shift, dtype=torch.float32, seed=seed)
        tensors = add_outliers(layer.tensors(), scale, seed)
        assert_finite(run_layer(layer, routing, impl, tensors))


@pytest.mark.parametrize("impl", FAST["em"])
def test_em_of_the_papers_matrices_in_float32(impl):
    layer = Layer(ConvField(8, 8, 3, 2), 3, 4, 5, PAPER_MATRICES)  # reads no last row and column
    tensors = layer.tensors()
    expected = run_layer(layer, "em", "reference", tensors)
    outputs = run_layer(layer, "em", impl, as_leaves(tensors, torch.float32))
    for name, tensor in outputs.items():
        assert tensor.dtype == torch.float32, name
        assert_close(name, tensor, expected[name], 1e-5, floor=1e-6)


@pytest.mark.parametrize("impl", FAST["em"])
def test_em_of_children_of_no_activation_in_float32(impl):
    """Sums of squares around the mean of all children lost half of the digits of their gradient."""
    layer = Layer(ConvField(4, 4, 3), 2, 2, 3, PAPER_MATRICES, (1, 1), seed=9)
    tensors = layer.tensors()
    activation = tensors["activation"]
    sparse = torch.where(activation < 0.97, 0.0, activation)
    tensors = as_leaves(tensors | {"activation": sparse})
    expected = run_layer(layer, "em", "reference", tensors)
    outputs = run_layer(layer, "em", impl, as_leaves(tensors, torch.float32))
    name = "gradient of activation"
    assert_close(name, outputs[name], expected[name], 1e-5)


@pytest.mark.parametrize("impl", FAST["em"])
def test_em_of_half_precision_is_computed_in_float32(impl):
    layer = Layer(ConvField(5, 5, 3), types=2, matrices=PAPER_MATRICES, shift=(1, 1))
    tensors = as_leaves(layer.tensors(), torch.bfloat16)
    pose = run_layer(layer, "em", impl, tensors)["pose"]
    assert pose.dtype == torch.float32
    assert relative_rms(pose, run_layer(layer, "em", "reference", tensors)["pose"]) < 0.05


@pytest.mark.parametrize("impl", FAST["em"])
def test_em_within_autocast_is_computed_in_float32(impl):
    layer = Layer(
        ConvField(5, 5, 3), types=2, matrices=PAPER_MATRICES, shift=(1, 1), dtype=torch.float32
    )
    expected = run_layer(layer, "em", impl)["pose"]
    with torch.autocast("cpu", torch.bfloat16):
        pose = run_layer(layer, "em", impl)["pose"]
    assert pose.dtype == torch.float32
    assert relative_rms(pose, expected) < 0.05


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_bounds_leave_ordinary_numbers_as_they_are(dtype):
    x = torch.tensor([-6e4, -1.0, 0.0, 1e-7, 6e4], dtype=dtype)
    assert torch.equal(clamp_finite(x, gradient_limit), x)


def test_bounds_change_numbers_beyond_them():
    x = torch.tensor([1e10])
    with pytest.raises(PropertyError):
        assert_close("beyond", clamp_finite(x, factor_limit), x, 1e-6)


def test_em_of_votes_far_from_zero_keeps_their_mean():
    votes = torch.tensor([[[[3e4]], [[3e4 + 2]]]])
    mean = functional.em_routing(votes, torch.ones(1, 2), 0.0, 0.0).pose
    assert mean.item() == pytest.approx(3e4 + 1)


def test_votes_that_float16_has_no_room_for():
    pose = torch.full((2, 3, 4), 6e4).half()
    weight = torch.ones(3, 5, 2, 4).half()
    expected = torch.full((2, 3, 5, 2), 4 * float(pose[0, 0, 0]))
    assert torch.equal(functional.linear_votes(pose, weight), expected)
    matrices = torch.ones(3, 5, 2, 2).half()
    assert functional.matrix_votes(pose, matrices).isfinite().all()
    with torch.autocast("cpu", torch.float16):
        assert functional.linear_votes(pose.float(), weight.float()).isfinite().all()
    layer = CapsuleLinear(3, 4, 5, 2).half()
    assert layer(Capsules(pose, pose[..., 0])).pose.isfinite().all()


def test_em_of_huge_votes_of_an_absent_child_in_bfloat16():
    votes = torch.randn(2, 1, 5, 1, generator=seeded(), dtype=torch.float64) * 1e18
    votes = votes.bfloat16().requires_grad_()
    activation = torch.zeros(2, 1, dtype=torch.bfloat16, requires_grad=True)
    routed = functional.em_routing(votes, activation, 0.0, 0.0, iterations=2)
    assert_finite_pass(routed, {"votes": votes, "activation": activation})


@pytest.mark.parametrize("impl", ["reference", "auto"])
def test_windows_of_activations_in_half_precision(impl):
    layer = ConvCaps(4, 3, 2, iterations=1, impl=impl).half()
    pose = (torch.randn(2, 3, 4, 4, 16, generator=seeded()) * 4e-5).half().requires_grad_()
    activation = torch.rand(2, 3, 4, 4, generator=seeded(1)).half().requires_grad_()
    parents = layer(Capsules(pose, activation))
    assert_finite_pass(parents, {"pose": pose, "activation": activation})


VOTES = (2, 5, 4, 3)
ACTIVATION = torch.ones(2, 5)
WEIGHT = torch.ones(5, 4, 3, 3)


@pytest.mark.parametrize("dtype", [torch.int64, torch.complex64])
@pytest.mark.parametrize(
    ("name", "shape", "call"),
    [
        ("votes", VOTES, functional.dynamic_routing),
        ("votes", VOTES, ops.dynamic_routing),
        ("votes", VOTES, lambda votes: functional.em_routing(votes, ACTIVATION, 0.0, 0.0)),
        ("votes", VOTES, lambda votes: create_router("uniform")(votes, ACTIVATION)),
        ("activation", (2, 5), lambda x: functional.em_routing(torch.ones(VOTES), x, 0.0, 0.0)),
        ("pose", (2, 5, 3), lambda pose: functional.linear_votes(pose, WEIGHT)),
        (
            "pose",
            (2, 3, 3, 2, 4),
            lambda pose: ConvCaps(2, 3, 1, pose_size=2)(Capsules(pose, torch.ones(2, 3, 3, 2))),
        ),
        ("weight", WEIGHT.shape, lambda x: functional.linear_votes(torch.ones(2, 5, 3), x)),
        ("children", (2, 5, 3), lambda pose: CapsuleLinear(5, 3, 4, 2)(pose)),
        ("s", (2, 5, 3), functional.squash),
        ("x", (1, 2, 9, 9), lambda x: ops.conv2d(x, torch.ones(1, 2, 3, 3))),
    ],
)
def test_other_than_floating_point_is_named(name, shape, call, dtype):
    tensor = torch.ones(shape, dtype=dtype)
    with pytest.raises(ValueError, match=f"^{name}: expected floating point, got {dtype}$"):
        call(tensor)
