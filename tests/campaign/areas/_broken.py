"""Checks that go wrong in every way; the tests of the campaign itself are run on them."""

import os
import time

from campaign.watch import no_side_effects

MEMORY = 50 << 20
SECONDS = 0.3
WALL = 3.0


def check(case, folder):
    """Go wrong as the case says."""
    WAYS[case["test"]](folder)


def _writes(folder):
    with no_side_effects(folder):
        (folder / "a.txt").write_text("a")


def _runs(folder):
    with no_side_effects(folder):
        os.system("true")


def _works(folder):
    end = time.process_time() + 0.4
    while time.process_time() < end:
        pass


WAYS = {
    "nothing": lambda folder: None,
    "aborts": lambda folder: os.abort(),
    "hangs": lambda folder: time.sleep(60),
    "grows": lambda folder: bytearray(100 << 20),
    "swells": lambda folder: (bytearray(1 << 30), time.sleep(60)),
    "raises": lambda folder: {}["key"],
    "writes": _writes,
    "runs": _runs,
    "works": _works,
}
