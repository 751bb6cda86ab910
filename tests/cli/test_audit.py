"""`torchcaps audit`: by a backbone and by a run, its outputs, and what is wrong on the command line."""

import csv

import pytest
import torch

from cli.conftest import assert_fails, first_words, succeed
from torchcaps.models import Backbone, register_backbone
from torchcaps.models._backbones import BACKBONES
from torchcaps.training import features

FLAGS = "--seeds 1 --folds 3 --epochs 2 --batch-size 16"
QUICK = f"{FLAGS} --option types=3 --option dim=4"


@pytest.fixture
def words(bars, tmp_path, monkeypatch):
    """A command on a backbone, which keeps features in an empty folder."""
    monkeypatch.setattr(features, "default_cache_dir", lambda: tmp_path / "cache")
    with BACKBONES.restored():

        @register_backbone("encoder")
        def encoder(pretrained):
            with torch.random.fork_rng():
                torch.manual_seed(0)
                return Backbone(torch.nn.Conv2d(1, 6, 6, stride=6), (0.5,), (0.5,))

        yield ["audit encoder --data", bars, QUICK]


def test_a_backbone_is_audited_as_text_and_as_json(command, words, bars, tmp_path):
    outcome = succeed(command(words))
    lines = [line for line in outcome.out.splitlines() if line]
    assert first_words(lines).count("folds") == 4
    assert "features of the frozen backbone for 48 images: 48 to be computed" in outcome.err

    again = command(words, "--json --shifted", bars, "--output all.csv")
    document = succeed(again).document
    assert "48 images: 0 to be computed" in again.err  # the others are kept
    assert [row["head"] for row in document["rows"]] == 2 * ["capsules", "uniform", "linear", "mlp"]
    assert [line for line in document["verdict"][:4] if line not in outcome.out] == []
    assert document["settings"]["seeds"] == 1
    rows = list(csv.DictReader((tmp_path / "all.csv").read_text().splitlines()))
    assert len(rows) == 4 * (48 + 48)


def test_a_run_is_audited_with_its_own_options(command, words, bars):
    training = ["train capsule_head --backbone encoder --output run --data", bars]
    options = "--option types=2 --option routing=em --epochs 1 --batch-size 16 --holdout 6"
    succeed(command(training, options, "--no-keep-memory"))
    document = succeed(command("audit run --data", bars, FLAGS, "--json")).document
    weights = {row["head"]: row["weights"] for row in document["rows"]}
    assert weights["capsules"] == weights["uniform"] == pytest.approx(weights["mlp"], rel=0.05)
    assert weights["linear"] == 7 * 3
    # types * (poses and presence) + norm + matrices of 4 x 4 + two costs a class
    assert weights["capsules"] == 2 * 16 * (6 + 2 + 1) + 2 * 7 + 2 * 6 + 2 * 3 * 16 + 2 * 3


@pytest.mark.parametrize(
    ("flag", "sentence"),
    [
        ("--seeds=0", "seeds: expected at least 1"),
        ("--margin=no", "margin: expected a share such as 10%"),
    ],
)
def test_what_is_wrong_is_one_sentence(command, words, flag, sentence):
    assert_fails(command(words, flag), 2, sentence)
