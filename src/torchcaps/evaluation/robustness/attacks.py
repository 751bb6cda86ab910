"""Adversarial images: changes too small to matter to a person that change the model's answer.

FGSM: Ian Goodfellow, Jonathon Shlens, Christian Szegedy, ICLR 2015, arXiv 1412.6572. BIM: Alexey
Kurakin, Ian Goodfellow, Samy Bengio, arXiv 1607.02533. PGD: Aleksander Madry et al., ICLR 2018,
arXiv 1706.06083. All bound the change of each pixel by eps (L-infinity), keep pixels in [0, 1],
and raise the loss of the true label. Run `masking_report` before quoting their figures.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from torchcaps.errors import ArgumentError, check_positive, check_range
from torchcaps.evaluation.base import BATCH, Images, Labels, Loss, check_labeled, check_labels
from torchcaps.evaluation.forward import batches, eval_mode, image_activations
from torchcaps.evaluation.routing.layers import swapped_routers
from torchcaps.functional import margin_loss
from torchcaps.nn import Router

EDGE = 1e-6  # keeps lengths and pixels off 0 and 1, where logit and atanh would be infinite
MIN_STEP_SIZE = 1e-9


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
    return margin_loss(activation, labels, present=1.0, absent=0.0)


def fgsm(
    model: nn.Module,
    images: Images,
    labels: Labels,
    eps: float,
    **options: Any,
) -> Images:
    """Fast gradient sign method: one step of size eps, `clip(x + eps sign(dJ/dx))`.

    Args:
        model: maps images to `[batch, classes]`.
        images: `[n, channels, height, width]` in [0, 1].
        labels: `[n]` true classes.
        eps: largest change of a pixel, in [0, 1].
        **options: `loss` and `batch_size` of `bim`.

    Returns:
        The changed images, on the CPU.

    Raises:
        ArgumentError: as `bim`.
    """
    return bim(model, images, labels, eps, steps=1, **options)


def bim(
    model: nn.Module,
    images: Images,
    labels: Labels,
    eps: float,
    *,
    steps: int = 10,
    step_size: float | None = None,
    loss: Loss = full_margin_loss,
    batch_size: int = BATCH,
) -> Images:
    """Basic iterative method: steps of FGSM, each clipped to eps around the image and to [0, 1].

    Args:
        model: maps images to `[batch, classes]`.
        images: `[n, channels, height, width]` in [0, 1].
        labels: `[n]` true classes.
        eps: largest change of a pixel, in [0, 1].
        steps: number of steps, at least 1.
        step_size: size of one, above 0; by default eps / steps.
        loss: what to raise. A mean and a sum over images give the same images.
        batch_size: images at a time; it changes no image.

    Returns:
        The changed images, on the CPU.

    Raises:
        ArgumentError: for arguments that do not fit, a loss without a gradient for the images, or
            steps or a step size out of range.
    """
    options = (steps, step_size, loss, batch_size)
    return _climb(model, images, labels, [images], eps, eps, *options)


def pgd(
    model: nn.Module,
    images: Images,
    labels: Labels,
    eps: float,
    *,
    steps: int = 10,
    step_size: float | None = None,
    restarts: int = 1,
    seed: int = 0,
    loss: Loss = full_margin_loss,
    batch_size: int = BATCH,
) -> Images:
    """Projected gradient descent: BIM from random starts within eps.

    Args:
        model: maps images to `[batch, classes]`.
        images: `[n, channels, height, width]` in [0, 1].
        labels: `[n]` true classes.
        eps: largest change of a pixel, in [0, 1].
        steps: number of steps, at least 1.
        step_size: size of one, above 0; by default 2.5 eps / steps, so that every image within eps
            is within reach.
        restarts: random starts, at least 1; the first outcome that fools the model is kept, else
            the last.
        seed: of the starts; they do not depend on the batch size or the device.
        loss: what to raise, as for `bim`.
        batch_size: images at a time.

    Returns:
        The changed images, on the CPU.

    Raises:
        ArgumentError: as `bim`, or for restarts out of range.
    """
    check_positive(restarts=restarts)
    generator = torch.Generator().manual_seed(seed)
    starts = [(images + _uniform(images, eps, generator)).clamp(0, 1) for _ in range(restarts)]
    options = (steps, step_size, loss, batch_size)
    return _climb(model, images, labels, starts, eps, 2.5 * eps, *options)


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
    step_size: float = 0.01,
    batch_size: int = BATCH,
) -> Images:
    """Minimize `|d|^2 + c max(z_y - max_k z_k, 0)` over d, with a search for the smallest c.

    z are the logits `atanh(2 |v_k| - 1)` of the activations; `x + d = (tanh w + 1) / 2` keeps
    pixels in [0, 1]. There is no eps: each image becomes the nearest one with another answer, or
    stays as it is where none was met; `attack_outcome` gives the mean norm. Nicholas Carlini,
    David Wagner, "Towards Evaluating the Robustness of Neural Networks", 2017, arXiv 1608.04644.
    Michels et al., arXiv 1906.03612, report capsule networks as easily turned by it as CNNs of
    equal accuracy.

    Args:
        model: maps images to `[batch, classes]` in [0, 1].
        images: `[n, channels, height, width]` in [0, 1].
        labels: `[n]` true classes.
        steps: of Adam in each search, at least 1; 200 give norms within a few percent on small
            networks.
        searches: halvings of c, at least 1.
        step_size: of Adam, above 0.
        batch_size: images at a time.

    Returns:
        The changed images, on the CPU.

    Raises:
        ArgumentError: for arguments that do not fit, or out of range.
    """
    check_positive(steps=steps, searches=searches)
    check_range("step_size", step_size, low=MIN_STEP_SIZE)

    def search(x: Tensor, y: Tensor) -> Tensor:
        nearest = x.clone()
        distance = torch.full((len(x),), torch.inf, device=x.device)
        low = torch.zeros_like(distance)
        high = torch.full_like(distance, torch.inf)
        c = torch.ones_like(distance)
        for _ in range(searches):
            candidate, norm = _minimize(model, x, y, c, steps, step_size)
            nearest = torch.where(_by_image(norm < distance), candidate, nearest)
            distance = torch.minimum(distance, norm)
            is_turned = norm.isfinite()
            low = torch.where(is_turned, low, c)
            high = torch.where(is_turned, c, high)
            c = torch.where(high.isfinite(), (low + high) / 2, 10 * c)
        return nearest

    return attack_batches(model, images, labels, search, batch_size)


def _minimize(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    c: Tensor,
    steps: int,
    step_size: float,
) -> tuple[Tensor, Tensor]:
    """Minimize the objective of Carlini and Wagner for one c of each image.

    Returns:
        The nearest images with another answer, and their distances `[batch]`; infinite without one.
    """
    w = torch.atanh(2 * x.clamp(EDGE, 1 - EDGE) - 1).requires_grad_()
    adam = torch.optim.Adam([w], lr=step_size)
    nearest = x.clone()
    distance = torch.full_like(c, torch.inf)
    label_index = y.unsqueeze(1)
    for step in range(steps + 1):
        with torch.enable_grad():
            changed = (torch.tanh(w) + 1) / 2
            z = torch.logit(model(changed).float(), eps=EDGE) / 2  # atanh(2 |v| - 1)
            rival = z.scatter(1, label_index, -torch.inf).amax(dim=1, keepdim=True)
            lead = (z.gather(1, label_index) - rival).squeeze(1)
            square = (changed - x).square().flatten(1).sum(dim=1)
            loss = (square + c * lead.clamp(min=0)).sum()
        with torch.no_grad():
            norm = torch.where(lead < 0, square.sqrt(), torch.inf)
            nearest = torch.where(_by_image(norm < distance), changed, nearest)
            distance = torch.minimum(distance, norm)
        if step < steps:
            (w.grad,) = torch.autograd.grad(loss, w)
            adam.step()
    return nearest.detach(), distance


def sign_noise(images: Images, eps: float, *, seed: int = 0) -> Images:
    """Move every pixel up or down by eps at random: as large as an attack, without its aim.

    Args:
        images: `[n, channels, height, width]` in [0, 1].
        eps: change of each pixel, in [0, 1]; the pixels are clipped to [0, 1].
        seed: of the signs.

    Returns:
        The changed images.

    Raises:
        ArgumentError: for eps out of range.
    """
    check_range("eps", eps, low=0, high=1)
    signs = _uniform(images, 1.0, torch.Generator().manual_seed(seed)).sign()
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
    batch_size: int = BATCH,
) -> Images:
    """Attack a batch at a time on the model's device, and join the images on the CPU.

    Args:
        model: maps images to `[batch, classes]`.
        images: `[n, channels, height, width]` in [0, 1].
        labels: `[n]` true classes.
        attack: maps images and labels of a batch to changed images.
        batch_size: images at a time.

    Raises:
        ArgumentError: for images or labels that do not fit.
    """
    check_labeled(images, labels)
    check_labels(labels, image_activations(model, images[:1]).shape[1])
    with eval_mode(model):
        pairs = batches(model, images, labels, batch_size=batch_size)
        return torch.cat([attack(*pair).cpu() for pair in pairs])


def _climb(
    model: nn.Module,
    images: Images,
    labels: Labels,
    starts: Sequence[Images],
    eps: float,
    distance: float,
    steps: int,
    step_size: float | None,
    loss: Loss,
    batch_size: int,
) -> Images:
    """Raise the loss step by step, from one start after the other.

    All steps together go the distance, unless the size of one is given.
    """
    check_range("eps", eps, low=0, high=1)
    check_positive(steps=steps, batch_size=batch_size)
    if step_size is None:
        step_size = distance / steps
    else:
        check_range("step_size", step_size, low=MIN_STEP_SIZE)
    parts = zip(*(start.split(batch_size) for start in starts), strict=True)

    def climb(batch: Tensor, labels: Tensor) -> Tensor:
        low = (batch - eps).clamp(min=0)
        high = (batch + eps).clamp(max=1)
        changed = batch
        is_fooled = torch.zeros(len(batch), dtype=torch.bool, device=batch.device)
        for start in next(parts):
            x = start.to(batch)
            for _ in range(steps):
                x = (x + step_size * input_gradient(model, x, labels, loss).sign()).clamp(low, high)
            changed = torch.where(_by_image(is_fooled), changed, x)
            if len(starts) > 1:
                with torch.no_grad():
                    is_fooled = is_fooled | (model(x).argmax(dim=1) != labels)
        return changed.detach()

    return attack_batches(model, images, labels, climb, batch_size)


def _by_image(flags: Bool[Tensor, " batch"]) -> Bool[Tensor, "batch 1 1 1"]:
    return flags.view(-1, 1, 1, 1)


def _uniform(images: Images, eps: float, generator: torch.Generator) -> Images:
    return ((2 * torch.rand(images.shape, generator=generator) - 1) * eps).to(images)
