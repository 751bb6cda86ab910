"""Adversarial images: changes too small to matter to a person that change the model's answer.

FGSM: Ian Goodfellow, Jonathon Shlens, Christian Szegedy, ICLR 2015, arXiv 1412.6572. BIM: Alexey
Kurakin, Ian Goodfellow, Samy Bengio, arXiv 1607.02533. PGD: Aleksander Madry et al., ICLR 2018,
arXiv 1706.06083. All bound the change of each pixel by eps (L-infinity), keep pixels in [0, 1],
and raise the loss of the true label.

An attack that fails says nothing while its gradients are zero or point nowhere. Anish Athalye,
Nicholas Carlini, David Wagner, "Obfuscated Gradients Give a False Sense of Security", ICML 2018,
arXiv 1802.00420, list the signs. `masking_report` checks them; do not quote a figure of robustness
while one of its checks fails.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, Literal, TypedDict

import torch
from jaxtyping import Float
from torch import Tensor, nn

from torchcaps.errors import ArgumentError, check_known, check_positive, check_range
from torchcaps.evaluation.base import (
    EvaluationResult,
    Images,
    Labels,
    Loss,
    Series,
    batches,
    check_labeled,
    check_labels,
    eval_mode,
    image_activations,
    proportion,
    right_answers,
)
from torchcaps.evaluation.routing.layers import swapped_routers
from torchcaps.functional.losses import margin_penalty
from torchcaps.nn import Router

EDGE = 1e-6  # keeps lengths and pixels off 0 and 1, where logit and atanh would be infinite
STEP_SIZE = 0.01  # of Adam
NEAR_ZERO = 0.05  # accuracy that counts as none
MAX_SILENT = 0.01  # share of images without any gradient that passes
SLACK = 0.01  # of the largest loss: by how much it may fall from one eps to the next
LOSS_STEPS = (0.25, 0.5, 0.75, 1.0)  # of eps, at which the loss is measured


def full_margin_loss(
    activation: Float[Tensor, "batch classes"],
    labels: Labels,
) -> Float[Tensor, ""]:
    """Margin loss with margins 1 and 0, which attacks raise by default.

    With the margins of training, 0.9 and 0.1, a confident image has a loss of exactly 0, no
    gradient, and so the look of robustness.

    Args:
        activation: `[batch, classes]` in [0, 1].
        labels: `[batch]` true classes.

    Returns:
        The mean over the batch.
    """
    return margin_penalty(activation, labels, present=1.0, absent=0.0)


def fgsm(
    model: nn.Module,
    images: Images,
    labels: Labels,
    eps: float,
    *,
    loss: Loss = full_margin_loss,
) -> Images:
    """Fast gradient sign method: one step of size eps, `clip(x + eps sign(dJ/dx))`.

    Args:
        model: maps images to `[batch, classes]`.
        images: `[n, channels, height, width]` in [0, 1].
        labels: `[n]` true classes.
        eps: largest change of a pixel, in [0, 1].
        loss: what to raise, as for `bim`.

    Returns:
        The changed images, on the CPU.

    Raises:
        ArgumentError: as `bim`.
    """
    return bim(model, images, labels, eps, steps=1, loss=loss)


def bim(
    model: nn.Module,
    images: Images,
    labels: Labels,
    eps: float,
    *,
    steps: int = 10,
    loss: Loss = full_margin_loss,
) -> Images:
    """Basic iterative method: steps of FGSM, each clipped to eps around the image and to [0, 1].

    Args:
        model: maps images to `[batch, classes]`.
        images: `[n, channels, height, width]` in [0, 1].
        labels: `[n]` true classes.
        eps: largest change of a pixel, in [0, 1].
        steps: number of steps of size eps / steps, at least 1.
        loss: what to raise. A mean and a sum over images give the same images.

    Returns:
        The changed images, on the CPU.

    Raises:
        ArgumentError: for arguments that do not fit, a loss without a gradient for the images, or
            steps out of range.
    """
    return pgd(model, images, labels, eps, steps=steps, seed=None, loss=loss)


def pgd(
    model: nn.Module,
    images: Images,
    labels: Labels,
    eps: float,
    *,
    steps: int = 10,
    seed: int | None = 0,
    loss: Loss = full_margin_loss,
) -> Images:
    """Projected gradient descent: BIM from a random start within eps.

    A step is 2.5 eps / steps, so that every image within eps is within reach.

    Args:
        model: maps images to `[batch, classes]`.
        images: `[n, channels, height, width]` in [0, 1].
        labels: `[n]` true classes.
        eps: largest change of a pixel, in [0, 1].
        steps: number of steps, at least 1.
        seed: of the starts, which do not depend on the device; None for those of `bim`.
        loss: what to raise, as for `bim`.

    Returns:
        The changed images, on the CPU.

    Raises:
        ArgumentError: as `bim`.
    """
    check_range("eps", eps, low=0, high=1)
    check_positive(steps=steps)
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    distance = eps if generator is None else 2.5 * eps

    def climb(batch: Tensor, labels: Tensor) -> Tensor:
        low = (batch - eps).clamp(min=0)
        high = (batch + eps).clamp(max=1)
        x = batch
        if generator is not None:
            x = (x + _uniform(x, eps, generator)).clamp(0, 1)
        for _ in range(steps):
            gradient = input_gradient(model, x, labels, loss)
            x = (x + distance / steps * gradient.sign()).clamp(low, high)
        return x

    return attack_batches(model, images, labels, climb)


def vote_attack(
    model: nn.Module,
    images: Images,
    labels: Labels,
    eps: float,
    **options: Any,
) -> Images:
    """PGD on the same model with uniform couplings: a shorter way for the gradient.

    Jindong Gu, Baoyuan Wu, Volker Tresp, "Effective and Efficient Vote Attack on Capsule
    Networks", ICLR 2021. A claim of robustness by routing has to survive it.

    Args:
        model: a model with routed layers.
        images: `[n, channels, height, width]` in [0, 1].
        labels: `[n]` true classes.
        eps: largest change of a pixel, in [0, 1].
        **options: those of `pgd`.

    Returns:
        The changed images, on the CPU.

    Raises:
        ArgumentError: as `pgd`, or for a model without routed layers.
    """
    with swapped_routers(model, Router.uniform):
        return pgd(model, images, labels, eps, **options)


def carlini_wagner(
    model: nn.Module,
    images: Images,
    labels: Labels,
    *,
    steps: int = 200,
    searches: int = 6,
) -> Images:
    """Minimize `|d|^2 + c max(z_y - max_k z_k, 0)` over d, with a search for the smallest c.

    z are the logits `atanh(2 |v_k| - 1)` of the activations; `x + d = (tanh w + 1) / 2` keeps
    pixels in [0, 1]. There is no eps: each image becomes the nearest one with another answer, or
    stays as it is where none was met. Nicholas Carlini, David Wagner, "Towards Evaluating the
    Robustness of Neural Networks", 2017, arXiv 1608.04644. Michels et al., arXiv 1906.03612, report
    capsule networks as easily turned by it as CNNs of equal accuracy.

    Args:
        model: maps images to `[batch, classes]` in [0, 1].
        images: `[n, channels, height, width]` in [0, 1].
        labels: `[n]` true classes.
        steps: of Adam in each search, at least 1; 200 give norms within a few percent on small
            networks.
        searches: halvings of c, at least 1.

    Returns:
        The changed images, on the CPU.

    Raises:
        ArgumentError: for arguments that do not fit, or out of range.
    """
    check_positive(steps=steps, searches=searches)

    def search(x: Tensor, y: Tensor) -> Tensor:
        label_index = y.unsqueeze(1)
        nearest = x.clone()
        distance = torch.full((len(x),), torch.inf, device=x.device)
        low = torch.zeros_like(distance)
        high = torch.full_like(distance, torch.inf)
        c = torch.ones_like(distance)
        for _ in range(searches):
            w = torch.atanh(2 * x.clamp(EDGE, 1 - EDGE) - 1).requires_grad_()
            adam = torch.optim.Adam([w], lr=STEP_SIZE)
            is_turned = torch.zeros_like(y, dtype=torch.bool)
            for step in range(steps + 1):
                with torch.enable_grad():
                    changed = (torch.tanh(w) + 1) / 2
                    square = (changed - x).square().flatten(1).sum(dim=1)
                    # The logit of each image's label, less the largest of another class.
                    z = torch.logit(model(changed).float(), eps=EDGE) / 2  # atanh(2 |v| - 1)
                    rival = z.scatter(1, label_index, -torch.inf).amax(dim=1, keepdim=True)
                    lead = (z.gather(1, label_index) - rival).squeeze(1)
                    loss = (square + c * lead.clamp(min=0)).sum()
                norm = torch.where(lead < 0, square.sqrt(), torch.inf).detach()
                nearest = torch.where(
                    (norm < distance).view(-1, 1, 1, 1), changed, nearest
                ).detach()
                distance = torch.minimum(distance, norm)
                is_turned |= lead < 0
                if step < steps:
                    (w.grad,) = torch.autograd.grad(loss, w)
                    adam.step()
            low = torch.where(is_turned, low, c)
            high = torch.where(is_turned, c, high)
            c = torch.where(high.isfinite(), (low + high) / 2, 10 * c)
        return nearest

    return attack_batches(model, images, labels, search)


def sign_noise(images: Images, eps: float) -> Images:
    """Move every pixel up or down by eps at random: as large as an attack, without its aim.

    Args:
        images: `[n, channels, height, width]` in [0, 1].
        eps: change of each pixel, in [0, 1]; the pixels are clipped to [0, 1].

    Returns:
        The changed images.

    Raises:
        ArgumentError: for eps out of range.
    """
    check_range("eps", eps, low=0, high=1)
    signs = _uniform(images, 1.0, torch.Generator().manual_seed(0)).sign()
    return (images + eps * signs).clamp(0, 1)


def input_gradient(model: nn.Module, images: Tensor, labels: Tensor, loss: Loss) -> Images:
    """Return the gradient of the loss by the pixels of a batch on the model's device.

    Raises:
        ArgumentError: if the loss does not depend on the images by way of autograd.
    """
    with torch.enable_grad():
        x = images.detach().clone().requires_grad_()
        objective = loss(model(x), labels)
        if not objective.requires_grad:
            raise ArgumentError(
                "loss", "expected a value with a gradient by the images, got one without"
            )
        (gradient,) = torch.autograd.grad(objective, x, materialize_grads=True)
    return gradient


def attack_batches(
    model: nn.Module,
    images: Images,
    labels: Labels,
    attack: Callable[[Tensor, Tensor], Tensor],
) -> Images:
    """Attack a batch at a time on the model's device, and join the images on the CPU.

    Args:
        model: maps images to `[batch, classes]`.
        images: `[n, channels, height, width]` in [0, 1].
        labels: `[n]` true classes.
        attack: maps images and labels of a batch to changed images.

    Raises:
        ArgumentError: for images or labels that do not fit.
    """
    check_labeled(images, labels)
    check_labels(labels, image_activations(model, images[:1]).shape[1])
    with eval_mode(model):
        return torch.cat([attack(x, y).cpu() for x, y in batches(model, images, labels)])


def _uniform(images: Images, eps: float, generator: torch.Generator) -> Images:
    return ((2 * torch.rand(images.shape, generator=generator) - 1) * eps).to(images)


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
    before = right_answers(model, images, labels)
    outcomes = []
    for strength in eps:
        changed = METHODS[attack](model, images, labels, strength, **options)
        after = right_answers(model, changed, labels)
        turned = before & ~after
        norms = (changed.cpu() - images.cpu()).flatten(1).norm(dim=1)[turned]
        outcomes.append(
            AttackOutcome(
                eps=float(strength),
                accuracy=proportion(after),
                success=float(turned.sum() / before.sum()) if before.any() else None,
                distance=float(norms.mean()) if turned.any() else None,
            )
        )
    mean = sum(outcome.accuracy for outcome in outcomes) / len(outcomes)
    return AttackSweep(attack, proportion(before), len(images), tuple(outcomes), mean)


class MaskingCheck(TypedDict):
    """One sign of hidden gradients.

    Attributes:
        name: what ought to hold.
        passed: whether it does.
        text: the figures, in one sentence.
    """

    name: str
    passed: bool
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
        large: accuracy under PGD of strength 1, at which every image can become any other.
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
    large: float
    loss_eps: Series
    losses: Series
    silent: float

    derived = ("passed", "verdict", "checks")

    @property
    def checks(self) -> list[MaskingCheck]:
        """One check for each sign."""
        iterated = max(self.bim, self.pgd)
        falls = [before - after for before, after in pairwise(self.losses)]
        course = " -> ".join(f"{loss:.3g}" for loss in self.losses)
        checks = (
            (
                "many steps are at least as strong as one",
                iterated <= self.fgsm,
                f"BIM and PGD leave {iterated:.1%}, FGSM {self.fgsm:.1%}.",
            ),
            (
                "noise is weaker than the attack",
                self.noise >= self.pgd,
                f"Noise of the same size leaves {self.noise:.1%}, PGD {self.pgd:.1%}.",
            ),
            (
                "a large attack leaves nothing",
                self.large <= NEAR_ZERO,
                f"At eps 1 PGD leaves {self.large:.1%}.",
            ),
            (
                "the loss rises with eps",
                max(falls) <= SLACK * max(self.losses),
                f"The mean loss goes {course}.",
            ),
            (
                "gradients are not zero",
                self.silent <= MAX_SILENT,
                f"{self.silent:.1%} of the images have no gradient at all.",
            ),
        )
        return [MaskingCheck(name=name, passed=passed, text=text) for name, passed, text in checks]

    @property
    def passed(self) -> bool:
        """Whether no check failed."""
        return all(check["passed"] for check in self.checks)

    @property
    def verdict(self) -> str:
        """One sentence."""
        if self.passed:
            return "No sign of hidden gradients: the attacks do what attacks do."
        failed = "; ".join(check["name"] for check in self.checks if not check["passed"])
        return f"Do not quote this robustness: {failed} does not hold, so the attack may be blind."


def masking_report(
    model: nn.Module,
    images: Images,
    labels: Labels,
    *,
    eps: float = 0.1,
    steps: int = 10,
) -> MaskingReport:
    """Attack a model in the ways that tell robustness from hidden gradients.

    Args:
        model: maps images to `[batch, classes]`.
        images: `[n, channels, height, width]` in [0, 1]; a few hundred are enough.
        labels: `[n]` true classes.
        eps: strength of the attacks, in [0, 1].
        steps: of BIM and PGD, at least 1.

    Returns:
        Accuracies under each attack, and five checks with a verdict.

    Raises:
        ArgumentError: for arguments that do not fit, or out of range.
    """
    strengths = tuple(eps * part for part in LOSS_STEPS)
    attacked = [pgd(model, images, labels, strength, steps=steps) for strength in strengths]
    inputs = {
        "clean": images,
        "noise": sign_noise(images, eps),
        "fgsm": fgsm(model, images, labels, eps),
        "bim": bim(model, images, labels, eps, steps=steps),
        "pgd": attacked[-1],
        "large": pgd(model, images, labels, 1.0, steps=steps),
    }
    accuracies = {
        name: proportion(right_answers(model, changed, labels)) for name, changed in inputs.items()
    }
    gradients = attack_batches(
        model, images, labels, partial(input_gradient, model, loss=full_margin_loss)
    )
    return MaskingReport(
        eps=eps,
        loss_eps=(0.0, *strengths),
        losses=tuple(
            float(full_margin_loss(image_activations(model, changed), labels.cpu()))
            for changed in (images, *attacked)
        ),
        silent=proportion((gradients == 0).flatten(1).all(dim=1)),
        **accuracies,
    )
