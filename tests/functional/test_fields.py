"""Fields: which children vote for which parents, and which parents compete for a child."""

from functools import partial

import pytest
import torch
from torch.nn import functional as F
from torch.testing import assert_close

from torchcaps.errors import ArgumentError
from torchcaps.functional import ConvField, ConvTransposeField, DenseField
from torchcaps.testing import seeded

TYPES = 2
PARENTS = 3
FIELDS = [
    ConvField(6, 6, 3, 1),
    ConvField(7, 7, 3, 2),
    ConvField(6, 8, 3, 2),
    ConvField(5, 4, 2, 3),
]
ALL_FIELDS = pytest.mark.parametrize(
    "field",
    FIELDS,
    ids=lambda f: f"{f.height}x{f.width}K{f.kernel}S{f.stride}",
)


def random_logits(field, parents=PARENTS):
    shape = (2, *field.positions, field.count(TYPES), parents)
    return torch.randn(shape, generator=seeded(), dtype=torch.float64)


def index_children(field):
    """Index of the child (y, x, type) of each window and place in it, by plain loops."""
    rows, columns = field.positions
    index = torch.empty(
        rows,
        columns,
        field.kernel,
        field.kernel,
        TYPES,
        dtype=torch.long,
    )
    for row in range(rows):
        for column in range(columns):
            for ky in range(field.kernel):
                for kx in range(field.kernel):
                    y = row * field.stride + ky
                    x = column * field.stride + kx
                    position = y * field.width + x
                    index[row, column, ky, kx] = position * TYPES + torch.arange(TYPES)
    return index.flatten(2)


def softmax_of_table(field, logits):
    """Softmax over a table of all children and all parents, -infinity where they do not meet."""
    batch, rows, columns, _, parents = logits.shape
    index = index_children(field)
    children = field.height * field.width * TYPES
    table = logits.new_full((batch, children, rows, columns, parents), -torch.inf)
    for row in range(rows):
        for column in range(columns):
            table[:, index[row, column], row, column] = logits[:, row, column]
    table = table.flatten(2).softmax(dim=-1).view_as(table)
    coupling = torch.empty_like(logits)
    for row in range(rows):
        for column in range(columns):
            coupling[:, row, column] = table[:, index[row, column], row, column]
    return coupling


def count_windows(field):
    """How many windows contain each position of the map."""
    ones = torch.ones(1, *field.positions, field.kernel**2)
    return field.scatter(ones)[0, ..., 0]


def assert_adjoint(field, x, windows):
    """The inner product of `windows` with another is that of the map with its scatter."""
    y = torch.randn(windows.shape, dtype=torch.float64)
    assert_close((windows * y).sum(), (x * field.scatter(y)).sum())


@ALL_FIELDS
def test_gather_cuts_windows_and_scatter_is_its_adjoint(field):
    x = torch.randn(2, field.height, field.width, TYPES, dtype=torch.float64)
    windows = field.gather(x)
    index = index_children(field).flatten()
    assert_close(windows, x.flatten(1)[:, index].view_as(windows))
    poses = torch.randn(2, field.height, field.width, TYPES, 5)
    assert_close(field.gather(poses)[..., 3], field.gather(poses[..., 3]))
    assert_adjoint(field, x, windows)


def test_number_of_windows():
    strided = ConvField(14, 14, 3, 2)
    assert strided.positions == (6, 6)
    assert count_windows(strided)[0].tolist() == [1, 1, *[2, 1] * 5, 1, 0]
    assert ConvField(6, 6, 3).positions == (4, 4)
    assert count_windows(ConvField(6, 6, 3, 1))[0].tolist() == [1, 2, 3, 3, 2, 1]
    assert count_windows(ConvField(6, 6, 3, 1, 1))[0].tolist() == [4, 6, 6, 6, 6, 4]


@ALL_FIELDS
@pytest.mark.parametrize("scale", [1.0, 200.0])
def test_the_softmax_equals_that_of_a_table(field, scale):
    logits = scale * random_logits(field)
    assert_close(field.softmax(logits), softmax_of_table(field, logits))


@ALL_FIELDS
def test_equal_logits_give_equal_couplings(field):
    coupling = field.initial_coupling(random_logits(field))
    windows = count_windows(field).double()[None, :, :, None].expand(2, -1, -1, TYPES)
    num_parents = PARENTS * field.gather(windows).unsqueeze(-1)
    assert_close(coupling * num_parents, torch.ones_like(coupling))


def test_conventions():
    make_field = partial(ConvField, 6, 6, 3)
    logits = random_logits(make_field())
    coupling = make_field(convention="type").softmax(logits)
    assert_close(coupling, logits.softmax(dim=-1))

    field = make_field(convention="space")
    coupling = field.softmax(logits)
    for j in range(PARENTS):
        parent = slice(j, j + 1)
        expected = softmax_of_table(make_field(), logits[..., parent])
        assert_close(coupling[..., parent], expected)
    initial = field.initial_coupling(logits)
    assert_close(initial, torch.full_like(logits, 1 / 3))

    sums = make_field(convention="patch").softmax(logits).sum(dim=(1, 2, 4))
    assert_close(sums, torch.ones_like(sums))


@pytest.mark.parametrize("convention", ["all", "type", "patch"])
def test_a_leaky_softmax_has_one_more_parent_of_weight_one(convention):
    field = ConvField(5, 5, 3, 2, convention=convention)
    logits = 5 * random_logits(field)
    weight = logits.exp()
    total = field.reduce_competing(weight, torch.Tensor.sum)
    assert_close(field.softmax(logits, leaky=True), weight / (total + 1))


@pytest.mark.parametrize(("kernel", "stride", "padding"), [(3, 1, 1), (5, 2, 2), (4, 3, 3)])
def test_padding_is_a_map_with_absent_children_around_it(kernel, stride, padding):
    field = ConvField(6, 7, kernel, stride, padding)
    plain = ConvField(6 + 2 * padding, 7 + 2 * padding, kernel, stride)
    sides = (0, 0, padding, padding, padding, padding)
    x = torch.randn(2, 6, 7, TYPES, dtype=torch.float64)
    windows = field.gather(x)
    assert_close(windows, plain.gather(F.pad(x, sides)))
    present = F.pad(torch.ones(1, 6, 7, TYPES), sides)
    assert_close(field.mask(TYPES), plain.gather(present))
    assert_adjoint(field, x, windows)


@pytest.mark.parametrize(
    ("kernel", "stride", "padding"), [(3, 1, 0), (4, 2, 1), (3, 2, 2), (2, 3, 0), (5, 1, 2)]
)
def test_transposed_windows_are_those_of_a_transposed_convolution(kernel, stride, padding):
    field = ConvTransposeField(5, 4, kernel, stride, padding)
    x = torch.randn(2, 5, 4, 3, dtype=torch.float64)
    weight = torch.randn(3, 7, kernel, kernel, dtype=torch.float64)
    expected = F.conv_transpose2d(
        x.movedim(-1, 1),
        weight,
        stride=stride,
        padding=padding,
    )
    windows = field.gather(x)
    assert field.positions == expected.shape[2:] == windows.shape[1:3]
    flipped = weight.flip(2, 3)
    matrix = flipped.permute(2, 3, 0, 1).reshape(-1, 7)
    assert_close((windows @ matrix).movedim(-1, 1), expected)
    assert_close(field.mask(3), field.gather(torch.ones(1, 5, 4, 3)))
    assert_adjoint(field, x, windows)


def test_a_dense_field_flattens_a_map():
    field = DenseField(3, 4)
    x = torch.randn(2, 3, 4, 5, 6)
    assert_close(field.gather(x), x.flatten(1, 3))
    assert_close(field.scatter(field.gather(x[..., 0])), x[..., 0])
    assert field.count(5) == 60
    assert DenseField().count(7) == 7
    assert field.mask(5) is None
    assert field.positions == ()


@pytest.mark.parametrize("leaky", [False, True])
@pytest.mark.parametrize("convention", ["all", "type", "space", "patch"])
def test_gradients(convention, leaky):
    field = ConvField(3, 3, 2, 1, convention=convention)
    logits = torch.randn(1, 2, 2, 4, 2, generator=seeded(), dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: field.softmax(x, leaky), (logits,))


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((2, 6, 3), "height: expected at least 3, got 2"),
        ((6, 2, 3), "width: expected at least 3, got 2"),
        ((6, 6, 0), "kernel: expected at least 1, got 0"),
        ((6, 6, 3, 0), "stride: expected at least 1, got 0"),
        ((6, 6, 3, 1, 3), "padding: expected between 0 and 2, got 3"),
        ((6, 6, 3, 1, 0, "types"), "unknown convention 'types'; did you mean 'type'"),
    ],
)
def test_wrong_arguments(sizes, message):
    with pytest.raises(ArgumentError, match=message):
        ConvField(*sizes)


def test_a_transposed_window_that_no_map_fills_is_refused():
    with pytest.raises(ArgumentError, match="height: expected at least 2, got 1"):
        ConvTransposeField(1, 4, kernel=3, stride=2, padding=2)
