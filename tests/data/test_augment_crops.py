import pytest
import torch

from torchcaps.data import Preprocess, center_crop, color_jitter, random_crop
from torchcaps.errors import DataError


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def stereo(count=64):
    """Images whose pixels say where they are: 48 · row + column in the left channel, the negative in the right."""
    place = torch.arange(48 * 48.0).view(48, 48)
    return torch.stack([place, -place]).expand(count, 2, 48, 48)


def test_random_windows_are_whole_and_their_eyes_agree():
    found = random_crop(stereo(500), 32, generator=generator())
    assert found.shape == (500, 2, 32, 32)
    torch.testing.assert_close(found[:, 1], -found[:, 0])
    corner = found[:, 0, 0, 0].long()
    inside = 48 * torch.arange(32)[:, None] + torch.arange(32)
    torch.testing.assert_close(found[:, 0].long(), corner[:, None, None] + inside)
    rows, columns = corner // 48, corner % 48
    assert set(rows.tolist()) == set(columns.tolist()) == set(range(17))


def test_the_center():
    found = center_crop(stereo(1), 32)
    assert found[0, 0, 0, 0] == 48 * 8 + 8
    assert found[0, 0, -1, -1] == 48 * 39 + 39
    torch.testing.assert_close(found[:, 1], -found[:, 0])
    assert center_crop(torch.arange(9).view(1, 1, 3, 3), 2).flatten().tolist() == [0, 1, 3, 4]


def test_light_changes_both_eyes_alike_and_within_range():
    images = torch.rand(200, 2, 6, 6, generator=generator(1))
    found = color_jitter(images, generator=generator())
    mean, centered = found.mean((2, 3)), found - found.mean((2, 3), keepdim=True)
    added = mean - images.mean((2, 3))
    torch.testing.assert_close(added[:, 0], added[:, 1], atol=1e-5, rtol=0)
    assert added.abs().max() <= 63 / 255 + 1e-6
    assert added.min() < -0.2 < 0.2 < added.max()
    factor = centered / (images - images.mean((2, 3), keepdim=True))
    assert (factor.amax((1, 2, 3)) - factor.amin((1, 2, 3))).max() < 1e-2
    assert 0.2 - 1e-3 <= factor.median() <= 1.8 + 1e-3
    assert found.std() != images.std()


def test_a_seed_settles_everything():
    images = torch.rand(9, 1, 12, 12)
    for change in (
        lambda g: random_crop(images, 5, generator=g),
        lambda g: color_jitter(images, generator=g),
    ):
        torch.testing.assert_close(change(generator(3)), change(generator(3)), rtol=0, atol=0)
        assert not torch.equal(change(generator(3)), change(generator(4)))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda x: random_crop(x, 13, generator=generator()),
            "size: expected between 1 and 12, got 13",
        ),
        (lambda x: center_crop(x, 0), "size: expected between 1 and 12, got 0"),
        (lambda x: center_crop(x[0], 3), r"images: expected \[batch, channels, height, width\]"),
        (
            lambda x: color_jitter(x, brightness=-1.0, generator=generator()),
            "brightness: expected at least 0",
        ),
        (
            lambda x: color_jitter(x, contrast=(2.0, 1.0), generator=generator()),
            "contrast: expected between 0 and 1.0",
        ),
    ],
)
def test_arguments_out_of_range(change, words):
    with pytest.raises(ValueError, match=words):
        change(torch.rand(2, 1, 12, 12))


def test_preprocessing_crops():
    whole = Preprocess((48, 48), 1, crop=32)
    image = torch.rand(1, 48, 48)
    assert whole.model_size == (32, 32)
    torch.testing.assert_close(whole(image), image[:, 8:40, 8:40])
    assert Preprocess.from_dict(whole.to_dict()) == whole
    assert Preprocess((48, 48), 1).to_dict() == {"img_size": [48, 48], "in_chans": 1}
    with pytest.raises(DataError, match="crop: expected from 1 to 40 pixels, got 41"):
        Preprocess((48, 40), 1, crop=41)
