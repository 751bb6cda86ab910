"""Every router in every field: dense, (transposed) convolutions, classes with shared matrices."""

from functools import partial

import pytest
import torch

import torchcaps as tc
from torchcaps import testing
from torchcaps.functional import ConvField, ConvTransposeField, DenseField
from torchcaps.nn import LinearVotes, RoutedLayer, list_routers
from torchcaps.testing import seeded
from torchcaps.types import Capsules, LayerSizes

from .routers import VOTES

FIELDS = {
    "full": (DenseField, (), 5),
    "conv": (partial(ConvField, kernel=3), (4, 5), 9 * 2),
    "padded stride": (partial(ConvField, kernel=3, stride=2, padding=1), (4, 5), 9 * 2),
    "transposed": (partial(ConvTransposeField, kernel=3, stride=2, padding=1), (3, 2), 9 * 2),
    "class": (DenseField, (3, 2), 2),
}
POSITIONS = {"full": (), "conv": (2, 3), "padded stride": (2, 3), "transposed": (5, 3), "class": ()}
PARENTS = 3
DIM = 4


CASES = [
    pytest.param(name, VOTES.get(name, LinearVotes), field, id=f"{name}-{field}")
    for name in list_routers()
    for field in FIELDS
]


def make_layer(name, kind, field):
    """A layer of small sizes whose router has random parameters, and its children."""
    make_field, space, num_children = FIELDS[field]
    if make_field is not DenseField:
        make_field = partial(make_field, convention=tc.nn.create_router(name).convention)
    with tc.nn.use_generator(seeded(7)):
        sizes = LayerSizes(num_children, DIM, PARENTS, DIM)
        layer = RoutedLayer(kind(sizes), name, make_field)
        for parameter in layer.router.parameters():
            parameter.data.add_(0.3 * torch.randn(parameter.shape))
    types = num_children if field == "full" else 2
    pose = torch.randn(2, *space, types, DIM, generator=seeded(1))
    return layer.eval(), Capsules(pose, torch.rand(pose.shape[:-1], generator=seeded(2)))


@pytest.mark.parametrize(("name", "kind", "field"), CASES)
def test_shape_gradients_and_couplings(name, kind, field):
    layer, children = make_layer(name, kind, field)
    leaves = [x.clone().requires_grad_() for x in children]
    with tc.record_routing(layer, detach=False, iterations=True) as record:
        parents = layer(Capsules(*leaves))
    recorded = record[""][0]
    assert parents.pose.shape == (2, *POSITIONS[field], PARENTS, DIM)
    assert parents.activation.shape == parents.pose.shape[:-1]
    assert len(recorded.iterations) == layer.router.num_iterations
    votes = layer.make_votes(children)
    shares = votes.field.scatter(recorded.coupling.sum(dim=-1))
    expected = torch.ones_like(shares)
    if votes.field.convention == "type":  # parents compete within each window
        expected *= votes.field.scatter(torch.ones_like(recorded.coupling[..., 0]))
    torch.testing.assert_close(shares, expected)
    upstream = torch.rand(parents.pose.shape, generator=seeded(3))
    loss = (
        (parents.pose * upstream).sum()
        + parents.activation.square().sum()
        + recorded.coupling.square().sum()
    )
    gradients = torch.autograd.grad(loss, [leaves[0], *layer.parameters()], allow_unused=True)
    names = ["pose", *dict(layer.named_parameters())]
    for leaf, gradient in zip(names, gradients, strict=True):
        assert gradient is not None, leaf
        testing.assert_finite(f"gradient of {leaf}", gradient)
        assert gradient.any(), leaf


@pytest.mark.parametrize(("name", "kind", "field"), CASES)
def test_precision_and_batches(name, kind, field):
    layer, children = make_layer(name, kind, field)
    precise = Capsules(children.pose.double(), children.activation.double())
    doubles = layer.double()(precise)
    layer.float()
    parents = layer(children)
    with torch.autocast("cpu", torch.bfloat16):
        rounded = layer(children)
    for part, expected in enumerate(doubles):
        testing.assert_close("in float32", parents[part], expected, 1e-4, floor=1e-3)
        testing.assert_close("in autocast", rounded[part], expected, 0.1, floor=1e-3)
        assert parents[part].dtype == rounded[part].dtype == torch.float32
    for order in ([1, 0], [0], []):
        permuted = layer(Capsules(children.pose[order], children.activation[order]))
        assert_near(permuted, (parents.pose[order], parents.activation[order]))


def assert_near(parents, expected):
    for tensor, expected_tensor in zip(parents, expected, strict=True):
        torch.testing.assert_close(
            tensor,
            expected_tensor,
            atol=1e-5,
            rtol=1e-4,
        )


def mark_slow(case):
    """A router is compiled in one field, and in the others where time does not matter."""
    marks = [] if case.values[2] == "padded stride" else [pytest.mark.slow]
    return pytest.param(*case.values, id=case.id, marks=marks)


@pytest.mark.parametrize(("name", "kind", "field"), [mark_slow(case) for case in CASES])
def test_compiles_and_exports_whole(name, kind, field, request):
    if request.config.getoption("--typecheck"):
        pytest.skip("compiled functions cannot be type-checked")
    torch._dynamo.reset()
    layer, children = make_layer(name, kind, field)
    if hasattr(layer.router, "iterations"):
        layer.router.iterations = 2  # what is traced for one more is the same
    expected = layer(children)
    assert_near(torch.compile(layer, fullgraph=True, backend="eager")(children), expected)
    batch = {0: torch.export.Dim("batch", min=1)}
    shapes = (Capsules(batch, batch),)
    program = torch.export.export(layer, (children,), dynamic_shapes=shapes, strict=False)
    assert not [node for node in program.graph.nodes if "torchcaps" in str(node.target)]
    rows = [0, 1, 1]
    batch_of_three = Capsules(children.pose[rows], children.activation[rows])
    assert_near(program.module()(batch_of_three), layer(batch_of_three))


@pytest.mark.parametrize("name", list_routers())
def test_one_window_is_fully_connected(name):
    sizes = LayerSizes(9 * 2, DIM, PARENTS, DIM)
    window = RoutedLayer(LinearVotes(sizes), name, partial(ConvField, kernel=3, stride=2))
    full = RoutedLayer(LinearVotes(sizes), name, DenseField)
    full.load_state_dict(window.state_dict())
    window.eval()  # in training some start from noise
    full.eval()
    pose = torch.randn(2, 3, 3, 2, DIM, generator=seeded())
    activation = torch.rand(pose.shape[:-1], generator=seeded(1))
    pose_of_window, activation_of_window = window(Capsules(pose, activation))
    expected = full(Capsules(pose.flatten(1, 3), activation.flatten(1)))
    assert_near((pose_of_window[:, 0, 0], activation_of_window[:, 0, 0]), expected)


@pytest.mark.parametrize("name", list_routers())
@pytest.mark.parametrize(
    ("make", "step"),
    [
        (partial(ConvField, kernel=3, stride=2), (2, 1)),
        (partial(ConvTransposeField, kernel=3, stride=2, padding=1), (1, 2)),
    ],
)
def test_shifting_the_map_shifts_the_parents(name, make, step):
    """Parents of one position compete alone here: where all do, a shift reaches over the border."""
    # "map" squashes the map of a parent type as one vector otherwise.
    options = {"local": True} if name == "map" else {}
    sizes = LayerSizes(18, DIM, PARENTS, DIM)
    layer = RoutedLayer(
        LinearVotes(sizes),
        name,
        partial(make, convention="type"),
        **options,
    ).eval()
    pose = torch.randn(1, 5, 12, 2, DIM, generator=seeded())
    children = Capsules(pose, torch.rand(pose.shape[:-1], generator=seeded(1)))
    parents = layer(children).pose
    rolled = Capsules(pose.roll(step[0], dims=2), children.activation.roll(step[0], dims=2))
    shifted = layer(rolled).pose
    torch.testing.assert_close(
        shifted[:, :, 3 + step[1] : -3], parents[:, :, 3 : -3 - step[1]], atol=1e-5, rtol=1e-4
    )


@pytest.mark.parametrize(
    "name", [name for name in list_routers() if tc.nn.create_router(name).permutation_equivariant]
)
@pytest.mark.parametrize("field", ["conv", "padded stride", "transposed"])
def test_types_may_be_numbered_in_any_order(name, field):
    layer, children = make_layer(name, LinearVotes, field)
    order = [1, 0]
    with torch.no_grad():
        for parameter in layer.router.parameters():
            # Nothing that a router has learned tells types apart.
            parameter.copy_(parameter[:1].expand_as(parameter))
        before = layer(children)
        weight = layer.weight.unflatten(0, (-1, 2))
        weight.copy_(weight[:, order])
    pose, activation = children
    after = layer(Capsules(pose[..., order, :], activation[..., order]))
    torch.testing.assert_close(after.pose, before.pose, atol=1e-5, rtol=1e-4)
