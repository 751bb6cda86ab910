"""Damaged and hostile data files: an Dataset or one error in one sentence, at a bounded cost."""

import os
import tarfile

import torch

from campaign import hostile, mutate
from campaign.core import dice
from campaign.formats import formats, member, photo, photos, tarred
from campaign.watch import no_side_effects
from torchcaps.data import load_dataset
from torchcaps.errors import TorchcapsError

TESTS = {
    "bit flips": 1600,
    "truncation": 500,
    "lengths": 1300,
    "splices": 600,
    "numbers": 750,
    "archives": 350,
    "named": 0,
}
LONGEST = 4000  # characters of an error
NAMES = (
    "cat/0.png",
    "dog/../../up.png",
    "/tmp/campaign-escape/a.png",
    "cat/" + "9" * 5000 + ".png",
    "9" * 5000 + "/a.png",
    "cat/a\nb.png",
    "\udc80/a.png",
    "",
    "cat//./1.png",
    "..",
    "train/cat/1.png",
    "cat/.hidden.png",
    "C:\\x\\a.png",
)
TYPES = (
    tarfile.REGTYPE,
    tarfile.SYMTYPE,
    tarfile.LNKTYPE,
    tarfile.FIFOTYPE,
    tarfile.CHRTYPE,
    tarfile.GNUTYPE_SPARSE,
)
SPARSE = {
    "GNU.sparse.major": ("1", "0", "x"),
    "GNU.sparse.minor": ("0", "1"),
    "GNU.sparse.realsize": ("9" * 10, "-1", "x"),
    "GNU.sparse.map": ("0,9999999999", "x", "0", ""),
    "GNU.sparse.size": ("8589934592",),
    "size": ("-5", "9" * 40, "x"),
    "mtime": ("x", "1e999"),
    "path": ("cat/9.png", "../x.png"),
    "GNU.sparse.numblocks": ("1", "9" * 20),
}


def prepare():
    """A `gs` on the PATH that would be seen to run."""
    if not os.environ["PATH"].startswith(str(hostile.BIN)):
        os.environ["PATH"] = f"{hostile.BIN}{os.pathsep}{os.environ['PATH']}"


def draw(test, random):
    """A format, which way it is damaged, and how it is read."""
    reading = {
        "split": random.choice(("train", "test")),
        "img_size": random.choice((None, None, None, 4)),
    }
    if test == "named":
        return reading | {"name": random.choice(sorted(hostile.FILES))}
    return reading | {"format": random.choice(sorted(formats())), "inside": random.random() < 0.7}


def check(case, folder):
    """Read the file and judge what comes."""
    random = dice(case)
    if case["test"] == "named":
        path = hostile.FILES[case["name"]](folder)
    elif case["test"] == "archives":
        path = folder / "a.tar"
        path.write_bytes(archive(random))
    else:
        path = damaged(folder, formats()[case["format"]], case, random)
    judge(path, case.get("split", "train"), case.get("img_size"), folder)


def judge(path, split, img_size, folder):
    """An Dataset that keeps its promises, or one error in one line; nothing executed or written."""
    with no_side_effects(folder):
        try:
            image_set = load_dataset(path, split, img_size=img_size)
        except (TorchcapsError, ValueError) as error:
            one_sentence(error)
            return
    images = image_set.images
    labels = image_set.labels
    assert images.dim() == 4 and images.dtype in (torch.uint8, torch.float32), (
        f"images of {images.dtype}"
    )
    assert len(images) == len(labels) > 0, f"{len(labels)} labels for {len(images)} images"
    assert labels.min() >= 0 and labels.max() < len(image_set.classes), (
        "a label outside the classes"
    )
    assert images.dtype == torch.uint8 or (images.min() >= 0 and images.max() <= 1), (
        "pixels outside [0, 1]"
    )


def one_sentence(error):
    """The form of every error of the library."""
    assert isinstance(error, TorchcapsError) or type(error) is ValueError, (
        f"{type(error).__name__}: {error}"
    )
    text = str(error)
    assert text and len(text.splitlines()) == 1, (
        f"an error of {len(text.splitlines())} lines: {text[:300]!r}"
    )
    assert len(text) <= LONGEST, f"an error of {len(text)} characters: {text[:300]!r}"


def written(folder, kind, changes):
    """The files of a format with other bytes in some; the path to load."""
    for name, data in (kind.files | changes).items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
    return folder / kind.path


def damaged(folder, kind, case, random):
    """A format with one file damaged: as it lies there, or inside what packs it."""
    name = random.choice(sorted(kind.files))
    damage = mutate.BYTES[case["test"]]
    if case["inside"] and name in kind.inner:
        data, wrap = kind.inner[name]
        return written(folder, kind, {name: wrap(damage(data, random))})
    return written(folder, kind, {name: damage(kind.files[name], random)})


def archive(random):
    """A tar archive of two classes and members of every type, name and size."""
    members = [member(name, data) for name, data in photos(random.randint(0, 2)).items()]
    for _ in range(random.randint(1, 4)):
        headers = {
            key: random.choice(SPARSE[key])
            for key in random.sample(sorted(SPARSE), random.randint(0, 4))
        }
        info, data = member(
            random.choice(NAMES),
            random.choice((b"", photo(), b"%!PS\n")),
            type=random.choice(TYPES),
        )
        info.linkname = random.choice(("", "cat/0.png", "/etc/passwd", info.name))
        info.pax_headers = headers if random.random() < 0.5 else {}
        if info.type != tarfile.REGTYPE:
            data = b""
        info.size = len(data)
        members.append((info, data))
    random.shuffle(members)
    data = bytearray(tarred(members))
    if random.random() < 0.5:  # a size that lies, under a right checksum
        sizes = ("77777777777", "00100000000", "0000000000-")
        claim(data, 512 * random.randrange(len(data) // 512), random.choice(sizes))
    return bytes(data)


def claim(data, at, size):
    """Write a size and the checksum that fits into what may be a header."""
    data[at + 124 : at + 135] = size.encode().ljust(11, b"0")[:11]
    data[at + 148 : at + 156] = b" " * 8
    data[at + 148 : at + 156] = b"%06o\0 " % (sum(data[at : at + 512]) % 0o777777)
