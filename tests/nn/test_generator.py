"""Random numbers come from the generator that is passed in, and nothing else changes."""

import threading

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from torchcaps.nn import CapsuleLinear, ConvCaps, use_generator
from torchcaps.testing import seeded

DRAWS = {
    "convolution": lambda: nn.Conv2d(3, 4, 3).weight.detach(),
    "recurrent": lambda: nn.LSTM(3, 4).weight_hh_l0.detach(),
    "capsules": lambda: CapsuleLinear(6, 4, 5, 3).weight.detach(),
    "matrices": lambda: ConvCaps(2, 3).weight.detach(),
    "orthogonal": lambda: nn.init.orthogonal_(torch.empty(4, 5)),
    "truncated": lambda: nn.init.trunc_normal_(torch.empty(4, 5)),
    "randn": lambda: torch.randn(20),
    "randn_like": lambda: torch.randn_like(torch.zeros(20)),
    "randint": lambda: torch.randint(2, 9, (20,)),
    "randperm": lambda: torch.randperm(20),
    "multinomial": lambda: torch.ones(20).multinomial(5),
    "dropout": lambda: nn.Dropout(0.3)(torch.ones(40)),
    "dropout of maps": lambda: nn.Dropout2d(0.5)(torch.ones(2, 20, 3, 3)),
}


@pytest.mark.parametrize("name", DRAWS)
def test_a_generator_draws_as_the_global_one_and_leaves_that_alone(name):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        state = torch.get_rng_state()
        expected = DRAWS[name]()
        torch.set_rng_state(state)
        with use_generator(seeded(5)):
            sample = DRAWS[name]()
        assert torch.equal(sample, expected)
        assert torch.equal(torch.get_rng_state(), state)


def test_a_generator_that_is_named_stays():
    with use_generator(seeded(5)):
        named = torch.rand(3, generator=torch.Generator().manual_seed(1))
    assert torch.equal(named, torch.rand(3, generator=torch.Generator().manual_seed(1)))


def test_it_goes_on_where_it_stopped_and_ends_with_the_block():
    generator = seeded(5)
    with use_generator(generator):
        first = torch.rand(3)
    with use_generator(generator):
        second = torch.rand(3)
    assert torch.equal(torch.cat([first, second]), torch.rand(6, generator=seeded(5)))
    state = torch.get_rng_state()
    torch.rand(3)
    assert not torch.equal(torch.get_rng_state(), state)


def test_dropout_of_a_gpu_and_its_gradient():
    x = torch.arange(1.0, 41.0).requires_grad_()
    with use_generator(seeded(5)):
        y, mask = torch.native_dropout(x, 0.25, True)
        evaluated, evaluation_mask = torch.native_dropout(x, 0.25, False)
    assert_close(y, x * mask / 0.75)
    assert 20 < mask.sum() < 40
    assert torch.equal(evaluated, x)
    assert evaluation_mask.all()
    (gradient,) = torch.autograd.grad(y.sum(), x)
    assert_close(gradient, mask / 0.75)


def test_other_threads_draw_from_the_global_generator():
    samples = []
    with use_generator(seeded(5)):
        thread = threading.Thread(target=lambda: samples.append(torch.rand(3)))
        thread.start()
        thread.join()
        expected = torch.rand(3)
    assert not torch.equal(samples[0], expected)
    assert torch.equal(expected, torch.rand(3, generator=seeded(5)))
