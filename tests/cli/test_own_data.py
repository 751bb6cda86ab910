"""Image files as people have them, from the command line: damage, groups, names."""

from __future__ import annotations

import json

import pytest

from data.makers import SIGN_PATTERN, picture, write_folder, write_sign_folder
from torchcaps.training import Run
from torchcaps.training.sampling import load_images, read_images

SMALL = "--option channels=16 --option primary_types=4 --threads 1 --no-keep-memory --shift 0"
QUICK = ("--epochs", 1, "--batch-size", 8, SMALL.split())


@pytest.mark.slow
def test_signs_in_tracks_train_without_damaged_files_and_are_predicted(command, tmp_path):
    damaged = write_sign_folder(tmp_path / "signs")
    words = ["train", "capsnet", "--data", "signs", "--img-size", 18, SMALL.split()]
    words += ["--epochs", 8, "--batch-size", 32, "--lr", 0.005, "--output", "run"]
    refused = command(words)
    assert refused.status == 1
    assert all(f"{file.relative_to(tmp_path)}: " in refused.err for file in damaged)

    trained = command(words, "--skip-damaged", "--group-pattern", SIGN_PATTERN)
    assert trained.status == 0, trained.err
    for words in (
        "that cannot be read",
        "groups by 'object'",
        "chosen by balanced accuracy",
    ):
        assert words in trained.err
    figures = json.loads((tmp_path / "run" / "evaluation.json").read_text())
    assert figures["accuracy"] > 0.3  # chance is 0.02

    config = Run("run").config
    _, train, val = read_images(config, "cpu")
    test = load_images(config, "test")
    tracks = [set(images.targets["object"].tolist()) for images in (train, val, test)]
    assert not tracks[0] & tracks[1]
    assert not (tracks[0] | tracks[1]) & tracks[2]

    predicted = command("predict", "run", "signs", "--csv")
    assert predicted.status == 1  # of the damaged files
    assert predicted.out.count("\n") == 1 + len(train) + len(val) + len(test)


def test_names_of_classes_are_printed_and_written_safely(command, tmp_path):
    hostile = "red \x1b[31m"
    long_name = "x" * 250
    write_folder(tmp_path / "own", (hostile, long_name), count=6, size=(18, 18))
    picture((18, 18)).save(tmp_path / "own" / hostile / "plain", format="PNG")
    trained = command("train", "capsnet", "--data", "own", QUICK, "--output", "run")
    assert trained.status == 0, trained.err
    outcomes = [trained, command("evaluate", "run"), command("perturb", "run", "--steps", 3)]
    outcomes.append(command("predict", "run", f"own/{hostile}"))
    for outcome in outcomes:
        assert outcome.status == 0, outcome.err
        assert "\x1b" not in outcome.out + outcome.err
    assert len(outcomes[2].out.split()) == 2
