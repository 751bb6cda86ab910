"""Run faults in copies of the checkout, several at a time."""

import json
import tempfile
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import SimpleQueue

from .records import Fault
from .tree import ROOT, Tree


@dataclass(frozen=True)
class Verdict:
    """What became of a fault.

    Attributes:
        name, path: of the fault.
        verdict: "caught", "survived", "stale", or "unusable" where its tests fail without it, too.
        detail: the test that caught it, or the reason.
        seconds: of the tests.
        why: the sentence of the fault.
    """

    name: str
    path: str
    verdict: str
    detail: str
    seconds: float
    why: str

    def to_json(self) -> str:
        """One line."""
        return json.dumps(asdict(self), ensure_ascii=False)


def judge(fault: Fault, tree: Tree, stages: Iterable[tuple[str, ...]] = ()) -> Verdict:
    """Put the fault into the tree, run its tests and those of further stages, and take it out."""

    def verdict(word: str, detail: str, seconds: float = 0.0) -> Verdict:
        return Verdict(fault.name, fault.path, word, detail, round(seconds, 1), fault.why)

    stale = fault.stale(tree.path)
    if stale:
        return verdict("stale", stale)
    source = (tree.path / fault.path).read_text(encoding="utf-8")
    seconds = 0.0
    for tests in (fault.tests, *stages):
        tree.write(fault.path, fault.inject(source) or source)
        outcome = tree.run(list(tests))
        tree.write(fault.path, source)
        seconds += outcome.seconds
        if outcome.status == "timeout":
            return verdict("caught", "by the time limit", seconds)
        if outcome.status == "unusable":
            return verdict("unusable", outcome.test, seconds)
        if outcome.status == "failed":
            repeated = tree.run([outcome.test])
            if repeated.status == "failed":
                return verdict("unusable", f"{outcome.test} fails without the fault", seconds)
            return verdict("caught", outcome.test, seconds)
    return verdict("survived", ", ".join(fault.tests), seconds)


def run(
    faults: Iterable[Fault],
    jobs: int,
    report: Callable[[Verdict], object],
    stages: Callable[[Fault], Iterable[tuple[str, ...]]] = lambda fault: (),
    root: Path = ROOT,
) -> list[Verdict]:
    """Judge all faults in `jobs` copies of the checkout; `report` is called with each verdict."""
    trees: SimpleQueue[Tree] = SimpleQueue()
    verdicts = []
    lock = threading.Lock()
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        for job in range(jobs):
            trees.put(Tree(Path(folder) / str(job), root))

        def judge_one(fault: Fault) -> None:
            tree = trees.get()
            try:
                verdict = judge(fault, tree, stages(fault))
            finally:
                trees.put(tree)
            with lock:
                verdicts.append(verdict)
                report(verdict)

        with ThreadPoolExecutor(jobs) as pool:
            for _ in pool.map(judge_one, faults):
                pass
    return verdicts
