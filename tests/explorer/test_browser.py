"""The page in a real browser, from the pen to the pixels."""

from __future__ import annotations

import base64
import json
import shutil
import threading
from contextlib import contextmanager

import numpy as np
import pytest
import torch

pytest.importorskip("starlette", reason="needs starlette and uvicorn")
pytest.importorskip("selenium", reason="needs selenium to drive a browser")

import uvicorn
from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import Select, WebDriverWait

from tasks.makers import batch_of
from torchcaps.data import load_dataset, make_pairs
from torchcaps.explorer import Session, app as queue, overlay
from torchcaps.explorer.server import bound, make_app, settings
from torchcaps.explorer.views import infer
from torchcaps.models import create_model
from torchcaps.nn import DynamicRouting
from torchcaps.settings import TrainConfig
from torchcaps.tasks import create_task

from .conftest import as_loaded, encode_image

pytestmark = pytest.mark.slow
SECONDS = 30
SEVEN = [(0.25, 0.2), (0.75, 0.2), (0.45, 0.85)]  # corners of its stroke, as shares of the paper
TABS = ("pose", "routing", "overlap", "transform", "compare")
SLIDERS = "#pose .sliders input[type=range]"
EXPECTED_ERRORS = ("400 (Bad Request)", "503 (Service Unavailable)")
PIXELS = """
const canvas = document.getElementById(arguments[0]);
const image = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
return Array.from(image.data)
"""
SLIDE = """
arguments[0].value = arguments[1];
arguments[0].dispatchEvent(new Event('input', {bubbles: true}))
"""
DROP = """
const bytes = Uint8Array.from(atob(arguments[0]), (c) => c.charCodeAt(0));
const data = new DataTransfer();
data.items.add(new File([bytes], 'dropped.png', { type: 'image/png' }));
const event = new DragEvent('drop', { dataTransfer: data, bubbles: true, cancelable: true });
document.body.dispatchEvent(event)
"""
SPREADS = """
const steps = [...document.querySelectorAll('.steps > div')];
return steps.map((step) => Number(step.dataset.spread))
"""
UNNAMED = """
return [...document.querySelectorAll('button, input, select, canvas[role=img]')]
  .filter((e) => !(e.getAttribute('aria-label') || e.labels?.length || e.textContent.trim()))
  .map((e) => e.outerHTML)
"""


class Page:
    """The page in the browser.

    Args:
        browser: a driver of selenium.
        address: of the server.
    """

    def __init__(self, browser, address):
        self.browser = browser
        self.address = address
        self.allowed = [address, "data:", "about:", "blob:"]

    def open(self, state="", address=None):
        """Open the page in a state, as the part of its address after # has it."""
        address = address or self.address
        self.allowed.append(address)
        self.browser.get("about:blank")
        self.browser.get(f"{address}#{state}")
        self.wait(lambda: self.text("prediction"))

    def wait(self, condition):
        return WebDriverWait(self.browser, SECONDS).until(lambda _: condition())

    def pause(self, milliseconds):
        self.run(f"return new Promise((done) => setTimeout(done, {milliseconds}))")

    def run(self, script, *arguments):
        return self.browser.execute_script(script, *arguments)

    def find(self, name):
        return self.browser.find_element(By.ID, name)

    def select(self, selector):
        return self.browser.find_elements(By.CSS_SELECTOR, selector)

    def count(self, selector):
        return len(self.select(selector))

    def texts(self, selector):
        return [element.text for element in self.select(selector) if element.is_displayed()]

    def text(self, name):
        return self.find(name).text

    def click(self, name):
        self.find(name).click()

    def choose(self, name, option):
        Select(self.find(name)).select_by_value(option)

    def is_displayed(self, name):
        return self.find(name).is_displayed()

    def clear(self):
        self.click("clear")
        self.wait(lambda: self.pixels("seen").max() == 0)

    def place(self, name):
        return self.run(
            f"return document.getElementById('{name}').getBoundingClientRect().toJSON()"
        )

    def pixels(self, canvas):
        """The colors of a canvas, `[pixels, 3]`."""
        values = np.array(self.run(PIXELS, canvas))
        return values.reshape(-1, 4)[:, :3]

    def is_changed(self):
        """Whether the sliders changed the reconstruction by more than rounding."""
        difference = self.pixels("changed") - self.pixels("reconstruction")
        return np.abs(difference).max() > 2

    def predicts_seven(self):
        return self.text("prediction").startswith("Prediction: 7,")

    def set_slider(self, slider, value):
        self.run(SLIDE, slider, value)

    def draw(self, points):
        """Draw with the mouse; points are shares of the paper."""
        paper = self.find("paper")
        size = (paper.size["width"], paper.size["height"])
        chain = ActionChains(self.browser, duration=10)
        points = np.array(points)
        starts = points[:-1, None]
        steps = np.diff(points, axis=0)[:, None] * np.arange(1, 7)[:, None] / 6
        places = np.concatenate([points[:1], (starts + steps).reshape(-1, 2)])
        for k, (x, y) in enumerate(((places - 0.5) * size).astype(int).tolist()):
            chain.move_to_element_with_offset(paper, x, y)
            if k == 0:
                chain.click_and_hold()
        chain.release().perform()

    def check_log(self):
        """Check that there was no error, and that nobody but the server was asked."""
        for line in self.browser.get_log("browser"):
            is_expected = any(status in line["message"] for status in EXPECTED_ERRORS)
            assert line["level"] != "SEVERE" or is_expected, line
        urls = []
        for line in self.browser.get_log("performance"):
            event = json.loads(line["message"])["message"]
            if event["method"] == "Network.requestWillBeSent":
                urls.append(event["params"]["request"]["url"])
        assert urls
        for url in urls:
            assert url.startswith(tuple(self.allowed))


@pytest.fixture(scope="module")
def digits():
    return load_dataset("digits", "test")


@pytest.fixture(scope="module")
def reader(digits):
    """A small capsule network that reads digits."""
    torch.manual_seed(0)
    model = create_model("capsnet", channels=16, primary_types=4)
    images = load_dataset("digits", "train")
    task = create_task(model, TrainConfig.of(shift=0), images)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for step in range(240):
        generator = torch.Generator().manual_seed(step)
        index = torch.randint(len(images), (64,), generator=generator)
        batch = batch_of(task, images, index)
        optimizer.zero_grad()
        task.training_step(batch, 0.0)["loss"].backward()
        optimizer.step()
    return Session(as_loaded(model, (28, 28), 1, digits.classes), "reader", digits)


@contextmanager
def serve(*sessions, worker=None):
    """The address of a page of these models, served by a thread of this process."""
    with bound("127.0.0.1", 0) as listening:
        server = uvicorn.Server(settings(make_app(sessions, worker=worker)))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/"
        server.should_exit = True
        thread.join(SECONDS)


@pytest.fixture(scope="module")
def address(reader, digits):
    torch.manual_seed(0)
    cnn = create_model("cnn_baseline", channels=(4,), kernels=(5,), hidden=(8,))
    second = Session(as_loaded(cnn, (28, 28), 1, digits.classes), "other")
    with serve(reader, second) as address:
        yield address


@pytest.fixture(scope="module")
def browser():
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
def page(browser, address):
    for kind in ("browser", "performance"):
        browser.get_log(kind)  # of earlier tests
    page = Page(browser, address)
    yield page
    page.check_log()


def test_a_drawn_seven_is_a_seven(page):
    page.open()
    page.clear()
    page.draw(SEVEN)
    page.wait(page.predicts_seven)
    assert page.texts("#bars .longest .name") == ["7"]
    # The drawing is in the address: the same picture comes back.
    pixels = page.pixels("seen")
    page.wait(lambda: "px=" in page.browser.current_url)
    page.open(page.browser.current_url.partition("#")[2])
    np.testing.assert_array_equal(page.pixels("seen"), pixels)
    assert page.predicts_seven()


def test_a_stroke_that_a_busy_server_refused_is_answered_and_nothing_moves(page, monkeypatch):
    page.open()
    page.clear()
    page.wait(lambda: not page.predicts_seven())
    places = list(map(page.place, ("paper", "bars", "tabs")))
    with monkeypatch.context() as full:
        full.setattr(queue, "MAX_WAITING", 0)
        page.draw(SEVEN)
        page.wait(lambda: page.is_displayed("busy"))
        assert list(map(page.place, ("paper", "bars", "tabs"))) == places
        assert not page.is_displayed("problem")
        # A pen goes through the message.
        message = page.place("busy")
        element = "document.elementFromPoint(arguments[0], arguments[1])"
        script = f"return {element}.closest('#messages')"
        assert page.run(script, message["x"] + 5, message["y"] + 5) is None
    page.wait(page.predicts_seven)
    page.wait(lambda: not page.is_displayed("busy"))


def test_a_slider_changes_the_reconstruction_and_reset_brings_it_back(page):
    page.open("ex=0")
    page.wait(lambda: not page.is_changed())
    sliders = page.select(SLIDERS)
    assert len(sliders) == 16
    page.set_slider(sliders[4], 0.6)
    page.wait(page.is_changed)
    page.click("reset")
    page.wait(lambda: not page.is_changed())


def find_pair(reader, labels):
    """Two examples of different classes, which the model recognizes in their overlay."""
    for first in range(len(labels)):
        for second in range(first):
            picture = overlay(reader.example(first)[0], reader.example(second)[0])
            pair = {labels[first], labels[second]}
            if len(pair) == 2 and set(infer(reader, picture, count=2)["shown"]) == pair:
                return first, second
    pytest.fail("the model finds no pair")


def test_two_overlaid_digits_are_the_two_longest(page, reader, digits):
    labels = digits.labels.tolist()
    first, second = find_pair(reader, labels)
    page.open(f"tab=overlap&ex={first}&ex2={second}")
    page.wait(lambda: page.text("overlap-status"))
    names = {str(labels[first]), str(labels[second])}
    assert set(page.texts("#overlap .bars .longest .name")) == names
    for canvas in ("capsule-1", "capsule-2"):
        assert page.pixels(canvas).max() > 50
        label = page.find(canvas).get_attribute("aria-label")
        names.remove(label.partition("capsule ")[2].partition(" (")[0])


def test_without_routing_the_couplings_are_uniform(page):
    def spreads():
        return page.run(SPREADS)

    def selected_map():
        return page.run("return document.querySelector('.steps').dataset.map")

    page.open("tab=routing&ex=0")
    page.wait(lambda: len(spreads()) == DynamicRouting().iterations)
    assert spreads()[0] == pytest.approx(0, abs=1e-6)
    assert spreads()[-1] > 1e-4
    maps = set()
    last = "document.querySelector('.steps > div:last-child canvas')"
    for kind in ("amount", "agreement", "share"):
        page.choose("map", kind)
        page.wait(lambda kind=kind: selected_map() == kind)
        maps.add(page.run(f"return {last}.toDataURL()"))
    assert len(maps) == 3
    assert "center of the 17 × 17 pixels" in page.text("routing")
    page.click("uniform")
    page.wait(lambda: spreads() == [pytest.approx(0, abs=1e-6)])
    assert "gives every class the same 0.100" in page.text("routing")


def test_the_address_brings_everything_back(page):
    def state():
        sliders = page.select("#pose .sliders input")
        values = [slider.get_attribute("value") for slider in sliders]
        return values, page.text("bars"), page.find("uniform").is_selected()

    page.open("ex=5")
    sliders = page.wait(lambda: page.select(SLIDERS))
    page.set_slider(sliders[2], 0.4)
    routed = page.text("bars")
    page.click("uniform")
    for part in ("uni=1", "d=2"):
        page.wait(lambda part=part: part in page.browser.current_url)
    page.wait(page.is_changed)
    # The slider was set with routing; without it the pose under it is another.
    page.wait(lambda: page.text("bars") != routed)
    state_before = state()
    page.browser.refresh()
    page.wait(lambda: page.text("prediction"))
    page.wait(lambda: state() == state_before)


def test_two_models_side_by_side_and_a_cnn_says_what_it_lacks(page):
    page.open("tab=compare&ex=0")
    page.wait(lambda: page.count("#compare .bars li") == 20)
    assert "probabilities, not lengths" in page.text("compare")
    page.click("tab-pose")
    page.choose("model", "1")
    page.wait(lambda: page.texts("#tabs button") == ["Overlap", "Transform", "Compare"])
    assert "no capsules" in page.text("bars-help")
    assert not page.is_displayed("uniform-row")
    page.click("tab-overlap")
    page.click("tab-transform")
    assert not page.is_displayed("problem")


def test_files_are_opened_or_refused_with_a_sentence(page, tmp_path):
    white = tmp_path / "white.png"
    white.write_bytes(encode_image())
    text = tmp_path / "text.png"
    text.write_bytes(b"hello")
    page.open()
    page.find("file").send_keys(str(white))
    page.wait(lambda: page.pixels("seen").min() == 255)
    page.click("invert")
    page.wait(lambda: page.pixels("seen").max() == 0)
    page.find("file").send_keys(str(text))
    page.wait(lambda: "not an image" in page.text("problem"))


def test_a_color_model_takes_color_and_says_that_it_has_no_decoder(page, color):
    with serve(color) as address:
        page.open(address=address)
        assert "Reconstructions" not in page.browser.page_source
        assert "built without a decoder" in page.text("pose")
        assert page.text("no-examples") == "No test images: none."
        page.run(DROP, base64.b64encode(encode_image(color="red")).decode())
        page.wait(lambda: page.pixels("seen")[0].tolist() == [255, 0, 0])
        page.wait(lambda: "px=" in page.browser.current_url)
        page.click("clear")
        page.run("document.getElementById('ink').value = '#00ff00'")
        page.draw([(0.3, 0.5), (0.7, 0.5)])
        red, green, blue = page.pixels("seen").max(axis=0)
        assert green > 200
        assert red == blue == 0
        for tab in ("routing", "overlap", "transform"):
            page.click(f"tab-{tab}")
        text = "return document.getElementById('overlap').textContent"
        page.wait(lambda: "only its lengths" in page.run(text))
        assert not page.is_displayed("problem")


def test_images_of_two_digits_have_two_predictions(page, reader, digits):
    pairs = make_pairs(digits.subset(torch.arange(20)), pad=0)
    with serve(Session(reader.model, "pairs", pairs)) as address:
        page.open("tab=overlap&ex=4", address)
        page.wait(lambda: " and " in page.text("prediction"))
        assert page.count("#bars .longest") == 2
        # The picture has two digits already: nothing is laid over it.
        page.wait(lambda: page.pixels("capsule-2").any())
        np.testing.assert_array_equal(page.pixels("overlap-seen"), page.pixels("seen"))
        assert "the input alone" in page.text("overlap")


@contextmanager
def emulate(page, name, settings, ending):
    """A setting of chromium's emulation, until this ends."""
    page.browser.execute_cdp_cmd(f"Emulation.{name}", settings)
    try:
        yield
    finally:
        page.browser.execute_cdp_cmd(*ending)


def touch(page, kind, *points):
    touches = {"type": kind, "touchPoints": list(points)}
    page.browser.execute_cdp_cmd("Input.dispatchTouchEvent", touches)


def test_a_finger_draws(page):
    page.open()
    name = "setTouchEmulationEnabled"
    with emulate(page, name, {"enabled": True}, (f"Emulation.{name}", {"enabled": False})):
        page.clear()
        paper = page.place("paper")
        kind = "touchStart"
        for x, y in SEVEN:
            place = {"x": paper["x"] + x * paper["width"], "y": paper["y"] + y * paper["height"]}
            touch(page, kind, place)
            kind = "touchMove"
        touch(page, "touchEnd")
        page.wait(page.predicts_seven)
        assert page.run("return scrollY") == 0


@pytest.mark.parametrize("tab", TABS)
def test_nothing_is_cut_on_a_phone(page, tab):
    size = {"width": 360, "height": 700, "deviceScaleFactor": 1, "mobile": True}
    ending = ("Emulation.clearDeviceMetricsOverride", {})
    page.open()
    with emulate(page, "setDeviceMetricsOverride", size, ending):
        page.open(f"tab={tab}&ex=0")
        page.pause(500)
        assert page.run("return document.documentElement.scrollWidth") <= 360


def test_every_control_has_a_name(page):
    page.open()
    for tab in TABS:
        page.click(f"tab-{tab}")
        assert page.run(UNNAMED) == []
