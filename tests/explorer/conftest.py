from __future__ import annotations

import base64
import json
import shutil
import threading
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch

from torchcaps.data import Preprocess
from torchcaps.explorer.page import describe_run
from torchcaps.explorer.server import bind
from torchcaps.exporting.page import assemble
from torchcaps.models import create_model
from torchcaps.testing import seeded

SECONDS = 30
AXE = """
const done = arguments[0];
axe.run(document).then((found) => done(found.violations.map((one) => [one.id, one.nodes[0].html])));
"""
CLASSES = ("zero", "one", "two")
SIZE = (18, 20)


def as_loaded(model, size=SIZE, channels=1, classes=CLASSES):
    """A model with what `torchcaps.load` gives it."""
    model.classes = classes
    model.preprocess = Preprocess(size, channels)
    return model.eval()


def make_model(name="capsnet", channels=1, size=SIZE, **options):
    torch.manual_seed(0)
    if name == "capsnet":
        options = {"channels": 4, "primary_types": 2} | options
    model = create_model(name, num_classes=3, in_chans=channels, img_size=size, **options)
    return as_loaded(model, size, channels)


@contextmanager
def serve(*models):
    """The address of a page that asks a server for these models, in a thread of this process."""
    pairs = [describe_run(model, str(k)) for k, model in enumerate(models)]
    contents = [content for _, content in pairs]
    for index, content in enumerate(contents):
        content.head["model"] = index
        content.head["role"] = "other" if index else ""
    with bind(assemble(contents, "server"), [served for served, _ in pairs], 0) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()
        thread.join(SECONDS)


def random_images(model, count=1):
    """Random images that a model takes."""
    generator = seeded(1)
    return torch.rand((count, *model.image_shape), generator=generator)


def encode(tensor):
    return base64.b64encode(tensor.float().numpy().tobytes()).decode()


def decode(text, shape):
    return torch.from_numpy(np.frombuffer(base64.b64decode(text), "<f4").copy()).view(shape)


class Page:
    """A page in the browser.

    Args:
        browser: a driver of selenium.
        address: of the page.
    """

    def __init__(self, browser, address):
        self.browser = browser
        self.address = address

    def open(self, state=""):
        """Open the page in a state, as the part of its address after # has it."""
        self.browser.get("about:blank")
        self.browser.get(f"{self.address}#{state}")
        self.wait(lambda: self.run("return document.documentElement.dataset.ready"))

    def wait(self, condition):
        from selenium.webdriver.support.ui import WebDriverWait

        return WebDriverWait(self.browser, SECONDS).until(lambda _: condition())

    def run(self, script, *arguments):
        return self.browser.execute_script(script, *arguments)

    def find(self, name):
        return self.browser.find_element("id", name)

    def text(self, name):
        return self.find(name).text

    def click(self, name):
        self.find(name).click()

    def select(self, selector):
        return self.browser.find_elements("css selector", selector)

    @contextmanager
    def emulate_window(self, width, height, scheme="", touches=False):
        """In a window of this size, of light or dark colors, with a finger in place of a mouse."""

        def set_device(scheme, touches):
            media = [{"name": "prefers-color-scheme", "value": scheme}] if scheme else []
            send("Emulation.setEmulatedMedia", {"features": media})
            send("Emulation.setTouchEmulationEnabled", {"enabled": touches})

        send = self.browser.execute_cdp_cmd
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        send("Emulation.setDeviceMetricsOverride", size)
        set_device(scheme, touches)
        try:
            yield
        finally:
            set_device("", False)
            send("Emulation.clearDeviceMetricsOverride", {})

    def touch(self, kind, *points):
        """Fingers at points, each {"x": pixels, "y": pixels}, begin, move or end to touch."""
        touches = {"type": kind, "touchPoints": list(points)}
        self.browser.execute_cdp_cmd("Input.dispatchTouchEvent", touches)

    def violations(self):
        """What people cannot use, by axe-core."""
        axe = find_spec("axe_playwright_python")  # it brings axe-core; it is not imported
        if axe is None:
            pytest.skip("needs axe-core, as `make browser` installs it")
        self.run(Path(axe.origin).with_name("axe.min.js").read_text())
        return self.browser.execute_async_script(AXE)

    def look(self, images):
        """What the page's first network gives for images: lengths, and drawings of the longest."""
        script = """
        const done = arguments[2];
        const bytes = decodeBytes(arguments[0]);
        const all = new Float32Array(bytes.buffer);
        const size = all.length / arguments[1];
        (async () => {
          const lengths = [];
          const drawings = [];
          for (let n = 0; n < arguments[1]; n++) {
            const look = await page.source.look(all.slice(n * size, (n + 1) * size));
            lengths.push(Array.from(look.lengths));
            if (!page.source.head.decoder || n > 2) continue;
            const label = rankClasses(look.lengths)[0];
            drawings.push(Array.from(await page.source.draw(poseOf(look, label), label)));
          }
          done([lengths, drawings]);
        })().catch((error) => done(String(error)));
        """
        self.browser.set_script_timeout(240)
        answer = self.browser.execute_async_script(script, encode(images), len(images))
        assert not isinstance(answer, str), answer
        lengths, drawings = answer
        return torch.tensor(lengths), torch.tensor(drawings)

    def actions(self, milliseconds=250):
        """A chain of what a mouse and keys do, each in so much time."""
        from selenium.webdriver.common.action_chains import ActionChains

        return ActionChains(self.browser, duration=milliseconds)

    def drag(self, element, x, y):
        """Drag an element so many pixels to the right and down."""
        self.actions().drag_and_drop_by_offset(element, x, y).perform()

    def draw(self, points):
        """Draw with the mouse; points are shares of the paper."""
        paper = self.find("paper")
        size = (paper.size["width"], paper.size["height"])
        chain = self.actions(10)
        points = np.array(points)
        starts = points[:-1, None]
        steps = np.diff(points, axis=0)[:, None] * np.arange(1, 7)[:, None] / 6
        places = np.concatenate([points[:1], (starts + steps).reshape(-1, 2)])
        for k, (x, y) in enumerate(((places - 0.5) * size).astype(int).tolist()):
            chain.move_to_element_with_offset(paper, x, y)
            if k == 0:
                chain.click_and_hold()
        chain.release().perform()

    def check_log(self, addresses):
        """Check that there was no error, and that nothing but these addresses was asked."""
        for line in self.browser.get_log("browser"):
            assert line["level"] != "SEVERE", line
        urls = []
        for line in self.browser.get_log("performance"):
            event = json.loads(line["message"])["message"]
            if event["method"] == "Network.requestWillBeSent":
                urls.append(event["params"]["request"]["url"])
        for url in urls:
            assert url.startswith(tuple(addresses)), url


@pytest.fixture(scope="session")
def browser():
    webdriver = pytest.importorskip("selenium.webdriver", reason="needs selenium")
    programs = map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))
    program = next(filter(None, programs), None)
    driver = shutil.which("chromedriver")
    if program is None or driver is None:
        pytest.skip("no browser here: needs chromium and chromedriver")
    options = webdriver.ChromeOptions()
    options.binary_location = program
    options.add_argument("--headless=new")
    options.add_argument("--no-sandbox")
    options.add_argument("--disable-dev-shm-usage")
    options.add_argument("--window-size=1280,1000")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    chrome = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    yield chrome
    chrome.quit()


@pytest.fixture
def opened(browser):
    """A function that gives the page at an address; its log is checked at the end."""
    pages = []
    for kind in ("browser", "performance"):
        browser.get_log(kind)  # of earlier tests

    def page_at(address):
        pages.append(Page(browser, address))
        return pages[-1]

    yield page_at
    addresses = ["data:", "about:", "blob:"]
    addresses += [page.address for page in pages]
    for page in pages[-1:]:
        page.check_log(addresses)
