"""A disk that is full: one sentence, nothing left behind, and the run goes on with room again."""

import resource
from contextlib import contextmanager

from campaign import runs
from campaign.watch import at_change, full

TESTS = {"no room to open or rename": 60, "no room to write": 60}
SECONDS = 60.0


def prepare():
    """Train the whole run once."""
    runs.history()


def draw(test, random):
    """The change of files at which the disk is full, whether it stays so, or a largest file size."""
    return {
        "change": random.randrange(70),
        "once": random.random() < 0.5,
        "bytes": int(10 ** random.uniform(1, 5.6)),
    }


def check(case, folder):
    """Train on a full disk, then with room."""
    runs.put(folder, {"bars.npz": runs.bars()})
    with no_room(case, folder):
        outcome = runs.command(*runs.START)
    if outcome.status != 0:
        runs.refusal(outcome)
    if not (folder / "run" / "config.json").exists():
        leftovers = [str(path) for path in folder.rglob("*") if path.name != "bars.npz"]
        assert not leftovers or case["once"] is False, f"a start that failed left {leftovers}"
    outcome = runs.command(*runs.START, "--resume")
    assert outcome.status == 0, f"with room again: {outcome.err[-300:]}"
    runs.check_finished(folder)


@contextmanager
def no_room(case, folder):
    """Writes fail: those of files that grow beyond a size, or from one change of files on."""
    if case["test"] == "no room to open or rename":
        with at_change(case["change"], full, folder / "run", once=case["once"]):
            yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (case["bytes"], hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
