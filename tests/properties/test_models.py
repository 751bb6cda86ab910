"""Every registered model passes the checks that ship with the library."""

import copy

import pytest
import torch
from torch.testing import assert_close

import torchcaps as tc
from models.small import SMALLER
from torchcaps import testing
from torchcaps.errors import ArgumentError
from torchcaps.models import CanonicalCapsules
from torchcaps.nn import RoutedLayer


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


def get_activation(model, images):
    outputs = model(images)
    return outputs if isinstance(outputs, torch.Tensor) else outputs.activation


CHECKS = {
    "rows": testing.check_module_rows,
    "copies": testing.check_module_copies,
    "zeros": testing.check_module_zeros,
    "precision": testing.check_module_precision,
}


@pytest.mark.parametrize("check", CHECKS)
def test_properties(model, images, check):
    CHECKS[check](model, images)


@pytest.mark.parametrize("training", [False, True])
def test_huge_images_give_finite_numbers(model, images, training):
    huge = 1e30 * (2 * images - 1)
    activation = get_activation(copy.deepcopy(model).train(training), huge)
    testing.assert_finite("activation", activation)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float64, torch.float16])
def test_images_of_another_type_are_refused(model, images, dtype):
    call = model.capsules if model.spec.pose else model
    if model.spec.task == "align":
        call = model.align
    with pytest.raises(ArgumentError, match=f"^images: .*{dtype}"):
        call(images.to(dtype))


def test_a_batch_of_the_smallest_size_trains(model, images):
    smallest = images[: model.spec.smallest_batch]
    activation = get_activation(copy.deepcopy(model).train(), smallest)
    testing.assert_finite("activation", activation)


def test_a_model_without_capsules_is_a_classifier(model, images):
    if model.spec.pose:
        pytest.skip("it has capsules")
    shape = (len(images), model.num_classes)
    if model.spec.is_dense:
        shape = (len(images), model.num_classes - 1, *model.img_size)
    assert model(images).shape == shape
    with pytest.raises(ArgumentError, match="capsules: expected a capsule network"):
        model.capsules(images)


def test_activations_are_those_of_the_class_capsules(model, images):
    if not model.spec.pose or model.spec.task in ("transform", "align"):
        pytest.skip("its capsules, if any, stand for no classes")
    is_unsupervised = model.spec.task == "unsupervised"
    num_capsules = model.num_objects if is_unsupervised else model.num_classes
    shape = (len(images), num_capsules)
    if model.spec.is_dense:
        shape = (len(images), num_capsules - 1, *model.img_size)
    activation = model(images)
    capsules = model.capsules(images)
    assert_close(activation, capsules.activation.movedim(-1, 1))
    assert capsules.pose.movedim(-2, 1).shape[:-1] == activation.shape == shape


def test_reconstructions_are_of_a_class(model, images):
    if not model.spec.pose or model.spec.is_dense or model.spec.task in ("transform", "align"):
        pytest.skip("it draws nothing, or not from one capsule: see its own tests")
    capsules = model.capsules(images)
    if not model.spec.decoder:
        with pytest.raises(ArgumentError, match="reconstruct: .* no decoder"):
            model.reconstruct(capsules)
        return
    reconstruction = model.reconstruct(capsules)
    assert reconstruction.shape == images.shape
    testing.assert_between("reconstruction", reconstruction, 0.0, 1.0)
    classes = capsules.activation.argmax(dim=1)
    assert_close(reconstruction, model.reconstruct(capsules, classes))

    # Poses of a fresh model may be short: normalized ones differ from class to class.
    pose = torch.nn.functional.normalize(capsules.pose, dim=-1)
    capsules = capsules._replace(pose=pose)
    first = model.reconstruct(capsules, classes)
    second = model.reconstruct(capsules, (classes + 1) % model.num_classes)
    assert (second - first).abs().max() > 1e-4


def test_recording_changes_nothing_and_couplings_sum_to_one(model, images):
    if not any(isinstance(module, RoutedLayer) for module in model.modules()):
        pytest.skip("nothing is routed")
    plain = model(images)
    with tc.record_routing(model) as record:
        assert_close(model(images), plain)
    for trace in record.last().values():
        sums = trace.coupling.sum(dim=-1)
        if sums.dim() > 2:  # a child of a convolution has parents in several windows
            testing.assert_between(
                "sum of couplings in one window",
                sums,
                0.0,
                1.0,
                slack=1e-5,
            )
        else:
            assert_close(sums, torch.ones_like(sums))
        children, parents = trace.coupling.shape[-2:]
        assert trace.child_activation.shape[-1] == children
        assert trace.activation.shape[-1] == parents
        assert not any(tensor.requires_grad for tensor in trace[:4])
