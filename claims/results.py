"""Finished trainings of claims, each a small file."""

import base64
import json
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from claims.protocol import Claim
from torchcaps.errors import RunError, read_text
from torchcaps.training.files import write_json


@dataclass(frozen=True)
class ClaimResult:
    """One finished training of a claim, a small file.

    Attributes:
        claim: name of the claim.
        arm: letter of the arm.
        kind: "training", or "rate" for a short training that chooses the learning rate.
        seed: of the training.
        rate: learning rate.
        settings: of the training, without those that say where it ran.
        figures: numbers by name; of a rate only "score", of held-out images.
        seconds: of the training.
        commit: of the code, or "".
        machine: processor, threads and version of torch.
        num_images: number of test images; 0 where there are no right answers.
        answers: whether each test image was recognized, as packed bits in base64.
        groups: group of each test image, compressed in base64; "" for a set without groups.
    """

    claim: str
    arm: str
    kind: str
    seed: int
    rate: float | None
    settings: dict[str, Any]
    figures: dict[str, float]
    seconds: float
    commit: str
    machine: str
    num_images: int = 0
    answers: str = ""
    groups: str = ""

    @property
    def file_name(self) -> str:
        """`C-0.json` of a training; `rate-C-0.001.json` of a search."""
        if self.kind == "rate":
            return f"rate-{self.arm}-{self.rate:g}.json"
        return f"{self.arm}-{self.seed}.json"

    @property
    def is_correct(self) -> Bool[Tensor, " n"]:
        """Whether each test image was recognized."""
        packed = np.frombuffer(base64.b64decode(self.answers), np.uint8)
        return torch.from_numpy(np.unpackbits(packed, count=self.num_images).astype(bool))

    @property
    def image_groups(self) -> Int64[Tensor, " n"] | None:
        """Group of each test image; None for a set without groups."""
        if not self.groups:
            return None
        steps = np.frombuffer(zlib.decompress(base64.b64decode(self.groups)), "<i8")
        return torch.from_numpy(steps.cumsum())

    def write(self, folder: Path) -> Path:
        """Write it into the folder of its claim, whole or not at all."""
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / self.file_name
        write_json(file, asdict(self))
        return file


def pack_answers(is_correct: Bool[Tensor, " n"]) -> str:
    """Booleans as packed bits in base64."""
    return base64.b64encode(np.packbits(is_correct.cpu().numpy()).tobytes()).decode()


def pack_groups(groups: Int64[Tensor, " n"]) -> str:
    """Groups as compressed steps from image to image, in base64."""
    steps = np.diff(groups.cpu().numpy(), prepend=0).astype("<i8")
    return base64.b64encode(zlib.compress(steps.tobytes())).decode()


def read_results(claim: Claim, results: Path, budget: str = "full") -> list[ClaimResult]:
    """The finished trainings of a claim, in the order of their file names.

    Args:
        claim: whose results are read.
        results: folder that has a folder for each claim.
        budget: with which they were trained.

    Raises:
        RunError: a file that cannot be read, or whose settings are not those of the protocol,
            unless the protocol says why it was changed.
    """
    finished = []
    for file in sorted((results / claim.name).glob("*.json")):
        try:
            content = json.loads(read_text(file))
            result = ClaimResult(**{name.name: content[name.name] for name in fields(ClaimResult)})
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RunError(f"{file}: is no readable result ({error})") from error
        finished.append(result)
    check_protocol(claim, finished, budget)
    return finished


def count_missing(claim: Claim, results: Sequence[ClaimResult]) -> int:
    """How many trainings of a claim are not done.

    Args:
        claim: with its arms and seeds.
        results: of it.
    """
    done = {(result.arm, result.seed) for result in results if result.kind == "training"}
    planned = {(arm, seed) for arm in claim.arms for seed in range(claim.seeds)}
    return len(planned - done)


def check_protocol(claim: Claim, results: Sequence[ClaimResult], budget: str = "full") -> None:
    """Check that results are those of the protocol.

    Args:
        claim: with its protocol.
        results: of it.
        budget: with which they were trained.

    Raises:
        RunError: settings differ, and the protocol does not say why it was changed.
    """
    for result in results:
        if result.kind != "training" or claim.changed:
            continue
        expected = claim.settings(result.arm, budget)
        for name, setting in expected.items():
            if result.settings.get(name) != setting:
                raise RunError(
                    f"claim {claim.name}: {result.file_name} was trained with {name} "
                    f"{result.settings.get(name)!r}, and the protocol has {setting!r}; "
                    "give the reason as `changed` in its table [claim], or restore the protocol"
                )
