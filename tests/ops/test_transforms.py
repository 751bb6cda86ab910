"""Ways to call: transforms of torch.func, and the meta device within autocast."""

import pytest
import torch
from torch.testing import assert_close

import torchcaps as tc
from torchcaps.errors import ArgumentError
from torchcaps.nn import CapsuleLinear, PrimaryCaps
from torchcaps.testing import seeded

NO_TRANSFORMS = r"^impl: '\w+' cannot run \w+ within torch.func transforms; 'auto' takes"


def expected_shape(model, images):
    """Shape of what a model returns for images."""
    spec = model.spec
    if spec.is_dense or spec.task == "transform":  # pixels of one class, or of another view
        return images.shape
    count = model.num_objects if spec.task == "unsupervised" else model.num_classes
    return len(images), count


@pytest.mark.parametrize("name", tc.list_models())
def test_a_forward_on_the_meta_device_within_autocast(name):
    with torch.device("meta"):
        model = tc.create_model(name)
    images = torch.empty(2, model.in_chans, *model.img_size, device="meta")
    with torch.autocast("cpu", torch.bfloat16):
        activation = model(images)
    assert activation.is_meta
    if model.spec.task == "align":  # as many points as fit the number of capsules
        assert activation.shape[:2] == images.shape[:2]
    else:
        assert activation.shape == expected_shape(model, images)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # in torch, of itself
@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
@pytest.mark.parametrize("routing", ["dynamic", "em", "uniform", "random"])
def test_a_layer_under_transforms_of_torch_func(routing):
    layer = CapsuleLinear(6, 4, 5, 3, routing)
    pose = torch.randn(3, 6, 4, generator=seeded())
    parameters = dict(layer.named_parameters())

    def activate(x):
        return layer(x).activation

    def loss(parameters, pose):
        parents = torch.func.functional_call(layer, parameters, (pose,))
        return parents.activation.square().sum()

    gradient = torch.autograd.grad(activate(pose).square().sum(), layer.weight)[0]
    func_gradient = torch.func.grad(loss)(parameters, pose)["votes.weight"]
    assert_close(func_gradient, gradient)

    per_sample = torch.func.vmap(torch.func.grad(loss), (None, 0))(parameters, pose.unsqueeze(1))
    assert_close(per_sample["votes.weight"].sum(dim=0), gradient)

    one_by_one = torch.func.vmap(lambda x: activate(x.unsqueeze(0))[0])(pose)
    assert_close(one_by_one, activate(pose))

    _, tangent = torch.func.jvp(activate, (pose,), (torch.ones_like(pose),))
    assert tangent.abs().max() > 0
    jacobian = torch.func.jacrev(activate)(pose)
    assert_close(jacobian.sum((2, 3, 4)), tangent)


def test_a_model_under_vmap_and_grad():
    model = tc.create_model("capsnet", img_size=18, channels=8, primary_types=2)
    images = torch.rand(3, 1, 18, 18, generator=seeded(0))
    one_by_one = torch.func.vmap(lambda image: model(image.unsqueeze(0))[0])(images)
    assert_close(one_by_one, model(images))

    leaf = images.clone().requires_grad_()
    expected = torch.autograd.grad(model(leaf).sum(), leaf)[0]
    gradient = torch.func.grad(lambda x: model(x).sum())(images)
    assert_close(gradient, expected, rtol=1e-3, atol=1e-6)


def test_layers_with_a_fast_path_by_name_refuse_transforms():
    linear = CapsuleLinear(6, 4, 5, 3, impl="blocked")
    with pytest.raises(ArgumentError, match=NO_TRANSFORMS):
        torch.func.grad(lambda x: linear(x).activation.sum())(torch.rand(3, 6, 4))
    conv = PrimaryCaps(8, 4, 4, kernel_size=9).conv
    conv.impl = "blocked"
    with pytest.raises(ArgumentError, match=NO_TRANSFORMS):
        torch.func.grad(lambda x: conv(x).sum())(torch.rand(1, 8, 20, 20))
