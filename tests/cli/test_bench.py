from __future__ import annotations

import json

import pytest

from checks import column
from torchcaps.bench import step

from .conftest import the_sentence

MODEL = "--option channels=16 --option primary_types=4 --batch 4 --repeats 1 --precision fp32"
LAYER = "--quick --children 12 --batch 4"


@pytest.mark.parametrize(
    ("words", "head"),
    [
        (f"step {MODEL} --quick --variants limit blocked", "img/s"),
        (f"layer {LAYER} --variants limit blocked", "of roofline"),
        (f"routers {LAYER} --routers dynamic uniform", "x uniform"),
        (f"latency {MODEL}", "95 % ms"),
        (f"scaling {LAYER} --impl blocked", "exponent"),
    ],
)
def test_a_table_or_one_json_document(command, words, head):
    name, *flags = words.split()
    table = command("bench", name, flags)
    assert table.status == 0, table.err
    heading = table.out.split("copies")[0]
    assert set(head.split()) <= set(heading.split())
    assert "torch " in table.out.splitlines()[-1]
    document = command("bench", name, flags, "--json").document
    assert head in document[name]["rows"][0]
    assert document["settings"]["clock"] == "wall"
    assert "processor" in document["machine"]


def test_figures_and_plots_are_written_to_the_named_paths(command, tmp_path):
    words = f"layer {LAYER} --variants limit einsum --output new/layer.json --plots pictures"
    outcome = command("bench", words.split())
    assert outcome.status == 0, outcome.err
    document = json.loads((tmp_path / "new" / "layer.json").read_text())
    assert column(document["layer"]["rows"], "variant") == ["limit", "einsum"]
    assert (tmp_path / "pictures" / "layer.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("step", "--repeats", "0"), "--repeats: expected at least 1, got 0"),
        (("step", "--batch", "0"), "--batch: expected at least 1, got 0"),
        (("step", "--threads", "0"), "--threads: expected between 1 and 256, got 0"),
        (("layer", "--parents", "0"), "parents: expected at least 1, got 0"),
        (("step", "--variants", "txtbook"), "unknown variant 'txtbook'; did you mean 'textbook'"),
        (("scaling", "--impl", "blcked"), "unknown impl 'blcked'; did you mean 'blocked'"),
        (("routers", "--routers", "dynamc"), "unknown routing 'dynamc'; did you mean 'dynamic'"),
        (("step", "--model", "capsnt"), "unknown model 'capsnt'; did you mean 'capsnet'"),
        (("step", "--option", "chanels=3"), "--option: "),
        (("step", "--clock", "cpu", "--threads", "2"), "--clock cpu: expected --threads 1, got 2"),
        (("step", "--output", "."), "--output: expected a file, got the folder ."),
    ],
)
def test_a_wrong_argument_is_2_before_anything_is_measured(command, words, sentence):
    outcome = command("bench", words)
    assert outcome.status == 2
    assert the_sentence(outcome).startswith(sentence)


def test_an_unknown_benchmark_is_2(command):
    assert command("bench", "speed").status == 2


def test_an_interruption_is_130(command, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(step, "alternate", interrupted)
    outcome = command("bench", "step", MODEL.split(), "--variants", "limit")
    assert outcome.status == 130
