"""Claims: their protocols, what is trained of them, and verdicts on results of known truth."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from filelock import FileLock

from claims import runner
from claims.protocol import list_claims, load_claim
from claims.results import (
    ClaimResult,
    check_protocol,
    pack_answers,
    pack_groups,
    read_results,
)
from claims.runner import RATE_SEED, choose_rate, missing_trainings, run_claims
from claims.table import (
    arms_table,
    claims_table,
    further_seeds,
    interval_text,
    judge_claims,
    verdict_text,
)
from claims.verdict import judge_claim
from torchcaps.errors import RunError, UnknownNameError
from torchcaps.testing import seeded
from torchcaps.training import Interrupted, StopWhen
from training import test_recipes
from training.makers import Watch, stop_after

ROOT = Path(__file__).parents[2]
PROTOCOL = """
title = "two networks"
published = "nothing"
[run]
model = "capsnet"
model_options = { channels = 8, primary_types = 2, decoder = false }
data = "digits"
epochs = 4
epoch_size = 32
batch_size = 16
holdout = 40
reconstruction = 0
device = "cpu"
checkpoint_every = 1
[claim]
statement = "One is better."
source = "nowhere, page 1"
published = "0.2 against 0.3"
arms = { C = "CapsNet", N = "CNN" }
data = "digits"
measure = "right answers"
seeds = 2
cost = 0.1
primary = { figure = "accuracy", better = "C", worse = "N", effect = "50%" }
margin = "10%"
rates = [0.001, 0.01]
support = "above 0"
refutation = "less than a quarter of the errors"
[budgets.small]
cost = "seconds"
run = { epochs = 1 }
[budgets.full]
cost = "seconds"
[[rows]]
name = "CapsNet"
[[rows]]
name = "CNN"
run.model = "cnn_matched"
run.model_options = { channels = 8, primary_types = 2, decoder = false }
"""


def claim_of(folder, **changes):
    """The claim above; changes are replacements of text."""
    content = PROTOCOL
    for old, new in changes.items():
        content = content.replace(old, new)
    file = folder / "mine.toml"
    file.write_text(content)
    return load_claim(str(file))


@pytest.fixture
def claim(tmp_path):
    return claim_of(tmp_path)


def result(claim, arm, seed, *, accuracy=0.9, kind="training", rate=None, figures=None):
    """A result whose answers are wrong for images at random."""
    generator = seeded(7919 * seed + ord(arm))
    is_correct = torch.rand(2000, generator=generator) < accuracy
    return ClaimResult(
        claim=claim.name,
        arm=arm,
        kind=kind,
        seed=seed,
        rate=rate,
        settings=claim.settings(arm, "full"),
        figures=figures or {"accuracy": float(is_correct.double().mean())},
        seconds=1.0,
        commit="",
        machine="",
        num_images=2000,
        answers=pack_answers(is_correct),
    )


def results_of(claim, better, worse, seeds=6):
    arms = {"C": better, "N": worse}
    return [
        result(claim, arm, seed, accuracy=accuracy)
        for arm, accuracy in arms.items()
        for seed in range(seeds)
    ]


@pytest.mark.parametrize(
    ("better", "worse", "truth"),
    [(0.95, 0.9, "supported"), (0.9, 0.9, "refuted"), (0.85, 0.9, "refuted")],
)
def test_the_verdict_is_the_truth_where_it_is_known(claim, better, worse, truth):
    claim = replace(claim, seeds=6)
    judgment = judge_claim(claim, results_of(claim, better, worse))
    assert judgment.verdict == truth
    assert judgment.effect == pytest.approx(0.5 * (1 - worse), abs=0.01)
    low, high = judgment.interval
    assert low <= better - worse <= high


def test_a_verdict_needs_all_seeds_and_the_family(claim):
    claim = replace(claim, seeds=6)
    results = results_of(claim, 0.95, 0.9)
    for some in (results[:-1], []):
        with pytest.raises(RunError, match=r"of 12 trainings are missing, and a verdict needs"):
            judge_claim(claim, some)
    assert judge_claim(claim, results, p_adjusted=0.2).verdict == "undecided"


def test_images_that_depend_on_each_other_are_counted_by_their_groups(claim):
    claim = replace(claim, seeds=6)
    results = results_of(claim, 0.92, 0.9)
    copies = []
    answers_of = {training.arm: training.is_correct[:250] for training in results}
    for training in results:  # eight copies of each of 250 images are no 2,000 images
        answers = answers_of[training.arm].repeat_interleave(8)
        groups = pack_groups(torch.arange(250).repeat_interleave(8))
        figures = {"error": 0.1}  # as of pairs, which have no accuracy
        copies.append(
            replace(training, answers=pack_answers(answers), groups=groups, figures=figures)
        )
    grouped = judge_claim(claim, copies)
    ungrouped = judge_claim(claim, [replace(training, groups="") for training in copies])
    widths = [high - low for low, high in (grouped.interval, ungrouped.interval)]
    assert widths[0] > 2 * widths[1]  # the root of 8, less what pseudo counts add
    assert grouped.difference == ungrouped.difference
    shares = [float(row[-1].split()[0]) for row in arms_table(claim, copies)[1:]]
    assert shares[0] - shares[1] == pytest.approx(100 * grouped.difference, abs=0.02)


def test_one_figure_a_training_is_compared_over_equal_seeds(tmp_path):
    changes = {'figure = "accuracy"': 'figure = "auroc"', '"50%"': "0.04"}
    claim = replace(claim_of(tmp_path, **changes), seeds=3)
    gaps = (0.03, 0.04, 0.05)
    results = []
    for seed, gap in enumerate(gaps):
        level = 0.1 * seed  # what both arms share of a seed
        results.append(result(claim, "C", seed, figures={"auroc": 0.5 + level + gap}))
        results.append(result(claim, "N", seed, figures={"auroc": 0.5 + level}))
    judgment = judge_claim(claim, results)
    assert judgment.verdict == "supported"
    assert judgment.difference == pytest.approx(0.04)
    # Student's t with 2 degrees of freedom: 4.3027 * 0.01 / sqrt(3)
    assert judgment.interval == pytest.approx((0.04 - 0.024842, 0.04 + 0.024842), abs=1e-5)
    lower = replace(claim, primary=replace(claim.primary, lower=True))
    assert judge_claim(lower, results).verdict == "refuted"


def test_one_claim_of_several_needs_a_smaller_p_value(tmp_path):
    changes = {'figure = "accuracy"': 'figure = "auroc"', '"50%"': "0.04"}
    claim = replace(claim_of(tmp_path, **changes), seeds=3)
    results = [result(claim, "N", seed, figures={"auroc": 0.5}) for seed in range(3)]
    for seed, gap in enumerate((0.018, 0.028, 0.038)):
        results.append(result(claim, "C", seed, figures={"auroc": 0.5 + gap}))
    waiting = replace(claim, recipe=replace(claim.recipe, name="waiting"))
    finished = {claim.name: results, "waiting": []}
    judgment = judge_claims([claim], finished)[claim.name]
    assert judgment.p_value == pytest.approx(0.04, abs=0.002)
    assert judgment.verdict == "supported"
    assert judgment.seeds_to_decide is None
    [undecided] = judge_claims([claim, waiting], finished).values()
    assert undecided.verdict == "undecided"
    assert undecided.p_adjusted == pytest.approx(2 * judgment.p_value)
    # Twice the p-value of Student's t of 0.028 / (0.01 / sqrt(n)) is first below 0.05 with n = 4.
    assert undecided.seeds_to_decide == 4
    assert further_seeds(claim, undecided) == (3, 3)
    assert verdict_text(claim, undecided) == "undecided, seeds 3 to 3 decide"
    own = replace(waiting, family="own")
    assert judge_claims([claim, own], finished)[claim.name].verdict == "supported"


def test_what_is_missing_is_listed_rates_first(claim):
    names = [training.name for training in missing_trainings(claim, [])]
    assert names == ["rate-C-0.001", "rate-C-0.01", "rate-N-0.001", "rate-N-0.01"]
    results = []
    for arm, scores in (("C", (0.5, 0.6)), ("N", (0.7, 0.6))):
        for rate, score in zip(claim.rates, scores, strict=True):
            figures = {"score": score}
            results.append(result(claim, arm, RATE_SEED, kind="rate", rate=rate, figures=figures))
    assert choose_rate(claim, "C", results) == 0.01
    assert choose_rate(claim, "N", results) == 0.001
    assert choose_rate(claim, "N", results[:-1]) is None
    trainings = list(missing_trainings(claim, results))
    assert [training.name for training in trainings] == ["C-0", "N-0", "C-1", "N-1"]
    assert [training.rate for training in trainings] == [0.01, 0.001, 0.01, 0.001]
    assert not [*missing_trainings(claim, [*results, *results_of(claim, 0.9, 0.9, seeds=2)])]


def test_a_training_that_was_stopped_goes_on_and_none_is_done_twice(claim, tmp_path, no_plots):
    results = tmp_path / "results"
    options = {"work": tmp_path / "work", "budget": "small"}
    names = []
    watch = Watch()

    def run(*callbacks, **more):
        return run_claims(
            [claim], results, **options, started=names.append, callbacks=[watch, *callbacks], **more
        )

    with pytest.raises(Interrupted):
        run(stop_after(10))  # asked before each of four rates, after its one step, and in C-0
    assert names[3:] == ["mine, rate-N-0.01", "mine, C-0"]
    assert run(minutes=0) == []
    assert len(run()) == 4
    assert names[5:7] == ["mine, C-0", "mine, N-0"]
    assert len(watch.steps) == 4 + 4 * 2  # no step was repeated
    assert run() == []
    finished = read_results(claim, results, "small")
    assert len(finished) == 8
    assert not any((tmp_path / "work" / "mine").iterdir())

    training = json.loads((results / "mine" / "N-1.json").read_text())
    assert training["settings"]["epochs"] == 1
    assert training["rate"] == training["settings"]["lr"]
    second_result = next(
        result_of_run for result_of_run in finished if result_of_run.file_name == "N-1.json"
    )
    assert float(second_result.is_correct.double().mean()) == training["figures"]["accuracy"]
    with pytest.raises(RunError, match=r"was trained with epochs 1, and the protocol has 4"):
        read_results(claim, results)
    table = claims_table([claim], {"mine": finished}, {})
    assert table[1][:3] == ("mine", "4 of 4", "-")
    assert [row[:3] for row in arms_table(claim, finished)[1:]] == [
        ("C", "CapsNet", "2"),
        ("N", "CNN", "2"),
    ]


def test_results_of_another_protocol_are_refused_without_a_reason(claim):
    changed = {**claim.settings("C", "full"), "epochs": 40}
    other = replace(result(claim, "C", 0), settings=changed)
    check_protocol(claim, [result(claim, "C", 0)])
    with pytest.raises(RunError, match=r"C-0.json was trained with epochs 40, and the protocol"):
        check_protocol(claim, [other])
    check_protocol(replace(claim, changed="epochs were too many"), [other])


def test_broken_protocols_and_results_are_one_sentence(claim, tmp_path):
    for name in ("capsnet-mnist", "no-claim"):
        with pytest.raises(UnknownNameError, match=f"unknown claim '{name}'"):
            load_claim(name)
    (tmp_path / "empty.toml").write_text(PROTOCOL[: PROTOCOL.index("[claim]")])
    with pytest.raises(RunError, match=r"claim empty: 'claim'"):
        load_claim(str(tmp_path / "empty.toml"))
    with pytest.raises(RunError, match="unexpected keyword argument 'proof'"):
        claim_of(tmp_path, **{"support =": "proof = 1\nsupport ="})
    with pytest.raises(RunError, match="unknown family 'mine'"):
        claim_of(tmp_path, **{"support =": 'family = "mine"\nsupport ='})
    with pytest.raises(RunError, match="arm of primary"):
        claim_of(tmp_path, **{'worse = "N"': 'worse = "U"'})
    with pytest.raises(RunError, match="effect: expected a number above 0"):
        claim_of(tmp_path, **{'"50%"': "0.0", 'figure = "accuracy"': 'figure = "auroc"'})
    folder = tmp_path / "results" / claim.name
    folder.mkdir(parents=True)
    (folder / "C-0.json").write_text("{}")
    with pytest.raises(RunError, match=r"C-0.json: is no readable result"):
        read_results(claim, tmp_path / "results")


def test_the_effect_is_printed_with_the_digits_of_claims_json():
    assert interval_text(-0.00004999999999, (-0.1, 0.1)) == "-0.01 (-10.00 to +10.00)"


def test_the_document_has_the_cost_of_each_claim(request):
    text = (request.config.rootpath / "docs" / "claims.md").read_text()
    claims = [load_claim(name) for name in list_claims()]
    for claim in claims:
        trainings = f"{claim.seeds} seeds of {len(claim.arms)} arms"
        assert f"| `{claim.name}` | {trainings} | {claim.cost:.1f} |" in text
    published = sum(claim.cost for claim in claims if claim.family == "published")
    assert f"take {published:.1f} core-hours" in text


@pytest.mark.parametrize("name", list_claims())
def test_every_protocol_names_what_exists(name):
    test_recipes.test_every_recipe_names_what_exists(name)


def test_what_another_process_holds_is_left_to_it(claim, tmp_path, monkeypatch, no_plots):
    monkeypatch.setattr(runner, "POLL_SECONDS", 0.01)
    names = []
    locks = tmp_path / "work" / ".locks"
    locks.mkdir(parents=True)
    lock = FileLock(locks / "mine-rate-C-0.001.lock")
    lock.acquire()

    def release_at_second_training(_trainer, _row):
        if len(names) == 2:
            lock.release()

    done = run_claims(
        [claim],
        tmp_path / "results",
        work=tmp_path / "work",
        budget="small",
        started=names.append,
        callbacks=[Watch(on_epoch=release_at_second_training)],
    )
    assert names[:3] == ["mine, rate-C-0.01", "mine, rate-N-0.001", "mine, rate-C-0.001"]
    assert len(done) == len(set(names)) == 8


def test_a_signal_ends_the_wait_for_another_process(claim, tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "POLL_SECONDS", 0.01)
    locks = tmp_path / "work" / ".locks"
    locks.mkdir(parents=True)
    asked = iter([False, False, True])
    with ExitStack() as held:
        for training in missing_trainings(claim, []):
            held.enter_context(FileLock(locks / f"mine-{training.name}.lock"))
        with pytest.raises(Interrupted, match="stopped between two trainings"):
            run_claims(
                [claim],
                tmp_path / "results",
                work=tmp_path / "work",
                callbacks=[StopWhen(lambda: next(asked))],
            )


@pytest.mark.slow
def test_two_jobs_do_each_training_once(tmp_path):
    (tmp_path / "mine.toml").write_text(PROTOCOL)
    command = "mine.toml --run --budget small --jobs 2 --results results --json"
    path = os.pathsep.join(map(str, (ROOT / "src", ROOT)))
    process = subprocess.run(
        [sys.executable, "-m", "claims", *command.split()],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    started = [line for line in process.stderr.splitlines() if line.startswith("mine, ")]
    assert len(started) == len(set(started)) == 8
    assert len([*(tmp_path / "results" / "mine").glob("*.json")]) == 8
