"""The registry, every registered model, and CapsNet at sizes nobody published."""

import pytest
import torch

import torchcaps as tc
from checks import assert_equal
from tasks.makers import batch_of
from torchcaps.data import Dataset, masked_set
from torchcaps.errors import ArgumentError, UnknownNameError
from torchcaps.models import model_info
from torchcaps.models.notebook import parameter_count
from torchcaps.tasks import create_task
from torchcaps.testing import seeded
from torchcaps.training import TrainConfig

from .small import SMALL


def small_capsnet(**options):
    return tc.create_model("capsnet", **{"channels": 8, "primary_types": 2} | options)


@pytest.mark.parametrize("name", tc.list_models())
def test_the_parameters_of_a_model_without_memory_are_counted(name):
    with torch.device("meta"):
        model = tc.create_model(name)
    assert all(tensor.is_meta for tensor in (*model.parameters(), *model.buffers()))
    assert parameter_count(model) == model_info(name).parameters


@pytest.mark.parametrize("name", SMALL)
def test_a_generator_draws_the_weights_and_nothing_else_is_drawn(name):
    torch.manual_seed(5)
    rng_state = torch.get_rng_state()
    state = tc.create_model(name, generator=seeded(5), **SMALL[name]).state_dict()
    assert torch.equal(torch.get_rng_state(), rng_state)
    torch.manual_seed(5)
    assert_equal(tc.create_model(name, **SMALL[name]).state_dict(), state)


def sample_dataset(model, classes):
    images = torch.rand(2, *model.image_shape)
    if model.spec.is_dense:
        masks = (images[:, 0] > 0.5).to(torch.uint8)
        return masked_set(images, masks, classes, "noise")
    return Dataset(images, {"label": torch.tensor([0, 1])}, classes, "noise")


# Numbers that are added to the logits of all classes alike: the softmax takes them away, and what is
# left of their gradient is rounding.
WITHOUT_GRADIENT = ("hvc norm.bias", "inverted_attention classes_layer.bias")


@pytest.mark.parametrize("name", SMALL)
def test_a_step_reaches_every_parameter(name):
    model = tc.create_model(name, **SMALL[name])
    images = sample_dataset(model, SMALL[name].get("classes", ("a", "b")))
    labeled = images if model.spec.task == "tree" else None
    task = create_task(model, TrainConfig(), labeled).train()
    batch = batch_of(task, images, torch.arange(2), seeded())
    task.training_step(batch, 0.0)["loss"].backward()
    for parameter_name, parameter in model.named_parameters():
        if parameter.requires_grad:  # else it is there because it is counted
            assert parameter.grad is not None, parameter_name
            assert parameter.grad.isfinite().all(), parameter_name
            if f"{name} {parameter_name}" not in WITHOUT_GRADIENT:
                assert parameter.grad.abs().max() > 0, parameter_name


@pytest.mark.parametrize(
    ("num_classes", "options", "has_bias"),
    [
        (10, {}, False),
        (11, {}, True),
        (10, {"bias": True}, True),
        (11, {"bias": False}, False),
    ],
)
def test_bias_by_default_from_eleven_classes_on(num_classes, options, has_bias):
    layer = small_capsnet(num_classes=num_classes, **options).class_capsules
    assert (layer.bias is not None) == has_bias


def test_layers_between():
    model = small_capsnet(between=(6, 5), class_dim=4)
    assert [layer.votes.sizes[2:] for layer in model.between] == [(6, 4), (5, 4)]
    assert model.class_capsules.votes.sizes[:2] == (5, 4)
    with tc.record_routing(model) as record:
        model(torch.rand(2, 1, 28, 28))
    assert list(record) == ["between.0", "between.1", "class_capsules"]


def test_layers_between_have_routers_of_their_own():
    router = tc.nn.create_router("dynamic", iterations=2)
    model = small_capsnet(between=(6,), routing=router)
    assert model.class_capsules.router is router
    assert model.between[0].router is not router


MAKE_DRAWINGS = ("decoder", "weight.generate", "weight.draw", "bias.generate", "bias.draw")


def has_decoder(name):
    with torch.device("meta"):
        return tc.create_model(name).spec.decoder


DRAWING = list(filter(has_decoder, tc.list_models()))


def count_parameters(name, **options):
    """Numbers of parameters of a model's decoder and of its rest, and the model on "meta"."""
    with torch.device("meta"):
        model = tc.create_model(name, **options)
    in_decoder = 0
    for parameter_name, parameter in model.named_parameters():
        if parameter_name.startswith(MAKE_DRAWINGS):
            in_decoder += parameter.numel()
    total = sum(parameter.numel() for parameter in model.parameters())
    return in_decoder, total - in_decoder, model


@pytest.mark.parametrize("name", DRAWING)
def test_a_decoder_of_large_images_is_small(name):
    published, _, model = count_parameters(name)
    assert model.spec.draw_size is None
    in_decoder, others, large = count_parameters(name, img_size=224, in_chans=3)
    assert 0 < in_decoder <= max(0.3 * others, published)
    spectral, others, _ = count_parameters(name, img_size=32, in_chans=200)
    assert spectral <= max(0.3 * others, 2 * published, 2 * 200 * 1025)
    if model.spec.is_dense:
        return
    capsules = large.capsules(torch.rand(1, *large.image_shape, device="meta"))
    assert large.draw(capsules).shape[2:] == large.draw_size
    assert large.reconstruct(capsules).shape[2:] == large.img_size == (224, 224)


@pytest.mark.parametrize("decoder", [False, None])
@pytest.mark.parametrize("name", DRAWING)
def test_every_decoder_can_be_left_out(name, decoder):
    in_decoder, _, model = count_parameters(name, decoder=decoder)
    assert in_decoder == 0
    assert not model.spec.decoder
    with pytest.raises(ArgumentError, match="reconstruct: this model has no decoder"):
        model.reconstruct(None)


def test_a_drawing_is_enlarged():
    model = small_capsnet(img_size=72)
    assert model.draw_size == (28, 28)
    capsules = model.capsules(torch.rand(2, 1, 72, 72))
    drawings = model.draw(capsules)
    assert drawings.shape == (2, 1, 28, 28)
    enlarged = model.reconstruct(capsules)
    expected = torch.nn.functional.interpolate(drawings, (72, 72), mode="bilinear")
    torch.testing.assert_close(enlarged, expected)


def test_images_of_another_shape():
    expected = r"\[batch, channels=1, height=28, width=28\], got \[batch=2, channels=3"
    with pytest.raises(ArgumentError, match=f"images: expected {expected}"):
        small_capsnet()(torch.rand(2, 3, 28, 28))


def test_models_are_listed_by_wildcard():
    names = tc.list_models()
    assert "capsnet" in names
    assert tc.list_models("caps*") == [name for name in names if name.startswith("caps")]
    assert tc.list_models("no such*") == []


@pytest.mark.parametrize(
    ("name", "options", "error", "message"),
    [
        ("capsnt", {}, UnknownNameError, "unknown model 'capsnt'; did you mean 'capsnet'"),
        ("capsnet", {"itertions": 2}, TypeError, "takes no option 'itertions'"),
        ("capsnet", {"num_classes": 0}, ValueError, "num_classes: expected at least 1, got 0"),
    ],
)
def test_models_that_cannot_be_made(name, options, error, message):
    with pytest.raises(error, match=message):
        tc.create_model(name, **options)
