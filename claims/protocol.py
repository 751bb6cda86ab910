"""Published claims, registered before they are tested: the protocol.

A claim is a recipe in `recipes/claims` with a table `[claim]`. Its arms are rows of the recipe; its
primary comparison is fixed before the first training. docs/claims.md has the rules.
"""

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchcaps.errors import (
    ArgumentError,
    RunError,
    UnknownNameError,
    check_known,
    check_range,
    read_text,
)
from torchcaps.training import Recipe, Row, TrainConfig, load_recipe

FOLDER = Path(__file__).resolve().parents[1] / "recipes" / "claims"
ANSWERS = "accuracy"  # the figure that is compared image by image
FAMILIES = ("published", "own")
# Settings that say where a run is done, not what is done.
PLACE = ("root", "device", "graph", "log", "seed", "checkpoint_every", "keep", "storage", "workers")


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
        family: claims whose p-values are adjusted together: "published", those of papers, or
            "own", questions of this repository.
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
    family: str = "published"
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
    """Names of the claims of this repository."""
    return sorted(file.stem for file in FOLDER.glob("*.toml"))


def load_claim(name: str) -> Claim:
    """Read a claim.

    Args:
        name: one of `list_claims()`, or the path of a `.toml` file.

    Raises:
        UnknownNameError: there is no such claim.
        RunError: a file that cannot be read, or whose table `[claim]` cannot be used.
    """
    path = Path(name)
    if path.suffix != ".toml":
        if name not in list_claims():
            raise UnknownNameError("claim", name, list_claims())
        path = FOLDER / f"{name}.toml"
    recipe = load_recipe(path)
    try:
        table = tomllib.loads(read_text(path))["claim"]
        primary = Primary(**table.pop("primary"))
        claim = Claim(recipe=recipe, primary=primary, **table)
        check_range("seeds", claim.seeds, low=2)
        check_known("family", claim.family, FAMILIES)
        primary.effect_size(0.0 if primary.figure == ANSWERS else None)
        for arm in (primary.better, primary.worse):
            check_known("arm of primary", arm, claim.arms)
        for budget in recipe.budgets:
            for arm in claim.arms:
                claim.row(arm, budget)
    except (KeyError, TypeError, ValueError) as error:
        raise RunError(f"claim {recipe.name}: {error}") from error
    return claim
