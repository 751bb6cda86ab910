"""Every router in every field: fully connected, (transposed) convolutions, class layers with shared matrices."""

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
PARENTS, DIM = 3, 4


OWN = [name for name in list_routers() if name not in VOTES]
CASES = [
    pytest.param(name, VOTES.get(name, LinearVotes), field, id=f"{name}-{field}")
    for name in list_routers()
    for field in FIELDS
]


def built(name, kind, field, **options):
    """A layer of small sizes with its parameters stirred, and its children."""
    make, space, children = FIELDS[field]
    with tc.nn.use_generator(seeded(7)):
        convention = (
            {} if make is DenseField else {"convention": tc.nn.create_router(name).convention}
        )
        make = make if make is DenseField else partial(make, **convention)
        layer = RoutedLayer(kind(LayerSizes(children, DIM, PARENTS, DIM)), name, make, **options)
        for parameter in layer.router.parameters():
            parameter.data.add_(0.3 * torch.randn(parameter.shape))
    types = children if field == "full" else 2
    pose = torch.randn(2, *space, types, DIM, generator=seeded(1))
    return layer.eval(), Capsules(pose, torch.rand(pose.shape[:-1], generator=seeded(2)))


@pytest.mark.parametrize(("name", "kind", "field"), CASES)
def test_shape_gradients_and_couplings(name, kind, field):
    layer, children = built(name, kind, field)
    leaves = [x.clone().requires_grad_() for x in children]
    with tc.record_routing(layer, detach=False, iterations=True) as record:
        parents = layer(Capsules(*leaves))
    recorded = record[""][0]
    assert parents.pose.shape == (2, *POSITIONS[field], PARENTS, DIM)
    assert parents.activation.shape == parents.pose.shape[:-1]
    assert len(recorded.iterations) == layer.router.num_iterations
    votes = layer.make_votes(children)
    shares = votes.field.scatter(recorded.coupling.sum(dim=-1))
    whole = (
        1
        if votes.field.convention != "type"
        else votes.field.scatter(torch.ones_like(recorded.coupling[..., 0]))
    )
    torch.testing.assert_close(shares, torch.ones_like(shares) * whole)
    upstream = torch.rand(parents.pose.shape, generator=seeded(3))
    loss = (
        (parents.pose * upstream).sum()
        + parents.activation.square().sum()
        + recorded.coupling.square().sum()
    )
    gradients = torch.autograd.grad(loss, [leaves[0], *layer.parameters()], allow_unused=True)
    for what, gradient in zip(["pose", *dict(layer.named_parameters())], gradients, strict=True):
        assert gradient is not None, what
        testing.assert_finite(f"gradient of {what}", gradient)
        assert gradient.any(), what


@pytest.mark.parametrize(("name", "kind", "field"), CASES)
def test_precision(name, kind, field):
    layer, children = built(name, kind, field)
    truth = layer.double()(Capsules(*(x.double() for x in children)))
    layer.float()
    for parents, tolerance in ((layer(children), 1e-4), (under_autocast(layer, children), 0.1)):
        for found, expected in zip(parents, truth, strict=True):
            assert found.dtype == torch.float32
            testing.assert_close("parents", found, expected, tolerance, floor=1e-3)


def under_autocast(layer, children):
    with torch.autocast("cpu", torch.bfloat16):
        return layer(children)


@pytest.mark.parametrize(("name", "kind", "field"), CASES)
def test_batches_are_independent_and_permute(name, kind, field):
    layer, children = built(name, kind, field)
    whole = layer(children)
    for order in ([1, 0], [0], []):
        parents = layer(Capsules(*(x[order] for x in children)))
        for found, expected in zip(parents, whole, strict=True):
            torch.testing.assert_close(found, expected[order], atol=1e-5, rtol=1e-4)


def compiled(case):
    """A router is compiled in a few fields here, and in the others where time is no matter."""
    name, _, field = case.values
    quick = field == "padded stride" or (name in OWN and field == "full")
    return pytest.param(*case.values, id=case.id, marks=[] if quick else [pytest.mark.slow])


@pytest.mark.parametrize(("name", "kind", "field"), [compiled(case) for case in CASES])
def test_compiles_whole(name, kind, field, request):
    if request.config.getoption("--typecheck"):
        pytest.skip("compiled functions cannot be type-checked")
    torch._dynamo.reset()
    layer, children = built(name, kind, field)
    found = torch.compile(layer, fullgraph=True, backend="aot_eager")(children)
    for one, expected in zip(found, layer(children), strict=True):
        torch.testing.assert_close(one, expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(("name", "kind", "field"), [compiled(case) for case in CASES])
def test_exports(name, kind, field, request):
    if request.config.getoption("--typecheck"):
        pytest.skip("exported programs cannot be type-checked")
    layer, children = built(name, kind, field)
    program = torch.export.export(layer, (children,), strict=False)
    assert not [node for node in program.graph.nodes if "torchcaps" in str(node.target)]
    for found, expected in zip(program.module()(children), layer(children), strict=True):
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", list_routers())
@pytest.mark.parametrize(
    "field", [partial(ConvField, kernel=3), partial(ConvField, kernel=3, stride=2)]
)
def test_one_window_is_fully_connected(name, field):
    sizes = LayerSizes(9 * 2, DIM, PARENTS, DIM)
    window, full = (RoutedLayer(LinearVotes(sizes), name, f) for f in (field, DenseField))
    full.load_state_dict(window.state_dict())
    pose = torch.randn(2, 3, 3, 2, DIM, generator=seeded())
    activation = torch.rand(pose.shape[:-1], generator=seeded(1))
    one = window(Capsules(pose, activation))
    other = full(Capsules(pose.flatten(1, 3), activation.flatten(1)))
    torch.testing.assert_close(one.pose[:, 0, 0], other.pose, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(one.activation[:, 0, 0], other.activation, atol=1e-5, rtol=1e-4)


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
    options = (
        {"local": True} if name == "map" else {}
    )  # squashes the map of a parent type as one vector otherwise
    sizes = LayerSizes(18, DIM, PARENTS, DIM)
    layer = RoutedLayer(LinearVotes(sizes), name, partial(make, convention="type"), **options)
    pose = torch.randn(1, 5, 12, 2, DIM, generator=seeded())
    children = Capsules(pose, torch.rand(pose.shape[:-1], generator=seeded(1)))
    still = layer(children).pose
    moved = layer(Capsules(*(x.roll(step[0], dims=2) for x in children))).pose
    torch.testing.assert_close(
        moved[:, :, 3 + step[1] : -3], still[:, :, 3 : -3 - step[1]], atol=1e-5, rtol=1e-4
    )


@pytest.mark.parametrize(
    "name", [name for name in list_routers() if tc.nn.create_router(name).permutation_equivariant]
)
@pytest.mark.parametrize("field", ["conv", "padded stride", "transposed"])
def test_types_may_be_numbered_in_any_order(name, field):
    layer, children = built(name, LinearVotes, field)
    order = [1, 0]
    with torch.no_grad():
        for parameter in layer.router.parameters():
            parameter.copy_(
                parameter[:1].expand_as(parameter)
            )  # nothing that a router has learned tells types apart
        before = layer(children)
        weight = layer.weight.unflatten(0, (-1, 2))
        weight.copy_(weight[:, order])
    pose, activation = children
    after = layer(Capsules(pose[..., order, :], activation[..., order]))
    torch.testing.assert_close(after.pose, before.pose, atol=1e-5, rtol=1e-4)
