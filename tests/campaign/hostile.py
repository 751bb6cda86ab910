"""Files that were made to do harm: each function fills a folder and returns the path to load."""

import os
import struct
import tarfile
import tempfile
import zlib
from pathlib import Path

import numpy as np

from campaign.formats import (
    formats,
    member,
    npy,
    photo,
    photos,
    png_of,
    table,
    tarred,
    zipped,
)
from campaign.mutate import nested
from data.makers import COLUMNS, idx_bytes, noise
from data.mat_files import element, header, mat_bytes, matrix

FILES = {}
BIN = Path(tempfile.gettempdir()) / f"campaign-bin-{os.getuid()}"
BOMB = 5 << 30  # bytes that a bomb would unpack to
LABELS = (np.arange(12) % 3).astype(np.int64)
POSTSCRIPT = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n%%EOF\n"


def file(make):
    """Register a maker under its name, with blanks."""
    FILES[make.__name__.replace("_", " ")] = make
    return make


def save(path, data):
    """Write a file and return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def zeros(size=BOMB, before=b""):
    """A bare deflate stream of `before` and `size` zeros: one compressed megabyte, repeated."""
    stream = zlib.compressobj(9, zlib.DEFLATED, -15)
    head = stream.compress(before) + stream.flush(zlib.Z_FULL_FLUSH)
    chunk = stream.compress(bytes(1 << 20)) + stream.flush(zlib.Z_FULL_FLUSH)
    return head + chunk * (size >> 20) + stream.flush()


def gzip_zeros(before=b""):
    """The same as a gzip file; its sum is wrong, which nobody should live to see."""
    return b"\x1f\x8b\x08\0\0\0\0\0\0\xff" + zeros(before=before) + bytes(8)


def zlib_zeros(size):
    """The same as a zlib stream, with the sum of a whole number of megabytes."""
    return b"\x78\xda" + zeros(size) + struct.pack(">HH", size % 65521, 1)


def idx_folder(folder, **files):
    """A folder of IDX files, some of them replaced; `images` and `labels` are those of training."""
    names = {"images": "train-images-idx3-ubyte", "labels": "train-labels-idx1-ubyte"}
    contents = {
        "images": idx_bytes(noise(12, 6, 5)),
        "labels": idx_bytes(LABELS.astype(np.uint8)),
    } | files
    for kind, data in contents.items():
        save(folder / "s" / names[kind], data)
    return folder / "s"


def npz(folder, **members):
    """An .npz of raw members."""
    contents = {"images": npy(noise(12, 6, 5)), "labels": npy(LABELS)} | members
    return save(folder / "a.npz", zipped({f"{name}.npy": data for name, data in contents.items()}))


def npy_header(shape, kind="|u1", end=", }"):
    """An .npy of a header alone."""
    text = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}{end}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\0" + struct.pack("<H", len(text)) + text.encode()


@file
def npz_label_of_a_billion(folder):
    return npz(folder, labels=npy(np.array([*LABELS[:-1], 10**9])))


@file
def npz_member_without_its_ending(folder):
    return save(
        folder / "a.npz",
        zipped({"images": b"raw", "labels": b"raw", "images.npy": npy(noise(2, 3, 3))}),
    )


@file
def npz_encrypted(folder):
    data = bytearray(npz(folder).read_bytes())
    for mark, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        at = data.find(mark)
        while at >= 0:
            data[at + offset] |= 1
            at = data.find(mark, at + 4)
    return save(folder / "a.npz", bytes(data))


@file
def npy_named_npz(folder):
    return save(folder / "a.npz", npy(noise(12, 6, 5)))


@file
def npz_unfinished_header(folder):
    return npz(folder, images=npy_header("(3, 4, (", end=""))


@file
def npz_huge_shape(folder):
    return npz(folder, images=npy_header(f"({2**62}, {2**62}, 4)"))


@file
def npz_of_a_shape_beyond_its_bytes(folder):
    return npz(folder, images=npy_header(f"(12, {1 << 17}, {1 << 17})"))


@file
def npz_uint16_of_odd_shape(folder):
    return npz(folder, images=npy(noise(0, 5, 3).astype(np.uint16)))


@file
def npz_class_name_of_5000_digits(folder):
    return npz(folder, labels=npy(np.array(["9" * 5000, "1", "2"])[LABELS]))


@file
def gzip_bomb_as_idx_with_a_fitting_header(folder):
    return idx_folder(
        folder, images=gzip_zeros(struct.pack(">HBB3I", 0, 8, 3, BOMB >> 20, 1024, 1024))
    )


@file
def mat_compressed_bomb(folder):
    stream = zlib_zeros(3 << 30)
    return save(
        folder / "s" / "train_32x32.mat", header() + struct.pack("<II", 15, len(stream)) + stream
    ).parent


def mat_matrix(dims, kind=2, body=b""):
    """A matrix element with these sizes, whatever its body is."""
    sizes = struct.pack(f"<{len(dims)}i", *dims)
    inner = element(6, struct.pack("<II", kind, 0)) + element(5, sizes) + element(1, b"X") + body
    return header() + struct.pack("<II", 14, len(inner)) + inner


@file
def mat_struct_of_huge_sizes(folder):
    body = element(5, struct.pack("<i", 1)) + element(1, b"")
    return save(
        folder / "s" / "train_32x32.mat", mat_matrix((2**31 - 1, 2**31 - 1), 2, body)
    ).parent


@file
def mat_of_70_axes(folder):
    return save(
        folder / "s" / "train_32x32.mat", mat_matrix((1,) * 70, 9, element(2, b"\1"))
    ).parent


@file
def mat_compressed_in_itself(folder):
    data = matrix("X", noise(4, 4))
    for _ in range(2000):
        stream = zlib.compress(data, 1)
        data = struct.pack("<II", 15, len(stream)) + stream
    return save(folder / "s" / "train_32x32.mat", header() + data).parent


@file
def mat_structs_in_structs(folder):
    value = noise(2, 2)
    for _ in range(200):
        value = {"a": value}
    return save(folder / "s" / "train_32x32.mat", mat_bytes({"X": value}, packed=False)).parent


def tar_of(folder, *more):
    """An archive of photographs and more members."""
    return save(
        folder / "a.tar", tarred([*(member(name, data) for name, data in photos().items()), *more])
    )


@file
def tar_sparse_of_8_gigabytes(folder):
    sparse = {
        "GNU.sparse.map": f"{8 << 30},0",
        "GNU.sparse.size": str(8 << 30),
        "GNU.sparse.numblocks": "1",
    }
    return tar_of(folder, member("cat/9.png", type=tarfile.REGTYPE, pax_headers=sparse))


@file
def tar_bad_sparse_map(folder):
    return tar_of(
        folder,
        member("cat/9.png", pax_headers={"GNU.sparse.map": "1,x,y", "GNU.sparse.size": "10"}),
    )


@file
def tar_names_of_5000_digits(folder):
    return tar_of(
        folder,
        member("cat/" + "7" * 5000 + ".png", photo()),
        member("8" * 5000 + "/a.png", photo()),
    )


@file
def tar_of_links(folder):
    return tar_of(
        folder,
        member("cat/a.png", type=tarfile.SYMTYPE, linkname="/etc/passwd"),
        member("cat/b.png", type=tarfile.LNKTYPE, linkname="b.png"),
        member("cat/c.png", type=tarfile.SYMTYPE, linkname="a.png"),
        member("dog/../../../up.png", photo()),
    )


@file
def pngs_of_9400_squared(folder):
    size = 9400 * (1 + 3 * 9400)
    pixels = zlib_zeros((size >> 20 << 20) + (1 << 20))
    picture = png_of(struct.pack(">IIBBBBB", 9400, 9400, 8, 2, 0, 0, 0), pixels)
    for name in photos():
        save(folder / "s" / name, picture)
    return folder / "s"


def fifo(path):
    """A pipe that nobody writes to."""
    path.parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(path)
    return path


for _name in (
    "a.npz",
    "a.npy",
    "a.csv",
    "a.tar",
    "s/train-images-idx3-ubyte",
    "s/train_32x32.mat",
    "s/test_batch",
):

    def _pipe(folder, name=_name):
        return folder / (fifo(folder / name).relative_to(folder).parts[0])

    FILES[f"pipe as {_name.rpartition('/')[2]}"] = _pipe


@file
def pipe_as_png(folder):
    for name, data in photos().items():
        save(folder / "s" / name, data)
    return fifo(folder / "s" / "cat" / "9.png").parents[1]


def fake_ghostscript():
    """A `gs` on the PATH of this process, which leaves a file where it is run."""
    script = save(BIN / "gs", b"#!/bin/sh\ntouch gotcha\n")
    script.chmod(0o755)


@file
def postscript_named_png_in_a_folder(folder):
    fake_ghostscript()
    for name in photos():
        save(folder / "s" / name, POSTSCRIPT)
    return folder / "s"


@file
def postscript_named_png_in_a_tar(folder):
    fake_ghostscript()
    return tar_of(folder, member("cat/9.png", POSTSCRIPT))


@file
def postscript_named_png_in_a_table(folder):
    fake_ghostscript()
    files = photos() | {"cat/1.png": POSTSCRIPT}
    for name, data in files.items():
        save(folder / name, data)
    return save(folder / "t.csv", table(files))


def gtsrb(folder, row):
    """The traffic signs with one more row."""
    for name, data in formats()["gtsrb"].files.items():
        save(folder / name, data)
    save(folder / "s/Final_Training/Images/00000/GT-00000.csv", (COLUMNS + row).encode())
    return folder / "s"


@file
def gtsrb_track_of_30_digits(folder):
    name = f"{'7' * 30}_00000.ppm"
    save(
        folder / "s/Final_Training/Images/00000" / name,
        b"P6\n8 8\n255\n" + noise(8, 8, 3).tobytes(),
    )
    return gtsrb(folder, f"{name};10;10;1;1;8;8;0\n")


@file
def class_folder_of_5000_digits(folder):
    return tar_of(
        folder, member("4" * 5000 + "/1.png", photo()), member("4" * 5000 + "/2.png", photo())
    )


@file
def csv_label_of_many_lines(folder):
    for name, data in photos().items():
        save(folder / name, data)
    return save(folder / "t.csv", b'file,label\n"cat/\n0.png","a\nb"\n')


@file
def csv_field_of_a_megabyte(folder):
    return save(folder / "t.csv", b"file,label\n" + b"x" * (1 << 20) + b",cat\n")


@file
def npz_classes_nested(folder):
    return npz(folder, classes=npy_header(nested(3000), end=""))
