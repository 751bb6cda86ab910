"""Models as a notebook shows them."""

from __future__ import annotations

import copy
import pickle
from html.parser import HTMLParser

import pytest
import torch
from torch import nn

import torchcaps as tc
from torchcaps.models import TransformingAutoencoder
from torchcaps.nn import record_routing
from torchcaps.types import Routed

SMALL = {
    "capsnet": {"channels": 8, "primary_types": 2, "img_size": (20, 24)},
    "matrix_caps": {"channels": 4, "primary_types": 2, "types": (3, 2), "img_size": (18, 22)},
    "cnn_smallnorb": {"channels": (3, 4), "hidden": (5,), "img_size": 12},
}


class Cells(HTMLParser):
    """Rows of the table, all text, and whatever a page would have to load or run."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.rows, self.open, self.loads, self.text = [], [], [], ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
        self.loads += [tag] if tag in ("script", "link", "img", "iframe", "style") else []
        self.loads += [
            name for name, value in attrs if name in ("src", "href") or "url(" in (value or "")
        ]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data
        if self.open and self.open[-1] in ("td", "th"):
            self.rows[-1][-1] += data


def rows(model):
    """Stage name -> (kind, output, parameters)."""
    return {name: tuple(rest) for name, *rest in Cells(model._repr_html_()).rows}


def small(name):
    return tc.create_model(name, **SMALL[name])


@pytest.mark.parametrize("name", SMALL)
def test_parameters_of_the_stages_add_up(name):
    model = small(name)
    found = rows(model)
    counts = {
        stage: int(cells[-1].replace(",", "") or 0)
        for stage, cells in found.items()
        if stage != "stage"
    }
    total = counts.pop("total")
    assert total == sum(p.numel() for p in model.parameters()) == sum(counts.values())


@pytest.mark.parametrize("name", SMALL)
def test_outputs_are_those_of_a_forward_pass(name):
    model = small(name).eval()
    seen = {}
    for stage, module in model.named_modules():
        module.register_forward_hook(
            lambda module, inputs, output, stage=stage: seen.setdefault(stage, output)
        )
    images = torch.rand(1, model.in_chans, *model.img_size)
    if model.spec.decoder:
        model.reconstruct(model.capsules(images))
    else:
        model(images)
    found = rows(model)
    stages = set(found) - {"stage", "images", "total"}
    assert len(stages) >= 4
    for stage in stages:
        output = seen[stage]
        sizes = list(output.shape if isinstance(output, torch.Tensor) else output.pose.shape)[1:]
        assert [int(word) for word in found[stage][1].split() if word.isdigit()] == sizes


def test_a_capsule_network_tells_of_its_routing_and_classes():
    model = small("capsnet")
    found = rows(model)
    assert found["images"] == ("", "1 × 20 × 24", "")
    assert found["primary"][:2] == ("PrimaryCaps 9 × 9, stride 2", "2 × 4 × 2 capsules of 8 dims")
    assert found["class_capsules"][:2] == (
        "CapsuleLinear, dynamic routing, 3 iterations",
        "10 capsules of 16 dims",
    )
    assert "classes: 10" in Cells(model._repr_html_()).text
    assert rows(tc.create_model("capsnet", routing="uniform", **SMALL["capsnet"]))[
        "class_capsules"
    ][0] == ("CapsuleLinear, uniform routing, 1 iteration")


def test_matrix_capsules_show_windows_and_iterations():
    found = rows(tc.create_model("matrix_caps", iterations=1, **SMALL["matrix_caps"]))
    assert found["conv_capsules.0"][0] == "ConvCaps 3 × 3, stride 2, em routing, 1 iteration"


def test_a_routers_own_parameters_are_counted():
    model = tc.create_model("capsnet", routing="em", decoder=False, **SMALL["capsnet"])
    layer = sum(p.numel() for p in model.class_capsules.parameters())
    assert rows(model)["class_capsules"][-1] == f"{layer:,}"
    assert layer > model.class_capsules.weight.numel()


def test_a_function_as_router_is_named_and_not_called():
    def never(votes, activation):
        raise AssertionError("called")

    model = tc.create_model("capsnet", routing=never, **SMALL["capsnet"])
    assert rows(model)["class_capsules"][0] == "CapsuleLinear, never routing"


def test_a_module_as_router_is_not_copied():
    class Odd(nn.Module):
        def forward(self, votes, activation):
            return Routed(votes.mean(dim=-3), activation, None)

        def __deepcopy__(self, memo):
            raise AssertionError("copied")

    model = tc.create_model("capsnet", routing=Odd(), **SMALL["capsnet"])
    assert rows(model)["class_capsules"][0] == "CapsuleLinear, Odd routing"


def test_class_names_are_escaped_and_many_are_cut_short():
    model = small("capsnet")
    model.classes = ("<script>alert('x')</script>", "\udc80", *(f"class {k}" for k in range(20)))
    html = model._repr_html_()
    html.encode("utf-8")
    cells = Cells(html)
    assert "22 (<script>alert('x')</script>, ?, class 0" in cells.text
    assert "class 9, …" in cells.text
    assert "class 10" not in cells.text
    assert cells.loads == []
    assert cells.open == []


@pytest.mark.parametrize("name", [*SMALL, "transforming"])
def test_showing_changes_nothing(name):
    model = (
        TransformingAutoencoder(img_size=8, capsules=2) if name == "transforming" else small(name)
    )
    model.train()
    next(model.children()).eval()
    calls = []
    model.register_forward_hook(lambda *_: calls.append("model"))
    next(model.children()).register_forward_pre_hook(lambda *_: calls.append("stage"))
    modes = [module.training for module in model.modules()]
    before, random = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    assert model._repr_html_() == model._repr_html_()
    assert torch.equal(torch.get_rng_state(), random)
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert all(p.grad is None and p.requires_grad for p in model.parameters())
    assert calls == []


def test_showing_records_nothing():
    model = small("capsnet")
    with record_routing(model) as record:
        model._repr_html_()
    assert record["class_capsules"] == []


@pytest.mark.parametrize("name", SMALL)
def test_models_are_copied_and_pickled_as_before(name):
    model = small(name).eval()
    images = torch.rand(2, model.in_chans, *model.img_size)
    expected = model(images)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(twin(images), expected)
        assert twin._repr_html_() == model._repr_html_()
        assert twin.state_dict().keys() == model.state_dict().keys()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_precisions_are_shown_too(dtype):
    assert rows(small("capsnet").to(dtype)) == rows(small("capsnet"))


@pytest.mark.parametrize(("pose", "dims"), [("translation", 2), ("affine", 9)])
def test_a_transforming_autoencoder_shows_its_five_stages(pose, dims):
    model = TransformingAutoencoder(
        2,
        (8, 9),
        capsules=3,
        recognition=4,
        generation=5,
        pose=pose,
        constrained=pose == "affine",
        bounded=True,
    )
    capsules = model.capsules(torch.rand(1, 2, 8, 9))
    found = rows(model)
    assert found["place"][:2] == (
        f"poses ({pose})",
        f"3 capsules of {capsules.pose.shape[-1]} dims",
    )
    assert capsules.pose.shape[-1] == dims
    assert found["recognize"][1] == "3 capsules of 4 units"
    assert found["gate"][1] == "3 presences"
    assert found["draw"][:2] == ("sum over capsules, then sigmoid", "2 × 8 × 9")
    assert found["total"][-1] == f"{sum(p.numel() for p in model.parameters()):,}"
    assert "classes" not in Cells(model._repr_html_()).text


@pytest.mark.parametrize("name", tc.list_models())
def test_every_model_shows_itself(name):
    with torch.device("meta"):
        model = tc.create_model(name)
        model = tc.create_model(name, img_size=16) if model.spec.is_dense else model
    lines = Cells(model.to_empty(device="cpu")._repr_html_()).rows
    assert lines[-1][-1] == f"{sum(p.numel() for p in model.parameters()):,}"


def test_class_capsules_with_a_bias_show_themselves():
    assert rows(tc.create_model("capsnet", bias=True, **SMALL["capsnet"]))["class_capsules"]
