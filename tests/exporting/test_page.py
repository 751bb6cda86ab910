"""Pages: what is in the file, and which models it carries."""

import json
import re

import numpy as np
import pytest
import torch

import torchcaps as tc
from torchcaps.errors import ExportError
from torchcaps.exporting.network import describe_network
from torchcaps.exporting.page import CONTENT, assemble, carry, pack, unpack

CARRIED = [
    ("capsnet", {}),
    ("capsnet", {"img_size": (30, 41), "in_chans": 3, "class_dim": 5, "between": (7, 6)}),
    ("capsnet", {"grouping": "flat", "leaky": True, "iterations": 5, "bias": True}),
    ("capsnet", {"over": "children", "decoder": False}),
    ("capsnet", {"routing": "uniform", "num_classes": 12}),
    ("efficient_capsnet", {}),
    ("efficient_capsnet", {"norm": "instance", "slope": 0.3, "edge": 1, "scale": 3.0}),
    ("efficient_capsnet", {"stem": ((5, 2, 8, 2), (3, 1, 24, 0)), "bias": True, "in_chans": 2}),
]
REFUSED = [
    ("matrix_caps_small", {}),
    ("capsnet", {"routing": "em"}),
    ("efficient_capsnet", {"decoder": "upsampling"}),
    ("efficient_capsnet", {"equal": True}),
]


def make(name, options):
    torch.manual_seed(0)
    if name == "capsnet":
        options = {"channels": 6, "primary_types": 2, "primary_dim": 4} | options
    model = tc.create_model(name, **{"num_classes": 4, "img_size": 28} | options)
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            if "running" in name:
                buffer.uniform_(0.5, 2)
        for weight in model.parameters():
            weight.add_(0.01 * torch.randn(weight.shape))
    return model.eval()


@pytest.mark.parametrize(("name", "options"), CARRIED)
def test_the_layers_in_words_answer_as_the_model(name, options):
    model = make(name, options)
    network = describe_network(model)
    network.layers = json.loads(json.dumps(network.layers))
    images = torch.rand(3, *model.image_shape)
    with torch.no_grad():
        expected = model(images)
    torch.testing.assert_close(network.answer(images), expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(("name", "options"), REFUSED)
def test_other_models_are_refused_with_those_that_it_carries(name, options, tmp_path):
    with pytest.raises(ExportError, match="capsnet, capsnet_small and efficient_capsnet"):
        tc.export(make(name, options), tmp_path / "page", format="page")
    assert not list((tmp_path / "page").glob("*"))


def test_arrays_come_back_as_they_were():
    random = np.random.default_rng(0)
    arrays = [
        random.normal(size=(3, 5)).astype(np.float16),
        random.normal(size=(7,)).astype(np.float32),
        random.integers(0, 256, (2, 2, 2), np.uint8),
    ]
    table, text = pack(arrays)
    for array, again in zip(arrays, unpack(table, text), strict=True):
        assert again.dtype == array.dtype
        np.testing.assert_array_equal(again, array)


def test_a_run_is_one_file_in_its_folder(run):
    exported = tc.export(run, run / "page", format="page")
    assert exported.path == run / "page" / "index.html"
    assert exported.difference <= 1e-5
    assert exported.weights == "float16"
    html = exported.path.read_text()
    [network] = json.loads(CONTENT.search(html)[1])["networks"]
    assert network["classes"] == list(tc.load(run).classes)
    assert network["examples"]["labels"]
    assert network["accuracy"] is None
    (run / "evaluation.json").write_text('{"accuracy": 0.75}')
    html = tc.export(run, run / "page", format="page").path.read_text()
    assert json.loads(CONTENT.search(html)[1])["networks"][0]["accuracy"] == 0.75


def test_nothing_may_be_asked_and_no_other_script_runs(run):
    loaded = tc.load(run)

    html = assemble([carry(loaded, None, "</script>", {})])
    [policy] = re.findall(r'Content-Security-Policy" content="([^"]*)"', html)
    assert "default-src 'none'" in policy and "connect-src 'none'" in policy
    assert "unsafe" not in policy
    assert "fetch(" not in html
    assert html.count("</script>") == html.count("<script")
