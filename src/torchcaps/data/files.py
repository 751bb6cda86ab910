"""Images that stay in their files and are decoded when they are needed, by processes of their own.

`DiskDataset` is a `Dataset` whose `inputs` are `EncodedImages` in place of a tensor. All that a
`Dataset` does works on it: subsets and splits decode nothing, `float_images` decodes what it
returns, and `batches` a few batches ahead, so that memory does not grow with the number of images.
"""

import ctypes
import hashlib
import io
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, ClassVar, Self, cast

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Generator, Tensor
from torch.utils.data import DataLoader

from torchcaps.data.dataset import Batch, Dataset, select_rows
from torchcaps.data.images import OpenImage, check_size, decode_image
from torchcaps.data.pixels import HeightWidth, Size, center_crop, size_pair, to_float
from torchcaps.errors import DataError, check_range
from torchcaps.types import Tensors

MAX_WORKERS = 8  # that a machine of many cores gets by default
SAMPLED_FILES = 256  # whose contents are in a fingerprint
SAMPLED_BYTES = 64 << 10  # of each of them
PR_SET_PDEATHSIG = 1  # of Linux's prctl


@dataclass(frozen=True, eq=False)
class EncodedImages:
    """Images as they lie in files, in place of a tensor uint8 `[n, channels, height, width]`.

    Attributes:
        files: `[n]` paths, or names that `open_image` takes, as bytes: one block of memory, which
            processes share.
        in_chans: 1 or 3.
        img_size: (height, width), before a crop.
        is_resized: whether images are resized to `img_size`; else they must have it.
        crop: side of the square that is cut out of the middle; None for the whole image.
        open_image: from a name to what `decode_image` takes; a function that can be pickled.
    """

    files: np.ndarray
    in_chans: int
    img_size: HeightWidth
    is_resized: bool
    crop: int | None = None
    open_image: OpenImage = str
    dtype: ClassVar[torch.dtype] = torch.uint8
    device: ClassVar[torch.device] = torch.device("cpu")

    def __len__(self) -> int:
        return len(self.files)

    @property
    def shape(self) -> torch.Size:
        """Of all images together, decoded."""
        size = (self.crop, self.crop) if self.crop else self.img_size
        return torch.Size((len(self), self.in_chans, *size))

    def __getitem__(self, indices: Tensor) -> Self:
        return replace(self, files=self.files[indices.cpu().numpy()])

    def decode(self) -> UInt8[Tensor, "n channels height width"]:
        """The pixels of all images.

        Raises:
            DataError: a file is unreadable, or its image of another size.
        """
        pixels = torch.empty(self.shape, dtype=self.dtype)
        target = self.img_size if self.is_resized else None
        for index, file in enumerate(map(os.fsdecode, self.files.tolist())):
            image = decode_image(self.open_image(file), target, self.in_chans, name=file)
            check_size(file, image, self.img_size)
            pixels[index] = center_crop(image[None], self.crop)[0] if self.crop else image
        return pixels

    def float(self) -> Float[Tensor, "n channels height width"]:
        """The decoded images as floats, as a tensor has it."""
        return self.decode().float()

    def __getitems__(self, indices: list[int]) -> tuple[np.ndarray | None, str]:
        """Pixels for a `DataLoader`, and an error in words: it would come with its traceback.

        Arrays pass through a pipe, tensors through shared memory, of which containers have little.
        """
        try:
            return self[torch.tensor(indices, dtype=torch.int64)].decode().numpy(), ""
        except DataError as error:
            return None, str(error)

    def fingerprint(self) -> UInt8[Tensor, " 32"]:
        """A digest that differs where the files do, without reading all of them.

        It is made of the names of all files below the folder that they share, so that a set may be
        moved, and of their sizes; and of the first 64 KiB of 256 files that are evenly spread.
        """
        files = list(map(os.fsdecode, self.files.tolist()))
        folder = os.path.dirname(os.path.commonpath([min(files), max(files)]))
        digest = hashlib.sha256()
        for file in files:
            size = os.path.getsize(file) if self.open_image is str else 0  # else it is in the name
            digest.update(os.fsencode(f"{file.removeprefix(folder)} {size}\n"))
        num_files = len(files)
        for index in np.linspace(0, num_files - 1, min(num_files, SAMPLED_FILES)).astype(int):
            source: Any = self.open_image(files[index])
            with io.BytesIO(source) if isinstance(source, bytes) else open(source, "rb") as start:
                digest.update(start.read(SAMPLED_BYTES))
        return torch.tensor(list(digest.digest()), dtype=torch.uint8)


@dataclass(frozen=True, eq=False, repr=False)
class DiskDataset(Dataset):
    """Images with what is known of each, decoded from their files when they are needed.

    Attributes:
        inputs: the files, in place of a tensor.
        targets, classes, name, groups, notes, files, preprocess, maker: as of `Dataset`.
        workers: processes that decode batches; 0 for this process, None for one less than the
            cores of this process, at most 8.
    """

    inputs: EncodedImages  # type: ignore[assignment]
    workers: int | None = None

    def resized(self, img_size: Size, in_chans: int | None) -> Self:
        images = replace(self.inputs, in_chans=in_chans or self.in_chans)
        if img_size is not None and size_pair(img_size) != self.img_size:
            if images.crop:
                raise DataError(f"img_size: expected to be set before the crop, got {img_size}")
            images = replace(images, img_size=size_pair(img_size), is_resized=True)
        return replace(self, inputs=images)

    def cropped(self, side: int) -> Self:
        check_range("crop", side, low=1, high=min(self.img_size))
        return replace(self, inputs=replace(self.inputs, crop=side))

    def to(self, device: torch.device | str) -> Self:
        return self  # batches are moved to a device, not files

    def batches(
        self,
        index_batches: Sequence[Tensor],
        targets: Mapping[str, Tensor],
        generators: Iterable[Generator] | None = None,
        shard: Callable[[int], slice] = slice,
    ) -> Iterator[Batch]:
        # No more than a few are in memory at a time. Images outside of the shard are black.
        parts = [indices[shard(len(indices))].tolist() for indices in index_batches]
        workers = default_workers() if self.workers is None else self.workers
        workers = min(workers, max(0, len(parts) - 1))
        decoded = decode_batches(self.inputs.__getitems__, parts, workers, self.name)
        for indices, (rows, problem) in zip(index_batches, decoded, strict=True):
            if problem:
                raise DataError(problem)
            pixels = torch.zeros(len(indices), *rows.shape[1:], dtype=self.inputs.dtype)
            pixels[shard(len(indices))] = torch.from_numpy(rows)
            yield Batch(to_float(pixels), select_rows(targets, indices), indices)


def identities(images: Dataset) -> Tensors:
    """The tensors with an entry for each image, by name, on the CPU; of files their digest."""
    inputs: Any = images.inputs
    content = inputs.fingerprint() if isinstance(inputs, EncodedImages) else inputs.cpu()
    return {"inputs": content} | {name: rows.cpu() for name, rows in images.targets.items()}


def decode_batches(
    decode: Callable[[list[Any]], Any], batches: Iterable[list[Any]], workers: int, name: str
) -> Iterator[Any]:
    """What a function makes of each batch, in order; workers decode a few batches ahead.

    Args:
        decode: takes a batch, and returns a sequence that can be pickled, as it can be itself.
        batches: of any number.
        workers: processes that decode; 0 for this process.
        name: of the images, for errors.

    Raises:
        DataError: a process that decodes images was ended.
    """
    if not workers:
        yield from map(decode, batches)
        return
    dataset: Any = SimpleNamespace(__getitems__=decode)  # whose indices are batches
    loader = DataLoader(
        dataset,
        batch_sampler=cast(Any, batches),
        num_workers=workers,
        collate_fn=list,  # in place of torch's function that stacks samples
        worker_init_fn=_start_worker,
        generator=torch.Generator(),  # else torch's global generator would be advanced
    )
    try:
        yield from loader
    except RuntimeError as error:  # torch raises no class of its own
        raise DataError(
            f"{name}: a process that decodes images was ended ({error}); where "
            "memory is exhausted, use fewer workers (--workers), or 0"
        ) from error


def default_workers(num_ranks: int = 1) -> int:
    """Processes that decode images where nobody says how many: the cores less one, at most 8.

    Args:
        num_ranks: processes of the run, which share the cores.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return min(MAX_WORKERS, max(1, (cores or 1) // num_ranks - 1))


def _start_worker(_worker: int) -> None:
    """Leave Ctrl-C to the main process, and end at once when that is killed.

    A worker holds what its parent held when it began, such as the lock of a run folder.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
