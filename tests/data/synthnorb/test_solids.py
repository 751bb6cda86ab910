import math

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from torchcaps.data.synthnorb.solids import Body, ball, block, rod, rotation

DOWN = torch.tensor([0.0, 0.0, -1.0])
SOLIDS = {
    "ball": ball((0.3, -0.2, 0.1), (1.2, 0.5, 0.8), (20, -30, 70)),
    "block": block((0.1, 0.2, -0.3), (0.9, 0.3, 0.6), (40, 10, 5)),
    "cylinder": rod((-0.8, 0.1, -0.5), (0.7, 0.4, 0.6), 0.45),
    "cone": rod((0.0, 0.0, -0.7), (0.3, 0.2, 0.9), 0.8, 0.0),
    "stump": rod((-0.5, 0.6, 0.2), (0.8, -0.3, 0.1), 0.7, 0.3),
}


def make_rays(count, seed=0):
    """Origins around a scene of radius 2, and one direction towards it."""
    generator = torch.Generator().manual_seed(seed)
    direction = torch.randn(3, generator=generator)
    direction = normalize(direction, dim=0)
    places = torch.rand(count, 3, generator=generator) - 0.5
    origins = 6 * places - 6 * direction
    return origins, direction


def is_inside(solid, points):
    """Whether points lie in a solid, by its definition and not by how rays meet it."""
    offset = points.double().numpy() - solid.center
    local = np.linalg.inv(solid.frame) @ offset.T
    x, y, z = local
    if solid.kind == 0:
        return (local**2).sum(axis=0) < 1
    if solid.kind == 1:
        return np.abs(local).max(axis=0) < 1
    taper = (solid.top - 1) / 2
    radius = (1 + solid.top) / 2 + taper * z
    is_between_lids = np.abs(z) < 1
    return is_between_lids & (np.hypot(x, y) < radius)


@pytest.mark.parametrize("solid", SOLIDS.values(), ids=SOLIDS)
@pytest.mark.parametrize("seed", range(2))
def test_rays_enter_and_leave_where_a_solid_is(solid, seed):
    """Walked along in small steps, a ray is in the solid between the two distances alone."""
    origins, direction = make_rays(600, seed)
    [enter], [leave] = Body([solid]).crossings(origins, direction)
    assert 20 < (enter < leave).sum() < 500
    for distance in torch.arange(0.0, 12.0, 0.25):
        points = origins + distance * direction
        actual = torch.from_numpy(is_inside(solid, points))
        predicted = (enter < distance) & (distance < leave)
        is_agreed = actual == predicted
        is_agreed |= (enter - distance).abs() < 1e-3
        is_agreed |= (leave - distance).abs() < 1e-3
        assert is_agreed.all()


@pytest.mark.parametrize("solid", SOLIDS.values(), ids=SOLIDS)
def test_normals_stand_on_the_surface_and_point_out(solid):
    body = Body([solid])
    origins, direction = make_rays(4000)
    distance, index = body.crossings(origins, direction)[0].min(dim=0)
    is_hit = distance.isfinite()
    steps = distance[is_hit].unsqueeze(1) * direction
    points = origins[is_hit] + steps
    normals = body.normals(points, index[is_hit])
    torch.testing.assert_close(normals.norm(dim=1), torch.ones(len(normals)))
    assert (normals @ direction < 1e-3).all()  # the side that a ray enters looks towards it
    assert is_inside(solid, points + 2e-3 * normals).mean() < 0.01
    assert is_inside(solid, points - 2e-3 * normals).mean() > 0.99


def test_the_nearest_of_several():
    body = Body([block((0, 0, 2), (1, 1, 0.5)), ball((0, 0, 0), 1.0)])
    origins = torch.tensor([[0.0, 0, 9], [0, 0, 9], [5, 0, 9]])
    distance, solid = body.crossings(origins, DOWN)[0].min(dim=0)
    assert distance.tolist() == [6.5, 6.5, math.inf]
    assert body.kinds[solid[:2]].tolist() == [1, 1]
    assert body.crossings(-origins, -DOWN)[0].amin(dim=0).tolist() == [8.0, 8.0, math.inf]


def test_turning_is_about_x_then_y_then_z():
    np.testing.assert_allclose(rotation((0, 0, 90)) @ [1, 0, 0], [0, 1, 0], atol=1e-12)
    np.testing.assert_allclose(rotation((90, 0, 90)) @ [0, 1, 0], [0, 0, 1], atol=1e-12)
    np.testing.assert_allclose(rotation((0, 90, 0)) @ [0, 0, 1], [1, 0, 0], atol=1e-12)
