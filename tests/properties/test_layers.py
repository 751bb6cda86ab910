"""Every layer with every registered router passes the checks that ship with the library."""

import pytest
import torch

from torchcaps import Capsules, testing
from torchcaps.nn import CapsuleLinear, PrimaryCaps
from torchcaps.testing import PropertyError, check_module, check_module_gradients, random_capsules

from .variants import LIBRARY_ROUTERS, MILDER, ROUTERS

CHILDREN = random_capsules(3, 6, 4)
ALL_ROUTERS = pytest.mark.parametrize(("name", "options"), ROUTERS)


def make_small_layer(name, **options):
    return CapsuleLinear(3, 2, 3, 2, name, init_std=1.0, **options)


@ALL_ROUTERS
def test_capsule_linear(name, options):
    check_module(CapsuleLinear(6, 4, 5, 3, name, **MILDER.get(name, {}), **options), CHILDREN)


@pytest.mark.parametrize("name", LIBRARY_ROUTERS)
def test_a_layer_with_a_bias(name):
    layer = CapsuleLinear(
        6,
        4,
        5,
        3,
        name,
        bias=True,
        **MILDER.get(name, {}),
    )
    check_module(layer, CHILDREN)
    check_module_gradients(make_small_layer(name, bias=True), random_capsules(2, 3, 2))


def test_primary_capsules():
    layer = PrimaryCaps(2, types=3, dim=4, kernel_size=3, stride=2)
    check_module(layer, torch.rand(3, 2, 7, 6))
    small = PrimaryCaps(1, types=2, dim=3, kernel_size=2, stride=2)
    check_module_gradients(small, torch.rand(2, 1, 4, 5))


class BatchNormed(torch.nn.Module):
    """Mixes the samples of a batch."""

    def forward(self, x):
        return torch.sigmoid(x - x.mean(dim=0))


class BareLength(torch.nn.Module):
    """The root of a sum of squares, which has no gradient at zero."""

    def forward(self, x):
        n = x.square().sum(dim=-1).sqrt()
        return n / (1 + n)


class Unused(torch.nn.Linear):
    """A bias that nothing reads."""

    def forward(self, x):
        return torch.sigmoid(x @ self.weight.T).float()


class Rounded(torch.nn.Linear):
    """A product that autocast leaves in bfloat16."""

    def forward(self, x):
        return torch.sigmoid(super().forward(x))


class Deaf(torch.nn.Linear):
    """Loading fails, and it goes on with the parameters that it has."""

    def forward(self, x):
        return torch.sigmoid(super().forward(x)).float()

    def load_state_dict(self, state, *options):
        return None


class Wide(torch.nn.Linear):
    """Many weights, and poses that none of them changes; a factor makes its gradients wrong."""

    factor = 1.0

    def forward(self, x):
        y = super().forward(x)
        activation = torch.sigmoid(self.factor * y + ((1 - self.factor) * y).detach())
        return Capsules(torch.ones(*y.shape, 2, dtype=y.dtype), activation)


def test_gradients_of_many_weights_are_checked():
    wide = Wide(30, 30)
    check_module_gradients(wide, torch.randn(2, 30))
    wide.factor = 1.5
    with pytest.raises(PropertyError, match="gradient against finite differences"):
        check_module_gradients(wide, torch.randn(2, 30))


@pytest.mark.parametrize(
    ("broken", "check", "message"),
    [
        (BatchNormed(), testing.check_module_rows, "batch of one: activation"),
        (BareLength(), testing.check_module_zeros, "gradient at an input of zeros: .* not finite"),
        (Unused(4, 4), testing.check_module_parameters, "bias: no gradient reaches"),
        (Rounded(4, 4), testing.check_module_precision, "activation under autocast: expected tor"),
        (Deaf(4, 4), testing.check_module_copies, "loaded parameters: activation: relative RMS"),
    ],
)
def test_checks_catch_broken_modules(broken, check, message):
    with pytest.raises(PropertyError, match=message):
        check(broken, torch.rand(3, 4))
