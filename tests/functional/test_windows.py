"""Windows over a map of capsules, and the competition for a child among all of its parents."""

import pytest
import torch

from torchcaps.errors import UnknownNameError
from torchcaps.functional import Windows, em_routing
from torchcaps.testing import seeded

MAPS = [Windows(6, 6, 3, 1), Windows(7, 7, 3, 2), Windows(14, 14, 3, 2), Windows(6, 8, 3, 2), Windows(5, 4, 2, 3)]
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
    table = log_weight.new_full((batch, windows.height * windows.width * n, rows, columns, j), -torch.inf)
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
def test_unfold_cuts_and_fold_is_its_adjoint(windows):
    x = torch.randn(2, windows.height, windows.width, 2, dtype=torch.float64)
    cut = windows.unfold(x)
    torch.testing.assert_close(cut, x.flatten(1)[:, links(windows).flatten()].view_as(cut))
    poses = torch.randn(2, windows.height, windows.width, 2, 5)
    torch.testing.assert_close(windows.unfold(poses)[..., 3], windows.unfold(poses[..., 3]))
    y = torch.randn(cut.shape, dtype=torch.float64)
    torch.testing.assert_close((cut * y).sum(), (x * windows.fold(y)).sum())


def test_number_of_parents():
    assert Windows(14, 14, 3, 2).parents()[0].tolist() == [1, 1, 2, 1, 2, 1, 2, 1, 2, 1, 2, 1, 1, 0]
    assert Windows(6, 6, 3, 1).parents()[0].tolist() == [1, 2, 3, 3, 2, 1]
    assert Windows(16, 16, 3, 2).parents()[-1].sum() == 0
    assert (Windows(14, 14, 3, 2).positions, Windows(6, 6, 3).positions) == ((6, 6), (4, 4))


@pytest.mark.parametrize("windows", MAPS, ids=IDS)
@pytest.mark.parametrize("scale", [1.0, 200.0])
def test_share_equals_the_dense_masked_form(windows, scale):
    x = torch.randn(2, *windows.positions, windows.kernel**2 * 2, 3, generator=seeded(), dtype=torch.float64) * scale
    torch.testing.assert_close(windows.share(x), dense_share(windows, x))


@pytest.mark.parametrize("windows", MAPS, ids=IDS)
def test_couplings_of_a_child_sum_to_one_or_to_zero_where_no_window_reaches(windows):
    x = torch.randn(2, *windows.positions, windows.kernel**2 * 2, 3, generator=seeded()) * 30
    shares = windows.fold(windows.share(x).sum(dim=-1))
    connected = (windows.parents() > 0).float()[None, :, :, None].expand_as(shares)
    torch.testing.assert_close(shares, connected)
    parents = windows.unfold(windows.parents()[None, :, :, None].expand(2, -1, -1, 2)).unsqueeze(-1)
    torch.testing.assert_close(windows.share(torch.zeros_like(x)) * 3 * parents, torch.ones_like(x))


def test_conventions():
    windows = Windows(6, 6, 3, 1)
    x = torch.randn(2, 4, 4, 18, 3, generator=seeded())
    ones = torch.ones(2, 4, 4, 18)
    torch.testing.assert_close(windows.share(x, "type"), x.softmax(dim=-1))
    by_position = windows.share(x, "space")
    for j in range(3):
        torch.testing.assert_close(by_position[..., j : j + 1], dense_share(windows, x[..., j : j + 1]))
    patch = windows.share(x, "patch")
    torch.testing.assert_close(patch.sum(dim=(1, 2, 4)), ones[:, 0, 0])
    assert windows.first_coupling("all", x) is None
    torch.testing.assert_close(windows.first_coupling("space", x), torch.full_like(x, 1 / 3))
    with pytest.raises(UnknownNameError, match="unknown convention 'types'; did you mean 'type'"):
        windows.share(x, "types")


def test_one_window_makes_all_conventions_that_share_over_types_equal():
    windows, x = Windows(3, 3, 3), torch.randn(2, 1, 1, 9, 4, generator=seeded())
    for convention in ("all", "type", "patch"):
        torch.testing.assert_close(windows.share(x, convention), x.softmax(dim=-1))


@pytest.mark.parametrize("windows", MAPS[:2], ids=IDS[:2])
def test_routing_in_a_convolution_equals_routing_in_the_dense_masked_form(windows):
    """Two iterations, where the E-step of one and the same child reaches over windows."""
    n, j, dim = 2, 3, 4
    votes = torch.randn(2, *windows.positions, windows.kernel**2 * n, j, dim, generator=seeded(), dtype=torch.float64)
    activation = torch.rand(2, windows.height, windows.width, n, generator=seeded(1), dtype=torch.float64)
    children = windows.unfold(activation)
    options = {"iterations": 3, "inverse_temperature": 0.5}
    found = em_routing(votes, children, 0.1, 0.2, **options, normalise=windows.share)
    dense = em_routing(votes, children, 0.1, 0.2, **options, normalise=lambda x: dense_share(windows, x, n))
    for a, b in zip(found, dense, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("convention", ["all", "type", "space", "patch"])
def test_gradient_of_share(convention):
    windows = Windows(3, 3, 2, 1)
    x = torch.randn(1, 2, 2, 4, 2, generator=seeded(), dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(lambda t: windows.share(t, convention), (x,))


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((2, 6, 3), "height: expected at least 3, got 2"),
        ((6, 2, 3), "width: expected at least 3, got 2"),
        ((6, 6, 0), "kernel: expected at least 1, got 0"),
        ((6, 6, 3, 0), "stride: expected at least 1, got 0"),
    ],
)
def test_wrong_sizes(sizes, message):
    with pytest.raises(ValueError, match=message):
        Windows(*sizes)
