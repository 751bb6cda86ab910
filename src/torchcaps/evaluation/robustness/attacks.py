"""Adversarial images: changes too small to matter to a person that change the model's answer.

FGSM: Ian Goodfellow, Jonathon Shlens, Christian Szegedy, ICLR 2015, arXiv 1412.6572. BIM: Alexey Kurakin, Ian
Goodfellow, Samy Bengio, arXiv 1607.02533. PGD: Aleksander Madry et al., ICLR 2018, arXiv 1706.06083. All bound the
change of each pixel by eps (L-infinity), keep pixels in [0, 1], and raise the loss of the true label. Run
`masking_report` before quoting what they find.
"""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from torchcaps.errors import ArgumentError, check_range
from torchcaps.evaluation.base import BATCH, Images, Labels, Loss, check_labeled, check_labels
from torchcaps.evaluation.forward import batches, eval_mode
from torchcaps.evaluation.routing.layers import swapped_routers
from torchcaps.functional import margin_loss
from torchcaps.nn import Router

SMALLEST = 1e-6
EDGE = 1e-6  # keeps pixels off 0 and 1, where tanh would be infinite


def full_margin_loss(
    activation: Float[Tensor, "batch classes"], labels: Labels
) -> Float[Tensor, ""]:
    """Margin loss with margins 1 and 0: what attacks raise unless told otherwise. With the margins of training, 0.9 and
    0.1, a confident image has a loss of exactly 0, no gradient, and so the look of robustness."""
    return margin_loss(activation, labels, present=1.0, absent=0.0)


def fgsm(
    model: nn.Module,
    images: Images,
    labels: Labels,
    eps: float,
    *,
    loss: Loss | None = None,
    batch_size: int = BATCH,
) -> Images:
    """Fast gradient sign method: one step of size eps, `clip(x + eps sign(dJ/dx))`; images in [0, 1], on the CPU.

    The largest change of a pixel, eps, is in [0, 1]. The loss maps activations `[batch, classes]` and labels `[batch]`
    to a number, by default `full_margin_loss`; a mean or sum over images gives the same images for any batch size.
    Raises ValueError for arguments that do not fit, or a loss without a gradient for the images."""
    return bim(model, images, labels, eps, steps=1, loss=loss, batch_size=batch_size)


def bim(
    model: nn.Module,
    images: Images,
    labels: Labels,
    eps: float,
    *,
    steps: int = 10,
    step_size: float | None = None,
    loss: Loss | None = None,
    batch_size: int = BATCH,
) -> Images:
    """Basic iterative method: `steps` steps of FGSM, each clipped to eps around the image and to [0, 1]. The size of a
    step is by default eps / steps. Raises ValueError as `fgsm`, or for steps below 1 or a step size not above 0."""
    sizes = (eps, _step_size(eps, steps, step_size, eps), steps)
    goal = loss or full_margin_loss
    return _attacked(
        model, images, labels, batch_size, lambda x, y, _: _ascend(model, x, x, y, sizes, goal)
    )


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
    loss: Loss | None = None,
    batch_size: int = BATCH,
) -> Images:
    """Projected gradient descent: BIM from random starts within eps; the worst outcome of each image is kept. Raises
    ValueError as `fgsm`, or for steps, restarts or a step size out of range.

    Args:
        step_size: of one step, above 0; by default 2.5 eps / steps, so that every image within eps is within reach.
        restarts: random starts, at least 1; one that fools the model is kept, else the last.
        seed: of the starts; they do not depend on the batch size or the device.
    """
    check_range("restarts", restarts, low=1)
    sizes = (eps, _step_size(eps, steps, step_size, 2.5 * eps), steps)
    generator = torch.Generator().manual_seed(seed)
    starts = [_uniform(images, eps, generator) for _ in range(restarts)]

    def climb(batch: Tensor, true: Tensor, first: int) -> Tensor:
        best, fooled = batch, torch.zeros(len(batch), dtype=torch.bool, device=batch.device)
        for start in starts:
            noise = start[first : first + len(batch)].to(batch)
            end = _ascend(
                model, batch, (batch + noise).clamp(0, 1), true, sizes, loss or full_margin_loss
            )
            best = torch.where(fooled.view(-1, 1, 1, 1), best, end)
            if restarts > 1:
                with torch.no_grad():
                    fooled = fooled | (model(end).argmax(dim=1) != true)
        return best

    return _attacked(model, images, labels, batch_size, climb)


def vote_attack(
    model: nn.Module, images: Images, labels: Labels, eps: float, **options: Any
) -> Images:
    """PGD on the same model with its routing replaced by uniform couplings: a shorter way for the gradient.

    Jindong Gu, Baoyuan Wu, Volker Tresp, "Effective and Efficient Vote Attack on Capsule Networks", ICLR 2021. A claim
    of robustness by routing has to survive it. Arguments are those of `fgsm`, options those of `pgd`. Raises ValueError
    as `pgd`, or for a model without routed layers.
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
    confidence: float = 0.0,
    batch_size: int = BATCH,
) -> Images:
    """Minimize `|d|^2 + c max(z_y - max_k z_k, -confidence)` over d, with a search for the smallest c that works.

    z are the logits `atanh(2 |v_k| - 1)` of the activations; `x + d = (tanh w + 1) / 2` keeps pixels in [0, 1]. It asks
    for no eps. Each image becomes the nearest that was found to turn the answer, or stays as it is where none was;
    `attack_outcome` gives the mean norm. Nicholas Carlini, David Wagner, "Towards Evaluating the Robustness of Neural
    Networks", 2017, arXiv 1608.04644. Michels et al., arXiv 1906.03612, found capsule networks as easily turned by it
    as CNNs of equal accuracy.

    Args:
        steps: of Adam in each search, at least 1; 200 give norms within a few percent on small networks.
        searches: halvings of c, at least 1.
        step_size: of Adam, above 0.
        confidence: by how much the wrong logit must lead, at least 0.

    ValueError for settings out of range.
    """
    check_range("steps", steps, low=1)
    check_range("searches", searches, low=1)
    check_range("step_size", step_size, low=1e-9)
    check_range("confidence", confidence, low=0)

    def search(x: Tensor, y: Tensor, _: int) -> Tensor:
        best, nearest = x.clone(), torch.full((len(x),), torch.inf, device=x.device)
        low, high = torch.zeros_like(nearest), torch.full_like(nearest, torch.inf)
        c = torch.ones_like(nearest)
        for _ in range(searches):
            nearer, norm = _descend(model, x, y, c, steps, step_size, confidence)
            closer = norm < nearest
            best = torch.where(closer.view(-1, 1, 1, 1), nearer, best)
            nearest = torch.minimum(nearest, norm)
            turned = norm.isfinite()
            low = torch.where(turned, low, c)
            high = torch.where(turned, c, high)
            c = torch.where(high.isfinite(), (low + high) / 2, 10 * c)
        return best

    return _attacked(model, images, labels, batch_size, search)


def _descend(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    c: Tensor,
    steps: int,
    step_size: float,
    confidence: float,
) -> tuple[Tensor, Tensor]:
    """The nearest image that is turned, `[batch, ...]`, and its distance `[batch]`; infinite where none is."""
    w = torch.atanh(2 * x.clamp(EDGE, 1 - EDGE) - 1).requires_grad_()
    adam = torch.optim.Adam([w], lr=step_size)
    best, nearest = x.clone(), torch.full_like(c, torch.inf)
    for step in range(steps + 1):
        with torch.enable_grad():
            changed = (torch.tanh(w) + 1) / 2
            # atanh(2 |v| - 1), of lengths kept a millionth off 0 and 1
            z, own = torch.logit(model(changed).float(), eps=SMALLEST) / 2, y.unsqueeze(1)
            lead = (
                z.gather(1, own) - z.scatter(1, own, -torch.inf).amax(dim=1, keepdim=True)
            ).squeeze(1)
            square = (changed - x).square().flatten(1).sum(dim=1)
            loss = (square + c * lead.clamp(min=-confidence)).sum()
        with torch.no_grad():
            norm = torch.where((lead < 0) & (lead <= -confidence), square.sqrt(), torch.inf)
            best = torch.where((norm < nearest).view(-1, 1, 1, 1), changed, best)
            nearest = torch.minimum(nearest, norm)
        if step < steps:
            (w.grad,) = torch.autograd.grad(loss, w)
            adam.step()
    return best.detach(), nearest


def sign_noise(images: Images, eps: float, *, seed: int = 0) -> Images:
    """Every pixel up or down by eps at random, then clipped to [0, 1]: as large as an attack, without its aim. Raises
    ValueError for eps outside [0, 1]."""
    check_range("eps", eps, low=0, high=1)
    signs = _uniform(images, 1.0, torch.Generator().manual_seed(seed)).sign()
    return (images + eps * signs.to(images)).clamp(0, 1)


def input_gradient(model: nn.Module, images: Tensor, labels: Tensor, loss: Loss) -> Images:
    """The gradient of the loss by the pixels of a batch on the model's device. Raises ValueError if the loss does not
    depend on the images by way of autograd."""
    with torch.enable_grad():
        x = images.detach().clone().requires_grad_()
        value = loss(model(x), labels)
        if not value.requires_grad:
            raise ArgumentError(
                "loss", "expected a value with a gradient by the images, got one without"
            )
        (gradient,) = torch.autograd.grad(value, x, allow_unused=True)
    return torch.zeros_like(x) if gradient is None else gradient


def _step_size(eps: float, steps: int, step_size: float | None, distance: float) -> float:
    """The size of a step, by default so that the steps together go the whole distance."""
    check_range("eps", eps, low=0, high=1)
    check_range("steps", steps, low=1)
    size = distance / steps if step_size is None else step_size
    if not (size > 0 or eps == 0):
        raise ArgumentError("step_size", f"expected above 0, got {size}")
    return size


def _ascend(
    model: nn.Module,
    center: Tensor,
    x: Tensor,
    labels: Tensor,
    sizes: tuple[float, float, int],
    loss: Loss,
) -> Tensor:
    eps, size, steps = sizes
    low, high = (center - eps).clamp(min=0), (center + eps).clamp(max=1)
    for _ in range(steps):
        x = (x + size * input_gradient(model, x, labels, loss).sign()).clamp(low, high)
    return x.detach()


def _attacked(
    model: nn.Module,
    images: Images,
    labels: Labels,
    batch_size: int,
    climb: Callable[[Tensor, Tensor, int], Tensor],
) -> Images:
    """`climb(images, labels, index of the first)` of each batch on the model's device, joined on the CPU."""
    check_labeled(images, labels)
    parts, first = list[Tensor](), 0
    with eval_mode(model):
        for batch, true in batches(model, images, labels, batch_size=batch_size):
            if not parts:
                with torch.no_grad():
                    check_labels(labels, model(batch[:1]).shape[1])
            parts.append(climb(batch, true, first).cpu())
            first += len(batch)
    return torch.cat(parts)


def _uniform(images: Tensor, eps: float, generator: torch.Generator) -> Tensor:
    return (2 * torch.rand(images.shape, generator=generator) - 1) * eps
