"""A small, whole data set in every format that `load_dataset` reads, as bytes by file name."""

import gzip
import io
import struct
import tarfile
import zipfile
import zlib
from functools import cache
from itertools import starmap
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from PIL import Image

from data.makers import SETS, idx_bytes, noise
from data.mat_files import header, mat_bytes, matrix

KINDS = {
    "png": "PNG",
    "jpg": "JPEG",
    "gif": "GIF",
    "bmp": "BMP",
    "tif": "TIFF",
    "webp": "WEBP",
    "pgm": "PPM",
}


class Format:
    """A data set in bytes.

    Attributes:
        path: what `load_dataset` is given, in the folder of the files.
        files: bytes by name.
        inner: what is inside a packed file, and how it is packed again: damage gets past checksums.
    """

    def __init__(self, path, files, inner=None):
        self.path = path
        self.inner = inner or {}
        self.files = files | {name: wrap(data) for name, (data, wrap) in self.inner.items()}


def photo(kind="png", side=8, seed=0):
    """An image file."""
    file = io.BytesIO()
    array = noise(side, side, seed=seed) if kind == "pgm" else noise(side, side, 3, seed=seed)
    Image.fromarray(array).save(file, KINDS[kind])
    return file.getvalue()


def npy(array, name=""):
    """The bytes of an .npy; `name` is not used."""
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def zipped(files, method=zipfile.ZIP_STORED):
    """A zip archive."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return file.getvalue()


def member(name, data=b"", **attributes):
    """A member of a tar archive; attributes are those of TarInfo."""
    info = tarfile.TarInfo(name)
    info.size = len(data)
    for key, value in attributes.items():
        setattr(info, key, value)
    return info, data


def tarred(members, mode="w"):
    """A tar archive."""
    file = io.BytesIO()
    with tarfile.open(
        fileobj=file, mode=mode, format=tarfile.PAX_FORMAT, errors="surrogateescape"
    ) as archive:
        for info, data in members:
            archive.addfile(info, io.BytesIO(data))
    return file.getvalue()


def photos(count=3):
    """Two classes of photographs, by path."""
    files = {}
    for i in range(count):
        files[f"cat/{i}.png"] = photo(seed=i)
    for i in range(count):
        files[f"dog/{i}.png"] = photo(seed=10 + i)
    return files


def png_of(header, pixels):
    """A PNG file of a header and compressed pixels, with the right checksums."""
    file = b"\x89PNG\r\n\x1a\n"
    for kind, data in ((b"IHDR", header), (b"IDAT", pixels), (b"IEND", b"")):
        checksum = zlib.crc32(kind + data)
        file += struct.pack(">I", len(data)) + kind + data + struct.pack(">I", checksum)
    return file


def table(rows):
    """A CSV of files and labels."""
    lines = ["file,label"]
    for name in rows:
        lines.append(f"{name},{name[:3]}")
    return ("\n".join(lines) + "\n").encode()


def mat(name, value, *further):
    """One variable, and a function that compresses it and further ones into a file."""
    matrices = list(starmap(matrix, further))

    def wrap(data):
        file = header()
        for part in map(zlib.compress, (data, *matrices)):
            file += b"\x0f\0\0\0" + len(part).to_bytes(4, "little") + part
        return file

    return matrix(name, value), wrap


def gzipped(files):
    """Files that are compressed one by one."""
    return {f"{name}.gz": (data, gzip.compress) for name, data in files.items()}


def files(folder):
    """Bytes of all files below a folder."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def files_of(kind):
    """The files of a small published set, in a folder `s`."""
    with TemporaryDirectory() as folder:
        SETS[kind](Path(folder, "s"))
        return files(Path(folder))


@cache
def formats():
    """All of them, by name."""
    return _arrays() | _files() | _published()


def _arrays():
    images = noise(12, 6, 5)
    labels = (np.arange(12) % 3).astype(np.uint8)
    idx = {}
    for stem in ("train", "t10k"):
        idx |= {
            f"s/{stem}-images-idx3-ubyte": idx_bytes(images),
            f"s/{stem}-labels-idx1-ubyte": idx_bytes(labels),
        }
    members = {"images.npy": npy(images), "labels.npy": npy(labels.astype(np.int64))}
    names = npy(np.array(["a", "b", "c"])[labels])

    def wrap(data):
        return zipped(members | {"images.npy": data}, zipfile.ZIP_DEFLATED)

    return {
        "idx": Format("s", idx),
        "idx.gz": Format("s", {}, gzipped(idx)),
        "npz": Format("a.npz", {"a.npz": zipped(members)}),
        "npz packed": Format("a.npz", {}, {"a.npz": (members["images.npy"], wrap)}),
        "npz labels": Format(
            "a.npz",
            {},
            {"a.npz": (members["labels.npy"], lambda d: zipped(members | {"labels.npy": d}))},
        ),
        "npz names": Format(
            "a.npz", {}, {"a.npz": (names, lambda d: zipped(members | {"labels.npy": d}))}
        ),
        "npy": Format(
            "a.npy", {"a.npy": members["images.npy"], "a_labels.npy": members["labels.npy"]}
        ),
    }


def _files():
    files = photos()
    formats = {"csv": Format("t.csv", files | {"t.csv": table(files)})}
    for kind in KINDS:
        shots = {f"s/{name[:-3]}{kind}": photo(kind, seed=i) for i, name in enumerate(files)}
        formats[f"folder of {kind}"] = Format("s", shots)
    members = list(starmap(member, files.items()))
    plain = tarred(members)
    formats["tar"] = Format("a.tar", {"a.tar": plain})
    formats["tar.gz"] = Format("a.tar.gz", {}, {"a.tar.gz": (plain, gzip.compress)})
    for ending in ("bz2", "xz"):
        archive = tarred(members, f"w:{ending}")
        formats[f"tar.{ending}"] = Format(f"a.tar.{ending}", {f"a.tar.{ending}": archive})
    return formats


def _published():
    norb = files_of("norb")
    digits = [(1 + np.arange(4) % 10).astype(np.uint8)[:, None], noise(32, 32, 3, 4)]
    svhn = mat("X", digits[1], ("y", digits[0])), mat("y", digits[0], ("X", digits[1]))
    return {
        "cifar": Format("s", files_of("cifar")),
        "norb": Format("s", norb),
        "norb.gz": Format("s", {}, gzipped(norb)),
        "svhn": Format(
            "s",
            {"s/test_32x32.mat": mat_bytes({"X": digits[1], "y": digits[0]}, packed=False)},
            {"s/train_32x32.mat": svhn[0]},
        ),
        "svhn labels": Format("s", {}, {"s/train_32x32.mat": svhn[1], "s/test_32x32.mat": svhn[1]}),
        "gtsrb": Format("s", files_of("gtsrb")),
    }
