"""A model is refused where its parameters cannot be trained in the memory at hand."""

import math

import pytest
import torch
from torch import nn

import torchcaps as tc
from torchcaps.errors import ArgumentError
from torchcaps.models import ModelInfo, _registry, register_model
from torchcaps.models._registry import MODELS, available_memory
from torchcaps.nn import DynamicRouting, use_generator

CPU = torch.device("cpu")
CAPSNET_BYTES = 16 * 8_215_568  # weight, gradient and two moments in float32


@pytest.fixture
def limit(monkeypatch):
    """A function that sets the memory at hand."""

    def set_limit(num_bytes):
        monkeypatch.setattr(_registry, "available_memory", lambda device: num_bytes)

    return set_limit


def test_what_does_not_fit_is_refused_in_one_sentence(limit):
    limit(CAPSNET_BYTES)
    assert sum(weight.numel() for weight in tc.create_model("capsnet").parameters()) == 8_215_568
    limit(CAPSNET_BYTES - 1)
    with pytest.raises(
        ArgumentError, match=r"^model: expected one to train in 0\.1 GiB"
    ) as refusal:
        tc.create_model("capsnet")
    assert "got capsnet with 8,215,568 parameters, which take 0.1 GiB" in str(refusal.value)


def test_nothing_large_is_allocated_before_the_refusal(limit):
    limit(32 << 30)
    sentence = r"capsnet with 9,1\d\d,\d\d\d,\d\d\d parameters, which take 13\d\.\d GiB"
    with pytest.raises(ArgumentError, match=sentence):
        tc.create_model("capsnet", img_size=227, in_chans=3, num_classes=196)


@pytest.mark.parametrize("name", ["capsnet", "deepcaps", "heinsen", "scae", "segcaps"])
def test_counting_draws_nothing_and_counts_what_is_built(name, limit):
    state = torch.get_rng_state()
    generator = torch.Generator().manual_seed(1)
    before = generator.get_state()
    limit(0)
    count = f"{tc.models.model_info(name).parameters:,} parameters"
    with use_generator(generator), pytest.raises(ArgumentError, match=count):
        tc.create_model(name)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(generator.get_state(), before)


def test_a_head_is_not_counted_with_its_backbone(limit):
    limit(16 * 269_722)  # a resnet20
    assert sum(x.numel() for x in tc.create_model("capsule_head").parameters()) == 327_472


def test_a_trained_model_is_loaded_where_it_could_not_be_trained(limit, tmp_path):
    model = tc.create_model("capsnet", channels=8, primary_types=2)
    tc.save(model, tmp_path / "model")
    limit(0)
    tc.load(tmp_path / "model")
    with torch.device("meta"):
        tc.create_model("capsnet")


def test_training_by_name_is_refused_before_a_folder_is_made(limit, tmp_path):
    limit(1 << 20)
    with pytest.raises(ArgumentError, match=r"^model: .*, got capsnet with "):
        tc.train("capsnet-digits", tmp_path / "run", per_class=2)
    assert not (tmp_path / "run").exists()


def test_a_builder_that_computes_with_numbers_is_not_counted(limit):
    class Scaled(nn.Linear):
        def __init__(self):
            super().__init__(4, 2)
            self.scale = self.weight.abs().max().item()

    limit(0)
    with MODELS.restored():
        info = ModelInfo(title="", year=2026, parameters=10, published="none")
        register_model(info, name="scaled")(lambda **_: Scaled())
        assert tc.create_model("scaled").scale > 0


def test_an_option_that_is_a_module_is_built_into_one_model_alone():
    routing = DynamicRouting(iterations=2)
    model = tc.create_model("capsnet", routing=routing, channels=8, primary_types=2)
    assert any(module is routing for module in model.modules())


def test_memory_is_that_of_the_machine_or_of_its_control_group(monkeypatch, tmp_path):
    monkeypatch.setattr(_registry, "MEMORY_FILE", tmp_path / "meminfo")
    monkeypatch.setattr(_registry, "GROUP_FILE", tmp_path / "max")
    assert available_memory(CPU) == math.inf
    (tmp_path / "meminfo").write_text("MemTotal: 800 kB\nMemAvailable: 400 kB\nSwapFree: 1 kB\n")
    (tmp_path / "max").write_text("max\n")
    assert available_memory(CPU) == 400 << 10
    (tmp_path / "max").write_text("5000\n")
    assert available_memory(CPU) == 5000
