"""SIGKILL at any moment, then --resume: the bytes of the run that nothing stopped."""

import re
import signal
import tempfile
import time
from functools import cache
from pathlib import Path

from campaign import runs
from training.makers import contents, count_rows, leftovers

TESTS = {"killed": 80, "two starts": 15, "two resumes": 15, "full size": 0}
SECONDS = 120.0
WALL = 900.0
NUM_CHANGES = 60  # of files, in a whole run: more or less
NUM_LARGE_CHANGES = 70
# Of the published size, on the images of the package; 8 steps, each with a checkpoint of 100 MB.
_LARGE = (
    "train capsnet --data digits --output run --no-keep-memory --threads 1 --epochs 2 "
    "--epoch-size 128 --batch-size 32 --holdout 100 --checkpoint-every 1"
)
LARGE = tuple(_LARGE.split())


def prepare():
    """Train the whole run once."""
    runs.history()


def draw(test, random):
    """Moments of kills; or how much later the second of two processes starts."""
    if test in ("two starts", "two resumes"):
        return {
            "step": random.randint(2, 8),
            "later": round(random.choice((0, 0, random.uniform(0, 2))), 3),
        }
    if test == "full size":
        share = {"share": random.random()}
        return {
            "moments": [
                random.choice((share, share, {"change": random.randrange(NUM_LARGE_CHANGES)}))
            ]
        }
    return {"moments": [moment(random) for _ in range(random.choice((1, 1, 1, 2)))]}


def moment(random):
    """Before a change of files, soon after the start, or soon after some rows of metrics."""
    seconds = round(random.uniform(0, 4), 3)
    soon = {"rows": random.randrange(3), "delay": round(random.uniform(0, 0.2), 3)}
    change = {"change": random.randrange(NUM_CHANGES)}
    return random.choice((change, change, soon, {"seconds": seconds}))


def check(case, folder):
    """Kill and go on, or start two at once."""
    if case["test"] == "full size":
        full_size(case, folder)
        return
    runs.put(folder, {"bars.npz": runs.bars()})
    if case["test"] == "two starts":
        two(folder, [runs.START, (*runs.START, "--seed", "4")], case["later"])
        return
    if case["test"] == "two resumes":
        runs.put(folder / "run", runs.history()[0][case["step"]])
        two(folder, [runs.RESUME, runs.RESUME], case["later"])
        return
    for instant in case["moments"]:
        killed(folder, runs.START, instant)
    finish(folder, runs.START)
    runs.check_finished(folder)


def killed(folder, words, instant, seconds=0.0):
    """Start or resume a run, and kill it at a moment, unless it ends before.

    `seconds` is the time of a whole run.
    """
    arm = (
        f"from campaign.watch import killed_at; killed_at({instant['change']})"
        if "change" in instant
        else "pass"
    )
    process = runs.start(folder, *words, "--resume", first=arm)
    if "change" in instant:
        outcome = runs.wait_for_end(process)
        assert outcome.status in (0, -signal.SIGKILL), (
            f"status {outcome.status}: {outcome.err[-300:]}"
        )
        return
    if "rows" in instant:
        runs.wait_until(lambda: count_rows(folder / "run") >= instant["rows"], process)
    time.sleep(instant.get("delay", instant.get("seconds", seconds * instant.get("share", 0.0))))
    process.kill()
    outcome = runs.wait_for_end(process)
    assert outcome.status in (0, -signal.SIGKILL), f"status {outcome.status}: {outcome.err[-300:]}"


def finish(folder, words):
    """Resume to the end."""
    outcome = runs.wait_for_end(runs.start(folder, *words, "--resume"))
    assert outcome.status == 0, f"resumed after a kill: {outcome.err[-300:]}"


def two(folder, lines, later):
    """Two processes in one folder: one works; the second is refused and names the first."""
    processes = []
    for words in lines:
        processes.append(runs.start(folder, *words))
        time.sleep(later)
    outcomes = list(map(runs.wait_for_end, processes))
    successes = [number for number, outcome in enumerate(outcomes) if outcome.status == 0]
    for outcome in outcomes:
        if outcome.status != 0:
            sentence = runs.refusal(outcome)
            is_named = any(f"process {process.pid}" in sentence for process in processes)
            assert is_named or "there is a run here already" in sentence, (
                f"refused without a reason: {sentence}"
            )
    assert successes, f"neither worked: {outcomes[0].err[-200:]}"
    resumed = "--resume" in lines[0]
    assert resumed or len(successes) == 1, "two starts in one folder both ended well"
    seed = re.search(r'"seed": (\d+)', (folder / "run" / "config.json").read_text())
    assert resumed or int(seed[1]) == 3 + successes[0], (
        "the configuration is not that of the start that worked"
    )
    runs.check_finished(folder, seed=3 if resumed else 3 + successes[0])


@cache
def large():
    """Contents of the run of the published size, and the seconds that it takes."""
    with tempfile.TemporaryDirectory() as name:
        started = time.monotonic()
        outcome = runs.wait_for_end(runs.start(Path(name), *LARGE))
        assert outcome.status == 0, outcome.err[-300:]
        return contents(Path(name, "run")), time.monotonic() - started


def full_size(case, folder):
    """A run of the published size, killed and resumed."""
    expected, seconds = large()
    for instant in case["moments"]:
        killed(folder, LARGE, instant, seconds)
    finish(folder, LARGE)
    files = contents(folder / "run")
    for name, content in expected.items():
        assert files[name] == content, f"{name}: other bytes than without a kill"
    assert not leftovers(folder), f"left behind: {leftovers(folder)}"
