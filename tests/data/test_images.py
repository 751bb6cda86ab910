import io
import struct
import zlib

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from PIL import Image, PngImagePlugin

from torchcaps.data import decode_image
from torchcaps.data.images import is_gray
from torchcaps.errors import DataError

from .makers import picture


def encoded(image, kind="PNG", **options):
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def pixels(data, **options):
    return decode_image(data, **options).movedim(0, -1).numpy()


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF", "PPM"])
@pytest.mark.parametrize("color", [True, False])
def test_lossless_files_come_back_exactly(kind, color):
    image = picture((7, 5), color)
    data = encoded(image, kind)
    found = decode_image(data)
    assert found.dtype == torch.uint8
    assert np.array_equal(
        found.squeeze(0).numpy() if not color else found.movedim(0, -1).numpy(), np.asarray(image)
    )
    assert is_gray(data) is not color


def test_a_path_and_an_open_image_give_the_same(tmp_path):
    image = picture()
    image.save(tmp_path / "a.png")
    assert torch.equal(decode_image(tmp_path / "a.png"), decode_image(image))
    assert torch.equal(decode_image(str(tmp_path / "a.png")), decode_image(image))


def test_jpeg_is_close():
    smooth = Image.linear_gradient("L").resize((32, 32))
    found = pixels(encoded(smooth, "JPEG", quality=95))[..., 0]
    assert np.abs(found.astype(int) - np.asarray(smooth)).max() <= 6


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "PPM"])
def test_sixteen_bit_gray_is_scaled_not_cut(kind):
    deep = np.array([[0, 128, 129, 256], [257, 32768, 65406, 65535]], dtype=np.uint16)
    found = pixels(encoded(Image.fromarray(deep), kind))
    assert np.array_equal(found[..., 0], np.rint(deep / 257).astype(np.uint8))
    assert found.max() == 255


def test_float_gray():
    stored = encoded(Image.fromarray(np.array([[0.0, 0.5, 1.0]], dtype=np.float32)), "TIFF")
    assert pixels(stored)[..., 0].tolist() == [[0, 128, 255]]
    beyond = encoded(Image.fromarray(np.array([[0.0, 9.0]], dtype=np.float32)), "TIFF")
    with pytest.raises(DataError, match=r"x\.tif: expected float pixels in \[0, 1\], got 0 to 9"):
        decode_image(beyond, name="x.tif")


def test_cmyk_becomes_rgb():
    inks = Image.new("CMYK", (2, 1))
    inks.putpixel((0, 0), (0, 255, 255, 0))  # magenta and yellow ink: red
    inks.putpixel((1, 0), (0, 0, 0, 255))  # black ink
    assert pixels(encoded(inks, "TIFF")).tolist() == [[[255, 0, 0], [0, 0, 0]]]


def test_cmyk_jpeg():
    found = pixels(encoded(Image.new("CMYK", (8, 8), (0, 255, 255, 0)), "JPEG", quality=95))
    assert np.abs(found.astype(int) - [255, 0, 0]).max() <= 8


def test_palettes():
    colors = Image.new("P", (2, 1))
    colors.putpalette([255, 0, 0, 0, 0, 255])
    colors.putdata([0, 1])
    assert pixels(encoded(colors)).tolist() == [[[255, 0, 0], [0, 0, 255]]]
    grays = Image.new("P", (2, 1))
    grays.putpalette([10, 10, 10, 200, 200, 200])
    grays.putdata([1, 0])
    assert pixels(encoded(grays)).tolist() == [[[200], [10]]]


def test_transparency_is_composited_on_black():
    clear = Image.new("RGBA", (3, 1))
    for x, alpha in enumerate((255, 51, 0)):
        clear.putpixel((x, 0), (200, 100, 50, alpha))
    assert pixels(encoded(clear)).tolist() == [[[200, 100, 50], [40, 20, 10], [0, 0, 0]]]
    gray = Image.new("LA", (2, 1))
    gray.putpixel((0, 0), (200, 255))
    gray.putpixel((1, 0), (200, 51))
    assert pixels(encoded(gray)).tolist() == [[[200], [40]]]


def test_a_transparent_palette_entry_is_black():
    colors = Image.new("P", (2, 1))
    colors.putpalette([255, 0, 0, 0, 0, 255])
    colors.putdata([0, 1])
    assert pixels(encoded(colors, transparency=1)).tolist() == [[[255, 0, 0], [0, 0, 0]]]


def test_one_bit():
    assert pixels(encoded(Image.fromarray(np.array([[True, False]])))).tolist() == [[[255], [0]]]


@pytest.mark.parametrize(("orientation", "turns"), [(1, 0), (6, 3), (3, 2), (8, 1)])
def test_exif_orientation_is_applied(orientation, turns):
    upright = np.asarray(picture((4, 6)))
    exif = Image.Exif()
    exif[0x0112] = orientation
    # A camera held so stores the scene turned the other way.
    stored = Image.fromarray(np.ascontiguousarray(np.rot90(upright, -turns)))
    assert np.array_equal(pixels(encoded(stored, exif=exif.tobytes())), upright)


def test_channels_asked_for():
    red = encoded(Image.new("RGB", (2, 2), (255, 0, 0)))
    assert decode_image(red, in_chans=1).unique().tolist() == [76]  # 0.299 · 255
    gray = encoded(picture(color=False))
    assert torch.equal(decode_image(gray, in_chans=3), decode_image(gray).expand(3, -1, -1))
    with pytest.raises(DataError, match="in_chans: images of 3 channels cannot be turned into 2"):
        decode_image(red, in_chans=2)


def test_gray_is_pillows_gray():
    image = picture((16, 16))
    difference = (
        decode_image(image, in_chans=1)[0].int()
        - torch.from_numpy(np.array(image.convert("L"))).int()
    )
    assert difference.abs().max() <= 1


@pytest.mark.parametrize("size", [(4, 3), (20, 31), 9])
def test_resizing_is_pillows_antialiased_bilinear(size):
    image = picture((16, 12))
    height, width = size if isinstance(size, tuple) else (size, size)
    expected = np.asarray(image.resize((width, height), Image.Resampling.BILINEAR)).astype(int)
    found = pixels(encoded(image), img_size=size)
    assert found.shape == (height, width, 3)
    assert np.abs(found.astype(int) - expected).max() <= 1


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM"])
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_damage_is_an_error_or_a_picture_never_another_exception(kind, data):
    whole = bytearray(encoded(picture((9, 11)), kind))
    whole = whole[: data.draw(st.integers(0, len(whole)))]
    for _ in range(data.draw(st.integers(0, 4)) if whole else 0):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    try:
        assert decode_image(bytes(whole), name="the-file").ndim == 3
    except DataError as error:
        assert str(error).startswith("the-file: ")


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "BMP", "GIF"])
def test_half_a_file(tmp_path, kind):
    data = encoded(picture((40, 40)), kind)
    path = tmp_path / "half.img"
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(DataError, match=f"{path}: unreadable image"):
        decode_image(path)


def test_not_an_image_and_no_file(tmp_path):
    (tmp_path / "a.png").write_bytes(b"hello")
    with pytest.raises(DataError, match=r"a\.png: not an image, or a damaged one"):
        decode_image(tmp_path / "a.png")
    with pytest.raises(DataError, match=r"b\.png: no such image file"):
        decode_image(tmp_path / "b.png")


@pytest.mark.parametrize("side", [10_000, 20_000])
def test_a_decompression_bomb_is_refused(side):
    small = encoded(Image.new("1", (8, 8)))
    header = b"IHDR" + struct.pack(">II", side, side) + small[24:29]
    bomb = small[:12] + header + struct.pack(">I", zlib.crc32(header)) + small[33:]
    with pytest.raises(DataError, match=r"bomb\.png: more than [0-9,]+ pixels, refused"):
        decode_image(bomb, name="bomb.png")


def test_text_of_a_png_does_not_matter():
    text = PngImagePlugin.PngInfo()
    text.add_text("comment", "x" * 1000)
    image = picture()
    assert np.array_equal(pixels(encoded(image, pnginfo=text)), np.asarray(image))
