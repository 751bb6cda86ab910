"""How long a stroke on the page of `torchcaps explore` takes to reach the bars, in headless Chromium.

A pen draws digit-like strokes with a pause between its movements; the page measures each time from
the movement's event to the frame in which the bars have changed.
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

import torchcaps as tc
from benchmarks.report import Row, finish, make_parser, parse, positive, run

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

MOVES, PAUSE, WAIT = 12, 0.05, 60.0  # movements of a stroke, seconds between them, seconds at most
SCRIPT = "return performance.getEntriesByName('stroke-to-bars').map((one) => one.duration)"


@contextmanager
def served(words: Sequence[str], threads: int = 1) -> Iterator[str]:
    """The address of a page of `torchcaps explore`, in a process of its own.

    Args:
        words: of its command line, such as run folders. Without any, the page shows the network of
            the 2017 paper with its first weights: it takes as long as a trained one.
        threads: of torch.
    """
    with tempfile.TemporaryDirectory() as folder:
        if not words:
            model = tc.create_model("capsnet")
            tc.save(model, Path(folder) / "untrained")
            words = [str(Path(folder) / "untrained")]
        line = [sys.executable, "-m", "torchcaps", "explore", *words, "--no-open", "--port", "0"]
        line += ["--threads", str(threads)]
        with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as server:
            try:
                assert server.stdout is not None
                yield server.stdout.readline().strip()
            finally:
                server.terminate()


@contextmanager
def opened(address: str) -> Iterator["Chrome"]:
    """A browser that shows it."""
    from selenium import webdriver
    from selenium.webdriver.support.ui import WebDriverWait

    program = next(
        filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
    )
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
        "--window-size=1280,1000",
    ):
        options.add_argument(argument)
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    try:
        browser.get(address)
        WebDriverWait(browser, WAIT).until(lambda one: one.find_element("id", "prediction").text)
        yield browser
    finally:
        browser.quit()


def stroke(browser: "Chrome", draw: random.Random) -> list[float]:
    """Clear the page, draw one stroke, and return the milliseconds of its movements."""
    from selenium.webdriver.common.action_chains import ActionChains

    browser.execute_script(
        "document.getElementById('clear').click(); performance.clearMeasures('stroke-to-bars')"
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
    return list(browser.execute_script(SCRIPT))


def measure(words: Sequence[str], strokes: int, threads: int) -> Row:
    """Milliseconds from pen to bars: the median, and what nine of ten movements stay under."""
    draw = random.Random(0)
    with served(words, threads) as address, opened(address) as browser:
        stroke(browser, draw)  # to warm up
        durations = [one for _ in range(strokes) for one in stroke(browser, draw)]
    return {
        "measured": len(durations),
        "median_ms": round(median(durations), 1),
        "p90_ms": round(quantiles(durations, n=10)[-1], 1),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = make_parser(__doc__, "explorer", threads=1)
    parser.add_argument("run", nargs="*", help="by default an untrained network of the 2017 paper")
    parser.add_argument("--strokes", type=positive, default=40)
    options = parse(parser, arguments)
    return finish(options, {"rows": [measure(options.run, options.strokes, options.threads)]})


if __name__ == "__main__":
    run(main)
