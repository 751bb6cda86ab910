import math

import numpy as np
import pytest
import torch

from torchcaps.data.synthnorb.solids import Body, ball, block, rod, turned

DOWN = torch.tensor([0.0, 0.0, -1.0])


def rays(count=4000, seed=0):
    """Origins around a scene of radius 2, and one direction towards it."""
    generator = torch.Generator().manual_seed(seed)
    direction = torch.nn.functional.normalize(torch.randn(3, generator=generator), dim=0)
    return 6 * (torch.rand(count, 3, generator=generator) - 0.5) - 6 * direction, direction


def inside(solid, points):
    """Whether points lie in a solid, by its definition and not by how rays meet it."""
    local = np.linalg.inv(solid.frame) @ (points.double().numpy().T - solid.center[:, None])
    x, y, z = local
    if solid.kind == 0:
        return (local**2).sum(axis=0) < 1
    if solid.kind == 1:
        return np.abs(local).max(axis=0) < 1
    radius = (1 + solid.top) / 2 + (solid.top - 1) / 2 * z
    return (np.abs(z) < 1) & (np.hypot(x, y) < radius)


SOLIDS = {
    "ball": ball((0.3, -0.2, 0.1), (1.2, 0.5, 0.8), (20, -30, 70)),
    "block": block((0.1, 0.2, -0.3), (0.9, 0.3, 0.6), (40, 10, 5)),
    "cylinder": rod((-0.8, 0.1, -0.5), (0.7, 0.4, 0.6), 0.45),
    "cone": rod((0.0, 0.0, -0.7), (0.3, 0.2, 0.9), 0.8, 0.0),
    "stump": rod((-0.5, 0.6, 0.2), (0.8, -0.3, 0.1), 0.7, 0.3),
}


@pytest.mark.parametrize("name", SOLIDS)
@pytest.mark.parametrize("seed", range(4))
def test_rays_enter_and_leave_where_a_solid_is(name, seed):
    """Walked along in small steps, a ray is in the solid between the two distances and nowhere else."""
    origins, direction = rays(600, seed)
    ray, _, first, last = Body([SOLIDS[name]]).crossings(origins, direction)
    enter, leave = torch.full((600,), math.inf), torch.full((600,), -math.inf)
    enter[ray], leave[ray] = first, last
    assert 20 < len(ray) < 500
    for distance in torch.arange(0.0, 12.0, 0.25):
        points = origins + distance * direction
        now = torch.from_numpy(inside(SOLIDS[name], points))
        said = (enter < distance) & (distance < leave)
        unclear = ((enter - distance).abs() < 1e-3) | ((leave - distance).abs() < 1e-3)
        assert ((now == said) | unclear).all()


@pytest.mark.parametrize("name", SOLIDS)
def test_normals_stand_on_the_surface_and_point_out(name):
    body, (origins, direction) = Body([SOLIDS[name]]), rays()
    distance, solid = body.first(origins, direction)
    hit = distance.isfinite()
    points = (origins + distance[:, None] * direction)[hit]
    normals = body.normals(points, solid[hit])
    torch.testing.assert_close(normals.norm(dim=1), torch.ones(len(normals)))
    assert (normals @ direction < 1e-3).all()  # the side that a ray enters looks towards it
    out, within = (inside(SOLIDS[name], points + step * normals) for step in (2e-3, -2e-3))
    assert out.mean() < 0.01 < 0.99 < within.mean()


def test_the_nearest_of_several():
    high, low = block((0, 0, 2), (1, 1, 0.5)), ball((0, 0, 0), 1.0)
    body = Body([high, low])
    origins = torch.tensor([[0.0, 0, 9], [0, 0, 9], [5, 0, 9]])
    distance, solid = body.first(origins, DOWN)
    assert distance.tolist() == [6.5, 6.5, math.inf]
    assert body.kinds[solid[:2]].tolist() == [1, 1]
    assert body.first(-origins, -DOWN)[0].tolist() == [8.0, 8.0, math.inf]


def test_what_lies_before_the_light():
    body = Body([block((0, 0, 1), (1, 1, 0.1))])
    starts = torch.tensor([[0.0, 0, 0], [0, 0, 2], [3, 0, 0]])
    assert body.covered(starts, -DOWN, 1e-3).tolist() == [1.0, 0.0, 0.0]
    assert body.covered(starts[2:], -DOWN, 1e-3).tolist() == [0.0]  # no ray near anything


def test_turning_is_about_x_then_y_then_z():
    np.testing.assert_allclose(turned((0, 0, 90)) @ [1, 0, 0], [0, 1, 0], atol=1e-12)
    np.testing.assert_allclose(turned((90, 0, 0)) @ [0, 1, 0], [0, 0, 1], atol=1e-12)
    np.testing.assert_allclose(turned((90, 0, 90)) @ [0, 1, 0], [0, 0, 1], atol=1e-12)
    np.testing.assert_allclose(turned((0, 90, 0)) @ [0, 0, 1], [1, 0, 0], atol=1e-12)
