"""Weights in half precision or in whole numbers, which are widened when the model runs."""

import math
from copy import deepcopy

import torch
from torch import Tensor, nn

from torchcaps.errors import ArgumentError
from torchcaps.nn import RoutedLayer
from torchcaps.types import Tensors

HIGHEST = 127  # of the whole numbers; the lowest is its negative


class StoredWeights(nn.Module):
    """A model whose weights are stored in fewer bits; it computes in float32.

    Args:
        model: is not changed.
        half_limit: store weights of more numbers than this in float16; None stores none so.
        int8: store the matrices of capsule layers as whole numbers, with one scale for the matrix
            of each child and parent.

    Raises:
        ArgumentError: a weight is outside of the range of float16, or int8 without capsule layers.
    """

    def __init__(self, model: nn.Module, half_limit: int | None, int8: bool) -> None:
        super().__init__()
        self._model = (model,)  # not a part: its own weights are not stored
        capsule_weights = set()
        for prefix, module in model.named_modules():
            if int8 and isinstance(module, RoutedLayer):
                for name, matrices in module.named_parameters(prefix):
                    if matrices.dim() > 2:
                        capsule_weights.add(name)
        if int8 and not capsule_weights:
            raise ArgumentError("int8", "expected a model with layers of capsules, got none")
        smallest = math.inf if half_limit is None else half_limit
        weights = dict(model.named_parameters()) | dict(model.named_buffers())
        self._names = list(weights)
        for name, weight in weights.items():
            weight = weight.detach()
            key = name.replace(".", "/")
            if name in capsule_weights:
                scale = weight.abs().amax(dim=(-2, -1), keepdim=True).clamp(min=1e-30) / HIGHEST
                weight = (weight / scale).round().to(torch.int8)
                self.register_buffer(f"{key}/scale", scale)
            elif weight.numel() > smallest and weight.dtype == torch.float32:
                weight = weight.half()
                if not weight.isfinite().all():
                    raise ArgumentError("half", f"expected weights below 65,520, got more: {name}")
            self.register_buffer(key, weight)

    def forward(self, images: Tensor) -> Tensor:
        return torch.func.functional_call(self._model[0], self._weights(), (images,))

    def widened(self) -> nn.Module:
        """A copy of the model with the weights that are stored, in float32."""
        model = deepcopy(self._model[0])
        model.load_state_dict(self._weights(), strict=False)  # buffers that no file keeps stay
        return model

    def _weights(self) -> Tensors:
        """In float32, by their names in the model."""
        weights = {}
        for name in self._names:
            key = name.replace(".", "/")
            weight = self.get_buffer(key)
            if weight.dtype == torch.int8:
                scale = self.get_buffer(f"{key}/scale")
                weight = weight.to(scale.dtype) * scale
            weights[name] = weight.float() if weight.dtype == torch.float16 else weight
        return weights
