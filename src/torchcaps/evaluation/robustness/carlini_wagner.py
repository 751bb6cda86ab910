"""The smallest change that turns the answer, by its L2 norm: the attack that does not ask for an eps.

Nicholas Carlini, David Wagner, "Towards Evaluating the Robustness of Neural Networks", 2017, arXiv 1608.04644.
Michels et al., arXiv 1906.03612, found capsule networks as easily turned by it as CNNs of equal accuracy.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from torchcaps.errors import check_range
from torchcaps.evaluation.base import BATCH, Images, Labels
from torchcaps.evaluation.robustness.attacks import attacked, length_logits

EDGE = 1e-6  # keeps pixels off 0 and 1, where tanh would be infinite


def carlini_wagner(
    model: nn.Module, images: Images, labels: Labels, *, steps: int = 200, searches: int = 6, step_size: float = 0.01,
    confidence: float = 0.0, batch_size: int = BATCH,
) -> Images:  # fmt: skip
    """Minimise `|d|^2 + c max(z_y - max_k z_k, -confidence)` over d, with a search for the smallest c that works.

    z are the logits `atanh(2 |v_k| - 1)` of the activations; `x + d = (tanh w + 1) / 2` keeps pixels in [0, 1].

    Args:
        model: any classifier with activations in [0, 1]; runs in evaluation mode, which is restored.
        images: `[n, channels, height, width]` in [0, 1].
        labels: `[n]` true classes.
        steps: of Adam in each search, at least 1; 200 give norms within a few percent on small networks.
        searches: halvings of c, at least 1.
        step_size: of Adam, above 0.
        confidence: by how much the wrong logit must lead, at least 0.
        batch_size: images at a time.

    Returns:
        Images of the same shape: the nearest that was found to turn the answer, or the image itself where none was.
        `attack_outcome` gives the mean norm.

    Raises:
        ValueError: for arguments that do not fit.
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
            found, norm = _descend(model, x, y, c, steps, step_size, confidence)
            closer = norm < nearest
            best, nearest = torch.where(closer.view(-1, 1, 1, 1), found, best), torch.minimum(nearest, norm)
            turned = norm.isfinite()
            low, high = torch.where(turned, low, c), torch.where(turned, c, high)
            c = torch.where(high.isfinite(), (low + high) / 2, 10 * c)
        return best

    return attacked(model, images, labels, batch_size, search)


def _descend(
    model: nn.Module, x: Tensor, y: Tensor, c: Tensor, steps: int, step_size: float, confidence: float
) -> tuple[Tensor, Tensor]:
    """The nearest image that is turned, `[batch, ...]`, and its distance `[batch]`; infinite where none is."""
    w = torch.atanh(2 * x.clamp(EDGE, 1 - EDGE) - 1).requires_grad_()
    adam = torch.optim.Adam([w], lr=step_size)
    best, nearest = x.clone(), torch.full_like(c, torch.inf)
    for step in range(steps + 1):
        with torch.enable_grad():
            changed = (torch.tanh(w) + 1) / 2
            lead = _lead(model(changed), y)
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


def _lead(activation: Tensor, y: Tensor) -> Tensor:
    """By how much the logit of the true class leads the largest other, `[batch]`."""
    z = length_logits(activation)
    own = z.gather(1, y.unsqueeze(1)).squeeze(1)
    return own - z.scatter(1, y.unsqueeze(1), -torch.inf).amax(dim=1)
