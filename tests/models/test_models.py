"""Every registered model, at sizes nobody published, and the registry."""

import pytest
import torch

import torchcaps as tc
from torchcaps.data import ImageSet, MaskedSet
from torchcaps.errors import UnknownNameError
from torchcaps.models import model_info
from torchcaps.tasks import create_task
from torchcaps.testing import seeded
from torchcaps.training import TrainConfig

from .small import SMALL

CAPSNET = {"channels": 8, "primary_types": 2}


@pytest.mark.parametrize("name", tc.list_models())
def test_passport_counts_the_parameters_of_a_model_without_memory(name):
    with torch.device("meta"):
        model = tc.create_model(name)
    assert all(tensor.is_meta for tensor in (*model.parameters(), *model.buffers()))
    assert sum(p.numel() for p in model.parameters()) == model_info(name).parameters


@pytest.mark.parametrize("name", SMALL)
def test_a_generator_draws_the_weights_and_nothing_else_is_drawn(name):
    torch.manual_seed(5)
    before = torch.get_rng_state()
    found = tc.create_model(name, generator=seeded(5), **SMALL[name]).state_dict()
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(5)
    for key, weight in tc.create_model(name, **SMALL[name]).state_dict().items():
        assert torch.equal(found[key], weight), key


@pytest.mark.parametrize("name", SMALL)
def test_a_step_reaches_every_parameter(name):
    model = tc.create_model(name, **SMALL[name])
    noise = torch.rand(2, model.in_chans, *model.img_size)
    classes = SMALL[name].get("classes", ("a", "b"))
    images = ImageSet(noise, torch.tensor([0, 1]), classes, "noise")
    if model.spec.is_dense:
        images = MaskedSet.of(noise, (noise[:, 0] > 0.5).to(torch.uint8), ("a", "b"), "noise")
    task = create_task(model, TrainConfig(), images if model.spec.task == "tree" else None).train()
    batch = task.sample_batch(images, torch.arange(2), seeded())
    task(batch, 0.0)["loss"].backward()
    for parameter_name, parameter in model.named_parameters():
        if parameter.requires_grad:  # else it is there because it is counted
            assert parameter.grad is not None, parameter_name
            assert parameter.grad.isfinite().all(), parameter_name
            assert parameter.grad.abs().max() > 0, parameter_name


@pytest.mark.parametrize(
    ("num_classes", "in_chans", "img_size"),
    [(43, 1, 17), (3, 3, (40, 28)), (1, 1, 18)],
)
def test_any_size(num_classes, in_chans, img_size):
    model = tc.create_model(
        "capsnet", num_classes=num_classes, in_chans=in_chans, img_size=img_size, **CAPSNET
    )
    height, width = (img_size, img_size) if isinstance(img_size, int) else img_size
    images = torch.rand(2, in_chans, height, width)
    capsules = model.capsules(images)
    assert capsules.pose.shape == (2, num_classes, 16)
    assert model.reconstruct(capsules).shape == images.shape
    assert 0.001 < capsules.activation.mean() < 0.9  # starts neither dead nor saturated


@pytest.mark.parametrize(("num_classes", "has_bias"), [(10, False), (11, True), (43, True)])
def test_bias_by_default_from_eleven_classes_on(num_classes, has_bias):
    model = tc.create_model("capsnet", num_classes=num_classes, **CAPSNET)
    assert (model.class_capsules.bias is not None) == has_bias
    for asked in (False, True):
        model = tc.create_model("capsnet", num_classes=num_classes, bias=asked, **CAPSNET)
        assert (model.class_capsules.bias is not None) == asked


def test_layers_between():
    torch.manual_seed(0)
    model = tc.create_model("capsnet", between=(6, 5), class_dim=4, **CAPSNET).eval()
    assert [layer.votes.sizes[2:] for layer in model.between] == [(6, 4), (5, 4)]
    assert model.class_capsules.votes.sizes[:2] == (5, 4)
    images = torch.rand(2, 1, 28, 28)
    with tc.record_routing(model) as record:
        model(images)
    assert list(record) == ["between.0", "between.1", "class_capsules"]
    given = tc.nn.create_router("dynamic", iterations=2)
    model = tc.create_model("capsnet", between=(6,), routing=given, **CAPSNET)
    assert model.class_capsules.router is given
    assert model.between[0].router is not given


def test_a_small_decoder():
    model = tc.create_model("capsnet", decoder=(12, 20), **CAPSNET)
    assert [layer.out_features for layer in model.decoder.layers[::2]] == [12, 20, 784]


@pytest.mark.parametrize("img_size", [(28, 16), (16, 28)])
def test_too_small(img_size):
    with pytest.raises(ValueError, match="img_size: expected images of at least 17x17 pixels, got"):
        tc.create_model("capsnet", img_size=img_size)


def test_wrong_images():
    model = tc.create_model("capsnet", **CAPSNET)
    expected = (
        r"images: expected \[batch, channels=1, height=28, width=28\], got \[batch=2, channels=3"
    )
    with pytest.raises(ValueError, match=expected):
        model(torch.rand(2, 3, 28, 28))


def test_without_decoder():
    model = tc.create_model("capsnet", decoder=False, **CAPSNET)
    capsules = model.capsules(torch.rand(2, 1, 28, 28))
    with pytest.raises(ValueError, match="reconstruct: this model has no decoder"):
        model.reconstruct(capsules)


def test_registry():
    assert "capsnet" in tc.list_models()
    assert tc.list_models("caps*") == [name for name in tc.list_models() if name.startswith("caps")]
    assert tc.list_models("no such*") == []
    with pytest.raises(UnknownNameError, match="unknown model 'capsnt'; did you mean 'capsnet'"):
        tc.create_model("capsnt")
    with pytest.raises(
        ValueError, match="pretrained: no weights of .capsnet. come with the package"
    ):
        tc.create_model("capsnet", pretrained=True)
    with pytest.raises(TypeError, match="takes no option 'itertions'"):
        tc.create_model("capsnet", itertions=2)
    with pytest.raises(ValueError, match="num_classes: expected at least 1, got 0"):
        tc.create_model("capsnet", num_classes=0)
