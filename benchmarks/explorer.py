"""How long a stroke on the page of `torchcaps explore` takes to reach the bars, in headless Chromium.

    python -m benchmarks.explorer [RUN] [--strokes 40] [--threads 1]

A pen draws digit-like strokes with a pause between its movements; the page measures each time from the movement's event
to the frame in which the bars have changed. The result goes to benchmarks/results/explorer.json.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from statistics import median, quantiles
from typing import TYPE_CHECKING, Any

import torch

from torchcaps.bench.timing import machine
from torchcaps.data import Preprocess
from torchcaps.errors import check_range
from torchcaps.explorer import Session, open_session
from torchcaps.explorer.server import bound, make_app
from torchcaps.models import create_model

if TYPE_CHECKING:
    from collections.abc import Iterator

    from selenium.webdriver import Chrome

RESULT = Path(__file__).parent / "results" / "explorer.json"
MOVES, PAUSE, WAIT = 12, 0.05, 60.0  # movements of a stroke, seconds between them, seconds at most
SCRIPT = "return performance.getEntriesByName('stroke-to-bars').map((one) => one.duration)"


def untrained() -> Session:
    """The network of the 2017 paper with its first weights: it takes as long as a trained one."""
    model = create_model("capsnet").eval()
    model.classes, model.preprocess = tuple("0123456789"), Preprocess((28, 28), 1)  # type: ignore[assignment]
    return Session(model, "untrained")


@contextmanager
def served(*sessions: Session) -> Iterator[str]:
    """The address of a page on these models."""
    import uvicorn

    with bound("127.0.0.1", 0) as listening:
        server = uvicorn.Server(
            uvicorn.Config(make_app(list(sessions)), log_level="warning", lifespan="off", ws="none")
        )
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}/"
        finally:
            server.should_exit = True
            thread.join()


@contextmanager
def opened(address: str) -> Iterator[Chrome]:
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


def stroke(browser: Chrome, draw: random.Random) -> list[float]:
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


def measure(session: Session, strokes: int) -> dict[str, Any]:
    """Milliseconds from pen to bars: the median, and what nine of ten movements stay under."""
    draw = random.Random(0)
    with served(session) as address, opened(address) as browser:
        stroke(browser, draw)  # to warm up
        durations = [one for _ in range(strokes) for one in stroke(browser, draw)]
    return {
        "measured": len(durations),
        "median_ms": round(median(durations), 1),
        "p90_ms": round(quantiles(durations, n=10)[-1], 1),
    }


def main(arguments: list[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "run", nargs="?", help="a run folder; without one, an untrained network of the 2017 paper"
    )
    parser.add_argument("--strokes", type=int, default=40)
    parser.add_argument("--threads", type=int, default=1, help="of torch, as for torchcaps explore")
    parser.add_argument("--output", type=Path, default=RESULT)
    options = parser.parse_args(arguments)
    check_range("--strokes", options.strokes, low=2)
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    session = untrained() if options.run is None else open_session(options.run)
    report = (
        {"model": session.name, "strokes": options.strokes}
        | measure(session, options.strokes)
        | {"machine": machine()}
    )
    options.output.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    json.dump(report, sys.stdout, indent=2)
    print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
