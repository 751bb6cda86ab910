"""Only the documented formats are opened, whatever a file is called.

A PostScript file "photo.png" starts no program.
"""

from pathlib import Path

import pytest
from PIL import Image

from torchcaps.data import Preprocess, decode_image
from torchcaps.data.images import FORMATS, SUFFIXES

from .makers import picture, refusal


@pytest.mark.parametrize("kind", ["DDS", "ICO", "PCX", "SGI", "TGA", "EPS", "MSP", "XBM"])
def test_another_format_is_refused(tmp_path, kind):
    path = tmp_path / "photo.png"
    picture((16, 16)).convert("1" if kind in ("MSP", "XBM") else "RGB").save(path, kind)
    message = "not an image, or a damaged one; expected BMP, GIF, JPEG, PNG, PPM, TIFF"
    with refusal(rf"photo\.png: {message}"):
        Preprocess((8, 8), 1)(path)


def test_a_picture_of_pillow_is_taken_as_it_is():
    assert decode_image(Image.new("RGB", (3, 2))).shape == (3, 2, 3)


def test_the_documents_list_the_formats():
    page = (Path(__file__).parents[2] / "docs" / "data.md").read_text(encoding="utf-8")
    paragraph = page[page.index("\nImages are read from ") :].split("\n\n")[0]
    assert all(name in paragraph for name in FORMATS)
    assert all(f"`{suffix}`" in paragraph for suffix in SUFFIXES)
