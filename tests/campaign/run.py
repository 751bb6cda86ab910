"""Many cases on some processes, and the table of what became of them."""

import json
import sys
import threading
import time

from campaign.core import title
from campaign.worker import Worker

INTERVAL = 30.0  # seconds between lines of progress


class Campaign:
    """Cases, and what became of them.

    Args:
        stream: the cases.
        folder: where the file of each failure is written; None writes nothing and says nothing.
        minutes: after which no further case is begun; None is never.
    """

    def __init__(self, stream, folder=None, minutes=None):
        self.stream = stream
        self.folder = folder
        self.until = float("inf") if minutes is None else time.monotonic() + 60 * minutes
        self.verdicts = []
        self.lock = threading.Lock()

    def run(self, processes):
        """Check all cases, some at a time."""
        workers = [Worker() for _ in range(processes)]
        threads = [
            threading.Thread(target=self._work, args=(worker,), daemon=True) for worker in workers
        ]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                while thread.is_alive():
                    thread.join(INTERVAL)
                    failures = sum(verdict.failure is not None for _, verdict in self.verdicts)
                    self._say(f"{len(self.verdicts)} cases, {failures} failures")
        finally:
            for worker in workers:
                worker.close()

    def _work(self, worker):
        while case := self._next():
            verdict = worker.check(case)
            self.verdicts.append((case, verdict))
            if verdict.failure is not None:
                self._keep(case, verdict.failure)

    def _next(self):
        with self.lock:
            return None if time.monotonic() > self.until else next(self.stream, None)

    def _keep(self, case, failure):
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
            text = json.dumps(case | {"failure": failure}, indent=2) + "\n"
            (self.folder / f"{title(case)}.json").write_text(text, encoding="utf-8")
        self._say(f"{title(case)}: {failure[:300]}")

    def _say(self, text):
        if self.folder is not None:
            print(text, file=sys.stderr, flush=True)

    @property
    def failed(self):
        """Whether any case was."""
        return any(verdict.failure is not None for _, verdict in self.verdicts)

    def table(self):
        """A row for each test, and one for all."""
        rows = {}
        for case, verdict in self.verdicts:
            for key in ((case["area"], case["test"]), ("~", "")):  # behind all names
                row = rows.setdefault(key, [0, 0, 0.0])
                row[0] += 1
                row[1] += verdict.failure is not None
                row[2] += verdict.seconds
        table = [("area", "test", "cases", "failures", "seconds")]
        for (area, test), (count, failures, seconds) in sorted(rows.items()):
            name = area.replace("~", "all")
            table.append((name, test, f"{count:,}", f"{failures}", f"{seconds:,.0f}"))
        lines = list(map("| {} |".format, map(" | ".join, table)))
        lines.insert(1, "| --- | --- | ---: | ---: | ---: |")
        return "\n".join(lines)
