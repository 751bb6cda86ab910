"""Models as a notebook shows them."""

import copy

import pytest
import torch
from torch import nn

import torchcaps as tc
from checks import assert_equal
from reporting.pages import Page
from torchcaps.models import TransformingAutoencoder
from torchcaps.models.notebook import parameter_count
from torchcaps.nn import record_routing
from torchcaps.types import Routed

from .small import SMALL

NAMES = ("capsnet", "matrix_caps", "cnn_baseline")
LOADING_TAGS = ("script", "link", "img", "iframe", "style")


class Table(Page):
    """A page with the rows of its table."""

    def __init__(self, html):
        self.rows = []
        super().__init__(html)

    def handle_starttag(self, tag, attributes):
        super().handle_starttag(tag, attributes)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_data(self, data):
        super().handle_data(data)
        if self.open_tags and self.open_tags[-1] in ("td", "th"):
            self.rows[-1][-1] += data


def rows_of(model):
    """Kind, output and parameters of each stage, by its name."""
    return {name: tuple(cells) for name, *cells in Table(model._repr_html_()).rows}


def small_capsnet(**options):
    return tc.create_model("capsnet", **SMALL["capsnet"] | {"img_size": (20, 24)} | options)


@pytest.fixture(params=NAMES)
def model(request):
    return tc.create_model(request.param, **SMALL[request.param])


def test_outputs_are_those_of_a_forward_pass(model):
    outputs = {}
    for name, module in model.eval().named_modules():
        module.register_forward_hook(lambda *call, name=name: outputs.setdefault(name, call[2]))
    images = torch.rand(1, *model.image_shape)
    if model.spec.decoder:
        model.reconstruct(model.capsules(images))
    else:
        model(images)
    rows = rows_of(model)
    stages = rows.keys() - {"stage", "images", "total"}
    assert len(stages) >= 4
    for name in stages:
        output = outputs[name]
        shape = output.shape if isinstance(output, torch.Tensor) else output.pose.shape
        words = rows[name][1].split()
        assert [int(word) for word in words if word.isdigit()] == list(shape[1:])


def test_a_capsule_network_tells_of_its_routing_and_classes():
    model = small_capsnet()
    rows = rows_of(model)
    assert rows["images"] == ("", "1 × 20 × 24", "")
    assert rows["primary"][:2] == ("PrimaryCaps 9 × 9, stride 2", "2 × 4 × 2 capsules of 8 dims")
    classes = ("CapsuleLinear, dynamic routing, 3 iterations", "10 capsules of 16 dims")
    assert rows["class_capsules"][:2] == classes
    assert "classes: 10" in Page(model._repr_html_()).text


def test_a_module_as_router_is_not_copied(monkeypatch):
    class Uncopied(nn.Module):
        def forward(self, votes, activation):
            return Routed(votes.mean(dim=-3), activation, None)

    def refuse(self, memo):
        raise AssertionError("copied")

    model = small_capsnet(routing=Uncopied())
    monkeypatch.setattr(Uncopied, "__deepcopy__", refuse, raising=False)
    rows = rows_of(model)
    assert rows["class_capsules"][0] == "CapsuleLinear, Uncopied routing"


def test_class_names_are_escaped_and_many_are_cut_short():
    model = small_capsnet()
    model.classes = ("<script>alert('x')</script>", "\udc80", *(f"class {k}" for k in range(20)))
    html = model._repr_html_()
    html.encode("utf-8")
    page = Page(html)
    assert "22 (<script>alert('x')</script>, ?, class 0" in page.text
    assert "class 9 and 10 more" in page.text
    assert "class 10" not in page.text
    assert not any(map(page.elements, LOADING_TAGS))
    assert page.values("src") == page.values("href") == []
    assert "url(" not in html


@pytest.mark.parametrize("name", [*NAMES, "transforming_autoencoder"])
def test_showing_changes_nothing(name):
    model = tc.create_model(name, **SMALL[name]).train()
    first_stage = next(model.children()).eval()
    calls = []
    model.register_forward_hook(lambda *_: calls.append("model"))
    first_stage.register_forward_pre_hook(lambda *_: calls.append("stage"))
    modes = [module.training for module in model.modules()]
    state = copy.deepcopy(model.state_dict())
    rng_state = torch.get_rng_state()

    assert model._repr_html_() == model._repr_html_()

    assert torch.equal(torch.get_rng_state(), rng_state)
    assert [module.training for module in model.modules()] == modes
    assert_equal(model.state_dict(), state)
    assert all(p.grad is None and p.requires_grad for p in model.parameters())
    assert calls == []


def test_showing_records_nothing():
    model = small_capsnet()
    with record_routing(model) as record:
        model._repr_html_()
    assert record["class_capsules"] == []


def test_parameters_of_no_layer_are_stages():
    model = TransformingAutoencoder(2, (8, 9), capsules=3, recognition=4, generation=5)
    rows = rows_of(model)
    assert rows["weight.recognize"] == ("parameter", "3 × 144 × 4", "1,728")
    assert rows["bias.draw"] == ("parameter", "3 × 144", "432")
    assert "classes" not in Page(model._repr_html_()).text


@pytest.mark.parametrize("name", tc.list_models())
def test_every_model_shows_itself(name):
    with torch.device("meta"):
        model = tc.create_model(name)
        if model.spec.is_dense:
            model = tc.create_model(name, img_size=16)
    rows = rows_of(model.to_empty(device="cpu"))
    del rows["stage"]
    counts = {name: int(cells[-1].replace(",", "") or 0) for name, cells in rows.items()}
    total = counts.pop("total")
    assert total == sum(counts.values()) == parameter_count(model)
