"""Published claims, registered before they are tested: the protocol, the results, the verdict.

A claim is a recipe in `recipes/claims` with a table `[claim]`. Its arms are rows of the recipe; its
primary comparison is fixed before the first training. docs/claims.md has the rules.
"""

import base64
import json
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from statistics import mean
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from torchcaps.errors import (
    ArgumentError,
    RunError,
    UnknownNameError,
    check_known,
    check_range,
    read_text,
)
from torchcaps.evaluation import compare_runs
from torchcaps.evaluation.comparison.exact import LEVEL
from torchcaps.training import Recipe, TrainConfig, list_recipes, load_recipe
from torchcaps.training.files import write_json
from torchcaps.training.recipes import Row

ANSWERS = "accuracy"  # the figure that is compared image by image
# Settings that say where a run is done, not what is done.
PLACE = ("root", "device", "seed", "checkpoint_every", "keep", "storage", "workers")

Outcome = Literal["supported", "refuted", "undecided", "incomplete"]


@dataclass(frozen=True)
class Primary:
    """The comparison that decides a claim.

    Attributes:
        figure: "accuracy", for which the answers to each image are compared, or a figure of the
            measures, of which each training has one.
        better: the arm that the claim says is better.
        worse: the arm that it is compared with.
        effect: published difference of the figure, above 0; as text such as "14%", a share of the
            errors of the worse arm, for networks that are smaller than the published ones.
        lower: whether a lower figure is better.
    """

    figure: str
    better: str
    worse: str
    effect: float | str
    lower: bool = False

    def effect_size(self, accuracy: float | None) -> float:
        """The published difference as a number.

        Args:
            accuracy: mean of the worse arm; None where answers are not compared.

        Raises:
            ArgumentError: the effect is neither a number above 0 nor a share of errors.
        """
        if isinstance(self.effect, str) and accuracy is not None:
            return float(self.effect.removesuffix("%")) / 100 * (1 - accuracy)
        if isinstance(self.effect, str) or self.effect <= 0:
            raise ArgumentError("effect", f"expected a number above 0, got {self.effect!r}")
        return self.effect


@dataclass(frozen=True)
class Claim:
    """A published statement, and how it is tested.

    Attributes:
        recipe: what is trained and measured.
        statement: the claim, in one sentence.
        source: paper, page and figure or table.
        published: the published figures, in words.
        arms: letter -> name of a row of the recipe.
        data: the data, in words.
        measure: what is measured, in words.
        seeds: number of trainings of each arm.
        cost: expected core-hours of all trainings.
        primary: the comparison that decides.
        margin: see `compare`.
        support: what supports the claim, in words.
        refutation: what refutes it, in words.
        rates: learning rates from which each arm takes the better one on held-out images; empty
            where the paper gives the rate.
        changed: why the protocol was changed after its first result; empty if it was not.
    """

    recipe: Recipe
    statement: str
    source: str
    published: str
    arms: Mapping[str, str]
    data: str
    measure: str
    seeds: int
    cost: float
    primary: Primary
    margin: str | float
    support: str
    refutation: str
    rates: Sequence[float] = ()
    changed: str = ""

    @property
    def name(self) -> str:
        """That of the recipe."""
        return self.recipe.name

    def row(self, arm: str, budget: str) -> Row:
        """The row of an arm within a budget."""
        rows = {row.name: row for row in self.recipe.rows_of(budget)}
        return rows[self.arms[arm]]

    def config(self, arm: str, seed: int, budget: str, **changes: Any) -> TrainConfig:
        """The run of one training.

        Args:
            arm: letter of the arm.
            seed: of the training.
            budget: "full", or "small" for a trial.
            changes: further settings by name.
        """
        return self.recipe.resolve(self.row(arm, budget), budget, seed=seed, **changes)

    def settings(self, arm: str, budget: str) -> dict[str, Any]:
        """The settings of an arm that a result has to agree with; the rate is apart."""
        settings = self.config(arm, 0, budget).flat()
        for name in PLACE:
            settings.pop(name, None)
        if self.rates:
            del settings["lr"]
        return json.loads(json.dumps(settings))


def list_claims() -> list[str]:
    """Names of the claims that ship with the library, and of those that were registered."""
    return [name for name in list_recipes() if load_recipe(name).claim]


def load_claim(name: str) -> Claim:
    """Read a claim.

    Args:
        name: of a recipe with a table `[claim]`, or the path of its file.

    Raises:
        UnknownNameError: there is no such claim.
        RunError: a file that cannot be read, or whose table `[claim]` cannot be used.
    """
    is_file = name.endswith(".toml")
    if not is_file and (name not in list_recipes() or not load_recipe(name).claim):
        raise UnknownNameError("claim", name, list_claims())
    recipe = load_recipe(name)
    table = dict(recipe.claim)
    try:
        primary = Primary(**table.pop("primary"))
        claim = Claim(recipe=recipe, primary=primary, **table)
        check_range("seeds", claim.seeds, low=2)
        primary.effect_size(0.0 if primary.figure == ANSWERS else None)
        for arm in (primary.better, primary.worse):
            check_known("arm of primary", arm, claim.arms)
        for budget in recipe.budgets:
            for arm in claim.arms:
                claim.row(arm, budget)
    except (KeyError, TypeError, ValueError) as error:
        raise RunError(f"claim {recipe.name}: {error}") from error
    return claim


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


def read_claim_results(claim: Claim, results: Path, budget: str = "full") -> list[ClaimResult]:
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


@dataclass(frozen=True)
class ClaimVerdict:
    """What the trainings of a claim say.

    Attributes:
        outcome: "supported", "refuted", "undecided", or "incomplete" while trainings are missing.
        difference: of the primary figure, in the direction of the claim; None without results.
        interval: its 95 % interval; None with fewer than two trainings of an arm.
        p_value: of no difference, two-sided; None as above.
        effect: the published difference; None without results.
        num_seeds: trainings of both arms of the comparison.
    """

    outcome: Outcome
    difference: float | None = None
    interval: tuple[float, float] | None = None
    p_value: float | None = None
    effect: float | None = None
    num_seeds: int = 0


def judge_claim(
    claim: Claim, results: Sequence[ClaimResult], p_adjusted: float | None = None
) -> ClaimVerdict:
    """Apply the rules of docs/claims.md to finished trainings.

    "refuted": the 95 % interval of the difference excludes half of the published effect.
    "supported": the interval lies above 0, and the p-value, adjusted over all claims, is below
    0.05. "undecided": neither.

    Args:
        claim: with its protocol.
        results: of this claim; those of other arms are not looked at.
        p_adjusted: p-value after Holm's correction over the claims; by default the claim's own.

    Returns:
        The verdict. It is "incomplete" as long as a training of one of the two arms is missing.
    """
    primary = claim.primary
    arms = []
    for arm in (primary.better, primary.worse):
        trainings = [each for each in results if each.kind == "training" and each.arm == arm]
        arms.append(sorted(trainings, key=lambda result: result.seed))
    num_seeds = min(len(arm) for arm in arms)
    if num_seeds < 2:
        return ClaimVerdict("incomplete", num_seeds=num_seeds)
    accuracy = None
    if primary.figure == ANSWERS:
        difference, interval, p_value = _compare_answers(*arms)
        accuracy = mean(float(result.is_correct.double().mean()) for result in arms[1])
    else:
        difference, interval, p_value = _compare_figures(primary, *arms)
    effect = primary.effect_size(accuracy)
    low, high = interval
    outcome: Outcome = "undecided"
    if num_seeds < claim.seeds:
        outcome = "incomplete"
    elif high < effect / 2:
        outcome = "refuted"
    elif low > 0 and (p_value if p_adjusted is None else p_adjusted) < LEVEL:
        outcome = "supported"
    return ClaimVerdict(outcome, difference, interval, p_value, effect, num_seeds)


def _compare_answers(
    better: Sequence[ClaimResult], worse: Sequence[ClaimResult]
) -> tuple[float, tuple[float, float], float]:
    """Difference of the accuracies, its interval and p-value, over seeds and images or groups."""
    rows = [torch.stack([result.is_correct for result in arm]) for arm in (better, worse)]
    comparison = compare_runs(*rows, groups=better[0].image_groups)
    return comparison.difference, comparison.interval, comparison.p_value


def _compare_figures(
    primary: Primary, better: Sequence[ClaimResult], worse: Sequence[ClaimResult]
) -> tuple[float, tuple[float, float], float]:
    """The same for one figure a training: Student's t of the differences of equal seeds."""
    from scipy.stats import t as student

    sign = -1 if primary.lower else 1
    figures = [
        {result.seed: result.figures[primary.figure] for result in arm} for arm in (better, worse)
    ]
    seeds = sorted(figures[0].keys() & figures[1].keys())
    if len(seeds) < 2:
        raise ArgumentError("results", f"expected two seeds of both arms, got {len(seeds)}")
    differences = np.array([sign * (figures[0][seed] - figures[1][seed]) for seed in seeds])
    difference = float(differences.mean())
    error = float(differences.std(ddof=1)) / math.sqrt(len(seeds))
    if error == 0:
        return difference, (difference, difference), float(difference == 0)
    reach = float(student.ppf(1 - LEVEL / 2, len(seeds) - 1)) * error
    p_value = 2 * float(student.sf(abs(difference) / error, len(seeds) - 1))
    return difference, (difference - reach, difference + reach), p_value
