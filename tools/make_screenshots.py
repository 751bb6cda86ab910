"""Pictures of the page of `torchcaps explore`.

    python tools/make_screenshots.py RUN                        docs/images/explorer.png: a drawn 7 and its pose
    python tools/make_screenshots.py RUN [RUN_B] --all FOLDER   every view, desktop and phone, light and dark

RUN is a run folder of a capsule network; its test images must be at hand (`--root` says where).
"""

from __future__ import annotations

import argparse
import base64
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.explorer import opened, served  # noqa: E402

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

PICTURE = ROOT / "docs" / "images" / "explorer.png"
VIEWS = ("pose", "routing", "overlap", "transform", "compare")
STATES = {
    "pose": "&d=5:0.3",
    "routing": "",
    "overlap": "&ex2=1&right=3",
    "transform": "&deg=20",
    "compare": "",
}
WIDTHS = {"desktop": 1280, "phone": 390}
SEVEN = (
    (-60, -60),
    (60, -60),
    (-10, 90),
)  # corners of the stroke, pixels from the middle of the drawing area
ANSWER_SECONDS = 4.0  # seconds until every answer is drawn, on a slow machine


def capture(browser: Chrome, path: Path, width: int, dark: bool = False) -> None:
    """The whole page, as high as it is."""
    scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": scheme})
    size = {"width": width, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size | {"height": 800})
    time.sleep(1)
    height = browser.execute_script("return document.documentElement.scrollHeight")
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size | {"height": height})
    time.sleep(0.5)
    shot = browser.execute_cdp_cmd(
        "Page.captureScreenshot", {"format": "png", "captureBeyondViewport": True}
    )
    path.write_bytes(base64.b64decode(shot["data"]))
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def draw_seven(browser: Chrome) -> None:
    """With the mouse, as a person does; then one slider is moved and one dimension played."""
    from selenium.webdriver.common.action_chains import ActionChains

    paper = browser.find_element("id", "paper")
    chain = (
        ActionChains(browser, duration=20)
        .move_to_element_with_offset(paper, *SEVEN[0])
        .click_and_hold()
    )
    for (x, y), (to_x, to_y) in pairwise(SEVEN):
        for k in range(1, 9):
            chain.move_to_element_with_offset(
                paper, int(x + (to_x - x) * k / 8), int(y + (to_y - y) * k / 8)
            )
    chain.release().perform()
    time.sleep(ANSWER_SECONDS)
    sliders = browser.find_elements("css selector", "#pose .sliders .slider")
    slider_input = sliders[5].find_element("css selector", "input")
    browser.execute_script(
        "arguments[0].value = 0.45; arguments[0].dispatchEvent(new Event('input'))", slider_input
    )
    sliders[9].find_element("css selector", "button").click()
    time.sleep(ANSWER_SECONDS)


def make_all(browser: Chrome, address: str, num_runs: int, folder: Path) -> None:
    """Every view at every width in both color schemes, named after them."""
    folder.mkdir(parents=True, exist_ok=True)
    for view in VIEWS if num_runs > 1 else VIEWS[:-1]:
        browser.get(f"{address}#tab={view}&ex=0{STATES[view]}")
        browser.refresh()
        time.sleep(ANSWER_SECONDS)
        for name, width in WIDTHS.items():
            for dark in (False, True):
                capture(
                    browser,
                    folder / f"{view}-{name}-{'dark' if dark else 'light'}.png",
                    width,
                    dark,
                )


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", nargs="+")
    parser.add_argument("--root", help="folder in which named data sets are looked for first")
    parser.add_argument(
        "--all",
        type=Path,
        metavar="FOLDER",
        help="every view into this folder, and no picture for docs",
    )
    options = parser.parse_args()
    words = [*options.run, *(["--root", options.root] if options.root else [])]
    with served(words) as address, opened(address) as browser:
        if options.all is not None:
            make_all(browser, address, len(options.run), options.all)
        else:
            draw_seven(browser)
            capture(browser, PICTURE, WIDTHS["desktop"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
