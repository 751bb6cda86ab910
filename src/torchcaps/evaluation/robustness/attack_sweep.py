"""How many images an attack of some strength turns, and by how much it had to change them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor, nn

from torchcaps.errors import UnknownNameError, check_range
from torchcaps.evaluation.base import BATCH, Figures, Images, Labels
from torchcaps.evaluation.checks import check_labelled, check_same_shape
from torchcaps.evaluation.forward import proportion, right_answers
from torchcaps.evaluation.robustness.attacks import bim, fgsm, pgd, vote_attack

Attack = Literal["fgsm", "bim", "pgd", "vote"]
METHODS: dict[str, Callable[..., Tensor]] = {"fgsm": fgsm, "bim": bim, "pgd": pgd, "vote": vote_attack}


@dataclass(frozen=True)
class AttackOutcome:
    """What an attack of one strength did; shares are in [0, 1].

    Attributes:
        eps: largest change of a pixel.
        accuracy: share of ALL images still answered rightly.
        success: share of the images answered rightly before that are not any more; None if there were none.
        distance: mean L2 norm of the change over successful images; None if there are none.
    """

    eps: float
    accuracy: float
    success: float | None
    distance: float | None


@dataclass(frozen=True)
class AttackSweep(Figures):
    """Accuracy against the strength of an attack.

    Attributes:
        attack: "fgsm", "bim", "pgd" or "vote".
        clean: accuracy without attack, in [0, 1].
        num_samples: n.
        outcomes: one for each eps, in the order asked for.
        mean: of accuracy over the eps.
    """

    attack: str
    clean: float
    num_samples: int
    outcomes: tuple[AttackOutcome, ...]
    mean: float


def attack_sweep(
    model: nn.Module, images: Images, labels: Labels, eps: Sequence[float], *,
    attack: Attack = "pgd", batch_size: int = BATCH, **options: Any,
) -> AttackSweep:  # fmt: skip
    """Attack the images at each strength, and count what is left.

    Args:
        model: as for `fgsm`, as are images, labels and batch_size.
        eps: strengths, each in [0, 1], at least one.
        attack: which one.
        options: of that attack, such as `steps=20`.

    Raises:
        ValueError: for an unknown attack, no eps, or arguments that do not fit. TypeError: for an unknown option.
    """
    if attack not in METHODS:
        raise UnknownNameError("attack", attack, METHODS)
    check_range("number of eps", len(eps), low=1)
    check_labelled(images, labels)
    before = right_answers(model, images, labels, batch_size)
    outcomes = []
    for size in eps:
        changed = METHODS[attack](model, images, labels, size, batch_size=batch_size, **options)
        outcomes.append(attack_outcome(model, images, changed, labels, eps=size, batch_size=batch_size, before=before))
    mean = sum(outcome.accuracy for outcome in outcomes) / len(outcomes)
    return AttackSweep(attack, proportion(before), len(images), tuple(outcomes), mean)


def attack_outcome(
    model: nn.Module, images: Images, changed: Images, labels: Labels, *,
    eps: float, batch_size: int = BATCH, before: Tensor | None = None,
) -> AttackOutcome:  # fmt: skip
    """What `model` makes of images that were changed for it, or for another model (transfer).

    Args:
        model: the one that is asked.
        images: as they were, `[n, channels, height, width]`.
        changed: the same ones after the attack.
        labels: `[n]` true classes.
        eps: what the attack was allowed; it is written down, not checked.
        batch_size: images at a time.
        before: `[n]` booleans, which images were answered rightly unchanged; asked of the model by default.

    Raises:
        ValueError: for shapes that do not fit.
    """
    check_same_shape("changed", changed, images)
    before = right_answers(model, images, labels, batch_size) if before is None else before
    after = right_answers(model, changed, labels, batch_size)
    won = before & ~after
    norms = (changed.cpu() - images.cpu()).flatten(1).norm(dim=1)
    return AttackOutcome(
        eps=float(eps), accuracy=proportion(after), success=float(won.sum() / before.sum()) if before.any() else None,
        distance=float(norms[won].mean()) if won.any() else None,
    )  # fmt: skip
