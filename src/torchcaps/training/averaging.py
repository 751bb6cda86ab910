"""An exponential moving average of the weights of a model, which the setting `ema` asks for.

`torch.optim.swa_utils.AveragedModel` is not used: it copies the whole module, which a model with
hooks or cached tensors may not survive, and its average begins at the first weights.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class WeightAverage:
    """Average of the weights w_s after s updates, with the decay d.

    After t updates it is `sum_s d^(t - s) w_s / sum_s d^(t - s)`, s from 1 to t. The divisor is
    Adam's correction of the bias (arXiv 1412.6980, section 3): the weights before the training have
    no part in the average.

    Buffers of floating point, such as the running statistics of batch norms, are averaged like
    weights, so that they fit the averaged weights. Other buffers, such as counters, are copied.

    Args:
        model: whose weights are averaged.
        decay: d, in (0, 1).

    Attributes:
        weights: the average, by the names of the model's state.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.model = model
        self.decay = decay
        self.weights = _copy_state(model)

    @torch.no_grad()
    def update(self, num_updates: int) -> None:
        """Take the weights of now into the average.

        Args:
            num_updates: of the weights so far, this one among them: t.
        """
        share = (1 - self.decay) / (1 - self.decay**num_updates)  # of the newest weights
        for name, tensor in self.model.state_dict().items():
            if tensor.is_floating_point():
                self.weights[name].lerp_(tensor, share)
            else:
                self.weights[name].copy_(tensor)

    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Go on from another average, such as that of a checkpoint.

        Args:
            weights: by the names of the model's state; KeyError where one is missing.
        """
        for name, tensor in self.weights.items():
            tensor.copy_(weights[name])

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The average is the state of the model while the block runs."""
        trained = _copy_state(self.model)
        self.model.load_state_dict(self.weights)
        try:
            yield
        finally:
            self.model.load_state_dict(trained)


def _copy_state(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
