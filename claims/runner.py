"""Trains what is missing of the claims, the cheapest first; each training leaves one small file."""

import math
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout

from claims.protocol import PLACE, Claim
from claims.results import ClaimResult, pack_answers, pack_groups, read_results
from torchcaps.reproduction.run import check_measures, measure_run, train_or_resume
from torchcaps.training import Callback, Interrupted, Run, StopWhen

RATE_SEED = 1_000  # of the short trainings that choose a rate; no other training has it
POLL_SECONDS = 5.0  # between two looks at what other processes work at
RATE_SHARE = 4  # they take one part in so many of the epochs, or of the images of an epoch


@dataclass(frozen=True)
class Training:
    """One training of a claim that is to be done.

    Attributes:
        claim: that it belongs to.
        arm: letter of the arm.
        kind: "training", or "rate" for one that chooses the learning rate.
        seed: of the training.
        rate: learning rate; None for that of the recipe.
    """

    claim: Claim
    arm: str
    kind: str
    seed: int
    rate: float | None = None

    @property
    def name(self) -> str:
        """Name of its result, without the ending."""
        return (
            f"rate-{self.arm}-{self.rate:g}" if self.kind == "rate" else f"{self.arm}-{self.seed}"
        )


def missing_trainings(claim: Claim, results: Sequence[ClaimResult]) -> Iterator[Training]:
    """The trainings that are not done, in order: rates, then all arms of a seed after another.

    A training whose rate is not chosen yet is left out.

    Args:
        claim: with its protocol.
        results: finished trainings of it.
    """
    names = {Path(result.file_name).stem for result in results}
    for arm in claim.arms:
        for rate in claim.rates:
            training = Training(claim, arm, "rate", RATE_SEED, rate)
            if training.name not in names:
                yield training
    for seed in range(claim.seeds):
        for arm in claim.arms:
            best_rate = choose_rate(claim, arm, results)
            training = Training(claim, arm, "training", seed, best_rate)
            if training.name not in names and (best_rate is not None or not claim.rates):
                yield training


def choose_rate(claim: Claim, arm: str, results: Sequence[ClaimResult]) -> float | None:
    """The rate with the best score on held-out images; None before all were tried.

    Args:
        claim: with its rates.
        arm: letter of the arm.
        results: finished trainings of the claim.
    """
    scores = {}
    for result in results:
        if result.kind == "rate" and result.arm == arm and result.rate in claim.rates:
            scores[result.rate] = result.figures["score"]
    if not claim.rates or len(scores) < len(claim.rates):
        return None
    return max(scores, key=lambda rate: scores[rate])


def run_claims(
    claims: Sequence[Claim],
    results: str | Path,
    *,
    work: str | Path,
    budget: str = "full",
    minutes: float = math.inf,
    root: str | None = None,
    device: str | None = None,
    started: Callable[[str], None] | None = None,
    callbacks: Sequence[Callback | str] = (),
) -> list[ClaimResult]:
    """Train what is missing, one training after another.

    Several processes may do this in the same folders: each training is held by a lock, which the
    system releases when its process ends.

    A training that was stopped or killed is continued by the next call. Its result is written when
    all is measured; its run folder is removed afterwards.

    Args:
        claims: in any order; the one with the shortest trainings is first.
        results: folder that has a folder of results for each claim.
        work: folder of the runs.
        budget: "full", or "small" for a trial.
        minutes: no training is started after so many minutes.
        root: where named data sets are looked for first.
        device: by default that of the recipes.
        started: called with the name of each training before it starts.
        callbacks: see `train`.

    Returns:
        The results of the trainings that were done.

    Raises:
        RunError: results that do not belong to the protocol.
        UnknownNameError: a protocol names a measure that is not registered.
        Interrupted: a callback stopped a training, whose state is kept; or a `StopWhen` says so
            between two.
    """
    end = time.monotonic() + 60 * minutes
    done: list[ClaimResult] = []
    options = {"root": root, "device": device}
    ordered = sorted(claims, key=training_cost)
    for claim in ordered:
        check_measures(claim.recipe)
    while time.monotonic() < end:
        if any(callback.condition() for callback in callbacks if isinstance(callback, StopWhen)):
            raise Interrupted("stopped between two trainings")
        with _next_training(ordered, Path(results), Path(work), budget) as (training, is_last):
            if training is None and is_last:
                break
            if training is None:
                time.sleep(POLL_SECONDS)
                continue
            if started is not None:
                started(f"{training.claim.name}, {training.name}")
            run = Run(Path(work) / training.claim.name / training.name)
            result = _train(training, run, budget, options, callbacks)
            result.write(Path(results) / training.claim.name)
            shutil.rmtree(run.path)
            done.append(result)
    return done


@contextmanager
def _next_training(
    claims: Sequence[Claim], results: Path, work: Path, budget: str
) -> Iterator[tuple[Training | None, bool]]:
    """Hold the first missing training that no other process works at.

    Yields:
        The training, or None; and whether no other process works at one.
    """
    is_last = True
    for claim in claims:
        for training in missing_trainings(claim, read_results(claim, results, budget)):
            file = work / ".locks" / f"{claim.name}-{training.name}.lock"
            file.parent.mkdir(parents=True, exist_ok=True)
            lock = FileLock(file, timeout=0)
            try:
                lock.acquire()
            except Timeout:
                is_last = False
                continue
            try:
                # Another process may have ended it since the results were read.
                if not (results / claim.name / f"{training.name}.json").exists():
                    yield training, is_last
                    return
            finally:
                lock.release()
    yield None, is_last


def training_cost(claim: Claim) -> float:
    """Expected core-hours of one training."""
    return claim.cost / (claim.seeds * len(claim.arms))


def _train(
    training: Training,
    run: Run,
    budget: str,
    options: dict[str, Any],
    callbacks: Sequence[Callback | str],
) -> ClaimResult:
    """One training with what is measured of it."""
    claim = training.claim
    changes: dict[str, Any] = {"lr": training.rate} | options
    if training.kind == "rate":
        changes |= _shorter(claim, training.arm, budget)
    config = claim.config(training.arm, training.seed, budget, **changes)
    train_or_resume(run, config, callbacks=callbacks)
    figures: dict[str, float] = {}
    answers: dict[str, Any] = {}
    if training.kind == "rate":
        figures["score"] = max(row[f"val_{row['score']}"] for row in run.epochs)
    else:
        row = claim.row(training.arm, budget)
        measurement, evaluated = measure_run(run, config, claim.recipe, row, budget)
        for name, figure in measurement.figures.items():
            if isinstance(figure, int | float):
                figures[name] = figure
        if evaluated.has_classes:
            is_correct = evaluated.is_correct
            answers = {"num_images": len(is_correct), "answers": pack_answers(is_correct)}
            if evaluated.images.groups is not None:
                answers["groups"] = pack_groups(evaluated.images.groups)
    settings = {name: value for name, value in config.flat().items() if name not in PLACE}
    return ClaimResult(
        claim=claim.name,
        arm=training.arm,
        kind=training.kind,
        seed=training.seed,
        rate=training.rate,
        settings=settings,
        figures=figures,
        seconds=round(run.seconds or 0.0, 1),
        commit=_commit(),
        machine=f"{run.environment.get('processor')}, {torch.get_num_threads()} threads, "
        f"torch {torch.__version__}",
        **answers,
    )


def _shorter(claim: Claim, arm: str, budget: str) -> dict[str, Any]:
    """Settings of a training of a quarter of the length."""
    config = claim.config(arm, RATE_SEED, budget)
    epochs = config.training.epochs
    epoch_size = config.data.epoch_size
    if epochs >= RATE_SHARE:
        return {"epochs": epochs // RATE_SHARE}
    if epoch_size is not None:
        return {"epoch_size": max(1, epoch_size // RATE_SHARE)}
    return {"epochs": 1}


def _commit() -> str:
    """The commit of the code; "" outside a checkout."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    try:
        process = subprocess.run(command, capture_output=True, text=True, check=False, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return ""
    return process.stdout.strip()
