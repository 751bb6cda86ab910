"""How many images an attack of some strength turns, and whether one that fails has met robustness or hidden gradients.

An attack that fails says nothing while its gradients are zero or point nowhere. Anish Athalye, Nicholas Carlini, David
Wagner, "Obfuscated Gradients Give a False Sense of Security", ICML 2018, arXiv 1802.00420, list the signs; each is a
check here, and a figure of robustness should not be quoted while one of them fails.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

from torch import Tensor, nn

from torchcaps.errors import ArgumentError, check_known, check_range
from torchcaps.evaluation.base import BATCH, EvaluationResult, Images, Labels, Loss, check_labeled
from torchcaps.evaluation.forward import (
    batches,
    eval_mode,
    image_activations,
    proportion,
    right_answers,
)
from torchcaps.evaluation.robustness import attacks
from torchcaps.evaluation.robustness.attacks import (
    bim,
    fgsm,
    full_margin_loss,
    pgd,
    sign_noise,
    vote_attack,
)

NEAR_ZERO = 0.05  # accuracy that counts as none
MOST_SILENT = 0.01  # share of images without any gradient that is let pass
SLACK = 0.01  # of the largest loss: by how much it may fall from one eps to the next
Attack = Literal["fgsm", "bim", "pgd", "vote"]
METHODS: dict[str, Callable[..., Tensor]] = {
    "fgsm": fgsm,
    "bim": bim,
    "pgd": pgd,
    "vote": vote_attack,
}


@dataclass(frozen=True)
class AttackOutcome:
    """What an attack of one strength did; shares are in [0, 1]."""

    eps: float  # largest change of a pixel
    accuracy: float  # share of ALL images still answered rightly
    success: (
        float | None
    )  # share of the images answered rightly before that are not any more; None if there were none
    distance: (
        float | None
    )  # mean L2 norm of the change over successful images; None if there are none


@dataclass(frozen=True)
class AttackSweep(EvaluationResult):
    """Accuracy against the strength of an attack."""

    attack: str  # "fgsm", "bim", "pgd" or "vote"
    clean: float  # accuracy without attack, in [0, 1]
    num_samples: int  # n
    outcomes: tuple[AttackOutcome, ...]  # one for each eps, in the order asked for
    mean: float  # of accuracy over the eps


def attack_sweep(
    model: nn.Module,
    images: Images,
    labels: Labels,
    eps: Sequence[float],
    *,
    attack: Attack = "pgd",
    batch_size: int = BATCH,
    **options: Any,
) -> AttackSweep:
    """Attack the images at each strength, and count what is left. Strengths are in [0, 1], at least one; options are
    those of the attack, such as `steps=20`. Raises ValueError for an unknown attack, no eps, or arguments that do not
    fit; TypeError for an unknown option."""
    check_known("attack", attack, METHODS)
    check_range("number of eps", len(eps), low=1)
    check_labeled(images, labels)
    before = right_answers(model, images, labels, batch_size)
    outcomes = []
    for size in eps:
        changed = METHODS[attack](model, images, labels, size, batch_size=batch_size, **options)
        outcomes.append(
            attack_outcome(
                model, images, changed, labels, eps=size, batch_size=batch_size, before=before
            )
        )
    mean = sum(outcome.accuracy for outcome in outcomes) / len(outcomes)
    return AttackSweep(attack, proportion(before), len(images), tuple(outcomes), mean)


def attack_outcome(
    model: nn.Module,
    images: Images,
    changed: Images,
    labels: Labels,
    *,
    eps: float,
    batch_size: int = BATCH,
    before: Tensor | None = None,
) -> AttackOutcome:
    """What `model` makes of images that were changed for it, or for another model (transfer). What the attack was
    allowed, `eps`, is written down, not checked; `before` `[n]`, which images were answered rightly unchanged, is asked
    of the model by default. Raises ValueError unless the changed images have the shape of images."""
    if changed.shape != images.shape:
        raise ArgumentError(
            "changed",
            f"expected the shape of images, {list(images.shape)}, got {list(changed.shape)}",
        )
    before = right_answers(model, images, labels, batch_size) if before is None else before
    after = right_answers(model, changed, labels, batch_size)
    turned = before & ~after
    norms = (changed.cpu() - images.cpu()).flatten(1).norm(dim=1)
    return AttackOutcome(
        eps=float(eps),
        accuracy=proportion(after),
        success=float(turned.sum() / before.sum()) if before.any() else None,
        distance=float(norms[turned].mean()) if turned.any() else None,
    )


@dataclass(frozen=True)
class MaskingCheck:
    """One sign of hidden gradients."""

    name: str  # what ought to hold
    passed: bool | None  # whether it does; None if it could not be asked
    text: str  # the figures, in one sentence


@dataclass(frozen=True)
class MaskingReport(EvaluationResult):
    """Accuracies under attacks of one strength, and what they say of the gradients; all shares are in [0, 1]."""

    eps: float  # the strength
    clean: float  # accuracy without attack
    noise: float  # under random noise of size eps
    fgsm: float  # under one step
    bim: float  # under many
    pgd: float  # under many from random starts
    transfer: float | None  # under PGD images made for the other model; None without one
    large: float  # under PGD with `large_eps`
    large_eps: float  # that strength
    loss_eps: tuple[float, ...]  # ascending strengths
    losses: tuple[float, ...]  # mean loss under PGD at each of them
    silent: float  # share of images whose gradient is exactly zero in every pixel
    checks: tuple[MaskingCheck, ...]  # one for each sign

    derived = ("passed", "verdict")

    @property
    def passed(self) -> bool:
        """Whether no check failed."""
        return all(check.passed is not False for check in self.checks)

    @property
    def verdict(self) -> str:
        """One sentence."""
        failed = [check.name for check in self.checks if check.passed is False]
        if failed:
            return f"Do not quote this robustness: {'; '.join(failed)} does not hold, so the attack may be blind."
        return "No sign of hidden gradients: the attacks do what attacks do."


def masking_report(
    model: nn.Module,
    images: Images,
    labels: Labels,
    *,
    eps: float = 0.1,
    large_eps: float = 1.0,
    steps: int = 10,
    other: nn.Module | None = None,
    loss: Loss | None = None,
    seed: int = 0,
    batch_size: int = BATCH,
) -> MaskingReport:
    """Attack the model in the ways that tell robustness from hidden gradients; a few hundred images are enough.

    Args:
        eps: strength of the attacks, in [0, 1].
        large_eps: strength that must leave nothing, in [eps, 1]; at 1 every image can become any other.
        steps: of BIM and PGD, at least 1.
        other: a model trained otherwise, for which images are made that the model must withstand better than its own.
        loss: what the attacks raise, a mean over images; by default `full_margin_loss`.
        seed: of noise and random starts.
    """
    check_range("large_eps", large_eps, low=eps, high=1)
    check_labeled(images, labels)
    loss = loss or full_margin_loss
    options: dict[str, Any] = {"steps": steps, "loss": loss, "batch_size": batch_size}

    def attack(target: nn.Module, strength: float) -> Tensor:
        return pgd(target, images, labels, strength, seed=seed, **options)

    strengths = tuple(eps * part for part in (0.25, 0.5, 0.75, 1.0))
    attacked = [attack(model, strength) for strength in strengths]
    changed = {
        "clean": images,
        "noise": sign_noise(images, eps, seed=seed),
        "fgsm": fgsm(model, images, labels, eps, loss=loss, batch_size=batch_size),
        "bim": bim(model, images, labels, eps, **options),
        "pgd": attacked[-1],
        "large": attack(model, large_eps),
    }
    if other is not None:
        changed["transfer"] = attack(other, eps)
    accuracies = {
        name: proportion(right_answers(model, inputs, labels, batch_size))
        for name, inputs in changed.items()
    }
    losses = []
    for inputs in (images, *attacked):
        activations = image_activations(model, inputs, batch_size=batch_size)
        losses.append(float(loss(activations, labels.cpu())))
    num_silent = 0
    with eval_mode(model):
        for batch, true in batches(model, images, labels, batch_size=batch_size):
            gradient = attacks.input_gradient(model, batch, true, loss)
            num_silent += int((gradient == 0).flatten(1).all(dim=1).sum())
    silent = num_silent / len(images)
    transfer = accuracies.pop("transfer", None)
    return MaskingReport(
        eps=eps,
        transfer=transfer,
        large_eps=large_eps,
        loss_eps=(0.0, *strengths),
        losses=tuple(losses),
        silent=silent,
        checks=_checks(accuracies, transfer, losses, silent, large_eps),
        **accuracies,
    )


def _checks(
    accuracies: dict[str, float],
    transfer: float | None,
    losses: Sequence[float],
    silent: float,
    large_eps: float,
) -> tuple[MaskingCheck, ...]:
    pgd, one, noise = accuracies["pgd"], accuracies["fgsm"], accuracies["noise"]
    many, large = max(accuracies["bim"], pgd), accuracies["large"]
    falls = max(before - after for before, after in pairwise(losses))
    away = (
        "no other model was given"
        if transfer is None
        else f"another model's images leave {transfer:.1%}"
    )
    own = None if transfer is None else pgd <= transfer
    course = " -> ".join(f"{loss:.3g}" for loss in losses)
    rows = (
        (
            "many steps are at least as strong as one",
            many <= one,
            f"BIM and PGD leave {many:.1%}, FGSM {one:.1%}.",
        ),
        (
            "noise is weaker than the attack",
            noise >= pgd,
            f"Noise of the same size leaves {noise:.1%}, PGD {pgd:.1%}.",
        ),
        (
            "a large attack leaves nothing",
            large <= NEAR_ZERO,
            f"At eps {large_eps:g} PGD leaves {large:.1%}.",
        ),
        (
            "the own gradient is better than another model's",
            own,
            f"PGD leaves {pgd:.1%}; {away}.",
        ),
        ("the loss rises with eps", falls <= SLACK * max(losses), f"The mean loss goes {course}."),
        (
            "gradients are not zero",
            silent <= MOST_SILENT,
            f"{silent:.1%} of the images have no gradient at all.",
        ),
    )
    return tuple(MaskingCheck(*row) for row in rows)
