"""Every registered model, put to the checks that ship with the library."""

import copy

import pytest
import torch

import torchcaps as tc
from torchcaps import testing
from torchcaps.errors import ArgumentError
from torchcaps.models import CanonicalCapsules
from torchcaps.nn import RoutedLayer

from .variants import SMALLER


@pytest.fixture(scope="module", params=tc.list_models())
def name(request):
    return request.param


class Opened(CanonicalCapsules):
    """Gives its capsules: what it draws are coordinates, any numbers."""

    def forward(self, images):
        return self.capsules(images)


@pytest.fixture(scope="module")
def model(name):
    model = tc.create_model(name, generator=testing.seeded(), **SMALLER.get(name, {})).eval()
    if model.spec.task == "align":
        model.__class__ = Opened
    return model


@pytest.fixture(scope="module")
def images(model):
    return torch.rand(3, model.in_chans, *model.img_size, generator=testing.seeded())


def activation(model, images):
    outputs = model(images)
    return outputs if isinstance(outputs, torch.Tensor) else outputs.activation


def test_rows(model, images):
    testing.check_module_rows(model, images)


def test_copies(model, images):
    testing.check_module_copies(model, images)


def test_zeros(model, images):
    testing.check_module_zeros(model, images)


def test_precision(model, images):
    testing.check_module_precision(model, images)


@pytest.mark.parametrize("training", [False, True])
def test_huge_images_give_finite_numbers(model, images, training):
    huge = 1e30 * (2 * images - 1)
    testing.assert_finite("activation", activation(copy.deepcopy(model).train(training), huge))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64, torch.float64, torch.float16])
def test_images_of_another_type_are_refused(model, images, dtype):
    call = model.align if model.spec.task == "align" else model.capsules
    if not model.spec.pose:
        call = model
    with pytest.raises(ArgumentError) as error:
        call(images.to(dtype))
    assert error.value.argument == "images"
    assert str(dtype) in str(error.value)


def test_a_batch_of_the_smallest_size_trains(model, images):
    smallest = images[: model.spec.smallest_batch]
    testing.assert_finite("activation", activation(copy.deepcopy(model).train(), smallest))


def test_parameters(model, images):
    if model.spec.task == "unsupervised":
        pytest.skip("presences come from a part of it; a step reaches all")
    testing.check_module_parameters(model, images, unused=("decoder", "decoders", "grid"))


def test_it_is_a_classifier_that_opens_up(model, images):
    pixels = model.spec.is_dense
    count = (
        model.num_objects if model.spec.task == "unsupervised" else getattr(model, "num_classes", 0)
    )
    shape = (len(images), count - 1, *model.img_size) if pixels else (len(images), count)
    if not model.spec.pose:
        assert model(images).shape == shape
        with pytest.raises(ValueError, match="capsules: expected a capsule network"):
            model.capsules(images)
        return
    if model.spec.task in ("transform", "align"):
        pytest.skip("its capsules stand for no classes, and it draws from all of them")
    lengths, capsules = model(images), model.capsules(images)
    torch.testing.assert_close(lengths, capsules.activation.movedim(-1, 1))
    assert capsules.pose.movedim(-2, 1).shape[:-1] == lengths.shape == shape
    if pixels:
        return  # drawn by the class of each pixel: see its own tests
    if not model.spec.decoder:
        with pytest.raises(ValueError, match="reconstruct: .* no decoder"):
            model.reconstruct(capsules)
        return
    drawn = model.reconstruct(capsules)
    assert drawn.shape == images.shape
    testing.assert_between("reconstruction", drawn, 0.0, 1.0)
    most_active = capsules.activation.argmax(dim=1)
    torch.testing.assert_close(drawn, model.reconstruct(capsules, most_active))
    long = capsules._replace(
        pose=capsules.pose / capsules.pose.norm(dim=-1, keepdim=True)
    )  # fresh ones may be short
    first, other = (model.reconstruct(long, (most_active + k) % model.num_classes) for k in (0, 1))
    assert (other - first).abs().max() > 1e-4


def test_recording_changes_nothing_and_couplings_sum_to_one(model, images):
    if not model.spec.pose:
        pytest.skip("nothing to record in a network without capsules")
    if not any(isinstance(module, RoutedLayer) for module in model.modules()):
        pytest.skip("nothing is routed")
    plain = model(images)
    with tc.record_routing(model) as record:
        torch.testing.assert_close(model(images), plain)
    for recorded in record.last().values():
        share = recorded.coupling.sum(dim=-1)
        if share.dim() > 2:  # a child of a convolution has parents in several windows
            testing.assert_between("sum of couplings in one window", share, 0.0, 1.0, slack=1e-5)
        else:
            torch.testing.assert_close(share, torch.ones_like(share))
        assert recorded.coupling.shape[-2:] == (
            recorded.child_activation.shape[-1],
            recorded.activation.shape[-1],
        )
        assert not any(tensor.requires_grad for tensor in recorded[:4])
