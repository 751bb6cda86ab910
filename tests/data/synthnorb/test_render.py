import pytest
import torch

from torchcaps.data.synthnorb.solids import LAMPS, TABLE, Body, Lamp, ball, block, photograph, rod

BALL = Body([ball((0, 0, 0.6), 0.6)])
FLAT = Lamp(0, 90, 0.0, 1.0)  # light from everywhere only


def gray(body, elevation=40.0, azimuth=0.0, lamp=LAMPS[0], size=24, **options):
    return photograph(body, elevation, azimuth, [lamp], size=size, **options)[0].double()


def middle(image, weights):
    along = torch.arange(len(image), dtype=torch.float64)
    return (
        torch.stack([(weights.sum(1) * along).sum(), (weights.sum(0) * along).sum()])
        / weights.sum()
    )


def test_a_picture_is_the_same_each_time_and_lamps_are_taken_one_by_one():
    whole = photograph(BALL, 40, 0, LAMPS, size=24)
    assert (whole.shape, whole.dtype) == ((6, 24, 24), torch.uint8)
    for i, lamp in enumerate(LAMPS):
        torch.testing.assert_close(
            photograph(BALL, 40, 0, [lamp], size=24)[0], whole[i], rtol=0, atol=0
        )
    assert len({picture.numpy().tobytes() for picture in whole}) == 6


def test_the_table_has_one_gray_away_from_the_toy_and_its_shadow():
    image = gray(BALL, lamp=FLAT)
    assert image[0, 0] == image[-1, -1] == round(255 * TABLE)


@pytest.mark.parametrize(("azimuth", "brighter"), [(-70, "left"), (70, "right")])
def test_the_lamp_lights_its_own_side_and_shadows_fall_on_the_other(azimuth, brighter):
    image = gray(BALL, lamp=Lamp(azimuth, 40, 1.0, 0.1), albedo=0.9)
    disc = gray(BALL, lamp=FLAT, albedo=0.5) != round(255 * TABLE)
    left = disc.clone()
    left[:, 12:] = False
    right = disc & ~left
    lit, dim = (left, right) if brighter == "left" else (right, left)
    assert image[lit].mean() > image[dim].mean() + 30
    shadow = ~disc & (image < 40)
    column = middle(image, shadow.double())[1]
    assert shadow.sum() > 10
    assert column > 12 if brighter == "left" else column < 12


def test_a_ball_looks_the_same_from_every_side():
    for azimuth in (90, 217):
        assert (
            gray(BALL, azimuth=azimuth) - gray(BALL)
        ).abs().max() <= 2  # edges may round either way


def test_azimuth_turns_the_toy():
    """A knob on the side of the camera at 0° is to one side at 90° and behind the ball at 180°."""
    body = Body([ball((0, 0, 0.6), 0.3), ball((0.8, 0, 0.6), 0.12)])
    lower = {}
    for azimuth in (0, 90, 180, 270):
        ink = (gray(body, elevation=40, azimuth=azimuth, lamp=FLAT, albedo=0.2) < 100).double()
        lower[azimuth] = middle(ink, ink)
    assert lower[0][0] > lower[180][0] + 0.5  # nearer to the camera is lower in the picture
    assert (lower[0][1] - 11.5).abs() < 0.1
    assert (lower[180][1] - 11.5).abs() < 0.1
    assert abs(lower[90][1] - 11.5) > 0.5
    assert (lower[90][1] - 11.5) * (lower[270][1] - 11.5) < 0


def test_elevation_flattens_what_stands():
    """A pole is long from the side and a dot from above."""
    body = Body([rod((0, 0, 0), (0, 0, 1.2), 0.08)])
    heights = []
    for elevation in (5, 30, 50, 70, 89):
        ink = gray(body, elevation=elevation, lamp=FLAT, albedo=0.2) < 120
        heights.append(int(ink.any(dim=1).sum()))
    assert heights == sorted(heights, reverse=True)
    assert heights[0] >= 11
    assert heights[-1] <= 3


def test_brighter_paint_gives_brighter_pictures():
    assert gray(BALL, albedo=0.9).sum() > gray(BALL, albedo=0.7).sum()


def test_faces_are_shaded_by_their_angle_to_the_lamp():
    """Lambert: gray of a level face under a lamp at height h is albedo · (ambient + strength · sin h)."""
    slab = Body([block((0, 0, 0.2), (3, 3, 0.2))])
    for height in (30, 60, 90):
        image = gray(slab, elevation=80, lamp=Lamp(20, height, 0.6, 0.2), albedo=0.8)
        light = 0.2 + 0.6 * torch.tensor(float(height)).deg2rad().sin()
        assert abs(image[12, 12] - 255 * 0.8 * light) < 1
