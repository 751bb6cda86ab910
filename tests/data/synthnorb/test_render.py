import pytest
import torch

from torchcaps.data.synthnorb.solids import (
    LAMPS,
    TABLE_ALBEDO,
    Body,
    Lamp,
    ball,
    block,
    photograph,
    rod,
)

from ..makers import center_of

BALL = Body([ball((0, 0, 0.6), 0.6)])
FLAT = Lamp(0, 90, 0.0, 1.0)  # light from everywhere only


def render(body, elevation=40.0, azimuth=0.0, lamp=LAMPS[0], size=24, **options):
    return photograph(body, elevation, azimuth, [lamp], size=size, **options)[0].double()


def test_a_picture_is_the_same_each_time_and_lamps_are_taken_one_by_one():
    pictures = photograph(BALL, 40, 0, LAMPS, size=24)
    assert (pictures.shape, pictures.dtype) == ((6, 24, 24), torch.uint8)
    for picture, lamp in zip(pictures, LAMPS, strict=True):
        assert torch.equal(picture, photograph(BALL, 40, 0, [lamp], size=24)[0])
    assert len(pictures.unique(dim=0)) == 6


@pytest.mark.parametrize(("azimuth", "side"), [(-70, -1), (70, 1)])
def test_the_lamp_lights_its_own_side_and_shadows_fall_on_the_other(azimuth, side):
    picture = render(BALL, lamp=Lamp(azimuth, 40, 1.0, 0.1), albedo=0.9)
    is_ball = render(BALL, lamp=FLAT, albedo=0.5) != round(255 * TABLE_ALBEDO)
    is_lamp_side = side * (torch.arange(24) - 11.5) > 0
    bright = picture[is_ball & is_lamp_side]
    dim = picture[is_ball & ~is_lamp_side]
    assert bright.mean() > dim.mean() + 30
    is_shadow = ~is_ball & (picture < 40)
    assert is_shadow.sum() > 10
    assert side * (center_of(is_shadow.double())[1] - 12) < 0


def test_azimuth_turns_the_toy():
    """A knob on the side of the camera at 0° is to one side at 90° and behind the ball at 180°."""
    body = Body([ball((0, 0, 0.6), 0.3), ball((0.8, 0, 0.6), 0.12)])
    centers = {}
    for azimuth in (0, 90, 180, 270):
        is_body = render(body, azimuth=azimuth, lamp=FLAT, albedo=0.2) < 100
        centers[azimuth] = center_of(is_body.double()) - 11.5
    assert centers[0][0] > centers[180][0] + 0.5  # nearer to the camera is lower in the picture
    assert abs(centers[0][1]) < 0.1
    assert abs(centers[180][1]) < 0.1
    assert abs(centers[90][1]) > 0.5
    assert centers[90][1] * centers[270][1] < 0


def test_elevation_flattens_what_stands():
    """A pole is long from the side and a dot from above."""
    pole = Body([rod((0, 0, 0), (0, 0, 1.2), 0.08)])
    heights = []
    for elevation in (5, 30, 50, 70, 89):
        is_pole = render(pole, elevation, lamp=FLAT, albedo=0.2) < 120
        heights.append(int(is_pole.any(dim=1).sum()))
    assert heights == sorted(heights, reverse=True)
    assert heights[0] >= 11
    assert heights[-1] <= 3


def test_faces_are_shaded_by_their_angle_to_the_lamp():
    """By Lambert's law, gray of a level face is albedo · (ambient + strength · sin height)."""
    slab = Body([block((0, 0, 0.2), (3, 3, 0.2))])
    for height in (30, 60, 90):
        picture = render(slab, 80, lamp=Lamp(20, height, 0.6, 0.2), albedo=0.8)
        light = 0.2 + 0.6 * torch.tensor(float(height)).deg2rad().sin()
        assert abs(picture[12, 12] - 255 * 0.8 * light) < 1
