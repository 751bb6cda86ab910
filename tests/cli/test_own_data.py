"""Image files as people have them, from the command line: damage, groups, names."""

from __future__ import annotations

from data.makers import picture, write_folder

SMALL = "--option channels=16 --option primary_types=4 --threads 1 --no-keep-memory --shift 0"
QUICK = ("--epochs", 1, "--batch-size", 8, SMALL.split())


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
