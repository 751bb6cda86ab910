"""Fields: which children vote for which parents, and the competition for a child among all of its parents."""

import pytest
import torch

from torchcaps.errors import UnknownNameError
from torchcaps.functional import ConvField, ConvTransposeField, DenseField, DenseVotes, em_routing
from torchcaps.testing import seeded

MAPS = [
    ConvField(6, 6, 3, 1),
    ConvField(7, 7, 3, 2),
    ConvField(14, 14, 3, 2),
    ConvField(6, 8, 3, 2),
    ConvField(5, 4, 2, 3),
]
IDS = [f"{w.height}x{w.width}K{w.kernel}S{w.stride}" for w in MAPS]


def links(windows, n=2):
    """For each window and place in it, the child on the map: index of (y, x, type), as plain loops find it."""
    rows, columns = windows.positions
    found = torch.empty(rows, columns, windows.kernel, windows.kernel, n, dtype=torch.long)
    for oy in range(rows):
        for ox in range(columns):
            for ky in range(windows.kernel):
                for kx in range(windows.kernel):
                    y, x = oy * windows.stride + ky, ox * windows.stride + kx
                    found[oy, ox, ky, kx] = (y * windows.width + x) * n + torch.arange(n)
    return found.flatten(2)


def dense_share(windows, log_weight, n=2):
    """Softmax over the parents of each child, in a table of all children and all parents with gaps at -infinity."""
    batch, rows, columns, _, j = log_weight.shape
    index = links(windows, n)
    table = log_weight.new_full(
        (batch, windows.height * windows.width * n, rows, columns, j), -torch.inf
    )
    for oy in range(rows):
        for ox in range(columns):
            table[:, index[oy, ox], oy, ox] = log_weight[:, oy, ox]
    share = table.flatten(2).softmax(dim=-1).view_as(table)
    found = torch.empty_like(log_weight)
    for oy in range(rows):
        for ox in range(columns):
            found[:, oy, ox] = share[:, index[oy, ox], oy, ox]
    return found


@pytest.mark.parametrize("windows", MAPS, ids=IDS)
def test_gather_cuts_and_scatter_is_its_adjoint(windows):
    x = torch.randn(2, windows.height, windows.width, 2, dtype=torch.float64)
    cut = windows.gather(x)
    torch.testing.assert_close(cut, x.flatten(1)[:, links(windows).flatten()].view_as(cut))
    poses = torch.randn(2, windows.height, windows.width, 2, 5)
    torch.testing.assert_close(windows.gather(poses)[..., 3], windows.gather(poses[..., 3]))
    y = torch.randn(cut.shape, dtype=torch.float64)
    torch.testing.assert_close((cut * y).sum(), (x * windows.scatter(y)).sum())


def parents_of(windows):
    """How many windows contain each position of the map."""
    ones = torch.ones(1, *windows.positions, windows.kernel**2)
    return windows.scatter(ones)[0, ..., 0]


def test_number_of_parents():
    assert parents_of(ConvField(14, 14, 3, 2))[0].tolist() == [
        1,
        1,
        2,
        1,
        2,
        1,
        2,
        1,
        2,
        1,
        2,
        1,
        1,
        0,
    ]
    assert parents_of(ConvField(6, 6, 3, 1))[0].tolist() == [1, 2, 3, 3, 2, 1]
    assert parents_of(ConvField(6, 6, 3, 1, 1))[0].tolist() == [4, 6, 6, 6, 6, 4]
    assert parents_of(ConvField(16, 16, 3, 2))[-1].sum() == 0
    assert (ConvField(14, 14, 3, 2).positions, ConvField(6, 6, 3).positions) == ((6, 6), (4, 4))


@pytest.mark.parametrize("windows", MAPS, ids=IDS)
@pytest.mark.parametrize("scale", [1.0, 200.0])
def test_share_equals_the_dense_masked_form(windows, scale):
    x = (
        torch.randn(
            2, *windows.positions, windows.kernel**2 * 2, 3, generator=seeded(), dtype=torch.float64
        )
        * scale
    )
    torch.testing.assert_close(windows.softmax(x), dense_share(windows, x))


@pytest.mark.parametrize("windows", MAPS, ids=IDS)
def test_couplings_of_a_child_sum_to_one_or_to_zero_where_no_window_reaches(windows):
    x = torch.randn(2, *windows.positions, windows.kernel**2 * 2, 3, generator=seeded()) * 30
    shares = windows.scatter(windows.softmax(x).sum(dim=-1))
    connected = (parents_of(windows) > 0).float()[None, :, :, None].expand_as(shares)
    torch.testing.assert_close(shares, connected)
    parents = windows.gather(parents_of(windows)[None, :, :, None].expand(2, -1, -1, 2)).unsqueeze(
        -1
    )
    torch.testing.assert_close(
        windows.softmax(torch.zeros_like(x)) * 3 * parents, torch.ones_like(x)
    )


def test_conventions():
    windows = {
        name: ConvField(6, 6, 3, 1, convention=name) for name in ("all", "type", "space", "patch")
    }
    x = torch.randn(2, 4, 4, 18, 3, generator=seeded())
    torch.testing.assert_close(windows["type"].softmax(x), x.softmax(dim=-1))
    by_position = windows["space"].softmax(x)
    for j in range(3):
        torch.testing.assert_close(
            by_position[..., j : j + 1], dense_share(windows["all"], x[..., j : j + 1])
        )
    torch.testing.assert_close(windows["patch"].softmax(x).sum(dim=(1, 2, 4)), torch.ones(2, 18))
    torch.testing.assert_close(
        windows["all"].initial_coupling(x), windows["all"].softmax(torch.zeros_like(x))
    )
    torch.testing.assert_close(windows["space"].initial_coupling(x), torch.full_like(x, 1 / 3))
    with pytest.raises(UnknownNameError, match="unknown convention 'types'; did you mean 'type'"):
        ConvField(6, 6, 3, convention="types")


def test_one_window_makes_all_conventions_that_share_over_types_equal():
    x = torch.randn(2, 1, 1, 9, 4, generator=seeded())
    for convention in ("all", "type", "patch"):
        torch.testing.assert_close(
            ConvField(3, 3, 3, convention=convention).softmax(x), x.softmax(dim=-1)
        )


@pytest.mark.parametrize("convention", ["all", "type", "patch"])
def test_one_more_parent_of_weight_one(convention):
    windows = ConvField(5, 5, 3, 2, convention=convention)
    x = torch.randn(2, 2, 2, 18, 3, generator=seeded(), dtype=torch.float64) * 5
    weight = x.exp()
    torch.testing.assert_close(
        windows.softmax(x, leaky=True),
        weight / (windows.reduce_competing(weight, torch.Tensor.sum) + 1),
    )
    x, weight = x[:, 0, 0], weight[:, 0, 0]
    torch.testing.assert_close(
        DenseField().softmax(x, leaky=True), weight / (weight.sum(dim=-1, keepdim=True) + 1)
    )


@pytest.mark.parametrize(
    ("kernel", "stride", "padding"), [(3, 1, 1), (3, 2, 1), (5, 2, 2), (4, 3, 3)]
)
def test_padding_is_a_map_with_absent_children_around_it(kernel, stride, padding):
    windows = ConvField(6, 7, kernel, stride, padding)
    x = torch.randn(2, 6, 7, 2, dtype=torch.float64)
    wide = torch.nn.functional.pad(x, (0, 0, padding, padding, padding, padding))
    plain = ConvField(6 + 2 * padding, 7 + 2 * padding, kernel, stride)
    cut = windows.gather(x)
    torch.testing.assert_close(cut, plain.gather(wide))
    torch.testing.assert_close(
        windows.mask(2), (plain.gather(torch.where(wide == 0, 0.0, 1.0))[:1]).float()
    )
    y = torch.randn(cut.shape, dtype=torch.float64)
    torch.testing.assert_close((cut * y).sum(), (x * windows.scatter(y)).sum())


@pytest.mark.parametrize(
    ("kernel", "stride", "padding"), [(3, 1, 0), (4, 2, 1), (3, 2, 2), (2, 3, 0), (5, 1, 2)]
)
def test_transposed_windows_are_those_of_a_transposed_convolution(kernel, stride, padding):
    field = ConvTransposeField(5, 4, kernel, stride, padding)
    x, weight = (
        torch.randn(2, 5, 4, 3, dtype=torch.float64),
        torch.randn(3, 7, kernel, kernel, dtype=torch.float64),
    )
    truth = torch.nn.functional.conv_transpose2d(
        x.movedim(-1, 1), weight, stride=stride, padding=padding
    )
    cut = field.gather(x)
    assert field.positions == truth.shape[2:] == cut.shape[1:3]
    flipped = weight.flip(2, 3).permute(2, 3, 0, 1).reshape(-1, 7)
    torch.testing.assert_close((cut @ flipped).movedim(-1, 1), truth)
    torch.testing.assert_close(field.mask(3), field.gather(torch.ones(1, 5, 4, 3)))
    y = torch.randn(cut.shape, dtype=torch.float64)
    torch.testing.assert_close((cut * y).sum(), (x * field.scatter(y)).sum())


def test_everything_puts_a_map_in_a_row():
    field = DenseField(3, 4)
    x = torch.randn(2, 3, 4, 5, 6)
    torch.testing.assert_close(field.gather(x), x.flatten(1, 3))
    torch.testing.assert_close(field.scatter(field.gather(x[..., 0])), x[..., 0])
    assert (field.count(5), DenseField().count(7), field.mask(5), field.positions) == (
        60,
        7,
        None,
        (),
    )


@pytest.mark.parametrize("windows", MAPS[:2], ids=IDS[:2])
def test_routing_in_a_convolution_equals_routing_in_the_dense_masked_form(windows):
    """Two iterations, where the E-step of one and the same child reaches over windows."""
    n, j, dim = 2, 3, 4
    votes = torch.randn(
        2,
        *windows.positions,
        windows.kernel**2 * n,
        j,
        dim,
        generator=seeded(),
        dtype=torch.float64,
    )
    activation = torch.rand(
        2, windows.height, windows.width, n, generator=seeded(1), dtype=torch.float64
    )
    children = windows.gather(activation)
    given = [DenseVotes(votes, children) for _ in range(2)]
    nothing = torch.zeros_like(votes[..., 0])
    for one, share in zip(
        given, (windows.softmax, lambda x: dense_share(windows, x, n)), strict=True
    ):
        one.couple = lambda logits=None, share=share: share(nothing if logits is None else logits)
    found, dense = (em_routing(one, None, 0.1, 0.2, 3, 0.5) for one in given)
    for a, b in zip(found, dense, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("convention", ["all", "type", "space", "patch"])
def test_gradient_of_share(convention):
    windows = ConvField(3, 3, 2, 1, convention=convention)
    x = torch.randn(1, 2, 2, 4, 2, generator=seeded(), dtype=torch.float64).requires_grad_()
    for leaky in (False, True):
        assert torch.autograd.gradcheck(lambda t, leaky=leaky: windows.softmax(t, leaky), (x,))


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((2, 6, 3), "height: expected at least 3, got 2"),
        ((6, 2, 3), "width: expected at least 3, got 2"),
        ((6, 6, 0), "kernel: expected at least 1, got 0"),
        ((6, 6, 3, 0), "stride: expected at least 1, got 0"),
        ((6, 6, 3, 1, 3), "padding: expected between 0 and 2, got 3"),
    ],
)
def test_wrong_sizes(sizes, message):
    with pytest.raises(ValueError, match=message):
        ConvField(*sizes)
