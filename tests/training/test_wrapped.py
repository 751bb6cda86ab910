"""Networks within other modules: what they declare is found, and they train as the bare ones do."""

from __future__ import annotations

import copy
import re

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.swa_utils import AveragedModel

import torchcaps as tc
from checks import assert_equal
from torchcaps.errors import ArgumentError
from torchcaps.testing import seeded
from torchcaps.types import WrappedNetwork, declares, find_network, model_metadata, spec_of

from .makers import TINY, tiny_capsnet

SETTINGS = {"epochs": 2, "batch_size": 8, "holdout": 8, "seed": 3}


class Holder(nn.Module):
    """Holds a network and returns what it returns."""

    def __init__(self, net):
        super().__init__()
        self.net = net
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, images):
        return self.net(images)


class Module(nn.Module):
    """A wrapper with the one attribute `module`, as those of distributed training have it."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, *inputs, **options):
        return self.module(*inputs, **options)


class Normalize(nn.Module):
    def forward(self, images):
        return (images - 0.5) / 0.25


class Centered(Holder):
    def forward(self, images):
        return self.net((images - 0.5) / 0.25)


class Gray(Holder):
    def forward(self, images):
        return self.net(images.mean(dim=1, keepdim=True))


class Softmax(Holder):
    def forward(self, images):
        return self.net(images).softmax(dim=1)


class SoftmaxInUse(Holder):
    """Returns other outputs when it is not trained."""

    def forward(self, images):
        outputs = self.net(images)
        return outputs if self.training else outputs.softmax(dim=1)


class Scaled(Holder):
    """Returns other outputs when it is trained."""

    def forward(self, images):
        outputs = self.net(images)
        return outputs * 0.9 if self.training else outputs


class Ensemble(nn.Module):
    def __init__(self):
        super().__init__()
        self.net, self.net2 = tiny_capsnet(), tiny_capsnet()

    def forward(self, images):
        return (self.net(images) + self.net2(images)) / 2


class Lengths(nn.Module):
    """Lengths of capsules by a module of one's own."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(360, 12)

    def forward(self, images):
        poses = self.linear(images.flatten(1)).unflatten(1, (3, 4))
        return tc.functional.squash(poses).norm(dim=-1)


class Logits(Lengths):
    def forward(self, images):
        return self.linear(images.flatten(1))[:, :3]


WRAPPERS = {
    "DataParallel": nn.DataParallel,
    "module": Module,
    "compiled": lambda net: torch.compile(net, backend="eager"),
    "Sequential": lambda net: nn.Sequential(nn.Identity(), net),
    "AveragedModel": AveragedModel,
    "own": Holder,
    "wrapper in wrapper": lambda net: nn.DataParallel(AveragedModel(net)),
    "Sequential in Sequential": lambda net: nn.Sequential(nn.Sequential(nn.Identity(), net)),
    "compiled within": lambda net: nn.Sequential(torch.compile(net, backend="eager")),
    "compiled around": lambda net: torch.compile(Holder(net), backend="eager"),
    "holder in holder": lambda net: Holder(Module(net)),
    "Sequential before Identity": lambda net: nn.Sequential(net, nn.Identity()),
}
CHANGED = {
    "Sequential": (lambda net: nn.Sequential(Normalize(), net), "1"),
    "own": (Centered, "net"),
    "within DataParallel": (lambda net: nn.DataParallel(Centered(net)), "net"),
}


@pytest.fixture(scope="module")
def images():
    return torch.rand(48, 1, 18, 20, generator=seeded(1))


@pytest.fixture(scope="module")
def labels():
    return torch.arange(48) % 3


def outcome(model, images, labels, path):
    """All that a caller has of a model after a training."""
    _, history = tc.fit(model, images, labels, **SETTINGS)
    rows = [{key: row[key] for key in row if key != "images_per_second"} for row in history]
    evaluation = tc.evaluate(model, (images, labels))
    predictions = tc.Predictor(model)(list(images[:5].numpy()))
    loaded = tc.load(tc.save(model, path))
    return {
        "rows": rows,
        "weights": loaded.state_dict(),
        "saved": loaded(images),
        "outputs": model(images),
        "evaluation": (evaluation.loss, evaluation.loss_name, evaluation.to_dict()),
        "activations": evaluation.activations,
        "predictions": predictions,
        "classes": (loaded.classes, model_metadata(model).classes),
        "spec": spec_of(model),
    }


@pytest.fixture(scope="module")
def bare_outcome(images, labels, tmp_path_factory):
    """What a caller has of the bare network."""
    return outcome(tiny_capsnet(), images, labels, tmp_path_factory.mktemp("bare"))


@pytest.mark.parametrize("name", WRAPPERS)
def test_a_wrapped_network_equals_the_bare_one_bit_for_bit(
    name, bare_outcome, images, labels, tmp_path
):
    wrapped = outcome(WRAPPERS[name](tiny_capsnet()), images, labels, tmp_path)
    # Compiled code of some versions of torch rounds otherwise.
    atol = 1e-6 if "compiled" in name else 0
    torch.testing.assert_close(wrapped.pop("outputs"), bare_outcome["outputs"], rtol=0, atol=atol)
    for key in ("weights", "saved", "activations"):
        assert_equal(wrapped.pop(key), bare_outcome[key])
    for key, expected in wrapped.items():
        assert expected == bare_outcome[key], key


def net_of_normalized():
    return nn.Sequential(Normalize(), tiny_capsnet(decoder=False))


@pytest.mark.parametrize("name", CHANGED)
def test_a_stage_that_changes_images_keeps_its_part(name, images, labels, tmp_path):
    wrap, place = CHANGED[name]
    bare = tiny_capsnet(decoder=False)
    model = wrap(tiny_capsnet(decoder=False))
    _, history = tc.fit(model, images, labels, **SETTINGS)
    _, expected = tc.fit(bare, (images - 0.5) / 0.25, labels, **SETTINGS)
    assert [row["val_loss"] for row in history] == [row["val_loss"] for row in expected]
    assert torch.equal(model(images), bare((images - 0.5) / 0.25))
    evaluation = tc.evaluate(model, (images, labels))
    assert evaluation.loss_name == "margin"
    assert torch.equal(evaluation.activations, model(images).detach())
    [row] = tc.Predictor(model)([images[0].numpy()])
    assert row["activation"] == model(images[:1]).max().item()
    with pytest.raises(
        ArgumentError, match="which changes them before; give the function"
    ) as error:
        tc.save(model, tmp_path / "model")
    assert f"or save its part {place!r} alone" in str(error.value)


def test_the_whole_is_saved_with_its_builder(images, labels, tmp_path):
    model = net_of_normalized()
    tc.fit(model, images, labels, **SETTINGS)
    path = tc.save(model, tmp_path / "model", builder=net_of_normalized)
    loaded = tc.load(path, builder=net_of_normalized)
    assert torch.equal(loaded(images), model(images))
    assert tc.predict(loaded, images[:4]) == tc.predict(model, images[:4])
    assert loaded.state_dict().keys() == model.state_dict().keys()
    assert tc.load(tc.save(loaded, tmp_path / "again"), builder=net_of_normalized).classes


def test_the_drawings_of_a_wrapped_network_are_compared_with_the_images(images, labels):
    """The network is given normalized images and draws those of [0, 1]."""
    model = nn.Sequential(Normalize(), tiny_capsnet())
    [row] = tc.fit(model, images, labels, **SETTINGS | {"epochs": 1}).history
    drawn = find_network(model).reconstruct(find_network(model).capsules(images), labels)
    assert drawn.shape == images.shape
    assert row["train_reconstruction"] < images.square().sum(dim=(1, 2, 3)).mean()


def test_a_network_keeps_no_trace_of_a_training_with_other_images(images, labels):
    model = nn.Sequential(Normalize(), tiny_capsnet(decoder=False))
    tc.fit(model, images, labels, **SETTINGS)
    assert model_metadata(model).classes == ("0", "1", "2")
    with pytest.raises(ArgumentError, match="expected .preprocess"):
        tc.predict(model[1], images[:1])


# By the sizes of the images.
RESIZING_STAGES = {
    "[8, 1, 36, 40]": (
        lambda net: nn.Sequential(nn.AvgPool2d(2), net),
        lambda images: F.interpolate(images, scale_factor=2),
    ),
    "[8, 3, 18, 20]": (Gray, lambda images: images.expand(-1, 3, -1, -1)),
}


@pytest.mark.parametrize("sizes", RESIZING_STAGES)
def test_a_stage_may_change_the_size_and_the_channels(sizes, images, labels, tmp_path):
    wrap, change = RESIZING_STAGES[sizes]
    model = wrap(tiny_capsnet(decoder=False))
    inputs = change(images)
    tc.fit(model, inputs, labels, **SETTINGS)
    evaluation = tc.evaluate(model, (inputs, labels))
    assert torch.equal(evaluation.activations, model(inputs).detach())
    [row] = tc.predict(model, inputs[0])
    assert row["activation"] == model(inputs[:1]).max().item()
    with pytest.raises(ArgumentError, match="which changes them before"):
        tc.save(model, tmp_path / "model")


def test_dropout_before_the_network_acts_in_training(images, labels, tmp_path):
    bare = tiny_capsnet()
    model = nn.Sequential(nn.Dropout(0.5), tiny_capsnet())
    tc.fit(model, images, labels, **SETTINGS)
    tc.fit(bare, images, labels, **SETTINGS)
    assert not torch.equal(model(images), bare(images))
    assert torch.equal(tc.load(tc.save(model, tmp_path / "model"))(images), model(images))


def test_a_wrapped_trained_network_is_read_as_it_is(images):
    model = tc.create_model("capsnet_small", pretrained=True).eval()
    digits = tc.data.load_dataset("digits", "test").subset(range(20))
    for wrap in WRAPPERS.values():
        wrapped = wrap(model)
        assert tc.evaluate(wrapped, digits).loss == tc.evaluate(model, digits).loss
        assert tc.predict(wrapped, digits.images[:3]) == tc.predict(model, digits.images[:3])


class Pairs(Holder):
    """Takes no image alone."""

    def forward(self, first, second):
        return self.net(first)


@pytest.mark.parametrize("kind", [Softmax, SoftmaxInUse, Scaled, Pairs, lambda _: Ensemble()])
def test_a_module_that_returns_other_outputs_is_no_wrapper(kind):
    model = kind(tiny_capsnet())
    assert find_network(model) is model
    assert not declares(model)


@pytest.mark.parametrize("name", WRAPPERS | CHANGED)
def test_a_wrapped_network_begins_with_weights_of_the_bare_one(name, images, labels, tmp_path):
    source = tiny_capsnet(decoder=False)
    path = tc.save(source, tmp_path / "bare")
    wrap = CHANGED[name][0] if name in CHANGED else WRAPPERS[name]
    sizes = {"num_classes": 3, "img_size": (18, 20)}
    net = tc.create_model("capsnet", decoder=False, **sizes, **TINY)
    model = wrap(net)
    tc.fit(model, images, labels, init=str(path), lr=1e-12, **SETTINGS, verbose=False)
    torch.testing.assert_close(net.state_dict(), source.state_dict(), rtol=0, atol=1e-9)


def test_the_whole_begins_with_weights_of_the_whole(images, labels, tmp_path):
    source = net_of_normalized()
    tc.fit(source, images, labels, **SETTINGS, verbose=False)
    path = tc.save(source, tmp_path / "whole", builder=net_of_normalized)
    for model in (net_of_normalized(), nn.DataParallel(net_of_normalized())):
        tc.fit(model, images, labels, init=str(path), lr=1e-12, **SETTINGS, verbose=False)
        torch.testing.assert_close(model(images), source(images), rtol=0, atol=1e-6)


def test_parameters_within_a_wrapper_have_their_names_in_it(images, labels):
    model = nn.Sequential(nn.Conv2d(1, 1, 1), tiny_capsnet())
    before = copy.deepcopy(model)
    tc.fit(model, images, labels, freeze=["1.conv.*"], lr_scale={"0.*": 0.1}, **SETTINGS)
    assert torch.equal(model[1].conv.weight, before[1].conv.weight)
    assert not torch.equal(model[0].weight, before[0].weight)


@pytest.mark.parametrize("sizes", RESIZING_STAGES)
def test_a_decoder_behind_a_stage_that_resizes_is_refused(sizes, images, labels):
    wrap, change = RESIZING_STAGES[sizes]
    model = wrap(tiny_capsnet())
    before = copy.deepcopy(model.state_dict())
    sentence = re.escape(f"draws [8, 1, 18, 20], and the images are {sizes}; bring ")
    with pytest.raises(ArgumentError, match=f"{sentence}.*reconstruction=0"):
        tc.fit(model, change(images), labels, **SETTINGS)
    assert_equal(dict(model.state_dict()), dict(before))
    tc.fit(model, change(images), labels, reconstruction=0.0, **SETTINGS)


def test_a_network_is_found_without_a_trace():
    """Training flags, hooks and torch's generator are as before."""
    model = Centered(tiny_capsnet()).train()
    state = torch.get_rng_state()
    flags = [module.training for module in model.modules()]
    assert isinstance(find_network(model), WrappedNetwork)
    assert flags == [module.training for module in model.modules()]
    assert torch.equal(state, torch.get_rng_state())
    assert not model.net._forward_hooks and not model.net._forward_pre_hooks


def test_a_network_of_unknown_size_is_found_where_nothing_needs_to_be_tried(images, labels, capsys):
    net = Lengths()
    net.spec = tc.ModelSpec(activation="length", loss="margin")
    assert find_network(holder := Holder(net)) is holder
    for model in (nn.Sequential(Normalize(), net), nn.DataParallel(net), net):
        assert spec_of(model) == net.spec
        assert "train_margin" in tc.fit(model, images, labels, **SETTINGS).history[0]
        activations = tc.evaluate(model, (images, labels)).activations
        assert torch.equal(activations, model(images).detach())
    assert "declares nothing" not in capsys.readouterr().err


def test_fit_says_that_the_wrapper_has_no_part(images, labels, capsys):
    tc.fit(nn.DataParallel(tiny_capsnet()), images, labels, **SETTINGS)
    assert "the network within DataParallel is trained without it\n" in capsys.readouterr().err


@pytest.mark.parametrize("kind", [Lengths, Ensemble])
def test_lengths_are_not_fed_to_cross_entropy_without_a_sentence(kind, images, labels, capsys):
    tc.fit(kind(), images, labels, **SETTINGS)
    before, _, _ = capsys.readouterr().err.partition("epoch 1/2")
    assert f"{kind.__name__} declares nothing, so its outputs are taken for logits" in before
    assert "with the loss cross_entropy; choose another with loss=..." in before
    assert "warning: they are in [0, 1], as the lengths of capsules" in before
    with pytest.warns(UserWarning, match="which are no logits"):
        tc.fit(kind(), images, labels, **SETTINGS, verbose=False)


@pytest.mark.parametrize("kind", [Logits, lambda: nn.Sequential(Logits(), nn.Softmax(dim=1))])
def test_other_outputs_are_named_and_not_warned_of(kind, images, labels, capsys):
    tc.fit(kind(), images, labels, **SETTINGS)
    sentences = capsys.readouterr().err
    assert "declares nothing, so its outputs are taken for logits, with the loss" in sentences
    assert "as the lengths of capsules" not in sentences
    tc.fit(kind(), images, labels, **SETTINGS, verbose=False)


def test_prefixes_come_off_modules_that_declare_nothing(tmp_path, images, labels):
    model = nn.DataParallel(Logits())
    tc.fit(model, images, labels, **SETTINGS)
    loaded = tc.load(tc.save(model, tmp_path / "model", builder=Logits), builder=Logits)
    assert torch.equal(loaded(images), model(images))
