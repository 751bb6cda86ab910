"""The decoder: what the pixels of each kind of image file are."""

import io
import struct
import zlib

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from PIL import Image

from torchcaps.data import decode_image, images
from torchcaps.data.images import is_gray
from torchcaps.data.pixels import fit_images
from torchcaps.errors import DataError

from .makers import picture, refusal


def encoded(image, kind="PNG", **options):
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def decode(source, **options):
    """The pixels `[height, width, channels]`, as numpy and Pillow have them."""
    return decode_image(source, **options).movedim(0, -1).numpy()


def of_pixels(mode, *pixels):
    """An image one pixel high."""
    image = Image.new(mode, (len(pixels), 1))
    image.putdata(pixels)
    return image


def with_palette(colors, *indices):
    image = of_pixels("P", *indices)
    image.putpalette(colors)
    return image


# Formats.


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF", "PPM"])
@pytest.mark.parametrize("color", [True, False])
def test_lossless_files_are_read_exactly(kind, color):
    image = picture((7, 5), color)
    contents = encoded(image, kind)
    assert decode_image(contents).dtype == torch.uint8
    expected = np.asarray(image).reshape(7, 5, 3 if color else 1)
    assert np.array_equal(decode(contents), expected)
    assert is_gray(contents) is not color


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "PPM"])
def test_sixteen_bit_gray_is_scaled_not_cut(kind):
    deep = np.array([[0, 128, 129, 256], [257, 32768, 65406, 65535]], dtype=np.uint16)
    pixels = decode(encoded(Image.fromarray(deep), kind))
    assert np.array_equal(pixels[..., 0], np.rint(deep / 257).astype(np.uint8))


def test_float_gray_is_scaled():
    in_range = Image.fromarray(np.array([[0.0, 0.5, 1.0]], dtype=np.float32))
    assert decode(encoded(in_range, "TIFF"))[..., 0].tolist() == [[0, 128, 255]]
    beyond = Image.fromarray(np.array([[0.0, 9.0]], dtype=np.float32))
    with refusal(r"x\.tif: expected float pixels in \[0, 1\], got 0 to 9"):
        decode_image(encoded(beyond, "TIFF"), name="x.tif")


RED_AND_BLUE = [255, 0, 0, 0, 0, 255]
CONVERTED = {
    "cmyk": (  # magenta and yellow ink are red
        encoded(of_pixels("CMYK", (0, 255, 255, 0), (0, 0, 0, 255)), "TIFF"),
        [[255, 0, 0], [0, 0, 0]],
    ),
    "color palette": (encoded(with_palette(RED_AND_BLUE, 0, 1)), [[255, 0, 0], [0, 0, 255]]),
    "gray palette": (
        encoded(with_palette([10, 10, 10, 200, 200, 200], 1, 0)),
        [[200], [10]],
    ),
    "transparent color on black": (
        encoded(of_pixels("RGBA", (200, 100, 50, 255), (200, 100, 50, 51), (200, 100, 50, 0))),
        [[200, 100, 50], [40, 20, 10], [0, 0, 0]],
    ),
    "transparent palette entry": (
        encoded(with_palette(RED_AND_BLUE, 0, 1), transparency=1),
        [[255, 0, 0], [0, 0, 0]],
    ),
    "one bit": (encoded(Image.fromarray(np.array([[True, False]]))), [[255], [0]]),
}


@pytest.mark.parametrize("name", CONVERTED)
def test_color_spaces_become_gray_or_rgb(name):
    contents, expected = CONVERTED[name]
    assert decode(contents).tolist() == [expected]


@pytest.mark.parametrize(
    ("mode", "color", "expected"),
    [("L", 90, [90]), ("CMYK", (0, 255, 255, 0), [255, 0, 0])],
)
def test_jpeg_is_close(mode, color, expected):
    pixels = decode(encoded(Image.new(mode, (8, 8), color), "JPEG", quality=95))
    assert np.abs(pixels.astype(int) - expected).max() <= 8


@pytest.mark.parametrize(("orientation", "turns"), [(1, 0), (6, 3), (3, 2), (8, 1)])
def test_exif_orientation_is_applied(orientation, turns):
    upright = np.asarray(picture((4, 6)))
    exif = Image.Exif()
    exif[0x0112] = orientation
    # A camera held so stores the scene turned the other way.
    stored = Image.fromarray(np.ascontiguousarray(np.rot90(upright, -turns)))
    assert np.array_equal(decode(encoded(stored, exif=exif.tobytes())), upright)


# Channels and size.


def test_channels_asked_for():
    red = encoded(Image.new("RGB", (2, 2), (255, 0, 0)))
    assert decode_image(red, in_chans=1).unique().tolist() == [76]  # 0.299 · 255
    gray = encoded(picture(color=False))
    assert torch.equal(decode_image(gray, in_chans=3), decode_image(gray).expand(3, -1, -1))
    with refusal("in_chans: images of 3 channels cannot be turned into 2"):
        decode_image(red, in_chans=2)


def test_gray_is_that_of_pillow():
    image = picture((16, 16))
    gray = decode(image, in_chans=1)[..., 0]
    assert np.abs(gray.astype(int) - np.asarray(image.convert("L"))).max() <= 1


@pytest.mark.parametrize("size", [(4, 3), (20, 31), 9])
def test_resizing_is_the_antialiased_bilinear_of_pillow(size):
    image = picture((16, 12))
    height, width = size if isinstance(size, tuple) else (size, size)
    expected = np.asarray(image.resize((width, height), Image.Resampling.BILINEAR))
    pixels = decode(encoded(image), img_size=size)
    assert pixels.shape == (height, width, 3)
    assert np.abs(pixels.astype(int) - expected).max() <= 1


# Damage.


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM"])
@settings(max_examples=20, deadline=None)
@given(draw=st.data())
def test_damage_gives_an_error_or_a_picture_never_another_exception(kind, draw):
    contents = bytearray(encoded(picture((9, 11)), kind))
    del contents[draw.draw(st.integers(1, len(contents))) :]
    for _ in range(draw.draw(st.integers(0, 4))):
        contents[draw.draw(st.integers(0, len(contents) - 1))] = draw.draw(st.integers(0, 255))
    try:
        assert decode_image(bytes(contents), name="the-file").ndim == 3
    except DataError as error:
        assert str(error).startswith("the-file: ")


def test_not_an_image_and_no_file(tmp_path):
    (tmp_path / "a.png").write_bytes(b"hello")
    with refusal(r"a\.png: not an image, or a damaged one"):
        decode_image(tmp_path / "a.png")
    with refusal(r"b\.png: no such image file"):
        decode_image(tmp_path / "b.png")


@pytest.mark.parametrize("side", [10_000, 20_000])
def test_a_decompression_bomb_is_refused(side):
    small = encoded(Image.new("1", (8, 8)))
    header = b"IHDR" + struct.pack(">II", side, side) + small[24:29]
    checksum = struct.pack(">I", zlib.crc32(header))
    bomb = small[:12] + header + checksum + small[33:]
    with refusal(r"bomb\.png: more than [0-9,]+ pixels, refused"):
        decode_image(bomb, name="bomb.png")


# Decoding at a smaller size.


def smooth_picture(height, width):
    """A color picture whose details are larger than a pixel, as those of photos are."""
    noise = np.random.default_rng(0).integers(0, 256, (height // 16, width // 16, 3), np.uint8)
    return Image.fromarray(noise).resize((width, height), Image.Resampling.BICUBIC)


def decode_fully(contents, size):
    """The pixels of a file that is decoded at its own size, then resized."""
    return fit_images(decode_image(contents).unsqueeze(0), size, None)[0].float()


@pytest.mark.parametrize("size", [(30, 40), (60, 20), (16, 16)])
@pytest.mark.parametrize("orientation", [1, 6])
def test_a_jpeg_decoded_smaller_is_close_to_the_whole_one(size, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    contents = encoded(smooth_picture(480, 640), "JPEG", quality=90, exif=exif)
    difference = decode_image(contents, size).float() - decode_fully(contents, size)
    assert 0 < difference.abs().mean() < 1
    assert difference.abs().max() < 10


def test_a_jpeg_is_decoded_at_twice_its_target_or_more(monkeypatch):
    contents = encoded(smooth_picture(480, 640), "JPEG")
    sizes = []
    monkeypatch.setattr(
        images, "_to_bytes", lambda image, _: sizes.append(image.size) or np.asarray(image)
    )
    for side in (500, 121, 120, 61, 60, 8):
        decode_image(contents, side)
    assert sizes == [(640, 480), (640, 480), (320, 240), (320, 240), (160, 120), (80, 60)]


def test_an_open_image_of_the_caller_stays_as_it_is():
    opened = Image.open(io.BytesIO(encoded(smooth_picture(480, 640), "JPEG")))
    decode_image(opened, 8)
    assert opened.size == (640, 480)
