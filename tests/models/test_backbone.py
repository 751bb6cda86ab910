"""Networks on a backbone: any module, models of transformers, trained networks of this library."""

import copy
import json
import pickle
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import torchcaps as tc
from torchcaps.errors import ArgumentError
from torchcaps.functional import standardize
from torchcaps.models import Backbone, register_backbone, with_backbone
from torchcaps.models._backbones import BACKBONES
from torchcaps.testing import seeded
from torchcaps.types import model_metadata

from .small import small_model


class Encoder(nn.Module):
    """Maps, sequences or vectors, or an object that holds them."""

    def __init__(self, kind="map"):
        super().__init__()
        self.kind = kind
        self.layers = nn.Sequential(nn.Conv2d(3, 6, 3, stride=2), nn.BatchNorm2d(6))

    def forward(self, x):
        x = self.layers(x)
        match self.kind:
            case "sequence":
                return x.flatten(2).mT
            case "vector":
                return x.mean(dim=(2, 3))
            case "feature_maps":
                return SimpleNamespace(feature_maps=(x[:, :2], x))
            case "last_hidden_state":
                return SimpleNamespace(last_hidden_state=x.flatten(2).mT)
            case "nothing":
                return {"x": x}
        return x


KINDS = {
    "map": (6, 4, 4),
    "sequence": (6, 1, 16),
    "vector": (6, 1, 1),
    "feature_maps": (6, 4, 4),
    "last_hidden_state": (6, 1, 16),
}


@pytest.mark.parametrize("head", ["capsule", "linear"])
@pytest.mark.parametrize("kind", KINDS)
def test_any_module_becomes_a_model_of_the_library(kind, head):
    model = with_backbone(Encoder(kind), 4, img_size=11, head=head).eval()
    assert model.feature_shape == KINDS[kind]
    assert model.img_size == (11, 11)
    assert model.num_classes == 4
    images = torch.rand(2, 3, 11, 11, generator=seeded())
    outputs = model(images)
    assert outputs.shape == (2, 4)
    assert torch.equal(copy.deepcopy(model)(images), outputs)
    assert torch.equal(pickle.loads(pickle.dumps(model))(images), outputs)
    twin = with_backbone(Encoder(kind), 4, img_size=11, head=head).eval()
    twin.load_state_dict(model.state_dict())
    assert torch.equal(twin(images), outputs)


def test_the_outputs_are_those_of_the_capsules():
    model = with_backbone(Encoder(), 4, img_size=11).eval()
    images = torch.rand(2, 3, 11, 11)
    capsules = model.capsules(images)
    assert model.spec.activation == "length"
    assert torch.equal(model(images), capsules.activation)
    assert_close(capsules.pose.norm(dim=-1), capsules.activation)
    assert with_backbone(Encoder(), 4, img_size=11, routing="em").spec.activation == "probability"


def test_normalization_is_a_part_of_the_model():
    mean, std = (0.1, 0.2, 0.3), (0.5, 0.6, 0.7)
    encoder = Encoder().eval()
    model = with_backbone(encoder, 4, img_size=11, mean=mean, std=std).eval()
    images = torch.rand(2, 3, 11, 11)
    shift = torch.tensor(mean).view(3, 1, 1)
    scale = torch.tensor(std).view(3, 1, 1)
    features = nn.functional.adaptive_avg_pool2d(encoder((images - shift) / scale), 4)
    assert_close(model.features(images), features)
    gray = with_backbone(encoder, 4, in_chans=1, img_size=11, mean=mean, std=std).eval()
    assert_close(gray.features(images[:, :1]), model.features(images[:, :1].expand(-1, 3, -1, -1)))


def test_a_frozen_backbone_stays_as_it_was():
    for freeze in (True, False):
        model = with_backbone(Encoder(), 4, img_size=11, freeze=freeze)
        before = copy.deepcopy(model.backbone.state_dict())
        tc.fit(model, torch.rand(16, 3, 11, 11), torch.arange(16) % 4, epochs=1, holdout=0.5)
        after = model.backbone.state_dict()
        changed = [name for name in before if not torch.equal(before[name], after[name])]
        assert bool(changed) != freeze
        assert model.spec.features == freeze


def test_the_statistics_of_a_pretrained_backbone_stay_as_they_were():
    for pretrained, freeze in ((True, True), (True, False), (False, False)):
        module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
        options = {"pretrained": pretrained, "freeze": freeze}
        model = with_backbone(module, 4, img_size=11, **options)
        tc.fit(model, torch.rand(16, 3, 11, 11), torch.arange(16) % 4, epochs=1, holdout=0.5)
        assert bool(module[1].num_batches_tracked) != pretrained
        assert torch.equal(module[1].weight, torch.ones(4)) == freeze
    assert not with_backbone(module, 4, img_size=11, pretrained=False).backbone.freeze


def test_features_stand_for_images_where_the_backbone_is_frozen():
    images = torch.rand(2, 3, 11, 11)
    for head in ("capsule", "linear"):
        model = with_backbone(Encoder(), 4, img_size=11, head=head).eval()
        assert torch.equal(model(model.backbone(images)), model(images))
    tuned = with_backbone(Encoder(), 4, img_size=11, freeze=False).eval()
    with pytest.raises(ArgumentError, match="images: expected"):
        tuned(tuned.backbone(images))


def test_modules_and_images_that_do_not_fit_are_refused():
    with pytest.raises(ArgumentError, match="feature_maps or last_hidden_state"):
        with_backbone(Encoder("nothing"), 4, img_size=11)
    with pytest.raises(ArgumentError, match="backbone: takes no images of 2x2 pixels"):
        with_backbone(Encoder(), 4, img_size=2)
    with pytest.raises(ArgumentError, match="in_chans: expected 1 or 3"):
        with_backbone(Encoder(), 4, in_chans=2, img_size=11)
    with pytest.raises(ArgumentError, match="head"):
        with_backbone(Encoder(), 4, head="conv", img_size=11)


def test_a_registered_backbone_is_built_again_without_its_weights(tmp_path):
    reads = []

    def encoder(pretrained, kind="map"):
        reads.append(pretrained)
        return Backbone(Encoder(kind), (0.5,) * 3, (0.25,) * 3, {"kind": kind})

    with BACKBONES.restored():
        register_backbone("encoder")(encoder)
        model = tc.create_model("capsule_head", num_classes=3, img_size=11, backbone="encoder")
        assert model.backbone.freeze
        model.eval()
        path = tc.save(model, tmp_path / "model")
        assert reads.count(True) == 1
        images = torch.rand(2, 3, 11, 11)
        loaded = tc.load(path)
        assert reads.count(True) == 1
        assert torch.equal(loaded(images), model(images))
        assert tc.load(path, num_classes=5)(images).shape == (2, 5)


@pytest.mark.parametrize("standardized", [False, True])
def test_the_trunk_of_a_trained_network_is_a_backbone(tmp_path, standardized):
    network = small_model("resnet20", standardized=standardized)
    file = tc.save(network, tmp_path / "resnet.safetensors")
    model = tc.create_model("linear_head", backbone=str(file), num_classes=5, img_size=16).eval()
    images = torch.rand(2, 3, 16, 16)
    inputs = standardize(images) if standardized else images
    assert_close(model.features(images), network.trunk(inputs))
    path = tc.save(model, tmp_path / "head.safetensors")
    file.unlink()
    assert torch.equal(tc.load(path)(images), model(images))
    network = tc.save(small_model("hvc"), file)
    with pytest.raises(ArgumentError, match="a network with a trunk"):
        tc.create_model("linear_head", backbone=str(network))


def test_an_unknown_backbone_is_named_in_one_sentence():
    with pytest.raises(ArgumentError, match="no/where is no registered one"):
        tc.create_model("capsule_head", backbone="/no/where")


def small_resnet(transformers):
    config = transformers.ResNetConfig(
        embedding_size=4,
        hidden_sizes=[4, 6],
        depths=[1, 1],
        layer_type="basic",
        out_features=["stage2"],
    )
    return transformers.ResNetBackbone(config)


def small_vit(transformers):
    config = transformers.ViTConfig(
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=8,
        image_size=16,
        patch_size=8,
    )
    return transformers.ViTModel(config)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("make", [small_resnet, small_vit])
def test_a_folder_of_transformers_is_a_backbone(tmp_path, make):
    transformers = pytest.importorskip("transformers", reason="needs the extra backbones")
    module = make(transformers).eval()
    folder = tmp_path / "network"
    module.save_pretrained(folder)
    settings = {"image_mean": [0.5] * 3, "image_std": [0.25] * 3}
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    options = {"num_classes": 3, "img_size": 16, "backbone": str(folder)}
    model = tc.create_model("capsule_head", **options).eval()

    images = torch.rand(2, 3, 16, 16)
    outputs = module((images - 0.5) / 0.25)
    maps = getattr(outputs, "feature_maps", None)
    expected = maps[-1] if maps else outputs.last_hidden_state.mT.unsqueeze(2)
    assert_close(model.features(images), expected)

    path = tc.save(model, tmp_path / "model")
    for file in folder.iterdir():
        file.unlink()
    assert torch.equal(tc.load(path)(images), model(images))
    with pytest.raises(ArgumentError, match="cannot be read as a model of transformers"):
        tc.create_model("capsule_head", **options)


@pytest.mark.filterwarnings("ignore")
def test_a_model_of_transformers_in_memory_remembers_how_it_was_made(tmp_path):
    transformers = pytest.importorskip("transformers", reason="needs the extra backbones")
    model = with_backbone(small_vit(transformers), 3, img_size=16, types=4).eval()
    assert model_metadata(model).name == "capsule_head"
    images = torch.rand(2, 3, 16, 16)
    assert torch.equal(tc.load(tc.save(model, tmp_path / "model"))(images), model(images))
    tuned = with_backbone(small_vit(transformers), 3, img_size=16, freeze=False)
    assert not tc.load(tc.save(tuned, tmp_path / "tuned")).backbone.freeze
