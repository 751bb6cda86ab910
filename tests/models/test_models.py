"""Every registered model, at sizes nobody published, and the registry."""

import copy
import pickle

import pytest
import torch

import torchcaps as tc
from torchcaps.data import ImageSet, MaskedSet
from torchcaps.errors import UnknownNameError
from torchcaps.models import model_info
from torchcaps.tasks import create_task
from torchcaps.training import TrainConfig

SMALL = {"channels": 8, "primary_types": 2}
LARGE = ("cnn_baseline", "unet")  # more than 30 million numbers


@pytest.mark.parametrize("name", tc.list_models())
def test_passport_counts_the_parameters(name):
    model = tc.create_model(name)
    assert sum(p.numel() for p in model.parameters()) == model_info(name).parameters


@pytest.mark.parametrize("name", [name for name in tc.list_models() if name not in LARGE])
def test_a_generator_draws_the_weights_and_nothing_else_is_drawn(name):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        before = torch.get_rng_state()
        found = tc.create_model(name, generator=torch.Generator().manual_seed(5)).state_dict()
        assert torch.equal(torch.get_rng_state(), before)
        for key, weight in (
            tc.create_model(name).state_dict().items()
        ):  # torch's own generator, from the same seed
            assert torch.equal(found[key], weight), key


@pytest.mark.parametrize("name", tc.list_models())
def test_models_are_built_without_memory(name):
    with torch.device("meta"):
        model = tc.create_model(name)
    assert all(tensor.is_meta for tensor in (*model.parameters(), *model.buffers()))


def at_its_size(name):
    """A model and noise for it, at the published size; models of pixels take any, and this one costs seconds."""
    passport = model_info(name)
    with torch.device("meta"):
        small = {"img_size": 16} if tc.create_model(name).spec.is_dense else {}
    model = tc.create_model(name, **small)
    return passport, model, torch.rand(2, passport.in_chans, *model.img_size)


@pytest.mark.parametrize("name", tc.list_models())
def test_forward_at_the_published_size(name):
    passport, model, images = at_its_size(name)
    activation = model.eval()(images)
    if model.spec.is_dense:
        assert activation.shape == (2, 1, 16, 16)
        return
    if model.spec.task == "transform":  # its outputs are pixels
        assert activation.shape == model.reconstruct(model.capsules(images)).shape == images.shape
        return
    if model.spec.task == "align":  # its outputs are points
        assert activation.shape == model.decode(model.capsules(images)).shape
        assert activation.shape[:2] == images.shape[:2]
        return
    classes = passport.num_classes or model.num_objects  # objects that were found without labels
    assert activation.shape == (2, classes)
    assert 0 <= activation.min() <= activation.max() <= 1
    torch.testing.assert_close(model(images[:1]), activation[:1])
    if not model.spec.pose:
        with pytest.raises(ValueError, match="this is a CNN, whose classes have no pose"):
            model.capsules(images)
        return
    capsules = model.capsules(images)
    assert capsules.pose.shape[:2] == (2, classes)
    torch.testing.assert_close(activation, capsules.activation)
    if model.spec.decoder:
        assert model.reconstruct(capsules).shape == images.shape


@pytest.mark.parametrize("name", tc.list_models())
def test_a_step_reaches_every_parameter(name):
    _, model, noise = at_its_size(name)
    images = ImageSet(noise, torch.tensor([0, 1]), ("a", "b"), "noise")
    if model.spec.is_dense:
        images = MaskedSet.of(noise, (noise[:, 0] > 0.5).to(torch.uint8), ("a", "b"), "noise")
    task = create_task(model, TrainConfig()).train()
    batch = task.sample_batch(images, torch.arange(2), torch.Generator().manual_seed(0))
    task(batch, 0.0)["loss"].backward()
    for parameter_name, parameter in model.named_parameters():
        if not parameter.requires_grad:  # there because it is counted
            continue
        assert parameter.grad is not None, parameter_name
        assert parameter.grad.isfinite().all(), parameter_name
        assert parameter.grad.abs().max() > 0, parameter_name


@pytest.mark.parametrize(
    ("num_classes", "in_chans", "img_size"),
    [(10, 1, 17), (3, 1, (40, 28)), (43, 3, 32), (2, 2, (17, 30)), (1, 1, 18)],
)
def test_any_size(num_classes, in_chans, img_size):
    model = tc.create_model(
        "capsnet", num_classes=num_classes, in_chans=in_chans, img_size=img_size, **SMALL
    )
    height, width = (img_size, img_size) if isinstance(img_size, int) else img_size
    images = torch.rand(2, in_chans, height, width)
    capsules = model.capsules(images)
    assert capsules.pose.shape == (2, num_classes, 16)
    assert model.reconstruct(capsules).shape == images.shape
    assert 0.001 < capsules.activation.mean() < 0.9  # starts neither dead nor saturated


@pytest.mark.parametrize(
    ("num_classes", "has_bias"), [(2, False), (10, False), (11, True), (43, True)]
)
def test_bias_by_default_from_eleven_classes_on(num_classes, has_bias):
    model = tc.create_model("capsnet", num_classes=num_classes, **SMALL)
    assert (model.class_capsules.bias is not None) == has_bias
    for asked in (False, True):
        model = tc.create_model("capsnet", num_classes=num_classes, bias=asked, **SMALL)
        assert (model.class_capsules.bias is not None) == asked


def test_layers_between():
    torch.manual_seed(0)
    model = tc.create_model("capsnet", between=(6, 5), class_dim=4, **SMALL).eval()
    assert [layer.votes.sizes[2:] for layer in model.between] == [(6, 4), (5, 4)]
    assert model.class_capsules.votes.sizes[:2] == (5, 4)
    images = torch.rand(2, 1, 28, 28)
    with tc.record_routing(model) as record:
        model(images)
    assert list(record) == ["between.0", "between.1", "class_capsules"]
    given = tc.nn.create_router("dynamic", iterations=2)
    model = tc.create_model("capsnet", between=(6,), routing=given, **SMALL)
    assert model.class_capsules.router is given
    assert model.between[0].router is not given


def test_a_small_decoder():
    model = tc.create_model("capsnet", decoder=(12, 20), **SMALL)
    assert [layer.out_features for layer in model.decoder.layers[::2]] == [12, 20, 784]


@pytest.mark.parametrize("img_size", [16, (28, 16), (16, 28), 1])
def test_too_small(img_size):
    with pytest.raises(
        ValueError, match=r"img_size: the primary capsules .* at least 17x17 pixels, got"
    ):
        tc.create_model("capsnet", img_size=img_size)


def test_wrong_images():
    model = tc.create_model("capsnet", **SMALL)
    expected = (
        r"images: expected \[batch, channels=1, height=28, width=28\], got \[batch=2, channels=3"
    )
    with pytest.raises(ValueError, match=expected):
        model(torch.rand(2, 3, 28, 28))


def test_without_decoder():
    model = tc.create_model("capsnet", decoder=False, **SMALL)
    capsules = model.capsules(torch.rand(2, 1, 28, 28))
    with pytest.raises(ValueError, match="reconstruct: this model has no decoder"):
        model.reconstruct(capsules)


def test_reconstruct_by_label_or_by_length():
    model = tc.create_model("capsnet", **SMALL).eval()
    capsules = model.capsules(torch.rand(3, 1, 28, 28))
    longest = capsules.activation.argmax(dim=1)
    torch.testing.assert_close(model.reconstruct(capsules), model.reconstruct(capsules, longest))
    assert (
        model.reconstruct(capsules) - model.reconstruct(capsules, (longest + 1) % 10)
    ).abs().max() > 1e-4


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


def test_module_manners():
    model = tc.create_model("capsnet", **SMALL).eval()
    images = torch.rand(2, 1, 28, 28)
    expected = model(images)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        torch.testing.assert_close(other(images), expected)
    fresh = tc.create_model("capsnet", **SMALL).eval()
    fresh.load_state_dict(model.state_dict())
    torch.testing.assert_close(fresh(images), expected)
    torch.testing.assert_close(
        model.double()(images.double()).float(), expected, rtol=1e-4, atol=1e-5
    )
    model.float().to(memory_format=torch.channels_last)  # turns the capsule weights too: four axes
    torch.testing.assert_close(model(images), expected, rtol=1e-4, atol=1e-5)


def test_autocast_keeps_routing_in_float32():
    model = tc.create_model("capsnet", **SMALL).eval()
    images = torch.rand(4, 1, 28, 28)
    with torch.autocast("cpu", torch.bfloat16):
        capsules = model.capsules(images)
        drawn = model.reconstruct(capsules)
    assert capsules.pose.dtype == capsules.activation.dtype == torch.float32
    torch.testing.assert_close(capsules.activation, model(images), atol=0.02, rtol=0.05)
    assert drawn.isfinite().all()


def test_half_precision_weights():
    model = tc.create_model("capsnet", **SMALL).eval()
    images = torch.rand(2, 1, 28, 28)
    expected = model(images)
    half = model.bfloat16()
    capsules = half.capsules(images.bfloat16())
    torch.testing.assert_close(capsules.activation.float(), expected, atol=0.03, rtol=0.1)
    assert half.reconstruct(capsules).isfinite().all()


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_compiles_whole_and_takes_another_batch_size():
    model = tc.create_model("capsnet", **SMALL).eval()
    compiled = torch.compile(model, fullgraph=True)
    for batch in (4, 7):
        images = torch.rand(batch, 1, 28, 28)
        torch.testing.assert_close(compiled(images), model(images), rtol=1e-4, atol=1e-5)
