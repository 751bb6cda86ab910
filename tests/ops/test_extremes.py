"""Finite numbers of any size, other types of numbers, and ways to call: every implementation, in value and gradient."""

import pytest
import torch

import torchcaps as tc
from torchcaps import functional, ops
from torchcaps.functional import ConvField
from torchcaps.functional.bounds import clamp_finite, factor_limit, steady_limit
from torchcaps.nn import CapsuleLinear, ConvCaps, PrimaryCaps, create_router
from torchcaps.testing import PropertyError, assert_close, seeded
from torchcaps.types import Capsules

from .makers import FAST, Layer, routed

IMPLS = ["reference", *FAST["em"]]
ROUTINGS = [(routing, impl) for routing in FAST for impl in ("reference", *FAST[routing])]
LARGEST = torch.finfo(torch.float32).max
SCALES = (1e7, 1e10, 1e15, 1e19, 1e25, 1e30, LARGEST)


def all_finite(outcome, leaves):
    """Put what came out and its gradients to the test."""
    tensors = [x for x in outcome if x is not None]
    loss = sum((x * torch.randn(x.shape, generator=seeded(3))).double().sum() for x in tensors)
    gradients = torch.autograd.grad(loss, leaves, allow_unused=True)
    for n, tensor in enumerate((*tensors, *gradients)):
        assert tensor is None or tensor.isfinite().all(), n


def some(*shape, scale=1.0, seed=0):
    """Numbers up to `scale` either way, a leaf."""
    return ((2 * torch.rand(shape, generator=seeded(seed)) - 1) * scale).requires_grad_()


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize(
    "route",
    [
        functional.dynamic_routing,
        functional.uniform_routing,
        functional.random_routing,
        lambda votes: ops.dynamic_routing(votes, impl="blocked", want_coupling=True),
        lambda votes: functional.em_routing(votes, torch.rand(2, 5, generator=seeded(1)), 0.0, 0.0),
    ],
    ids=["dynamic", "uniform", "random", "dynamic, blocked", "em"],
)
def test_votes_of_any_size(route, scale):
    for seed in range(3):
        votes = some(2, 5, 4, 3, scale=scale, seed=seed)
        all_finite(route(votes), [votes])
    equal = torch.full((2, 5, 4, 3), scale).requires_grad_()
    all_finite(route(equal), [equal])


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize(("routing", "impl"), ROUTINGS)
def test_linear_layers_of_any_size(routing, impl, scale):
    for seed in range(3):
        layer = Layer(
            types=6,
            matrices=(1, 4, 5) if routing == "dynamic" else (4, 4, 4),
            dtype=torch.float32,
            seed=seed,
        )
        tensors = layer.tensors()
        for name in ("pose", "weight"):
            tensors[name] = some(*tensors[name].shape, scale=scale, seed=seed)
            leaves = [x for x in tensors.values() if x is not None]
            all_finite(routed(routing, layer.votes(tensors), tensors, impl), leaves)


@pytest.mark.parametrize("routing", ["dynamic", "em"])
@pytest.mark.parametrize("convention", ["all", "type", "space", "patch"])
def test_windows_of_any_size(convention, routing):
    """Outliers among ordinary numbers, children of no activation, all conventions."""
    for impl in IMPLS if routing == "em" else ("reference", "blocked"):
        for seed, scale in enumerate(SCALES):
            where = ConvField(4, 4, 3, convention=convention)
            layer = Layer(
                where,
                2,
                2,
                3,
                (4, 4, 4),
                (1, 1) if routing == "em" else None,
                dtype=torch.float32,
                seed=seed,
            )
            tensors = {n: None if x is None else x.detach() for n, x in layer.tensors().items()}
            rare = torch.rand(tensors["pose"].shape[:-1], generator=seeded(seed + 9)) < 0.2
            tensors["pose"] = torch.where(
                rare.unsqueeze(-1), tensors["pose"].clamp(-1, 1) * scale, tensors["pose"]
            )
            weak = tensors["activation"] < 0.4
            tensors["activation"] = torch.where(
                weak, tensors["activation"] ** 30, tensors["activation"]
            )
            if tensors["shift"] is not None:
                tensors["shift"] = tensors["shift"].clamp(-1, 1) * scale
            leaves = [x.requires_grad_() for x in tensors.values() if x is not None]
            all_finite(routed(routing, layer.votes(tensors), tensors, impl), leaves)


def test_bounds_leave_ordinary_numbers_as_they_are():
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        x = torch.tensor([-6e4, -1.0, 0.0, 1e-7, 6e4], dtype=dtype)
        assert torch.equal(clamp_finite(x, steady_limit), x)
    with pytest.raises(PropertyError):
        assert_close(
            "beyond", clamp_finite(torch.tensor([1e10]), factor_limit), torch.tensor([1e10]), 1e-6
        )
    far = torch.tensor([[[[3e4]], [[3e4 + 2]]]])
    assert functional.em_routing(far, torch.ones(1, 2), 0.0, 0.0).pose.item() == pytest.approx(
        3e4 + 1
    )


def test_votes_that_float16_has_no_room_for():
    pose, weight = torch.full((2, 3, 4), 6e4).half(), torch.ones(3, 5, 2, 4).half()
    assert torch.equal(
        functional.linear_votes(pose, weight), torch.full((2, 3, 5, 2), 4 * float(pose[0, 0, 0]))
    )
    matrices = functional.matrix_votes(pose, weight.unflatten(-1, (2, 2)).flatten(2, 3)[:, :, :2])
    assert matrices.isfinite().all()
    with torch.autocast("cpu", torch.float16):
        assert functional.linear_votes(pose.float(), weight.float()).isfinite().all()
    layer = CapsuleLinear(3, 4, 5, 2).half()
    assert layer(Capsules(pose, pose[..., 0])).pose.isfinite().all()


def test_em_of_huge_votes_of_an_absent_child_in_bfloat16():
    votes = (torch.randn(2, 1, 5, 1, generator=seeded(), dtype=torch.float64) * 1e18).bfloat16()
    votes.requires_grad_()
    activation = torch.zeros(2, 1, dtype=torch.bfloat16, requires_grad=True)
    capsules = functional.em_routing(votes, activation, 0.0, 0.0, iterations=2)
    all_finite(capsules, [votes, activation])


@pytest.mark.parametrize("impl", ["reference", "auto"])
def test_windows_of_activations_in_half_precision(impl):
    layer = ConvCaps(4, 3, 2, iterations=1, impl=impl).half()
    pose = (torch.randn(2, 3, 4, 4, 16, generator=seeded()) * 4e-5).half().requires_grad_()
    activation = torch.rand(2, 3, 4, 4, generator=seeded(1)).half().requires_grad_()
    all_finite(layer(Capsules(pose, activation)), [pose, activation])


@pytest.mark.parametrize("dtype", [torch.int64, torch.complex64, torch.bool, torch.uint8])
def test_other_than_floating_point_is_named(dtype):
    votes, activation = torch.ones(2, 5, 4, 3, dtype=dtype), torch.ones(2, 5)
    pose, weight = torch.ones(2, 5, 3, dtype=dtype), torch.ones(5, 4, 3, 3)
    space = torch.ones(2, 3, 3, 2, 4, dtype=dtype)
    calls = {
        "votes": [
            lambda: functional.dynamic_routing(votes),
            lambda: functional.em_routing(votes, activation, 0.0, 0.0),
            lambda: functional.uniform_routing(votes),
            lambda: functional.random_routing(votes),
            lambda: ops.dynamic_routing(votes),
            lambda: create_router("uniform")(votes, activation),
            lambda: create_router("random")(votes, activation),
        ],
        "activation": [
            lambda: functional.em_routing(torch.ones(2, 5, 4, 3), activation.to(dtype), 0.0, 0.0)
        ],
        "pose": [
            lambda: functional.linear_votes(pose, weight),
            lambda: ConvCaps(2, 3, 1, pose_size=2)(Capsules(space, torch.ones(2, 3, 3, 2))),
        ],
        "weight": [lambda: functional.linear_votes(torch.ones(2, 5, 3), weight.to(dtype))],
        "children": [lambda: CapsuleLinear(5, 3, 4, 2)(pose)],
        "s": [lambda: functional.squash(pose), lambda: functional.safe_norm(pose)],
        "x": [lambda: ops.conv2d(torch.ones(1, 2, 9, 9, dtype=dtype), torch.ones(1, 2, 3, 3))],
    }
    for name, made in calls.items():
        for call in made:
            with pytest.raises(ValueError, match=f"^{name}: expected floating point, got {dtype}$"):
                call()


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("convention", ["all", "type", "space", "patch"])
def test_a_batch_of_none(impl, convention):
    layer = ConvCaps(2, 3, 3, impl=impl, convention=convention, pose_size=2)
    pose, activation = (torch.ones(0, 5, 5, 2, *rest).requires_grad_() for rest in ((4,), ()))
    parents = layer(Capsules(pose, activation))
    assert parents.pose.shape == (0, 3, 3, 3, 4)
    assert parents.activation.shape == (0, 3, 3, 3)
    gradient = torch.autograd.grad(
        parents.pose.sum() + parents.activation.sum(), [pose, layer.weight]
    )
    assert gradient[0].shape == pose.shape
    assert not gradient[1].any()


@pytest.mark.parametrize("name", tc.list_models())
def test_a_forward_on_the_meta_device_inside_autocast(name):
    with torch.device("meta"):
        model = tc.create_model(name)
    images = torch.empty(2, model.in_chans, *model.img_size, device="meta")
    with torch.autocast("cpu", torch.bfloat16):
        activation = model(images)
    if model.spec.task == "align":  # drawn points, a multiple of the number of capsules
        assert activation.shape[:2] == images.shape[:2]
    else:
        pixels = (
            model.spec.is_dense or model.spec.task == "transform"
        )  # of one class, and of what is drawn
        count = (
            model.num_objects
            if model.spec.task == "unsupervised"
            else getattr(model, "num_classes", 0)
        )
        assert activation.shape == (images.shape if pixels else (2, count))
    assert activation.is_meta


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # in torch, of itself
@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
@pytest.mark.parametrize("routing", ["dynamic", "em", "uniform", "random"])
def test_transforms_of_torch_func(routing):
    layer, pose = CapsuleLinear(6, 4, 5, 3, routing), some(3, 6, 4)
    parameters = dict(layer.named_parameters())

    def outcome(parameters, pose):
        return torch.func.functional_call(layer, parameters, (pose,)).activation.square().sum()

    expected = torch.autograd.grad(layer(pose).activation.square().sum(), layer.weight)[0]
    torch.testing.assert_close(torch.func.grad(outcome)(parameters, pose)["votes.weight"], expected)
    each = torch.func.vmap(torch.func.grad(outcome), (None, 0))(parameters, pose.unsqueeze(1))[
        "votes.weight"
    ]
    torch.testing.assert_close(each.sum(dim=0), expected)
    whole = torch.func.vmap(lambda x: layer(x.unsqueeze(0)).activation[0])(pose)
    torch.testing.assert_close(whole, layer(pose).activation)
    _, tangent = torch.func.jvp(lambda x: layer(x).activation, (pose,), (torch.ones_like(pose),))
    assert tangent.abs().max() > 0
    torch.testing.assert_close(
        torch.func.jacrev(lambda x: layer(x).activation)(pose).sum((2, 3, 4)), tangent
    )


def test_a_transform_of_a_fast_path_asked_for_by_name_says_why():
    layer, conv = (
        CapsuleLinear(6, 4, 5, 3, impl="blocked"),
        PrimaryCaps(8, 4, 4, kernel_size=9).conv,
    )
    conv.impl = "blocked"
    for call, x in (
        (lambda x: layer(x).activation.sum(), some(3, 6, 4)),
        (lambda x: conv(x).sum(), some(1, 8, 20, 20)),
    ):
        with pytest.raises(
            ValueError,
            match=r"^impl: '\w+' cannot run \w+ within torch.func transforms; 'auto' takes",
        ):
            torch.func.grad(call)(x)


def test_a_model_under_vmap_and_grad():
    model = tc.create_model("capsnet", img_size=18, channels=8, primary_types=2)
    images = torch.rand(3, 1, 18, 18, generator=seeded(0))
    one_by_one = torch.func.vmap(lambda image: model(image.unsqueeze(0))[0])(images)
    torch.testing.assert_close(one_by_one, model(images))
    leaf = images.clone().requires_grad_()
    expected = torch.autograd.grad(model(leaf).sum(), leaf)[0]
    torch.testing.assert_close(
        torch.func.grad(lambda x: model(x).sum())(images), expected, rtol=1e-3, atol=1e-6
    )
