"""The size at which decoders draw."""

from functools import partial

import pytest
import torch
from torch.nn.utils import parameters_to_vector

from torchcaps.nn.decoder import FullyConnectedDecoder, UpsamplingDecoder, draw_shape

DENSE = partial(FullyConnectedDecoder, 2, 4, hidden=(8, 16))


def count(decoder):
    return parameters_to_vector(decoder.parameters()).numel()


def dense_shape(image_shape, num_others=0, published=(1, 28, 28)):
    return draw_shape(DENSE, image_shape, published, num_others)


@pytest.mark.parametrize("image_shape", [(1, 28, 28), (3, 32, 32), (1, 64, 64), (2, 48, 40)])
def test_small_images_are_drawn_at_their_size(image_shape):
    assert dense_shape(image_shape, published=(1, 1, 1)) == image_shape


def test_large_images_are_drawn_as_large_as_the_published_size_allows():
    shape = dense_shape((3, 224, 224))
    assert shape == (3, 16, 16)
    limit = count(DENSE((1, 28, 28)))
    assert count(DENSE(shape)) <= limit < count(DENSE((3, 17, 17)))


def test_a_larger_network_has_a_larger_decoder():
    num_others = 100_000
    shape = dense_shape((3, 224, 224), num_others)
    _, height, width = shape
    assert count(DENSE(shape)) <= 0.3 * num_others < count(DENSE((3, height + 1, width + 1)))


def test_a_decoder_within_its_limit_draws_the_image():
    assert dense_shape((3, 224, 224), 100 * 3 * 224**2) == (3, 224, 224)


@pytest.mark.parametrize(
    ("image_shape", "expected"),
    [((1, 100, 400), (1, 14, 56)), ((1, 400, 100), (1, 56, 14)), ((1, 1, 9000), (1, 1, 784))],
)
def test_proportions_stay(image_shape, expected):
    assert dense_shape(image_shape) == expected


def test_many_channels_leave_a_pixel():
    assert dense_shape((200, 32, 32)) == (200, 1, 1)
    assert dense_shape((5000, 32, 32)) == (5000, 1, 1)


def test_channels_that_alone_take_too_much_do_not_take_the_size_away():
    build = partial(UpsamplingDecoder, 5, 16)
    assert draw_shape(build, (200, 32, 32), build.func.published_shape, 0) == (200, 32, 32)


def test_the_choice_draws_no_random_numbers():
    state = torch.random.get_rng_state()
    dense_shape((3, 224, 224))
    assert torch.equal(torch.random.get_rng_state(), state)


def test_initial_weights_of_keras():
    """He's rule in the hidden layers, Glorot's in the last, and no bias: those of Keras 2."""
    decoder = FullyConnectedDecoder(10, 16, (1, 28, 28), init="keras")
    deviations = [decoder.layers[k].weight.std().item() for k in (0, 2, 4)]
    assert deviations == pytest.approx([0.1118, 0.0625, 0.0333], rel=0.02)
    assert not any(decoder.layers[k].bias.any() for k in (0, 2, 4))
    # Cut off at two deviations of the numbers before the cut.
    assert decoder.layers[0].weight.abs().max() < 2 * 0.1118 / 0.8796 + 1e-4
