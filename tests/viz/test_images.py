from __future__ import annotations

import numpy as np
import pytest

from torchcaps.viz.images import pictures, tile_grid, tile_size


def test_unit_range_and_bytes_give_the_same_picture() -> None:
    levels = np.array([0, 1, 128, 255], dtype=np.uint8).reshape(1, 1, 2, 2)
    from_bytes = pictures("images", levels)
    assert from_bytes.shape == (1, 2, 2, 3)
    assert np.array_equal(from_bytes, pictures("images", levels / 255))


def test_colors_keep_their_channels_and_two_channels_show_the_first() -> None:
    colors = np.arange(12, dtype=np.uint8).reshape(1, 3, 2, 2)
    assert pictures("images", colors)[0, 0, 1].tolist() == [1, 5, 9]
    assert pictures("images", colors[:, :2])[0, 0, 1].tolist() == [1, 1, 1]


def test_what_is_out_of_range_is_clipped_and_nan_is_black() -> None:
    odd = np.array([-1.0, 2.0, np.nan, 1.0]).reshape(1, 1, 2, 2)
    assert pictures("images", odd)[0, ..., 0].tolist() == [[0, 255], [0, 255]]


def test_images_without_axes_or_pixels() -> None:
    with pytest.raises(
        ValueError, match=r"images: expected \[n, channels, height, width\].*got \[2, 2\]"
    ):
        pictures("images", np.zeros((2, 2)))
    with pytest.raises(
        ValueError, match=r"at least one image, got \[n=0, channels=1, height=2, width=2\]"
    ):
        pictures("images", np.zeros((0, 1, 2, 2)))


def test_the_longer_side_sets_the_size() -> None:
    assert tile_size((40, 20), 1.0) == (1.0, 0.5)
    assert tile_size((20, 40), 0.5) == (0.25, 0.5)


def test_a_grid_has_a_row_a_name_and_white_between_its_images() -> None:
    tiles = np.zeros((6, 20, 10, 3), dtype=np.uint8)
    tiles[4] = 200
    figure = tile_grid(tiles, ["a", "b"])
    (axes,) = figure.axes
    whole = axes.images[0].get_array()
    assert whole.shape == (2 * 22, 3 * 12, 3)
    assert (whole[22 + 1 : 22 + 21, 12 + 1 : 12 + 11] == 200).all()
    assert (whole[:, 12] == 255).all() and (whole[22] == 255).all()
    assert (axes.get_xlim(), axes.get_ylim()) == ((0, 3), (2, 0))
    assert [label.get_text() for label in axes.get_yticklabels()] == ["a", "b"]
