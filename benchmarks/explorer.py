"""How fast the page of `torchcaps explore` is, in headless Chromium: to the first picture, and from a
movement of the pen to the picture.

A pen draws digit-like strokes with a pause between its movements; the page measures each time from
the movement's event until everything is drawn anew.
"""

import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median, quantiles
from typing import TYPE_CHECKING

from benchmarks.report import Row, finish, make_parser, parse, positive, run

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

MOVES, PAUSE, WAIT = 12, 0.05, 60.0  # movements of a stroke, seconds between them, seconds at most
MEASURES = "return performance.getEntriesByName('stroke to picture').map((one) => one.duration)"
FIRST = "return performance.getEntriesByName('first picture')[0].startTime"
READY = "return document.documentElement.dataset.ready"


def make_page(words: Sequence[str], folder: Path) -> str:
    """The address of a page in a file.

    Args:
        words: of the command line, such as run folders; none is the network of the package.
        folder: for the page of the package's network, as the user's own.
    """
    line = [sys.executable, "-m", "torchcaps", "explore", *words, "--no-open"]
    made = subprocess.run(line, capture_output=True, text=True, check=True)
    path = folder / "index.html"
    shutil.copy(made.stdout.strip(), path)
    return path.as_uri()


@contextmanager
def opened(address: str) -> Iterator["Chrome"]:
    """A browser that shows it."""
    from selenium import webdriver
    from selenium.webdriver.support.ui import WebDriverWait

    programs = map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))
    program = next(filter(None, programs), None)
    driver = shutil.which("chromedriver")
    if program is None or driver is None:
        raise SystemExit(
            "this needs chromium and chromedriver; `make browser` installs them where it can"
        )
    options = webdriver.ChromeOptions()
    options.binary_location = program
    for argument in (
        "--headless=new",
        "--no-sandbox",
        "--disable-dev-shm-usage",
        "--hide-scrollbars",
        "--window-size=1440,1000",
    ):
        options.add_argument(argument)
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    try:
        browser.get(address)
        WebDriverWait(browser, WAIT).until(lambda one: one.execute_script(READY))
        yield browser
    finally:
        browser.quit()


def stroke(browser: "Chrome", draw: random.Random) -> list[float]:
    """Clear the page, draw one stroke, and return the milliseconds of its movements."""
    from selenium.webdriver.common.action_chains import ActionChains

    browser.execute_script(
        "document.getElementById('clear').click(); performance.clearMeasures('stroke to picture')"
    )
    paper = browser.find_element("id", "paper")
    reach = int(0.4 * paper.size["width"])
    x, y = (draw.randint(-reach, reach) for _ in range(2))
    chain = (
        ActionChains(browser, duration=10).move_to_element_with_offset(paper, x, y).click_and_hold()
    )
    for _ in range(MOVES):
        x, y = (max(-reach, min(reach, at + draw.randint(-25, 25))) for at in (x, y))
        chain.pause(PAUSE).move_to_element_with_offset(paper, x, y)
    chain.pause(0.5).release().perform()
    return list(browser.execute_script(MEASURES))


def measure(words: Sequence[str], strokes: int) -> Row:
    """Milliseconds to the first picture, and of movements: the median, and that of 95 of 100."""
    draw = random.Random(0)
    with tempfile.TemporaryDirectory() as folder:
        address = make_page(words, Path(folder))
        with opened(address) as browser:
            first = browser.execute_script(FIRST)
            stroke(browser, draw)  # to warm up
            durations = [one for _ in range(strokes) for one in stroke(browser, draw)]
    return {
        "first_ms": round(first),
        "measured": len(durations),
        "median_ms": round(median(durations), 1),
        "p95_ms": round(quantiles(durations, n=20)[-1], 1),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = make_parser(__doc__, "explorer", threads=1)
    parser.add_argument("run", nargs="*", help="by default the network of the package")
    parser.add_argument("--strokes", type=positive, default=40)
    options = parse(parser, arguments)
    return finish(options, {"rows": [measure(options.run, options.strokes)]})


if __name__ == "__main__":
    run(main)
