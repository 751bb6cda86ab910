import numpy as np

from torchcaps.viz.canvas import pictures, tile_grid

from .drawing import words


def test_unit_range_and_bytes_give_the_same_picture():
    levels = np.array([0, 1, 128, 255], dtype=np.uint8).reshape(1, 1, 2, 2)
    assert pictures("images", levels).shape == (1, 2, 2, 3)
    assert np.array_equal(pictures("images", levels), pictures("images", levels / 255))


def test_colors_keep_their_channels_and_two_channels_show_the_first():
    colors = np.arange(12, dtype=np.uint8).reshape(1, 3, 2, 2)
    assert pictures("images", colors)[0, 0, 1].tolist() == [1, 5, 9]
    assert pictures("images", colors[:, :2])[0, 0, 1].tolist() == [1, 1, 1]


def test_pixels_out_of_range_are_clipped_and_nan_is_black():
    pixels = np.array([-1.0, 2.0, np.nan, 1.0]).reshape(1, 1, 2, 2)
    assert pictures("images", pixels)[0, ..., 0].tolist() == [[0, 255], [0, 255]]


def test_a_grid_has_a_row_a_name_and_white_between_its_images():
    tiles = np.zeros((6, 20, 10, 3), dtype=np.uint8)
    tiles[3] = 200
    [axes] = tile_grid(tiles, ["a", "b"]).axes
    grid = axes.images[0].get_array()
    assert grid.shape == (2 * 22, 3 * 12, 3)
    assert (grid[22 + 1 : 22 + 21, 1:11] == 200).all()
    assert (grid[:, 12] == 255).all()
    assert (grid[22] == 255).all()
    assert axes.get_xlim() == (0, 3)
    assert axes.get_ylim() == (2, 0)
    assert words(axes.get_yticklabels()) == ["a", "b"]
