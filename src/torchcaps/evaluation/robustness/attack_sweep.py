"""Accuracy against the strength of an attack, and signs of hidden gradients.

An attack that fails says nothing while its gradients are zero or point nowhere. Anish Athalye,
Nicholas Carlini, David Wagner, "Obfuscated Gradients Give a False Sense of Security", ICML 2018,
arXiv 1802.00420, list the signs; each is a check here, and a figure of robustness should not be
quoted while one of them fails.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise
from typing import Any, Literal

from torch import Tensor, nn

from torchcaps.errors import check_known, check_range
from torchcaps.evaluation.base import (
    IMAGE_AXES,
    EvaluationResult,
    Images,
    Labels,
    Loss,
    check_labeled,
    check_like,
)
from torchcaps.evaluation.forward import image_activations, proportion, right_answers
from torchcaps.evaluation.robustness.attacks import (
    attack_batches,
    bim,
    fgsm,
    full_margin_loss,
    input_gradient,
    pgd,
    sign_noise,
    vote_attack,
)

NEAR_ZERO = 0.05  # accuracy that counts as none
MAX_SILENT = 0.01  # share of images without any gradient that passes
SLACK = 0.01  # of the largest loss: by how much it may fall from one eps to the next
LOSS_STEPS = (0.25, 0.5, 0.75, 1.0)  # of eps, at which the loss is measured

Attack = Literal["fgsm", "bim", "pgd", "vote"]
METHODS: dict[str, Callable[..., Tensor]] = {
    "fgsm": fgsm,
    "bim": bim,
    "pgd": pgd,
    "vote": vote_attack,
}


@dataclass(frozen=True)
class AttackOutcome:
    """Accuracy under an attack of one strength; shares are in [0, 1].

    Attributes:
        eps: largest change of a pixel.
        accuracy: share of all images that are still answered rightly.
        success: share of the images answered rightly before that are not any more; None if there
            were none before.
        distance: mean L2 norm of the change over these images; None if there are none.
    """

    eps: float
    accuracy: float
    success: float | None
    distance: float | None


@dataclass(frozen=True)
class AttackSweep(EvaluationResult):
    """Accuracy against the strength of an attack.

    Attributes:
        attack: "fgsm", "bim", "pgd" or "vote".
        clean: accuracy without attack, in [0, 1].
        num_samples: n, number of images.
        outcomes: one for each eps, in their order.
        mean: mean of accuracy over the eps.
    """

    attack: str
    clean: float
    num_samples: int
    outcomes: tuple[AttackOutcome, ...]
    mean: float


def attack_sweep(
    model: nn.Module,
    images: Images,
    labels: Labels,
    eps: Sequence[float],
    *,
    attack: Attack = "pgd",
    **options: Any,
) -> AttackSweep:
    """Attack images at each strength, and measure the accuracy.

    Args:
        model: maps images to `[batch, classes]`.
        images: `[n, channels, height, width]` in [0, 1].
        labels: `[n]` true classes.
        eps: largest changes of a pixel, in [0, 1], at least one.
        attack: name of the attack.
        **options: those of the attack, such as `steps=20`.

    Returns:
        Accuracy without an attack, and the outcome at each strength.

    Raises:
        ArgumentError: for an unknown attack, no eps, or arguments that do not fit.
        TypeError: for an unknown option.
    """
    check_known("attack", attack, METHODS)
    check_range("number of eps", len(eps), low=1)
    check_labeled(images, labels)
    before = right_answers(model, images, labels)
    outcomes = []
    for strength in eps:
        changed = METHODS[attack](model, images, labels, strength, **options)
        after = right_answers(model, changed, labels)
        outcomes.append(_outcome(strength, before, after, changed.cpu() - images.cpu()))
    mean = sum(outcome.accuracy for outcome in outcomes) / len(outcomes)
    return AttackSweep(attack, proportion(before), len(images), tuple(outcomes), mean)


def attack_outcome(
    model: nn.Module,
    images: Images,
    changed: Images,
    labels: Labels,
    *,
    eps: float,
) -> AttackOutcome:
    """Measure images that were changed for a model, or for another one (transfer).

    Args:
        model: maps images to `[batch, classes]`.
        images: `[n, channels, height, width]` in [0, 1].
        changed: the changed images, of the same shape.
        labels: `[n]` true classes.
        eps: the change that was allowed; it is recorded, not checked.

    Returns:
        Accuracy, success and distance of the changed images.

    Raises:
        ArgumentError: for changed images of another shape.
    """
    check_like("changed", changed, images, IMAGE_AXES)
    before = right_answers(model, images, labels)
    after = right_answers(model, changed, labels)
    return _outcome(eps, before, after, changed.cpu() - images.cpu())


def _outcome(eps: float, before: Tensor, after: Tensor, change: Images) -> AttackOutcome:
    """Return the figures of images that were answered rightly before and after a change."""
    turned = before & ~after
    norms = change.flatten(1).norm(dim=1)
    return AttackOutcome(
        eps=float(eps),
        accuracy=proportion(after),
        success=float(turned.sum() / before.sum()) if before.any() else None,
        distance=float(norms[turned].mean()) if turned.any() else None,
    )


@dataclass(frozen=True)
class MaskingCheck:
    """One sign of hidden gradients.

    Attributes:
        name: what ought to hold.
        passed: whether it does; None if it could not be checked.
        text: the figures, in one sentence.
    """

    name: str
    passed: bool | None
    text: str


@dataclass(frozen=True)
class MaskingReport(EvaluationResult):
    """Accuracies under attacks of one strength, and what they say of the gradients.

    All shares are in [0, 1].

    Attributes:
        eps: strength of the attacks, the largest change of a pixel.
        clean: accuracy without attack.
        noise: accuracy under random noise of size eps.
        fgsm: accuracy under one step of FGSM.
        bim: accuracy under many steps (BIM).
        pgd: accuracy under many steps from random starts (PGD).
        transfer: accuracy under PGD images that were made for the surrogate; None without one.
        large: accuracy under PGD of strength `large_eps`.
        large_eps: strength of the large attack.
        loss_eps: ascending strengths.
        losses: mean loss under PGD at each of them.
        silent: share of images whose gradient is exactly zero in every pixel.
    """

    eps: float
    clean: float
    noise: float
    fgsm: float
    bim: float
    pgd: float
    transfer: float | None
    large: float
    large_eps: float
    loss_eps: tuple[float, ...]
    losses: tuple[float, ...]
    silent: float

    derived = ("passed", "verdict")

    @property
    def checks(self) -> tuple[MaskingCheck, ...]:
        """One check for each sign."""
        iterated = max(self.bim, self.pgd)
        falls = [before - after for before, after in pairwise(self.losses)]
        course = " -> ".join(f"{loss:.3g}" for loss in self.losses)
        transfer = "-" if self.transfer is None else f"{self.transfer:.1%}"
        return (
            MaskingCheck(
                "many steps are at least as strong as one",
                iterated <= self.fgsm,
                f"BIM and PGD leave {iterated:.1%}, FGSM {self.fgsm:.1%}.",
            ),
            MaskingCheck(
                "noise is weaker than the attack",
                self.noise >= self.pgd,
                f"Noise of the same size leaves {self.noise:.1%}, PGD {self.pgd:.1%}.",
            ),
            MaskingCheck(
                "a large attack leaves nothing",
                self.large <= NEAR_ZERO,
                f"At eps {self.large_eps:g} PGD leaves {self.large:.1%}.",
            ),
            MaskingCheck(
                "the own gradient is better than another model's",
                None if self.transfer is None else self.pgd <= self.transfer,
                f"PGD leaves {self.pgd:.1%}, images of another model {transfer}.",
            ),
            MaskingCheck(
                "the loss rises with eps",
                max(falls) <= SLACK * max(self.losses),
                f"The mean loss goes {course}.",
            ),
            MaskingCheck(
                "gradients are not zero",
                self.silent <= MAX_SILENT,
                f"{self.silent:.1%} of the images have no gradient at all.",
            ),
        )

    def to_dict(self) -> dict[str, Any]:
        return super().to_dict() | {"checks": [asdict(check) for check in self.checks]}

    @property
    def passed(self) -> bool:
        """Whether no check failed."""
        return all(check.passed is not False for check in self.checks)

    @property
    def verdict(self) -> str:
        """One sentence."""
        if self.passed:
            return "No sign of hidden gradients: the attacks do what attacks do."
        failed = "; ".join(check.name for check in self.checks if check.passed is False)
        return f"Do not quote this robustness: {failed} does not hold, so the attack may be blind."


def masking_report(
    model: nn.Module,
    images: Images,
    labels: Labels,
    *,
    eps: float = 0.1,
    large_eps: float = 1.0,
    steps: int = 10,
    surrogate: nn.Module | None = None,
    loss: Loss = full_margin_loss,
    seed: int = 0,
) -> MaskingReport:
    """Attack a model in the ways that tell robustness from hidden gradients.

    Args:
        model: maps images to `[batch, classes]`.
        images: `[n, channels, height, width]` in [0, 1]; a few hundred are enough.
        labels: `[n]` true classes.
        eps: strength of the attacks, in [0, 1].
        large_eps: strength that must leave nothing, in [eps, 1]; at 1 every image can become any
            other.
        steps: of BIM and PGD, at least 1.
        surrogate: a model trained otherwise. The model must withstand images made for it better than
            those made for itself.
        loss: what the attacks raise.
        seed: of noise and random starts.

    Returns:
        Accuracies under each attack, and six checks with a verdict.

    Raises:
        ArgumentError: for arguments that do not fit, or out of range.
    """
    check_range("large_eps", large_eps, low=eps, high=1)
    options: dict[str, Any] = {"steps": steps, "loss": loss}

    def attack(target: nn.Module, strength: float) -> Tensor:
        return pgd(target, images, labels, strength, seed=seed, **options)

    strengths = tuple(eps * part for part in LOSS_STEPS)
    attacked = [attack(model, strength) for strength in strengths]
    inputs = {
        "clean": images,
        "noise": sign_noise(images, eps, seed=seed),
        "fgsm": fgsm(model, images, labels, eps, loss=loss),
        "bim": bim(model, images, labels, eps, **options),
        "pgd": attacked[-1],
        "large": attack(model, large_eps),
    }
    if surrogate is not None:
        inputs["transfer"] = attack(surrogate, eps)
    accuracies: dict[str, Any] = {"transfer": None}
    for name, changed in inputs.items():
        accuracies[name] = proportion(right_answers(model, changed, labels))

    losses = []
    for changed in (images, *attacked):
        activations = image_activations(model, changed)
        losses.append(float(loss(activations, labels.cpu())))

    gradient = partial(input_gradient, model, loss=loss)
    gradients = attack_batches(model, images, labels, gradient)
    return MaskingReport(
        eps=eps,
        large_eps=large_eps,
        loss_eps=(0.0, *strengths),
        losses=tuple(losses),
        silent=proportion((gradients == 0).flatten(1).all(dim=1)),
        **accuracies,
    )
