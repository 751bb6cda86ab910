"""Small files for the tests of the data room, and where the real data sets are."""

import gzip
import io
import struct
import tarfile
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from torchcaps.data import load_dataset
from torchcaps.data.masks import palette, write_mask
from torchcaps.data.sets.smallnorb import STEMS, matrix_bytes
from torchcaps.errors import DataError

from .mat_files import mat_bytes

SHARED = Path(__file__).parents[2].parent / "shared" / "data"
COLUMNS = "Filename;Width;Height;Roi.X1;Roi.Y1;Roi.X2;Roi.Y2;ClassId\n"
IMAGES = "Final_Training/Images"
BOX = (5, 6, 45, 54, 50, 60)  # left, top, right, bottom, width, height, in pixels of the original
TOYS = {"train": (4, 6, 7, 8, 9), "test": (0, 1, 2, 3, 5)}


def needs_shared(*folders):
    """Mark and skip a test unless these folders of real data are there."""
    missing = [name for name in folders if not (SHARED / name).is_dir()]
    skip = pytest.mark.skipif(
        bool(missing), reason=f"no {', '.join(missing)} in the shared data folder {SHARED}"
    )
    return lambda test: pytest.mark.needs_data(skip(test))


@contextmanager
def refusal(message, error=DataError):
    """What is inside ends in an error of one line, which matches a regular expression."""
    with pytest.raises(error, match=message) as caught:
        yield
    assert str(caught.value).isprintable()


def assert_refused(message, *source, **options):
    """Loading this set ends in one line, which matches a regular expression."""
    with refusal(message):
        load_dataset(*source, **options)


def both_splits(source, **options):
    """The training images of a set and its test images."""
    return [load_dataset(source, split, **options) for split in ("train", "test")]


def idx_bytes(array):
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


def write_idx_set(folder, train=20, test=10, shape=(6, 5), classes=10, gz=False):
    """The four files of MNIST's layout, with labels 0, 1, …; returns the arrays by file name."""
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(0)
    arrays = {}
    for stem, count in (("train", train), ("t10k", test)):
        arrays[f"{stem}-images-idx3-ubyte"] = random.integers(
            0, 256, (count, *shape), dtype=np.uint8
        )
        arrays[f"{stem}-labels-idx1-ubyte"] = (np.arange(count) % classes).astype(np.uint8)
    for name, array in arrays.items():
        data = idx_bytes(array)
        (folder / (f"{name}.gz" if gz else name)).write_bytes(
            gzip.compress(data, mtime=0) if gz else data
        )
    return arrays


def picture(size=(8, 6), color=True, seed=0):
    """A random picture of (height, width)."""
    shape = (*size, 3) if color else size
    return Image.fromarray(noise(*shape, seed=seed))


def write_folder(root, classes=("cat", "dog"), count=5, size=(8, 6), color=True, levels=("",)):
    """`count` pictures per class, each its own, under `root/<level>/<class>/`."""
    for level in levels:
        for c, name in enumerate(classes):
            (root / level / name).mkdir(parents=True)
            for i in range(count):
                picture(size, color, seed=1000 * c + i).save(root / level / name / f"{i}.png")
    return Path(root)


SIGN_PATTERN = r"track(\d+)_"  # names the track of a file of `write_sign_folder`


def write_sign_folder(root, classes=43, num_damaged=10, size=18, frames=3):
    """Class folders of signs as people have them; returns the paths of the damaged files.

    Each class is a pattern of its own. Its images are tracks of similar frames, from 2 to 19 tracks
    a class. Every other track lies in a sub-folder of its class, has upper-case endings, or none.
    Images differ in size. Beside them lie notes, a broken link, and damaged files.
    """
    random = np.random.default_rng(0)
    track = 0
    files = []
    for label in range(classes):
        pattern = random.integers(0, 256, (6, 6, 3))
        for number in range(2 + label * label // 100):
            light = random.uniform(0.6, 1.0)
            place = root / f"{label:02d} sign" / ("", "night")[number % 2]
            place.mkdir(parents=True, exist_ok=True)
            for frame in range(frames):
                noisy = light * pattern + random.normal(0, 12, pattern.shape)
                pixels = noisy.clip(0, 255).astype(np.uint8)
                side = size + frame
                ending = (".png", "", ".PNG")[track % 3]
                files.append(place / f"track{track:03d}_{frame}{ending}")
                image = Image.fromarray(pixels).resize((side, side), Image.Resampling.NEAREST)
                image.save(files[-1], format="PNG")
            track += 1

    (root / "00 sign" / "notes.txt").write_text("taken in May")
    (root / "01 sign" / "gone.png").symlink_to(root / "nowhere.png")
    named = [file for file in files if file.suffix]
    damaged = named[:: len(named) // num_damaged][:num_damaged]
    for file in damaged:
        file.write_bytes(file.read_bytes()[:60])
    return damaged


def write_medmnist(path, train=24, val=9, test=6, side=8, classes=3):
    """An .npz in MedMNIST's layout, whose labels are `[n, 1]`; returns its arrays."""
    random = np.random.default_rng(0)
    arrays = {}
    for split, count in (("train", train), ("val", val), ("test", test)):
        arrays[f"{split}_images"] = random.integers(0, 256, (count, side, side), dtype=np.uint8)
        arrays[f"{split}_labels"] = (np.arange(count) % classes).astype(np.uint8)[:, None]
    np.savez(path, **arrays)
    return arrays


def _npz(folder):
    np.savez_compressed(folder / "own.npz", images=noise(10, 6, 5), labels=np.arange(10) % 2)
    return folder / "own.npz"


def _npy(folder):
    np.save(folder / "own.npy", noise(10, 6, 5))
    np.save(folder / "own_labels.npy", np.array(["cat", "dog"])[np.arange(10) % 2])
    return folder / "own.npy"


def _idx(folder):
    write_idx_set(folder / "idx")
    return folder / "idx"


def _idx_gz(folder):
    write_idx_set(folder / "idx", gz=True)
    return folder / "idx"


def _folder(folder):
    return write_folder(folder / "photos", count=3)


def pack(root, path, inside="."):
    """An archive of a file or a folder, compressed if its ending says so."""
    with tarfile.open(path, "w:gz" if path.name.endswith("gz") else "w") as archive:
        archive.add(root, arcname=inside)
    return path


def tar_bytes(members, mode="w"):
    """An archive of these contents by name, in this order."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode=mode) as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return stream.getvalue()


def _csv(folder):
    files = sorted(_folder(folder).rglob("*.png"))
    rows = "".join(f"{file.relative_to(folder)},{file.parent.name}\n" for file in files)
    (folder / "own.csv").write_text("file,label\n" + rows)
    return folder / "own.csv"


def write_cifar(folder, skip=()):
    """Batches of four images; returns the records by the name of each batch."""
    folder.mkdir(parents=True, exist_ok=True)
    batches = {}
    for seed, name in enumerate(["test_batch", *(f"data_batch_{i}" for i in range(1, 6))]):
        batches[name] = np.random.default_rng(seed).integers(0, 256, (4, 3073), dtype=np.uint8)
        batches[name][:, 0] %= 10
        if name not in skip:
            (folder / f"{name}.bin").write_bytes(batches[name].tobytes())
    return batches


def _cifar(folder):
    write_cifar(folder)
    return folder


def write_norb(folder, count=10, side=96, eyes=2):
    """Both splits with `count` scenes; returns the photographs and the codes by split."""
    folder.mkdir(parents=True, exist_ok=True)
    written = {}
    for split, stem in STEMS.items():
        random = np.random.default_rng(len(stem))
        photographs = random.integers(0, 256, (count, eyes, side, side), dtype=np.uint8)
        toys = np.array(TOYS[split])[np.arange(count) // 5 % 5]
        views = random.integers(0, [9, 18, 6], (count, 3)) * [1, 2, 1]
        codes = np.column_stack([toys, views]).astype(np.int32)
        categories = (np.arange(count) % 5).astype(np.int32)
        for kind, matrix in (("dat", photographs), ("cat", categories), ("info", codes)):
            (folder / f"{stem}-{kind}.mat").write_bytes(matrix_bytes(matrix))
        written[split] = photographs, codes
    return written


def _norb(folder):
    write_norb(folder, count=5, side=8)
    return folder


def write_mat(path, variables, packed=True):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(mat_bytes(variables, packed))
    return path


def _svhn(folder):
    for split in ("train", "test"):
        variables = {"X": noise(32, 32, 3, 4), "y": np.array([[1], [2], [3], [10]], np.uint8)}
        write_mat(folder / f"{split}_32x32.mat", variables)
    return folder


def _affnist(folder):
    fields = {"image": noise(1600, 4), "label_int": np.array([[1, 2, 3, 4]], np.uint8)}
    for part in ("training_and_validation_batches", "test_batches"):
        path = folder / "transformed" / part / "1.mat"
        write_mat(path, {"affNISTdata": fields}, packed=False)
    return folder


def ppm(pixels):
    """A file of a header of 41 bytes with a comment, as the published ones have it."""
    height, width, _ = pixels.shape
    header = b"P6\n#CREATOR: OpenCV converter \n%d %d\n255\n" % (width, height)
    assert len(header) == 41
    return header + pixels.tobytes()


def makenoise(track, frame, label):
    """32 × 32 pixels whose red, green and blue say which track, frame and class it is."""
    return np.full((32, 32, 3), (20 + track, 10 * frame, label), np.uint8)


def make_row(name, label, box=BOX):
    left, top, right, bottom, width, height = box
    return f"{name};{width};{height};{left};{top};{right};{bottom};{label}\n"


def write_gtsrb(root, labels=(0, 3), tracks=5, frames=4, num_test=3, images=IMAGES):
    for label in labels:
        folder = root / images / f"{label:05d}"
        folder.mkdir(parents=True)
        table = COLUMNS
        for track in range(tracks):
            for frame in range(frames):
                name = f"{track:05d}_{frame:05d}.ppm"
                (folder / name).write_bytes(ppm(makenoise(track, frame, label)))
                table += make_row(name, label)
        (folder / f"GT-{label:05d}.csv").write_text(table)
    if num_test:
        folder = root / "Final_Test" / "Images"
        folder.mkdir(parents=True)
        table = COLUMNS
        for number in range(num_test):
            name = f"{number:05d}.ppm"
            label = labels[number % len(labels)]
            (folder / name).write_bytes(ppm(makenoise(0, number, label)))
            table += make_row(name, label)
        (folder / "GT-final_test.csv").write_text(table)
    return root


def noise(*shape, seed=0):
    """Random bytes."""
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


# By format: writes a small set of it into an empty folder, and gives the path to load it by.
SETS = {
    "npz": _npz,
    "npy": _npy,
    "idx": _idx,
    "idx-gz": _idx_gz,
    "folder": _folder,
    "tar": lambda folder: pack(_folder(folder), folder / "own.tar"),
    "tar-gz": lambda folder: pack(_folder(folder), folder / "own.tar.gz"),
    "csv": _csv,
    "cifar": _cifar,
    "norb": _norb,
    "svhn": _svhn,
    "affnist": _affnist,
    "gtsrb": lambda folder: write_gtsrb(folder, (0, 1), 3, 1, num_test=0),
}


def write_masks(folder, count=10, side=16, colors=False):
    """A folder of images and masks in the usual layout."""
    random = np.random.default_rng(0)
    for part in ("images", "masks"):
        (folder / part).mkdir(parents=True)
    for k in range(count):
        mask = np.zeros((side, side), dtype=np.uint8)
        mask[2 : 4 + k % 5, 3:12] = 1 + k % 2
        image = random.integers(0, 60, (side, side), dtype=np.uint8) + 80 * mask
        Image.fromarray(image).save(folder / "images" / f"case {k}.png")
        if colors:
            Image.fromarray(palette(3)[mask]).save(folder / "masks" / f"case {k}.png")
        else:
            write_mask(folder / "masks" / f"case {k}.png", mask, 3)
    return folder


def draw(images, indices):
    """A batch of a training."""
    return next(images.batches([indices], {}, [torch.Generator().manual_seed(0)]))


def ink_corners(images):
    """Row and column of the first ink of each image, `[n]` each."""
    has_ink = images[:, 0] > 0
    return has_ink.any(dim=2).int().argmax(dim=1), has_ink.any(dim=1).int().argmax(dim=1)


def center_of(weights):
    """Mean (row, column) of an image."""
    along = torch.arange(len(weights), dtype=torch.float64)
    row = weights.sum(dim=1) @ along
    column = weights.sum(dim=0) @ along
    return torch.stack([row, column]) / weights.sum()


def class_members(images, factor):
    """What images show, as pairs of a class and a number within it."""
    return set(zip(images.labels.tolist(), images.targets[factor].tolist(), strict=True))
