"""Pictures of the page of `torchcaps explore`, and of the page of the misplaced face.

python tools/make_screenshots.py               docs/images/explorer.png and face.png
python tools/make_screenshots.py --all FOLDER  every view in three windows, light and dark
"""

from __future__ import annotations

import argparse
import base64
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.explorer import READY, make_page, opened  # noqa: E402

from claims.face.page import write_page  # noqa: E402

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

IMAGES = ROOT / "docs" / "images"
STATES = {
    "votes": "example=1",
    "child": "story=2",
    "pose": "tab=pose",
    "transform": "tab=transform",
    "compare": "tab=compare&example=1",
}
FACE = "kind=swapped"
WINDOWS = ((1440, 900), (1024, 768), (390, 844))
SECONDS = 2.0  # until every answer is drawn, on a slow machine


def capture(browser: Chrome, path: Path, size: tuple[int, int], dark: bool = False) -> None:
    """What a window of this size shows."""
    width, height = size
    scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": scheme})
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    time.sleep(SECONDS)
    shot = browser.execute_cdp_cmd("Page.captureScreenshot", {"format": "png"})
    path.write_bytes(base64.b64decode(shot["data"]))


def show(browser: Chrome, address: str, state: str) -> None:
    """The page in a state, as the part of its address after # has it."""
    browser.get("about:blank")
    browser.get(f"{address}#{state}")
    while not browser.execute_script(READY):
        time.sleep(0.1)


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", nargs="*", help="runs; by default the network of the package")
    parser.add_argument(
        "--all",
        type=Path,
        metavar="FOLDER",
        help="every view into this folder, and no picture for docs",
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        address = make_page(options.run, Path(folder))
        face = Path(folder) / "face.html"
        write_page(face)
        with opened(address) as browser:
            if options.all is None:
                show(browser, address, STATES["votes"])
                capture(browser, IMAGES / "explorer.png", WINDOWS[1])
                show(browser, face.as_uri(), FACE)
                capture(browser, IMAGES / "face.png", WINDOWS[1])
                return 0
            options.all.mkdir(parents=True, exist_ok=True)
            views = {view: (address, state) for view, state in STATES.items()}
            for view, (page, state) in (views | {"face": (face.as_uri(), FACE)}).items():
                show(browser, page, state)
                for size in WINDOWS:
                    for dark in (False, True):
                        name = f"{view}-{size[0]}-{'dark' if dark else 'light'}.png"
                        capture(browser, options.all / name, size, dark)
    return 0


if __name__ == "__main__":
    sys.exit(main())
