"""The page in a real browser, from the pen to the pixels."""

from __future__ import annotations

import base64
import json
import shutil
import threading
from contextlib import contextmanager

import pytest
import torch

pytest.importorskip("starlette", reason="needs starlette and uvicorn")
pytest.importorskip("selenium", reason="needs selenium to drive a browser")

import uvicorn
from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select, WebDriverWait

from torchcaps.data import load_dataset, make_pairs
from torchcaps.explorer import Session, overlay, worker as queue
from torchcaps.explorer.server import bound, make_app, settings
from torchcaps.models import create_model
from torchcaps.nn import DynamicRouting
from torchcaps.settings import TrainConfig
from torchcaps.tasks import create_task

from .conftest import as_loaded, encode_image
from .test_tasks import make_brightness_session, make_spots_session

pytestmark = pytest.mark.slow
SECONDS = 30
SEVEN = [(0.25, 0.2), (0.75, 0.2), (0.45, 0.85)]


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
        batch = torch.randint(len(images), (64,), generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        task(task.sample_batch(images, batch, torch.Generator()), 0.0)["loss"].backward()
        optimizer.step()
    return Session(as_loaded(model, (28, 28), 1, digits.classes), "reader", digits)


@contextmanager
def served(*sessions, worker=None):
    """Where a page of these models is served, by a thread of this process."""
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
    with served(reader, Session(as_loaded(cnn, (28, 28), 1, digits.classes), "other")) as found:
        yield found


@pytest.fixture(scope="module")
def browser():
    program = next(
        filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
    )
    driver = shutil.which("chromedriver")
    if program is None or driver is None:
        pytest.skip("no browser here: needs chromium and chromedriver")
    options = webdriver.ChromeOptions()
    options.binary_location = program
    for argument in (
        "--headless=new",
        "--no-sandbox",
        "--disable-dev-shm-usage",
        "--window-size=1280,1000",
    ):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    found = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    yield found
    found.quit()


@pytest.fixture
def page(browser, address):
    """Open the page in this state, and see at the end that it had no error and asked nobody else."""
    for kind in ("browser", "performance"):
        browser.get_log(kind)  # what earlier tests left

    asked = [address, "data:", "about:", "blob:"]
    told = ("400 (Bad Request)", "503 (Service Unavailable)")

    def open_page(state="", at=address):
        asked.append(at)
        browser.get("about:blank")
        browser.get(f"{at}#{state}")
        wait(browser, lambda: browser.find_element(By.ID, "prediction").text)
        return browser

    yield open_page
    errors = [line for line in browser.get_log("browser") if line["level"] == "SEVERE"]
    assert [line for line in errors if not any(status in line["message"] for status in told)] == []
    events = [json.loads(line["message"])["message"] for line in browser.get_log("performance")]
    urls = [
        e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"
    ]
    assert urls
    assert all(url.startswith(tuple(asked)) for url in urls), urls


def wait(browser, ready):
    return WebDriverWait(browser, SECONDS).until(lambda _: ready())


def pixels(browser, canvas):
    """The bytes of a canvas, three for each pixel."""
    script = """const c = document.getElementById(arguments[0]);
      const data = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;
      return Array.from(data.filter((_, k) => k % 4 < 3))"""
    return browser.execute_script(script, canvas)


def moved(browser):
    """Whether the sliders changed the reconstruction by more than rounding."""
    changed, own = pixels(browser, "changed"), pixels(browser, "reconstruction")
    return max(abs(a - b) for a, b in zip(changed, own, strict=True)) > 2


def draw(browser, points):
    """Draw with the mouse; points are shares of the paper."""
    paper = browser.find_element(By.ID, "paper")
    width, height = paper.size["width"], paper.size["height"]
    chain = ActionChains(browser, duration=10)
    places = [points[0]]
    for (x, y), (to_x, to_y) in zip(points, points[1:], strict=False):
        places += [(x + (to_x - x) * k / 6, y + (to_y - y) * k / 6) for k in range(1, 7)]
    for k, (x, y) in enumerate(places):
        chain.move_to_element_with_offset(paper, int((x - 0.5) * width), int((y - 0.5) * height))
        if k == 0:
            chain.click_and_hold()
    chain.release().perform()


def set_slider(browser, slider, value):
    script = "arguments[0].value = arguments[1]; arguments[0].dispatchEvent(new Event('input', {bubbles: true}))"
    browser.execute_script(script, slider, value)


def longest(browser):
    return browser.find_element(By.CSS_SELECTOR, "#bars .longest .name").get_attribute(
        "textContent"
    )


def test_a_drawn_seven_is_a_seven(page):
    browser = page()
    browser.find_element(By.ID, "clear").click()
    draw(browser, SEVEN)
    wait(
        browser, lambda: browser.find_element(By.ID, "prediction").text.startswith("Prediction: 7,")
    )
    assert longest(browser) == "7"
    # The drawing is in the address: the same picture comes back.
    seen = pixels(browser, "seen")
    wait(browser, lambda: "px=" in browser.current_url)
    page(browser.current_url.partition("#")[2])
    assert pixels(browser, "seen") == seen
    assert longest(browser) == "7"


def place_of(browser, name):
    return browser.execute_script(
        f"return document.getElementById('{name}').getBoundingClientRect().toJSON()"
    )


def test_a_stroke_that_a_busy_server_refused_is_answered_and_nothing_moves(page, monkeypatch):
    browser = page()
    browser.find_element(By.ID, "clear").click()
    wait(browser, lambda: "Prediction: 7," not in browser.find_element(By.ID, "prediction").text)
    before = [place_of(browser, name) for name in ("paper", "bars", "tabs")]
    with monkeypatch.context() as full:
        full.setattr(queue, "MAX_WAITING", 0)
        draw(browser, SEVEN)
        wait(browser, lambda: browser.find_element(By.ID, "busy").is_displayed())
        assert [place_of(browser, name) for name in ("paper", "bars", "tabs")] == before
        assert not browser.find_element(By.ID, "problem").is_displayed()
        over = place_of(browser, "busy")
        script = "return document.elementFromPoint(arguments[0], arguments[1]).closest('#messages')"
        assert (
            browser.execute_script(script, over["x"] + 5, over["y"] + 5) is None
        )  # a pen goes through it
    wait(
        browser, lambda: browser.find_element(By.ID, "prediction").text.startswith("Prediction: 7,")
    )
    wait(browser, lambda: not browser.find_element(By.ID, "busy").is_displayed())


def test_the_newest_stroke_overtakes_those_that_wait(page, reader, monkeypatch):
    one, held, replaced = queue.Worker(), threading.Event(), []
    settle = queue._settle

    def settled(future, answer):
        if isinstance(answer, queue.Superseded):
            replaced.append(answer)
        settle(future, answer)

    monkeypatch.setattr(queue, "_settle", settled)
    with served(reader, worker=one) as address:
        browser = page(at=address)
        browser.find_element(By.ID, "clear").click()
        wait(
            browser, lambda: "Prediction: 7," not in browser.find_element(By.ID, "prediction").text
        )
        one._thread.submit(held.wait, SECONDS)
        draw(browser, SEVEN[:2])
        browser.execute_script("return new Promise((done) => setTimeout(done, 400))")
        draw(browser, SEVEN[1:])
        wait(browser, lambda: replaced)
        held.set()
        wait(
            browser,
            lambda: browser.find_element(By.ID, "prediction").text.startswith("Prediction: 7,"),
        )
        assert not browser.find_element(By.ID, "problem").is_displayed()


def test_the_keyboard_draws(page):
    browser = page()
    browser.find_element(By.ID, "clear").click()
    paper = browser.find_element(By.ID, "paper")
    wait(browser, lambda: max(pixels(browser, "seen")) == 0)
    paper.send_keys(Keys.SPACE, *[Keys.ARROW_UP] * 5, *[Keys.ARROW_LEFT] * 3, Keys.SPACE)
    assert sum(value > 100 for value in pixels(browser, "seen")) > 10
    paper.send_keys(Keys.DELETE)
    wait(browser, lambda: max(pixels(browser, "seen")) == 0)


def test_a_slider_changes_the_reconstruction_and_reset_brings_it_back(page):
    browser = page("ex=0")
    wait(browser, lambda: not moved(browser))
    sliders = browser.find_elements(By.CSS_SELECTOR, "#pose .sliders input[type=range]")
    assert len(sliders) == 16
    set_slider(browser, sliders[4], 0.6)
    wait(browser, lambda: moved(browser))
    browser.find_element(By.ID, "reset").click()
    wait(browser, lambda: not moved(browser))


def test_a_walk_ends_at_the_second_pictures_pose(page, reader):
    browser = page("ex=0&ex2=3")
    start = [
        round(255 * value)
        for value in reader.view("infer")
        .run(reader.example(0)[0])
        .reconstructions.flatten()
        .tolist()
    ]
    label = reader.view("infer").run(reader.example(0)[0]).shown[0]
    drawn = reader.view("pose").run(
        reader.view("infer").run(reader.example(3)[0]).pose[label][None], label
    )
    end = [round(255 * value) for value in drawn.flatten().tolist()]

    def shows(wanted):
        shown = pixels(browser, "walk")[::3]
        return (
            len(shown) == len(wanted)
            and max(abs(a - b) for a, b in zip(shown, wanted, strict=True)) <= 1
        )

    wait(browser, lambda: shows(start))
    assert max(abs(a - b) for a, b in zip(start, end, strict=True)) > 20
    set_slider(browser, browser.find_element(By.CSS_SELECTOR, "#pose input[aria-label=walk]"), 1)
    wait(browser, lambda: shows(end))


def test_what_a_dimension_does_is_shown_as_a_strip(page):
    browser = page("ex=0")
    browser.find_element(By.CSS_SELECTOR, "#pose .slider button").click()
    wait(browser, lambda: len(browser.find_elements(By.CSS_SELECTOR, "#pose .strip canvas")) == 11)


def test_two_overlaid_digits_are_the_two_longest(page, reader, digits):
    labels = digits.labels.tolist()
    pairs = ((a, b) for a in range(len(digits)) for b in range(a) if labels[a] != labels[b])

    def found(pair):
        """Whether the model itself finds both; only then the page can show it."""
        both = overlay(*(reader.example(index)[0] for index in pair))
        return set(reader.view("infer").run(both, count=2).shown) == {
            labels[index] for index in pair
        }

    first, second = next(filter(found, pairs))
    browser = page(f"tab=overlap&ex={first}&ex2={second}")
    wait(browser, lambda: browser.find_element(By.ID, "overlap-status").text)
    names = {str(labels[first]), str(labels[second])}
    longest_two = browser.find_elements(By.CSS_SELECTOR, "#overlap .bars .longest .name")
    assert {name.text for name in longest_two} == names
    for k in (1, 2):
        assert max(pixels(browser, f"capsule-{k}")) > 50
    drawn = [
        browser.find_element(By.ID, f"capsule-{k}").get_attribute("aria-label") for k in (1, 2)
    ]
    assert {label.split("capsule ")[1].split(" (")[0] for label in drawn} == names


def test_two_overlaid_pictures_are_drawn_by_two_capsules(page, digits):
    labels = digits.labels.tolist()
    second = next(k for k, label in enumerate(labels) if label != labels[0])
    browser = page(f"tab=overlap&ex=0&ex2={second}&c1={labels[0]}&c2={labels[second]}")
    wait(browser, lambda: any(pixels(browser, "capsule-1")) and any(pixels(browser, "capsule-2")))
    first, other = pixels(browser, "capsule-1"), pixels(browser, "capsule-2")
    assert sum(first[0::3]) > sum(first[2::3])  # orange
    assert sum(other[2::3]) > sum(other[0::3])  # blue
    shapes = [[max(p[k : k + 3]) for k in range(0, len(p), 3)] for p in (first, other)]
    assert sum(abs(a - b) for a, b in zip(*shapes, strict=True)) > 28 * 28


def test_without_routing_the_couplings_are_uniform(page):
    browser = page("tab=routing&ex=0")

    def spreads():
        script = "return [...document.querySelectorAll('.steps > div')].map((step) => Number(step.dataset.spread))"
        return browser.execute_script(script)

    wait(browser, lambda: len(spreads()) == DynamicRouting().iterations)
    assert spreads()[0] == pytest.approx(0, abs=1e-6)
    assert spreads()[-1] > 1e-4
    maps = set()
    for kind in ("amount", "agreement", "share"):
        Select(browser.find_element(By.ID, "map")).select_by_value(kind)
        wait(
            browser,
            lambda kind=kind: (
                browser.execute_script("return document.querySelector('.steps').dataset.map")
                == kind
            ),
        )
        maps.add(
            browser.execute_script(
                "return document.querySelector('.steps > div:last-child canvas').toDataURL()"
            )
        )
    assert len(maps) == 3
    assert "center of the 17 × 17 pixels" in browser.find_element(By.ID, "routing").text
    browser.find_element(By.ID, "uniform").click()
    wait(browser, lambda: spreads() == [pytest.approx(0, abs=1e-6)])
    assert "gives every class the same 0.100" in browser.find_element(By.ID, "routing").text


def test_the_address_brings_everything_back(page):
    browser = page("ex=5")
    sliders = wait(
        browser, lambda: browser.find_elements(By.CSS_SELECTOR, "#pose .sliders input[type=range]")
    )
    set_slider(browser, sliders[2], 0.4)
    routed = browser.find_element(By.ID, "bars").text
    browser.find_element(By.ID, "uniform").click()
    wait(browser, lambda: "uni=1" in browser.current_url and "d=2" in browser.current_url)
    wait(browser, lambda: moved(browser))

    def state():
        values = [
            e.get_attribute("value")
            for e in browser.find_elements(By.CSS_SELECTOR, "#pose .sliders input")
        ]
        return (
            values,
            browser.find_element(By.ID, "bars").text,
            browser.find_element(By.ID, "uniform").is_selected(),
        )

    # The slider was set with routing; without it the pose under it is another.
    wait(browser, lambda: state()[1] != routed)
    before = state()
    browser.refresh()
    wait(browser, lambda: browser.find_element(By.ID, "prediction").text)
    wait(browser, lambda: state() == before)


def test_a_transformation_draws_its_lines(page):
    browser = page("tab=transform&ex=0&deg=30")
    wait(browser, lambda: len(browser.find_elements(By.CSS_SELECTOR, "#length-lines path")) == 6)
    wait(browser, lambda: len(browser.find_elements(By.CSS_SELECTOR, "#pose-lines path")) == 6)
    Select(browser.find_element(By.ID, "sweep")).select_by_value("right")
    wait(
        browser,
        lambda: (
            "shift right" in browser.find_element(By.ID, "length-lines").get_attribute("innerHTML")
        ),
    )


def test_two_models_side_by_side_and_a_cnn_says_what_it_lacks(page):
    browser = page("tab=compare&ex=0")
    wait(browser, lambda: len(browser.find_elements(By.CSS_SELECTOR, "#compare .bars li")) == 20)
    assert "probabilities, not lengths" in browser.find_element(By.ID, "compare").text
    browser.find_element(By.ID, "tab-pose").click()
    Select(browser.find_element(By.ID, "model")).select_by_value("1")
    wait(browser, lambda: shown_tabs(browser) == ["Overlap", "Transform", "Compare"])
    assert "no capsules" in browser.find_element(By.ID, "bars-help").text
    assert not browser.find_element(By.ID, "uniform-row").is_displayed()
    for tab in ("overlap", "transform"):
        browser.find_element(By.ID, f"tab-{tab}").click()
    assert not browser.find_element(By.ID, "problem").is_displayed()


def test_files_are_opened_or_refused_with_a_sentence(page, tmp_path):
    browser = page()
    (tmp_path / "white.png").write_bytes(encode_image())
    (tmp_path / "text.png").write_bytes(b"hello")
    browser.find_element(By.ID, "file").send_keys(str(tmp_path / "white.png"))
    wait(browser, lambda: min(pixels(browser, "seen")) == 255)
    browser.find_element(By.ID, "invert").click()
    wait(browser, lambda: max(pixels(browser, "seen")) == 0)
    browser.find_element(By.ID, "file").send_keys(str(tmp_path / "text.png"))
    wait(browser, lambda: "not an image" in browser.find_element(By.ID, "problem").text)


DROP = """const bytes = Uint8Array.from(atob(arguments[0]), (c) => c.charCodeAt(0)), data = new DataTransfer();
  data.items.add(new File([bytes], 'dropped.png', { type: 'image/png' }));
  document.body.dispatchEvent(new DragEvent('drop', { dataTransfer: data, bubbles: true, cancelable: true }))"""


def test_a_color_model_takes_color_and_says_that_it_has_no_decoder(page, color):
    with served(color) as address:
        browser = page(at=address)
        assert "Reconstructions" not in browser.page_source
        assert "built without a decoder" in browser.find_element(By.ID, "pose").text
        assert browser.find_element(By.ID, "no-examples").text == "No test images: none."
        browser.execute_script(DROP, base64.b64encode(encode_image(color="red")).decode())
        wait(browser, lambda: pixels(browser, "seen")[:3] == [255, 0, 0])
        wait(browser, lambda: "px=" in browser.current_url)
        browser.find_element(By.ID, "clear").click()
        browser.execute_script("document.getElementById('ink').value = '#00ff00'")
        draw(browser, [(0.3, 0.5), (0.7, 0.5)])
        seen = pixels(browser, "seen")
        assert max(seen[1::3]) > 200
        assert max(seen[0::3]) == max(seen[2::3]) == 0
        for tab in ("routing", "overlap", "transform"):
            browser.find_element(By.ID, f"tab-{tab}").click()
        wait(
            browser,
            lambda: (
                "only its lengths"
                in browser.execute_script("return document.getElementById('overlap').textContent")
            ),
        )
        assert not browser.find_element(By.ID, "problem").is_displayed()


def test_images_of_two_digits_have_two_predictions(page, reader, digits):
    pairs = make_pairs(digits.subset(torch.arange(20)), pad=0)
    with served(Session(reader.model, "pairs", pairs)) as address:
        browser = page("tab=overlap&ex=4", at=address)
        wait(browser, lambda: " and " in browser.find_element(By.ID, "prediction").text)
        assert len(browser.find_elements(By.CSS_SELECTOR, "#bars .longest")) == 2
        # The picture has two digits already: nothing is laid over it.
        wait(browser, lambda: any(pixels(browser, "capsule-2")))
        assert pixels(browser, "overlap-seen") == pixels(browser, "seen")
        assert "the input alone" in browser.find_element(By.ID, "overlap").text


def shown_tabs(browser):
    return [
        tab.text
        for tab in browser.find_elements(By.CSS_SELECTOR, "#tabs button")
        if tab.is_displayed()
    ]


def test_capsules_that_are_no_classes_are_numbered_and_drawn(page):
    with served(make_spots_session()) as address:
        browser = page("tab=routing&ex=0&ex2=1", at=address)
        assert shown_tabs(browser) == ["Pose", "Transform"]
        wait(browser, lambda: "Pose of capsule " in browser.find_element(By.ID, "pose").text)
        assert browser.find_element(By.ID, "prediction").text.startswith("Largest: capsule ")
        assert not browser.find_element(By.ID, "uniform-row").is_displayed()
        assert not browser.find_element(By.ID, "gallery").is_displayed()
        assert browser.find_element(By.ID, "truth").text == ""
        # Drawn from the request's pose and presence, a walk's start is the reconstruction.
        start = pixels(browser, "reconstruction")
        walk = browser.find_element(By.CSS_SELECTOR, "#pose input[aria-label=walk]")
        set_slider(browser, walk, 0.001)
        wait(browser, lambda: "0 % of the way, capsule" in browser.find_element(By.ID, "pose").text)
        wait(
            browser,
            lambda: (
                max(abs(a - b) for a, b in zip(pixels(browser, "walk"), start, strict=True)) <= 2
            ),
        )
        browser.find_element(By.ID, "tab-transform").click()
        wait(browser, lambda: len(browser.find_elements(By.CSS_SELECTOR, "#pose-lines path")) == 2)
        assert not browser.find_element(By.ID, "problem").is_displayed()


def test_a_system_without_capsules_and_classes_has_a_page(page):
    with served(make_brightness_session()) as address:
        browser = page("ex=0", at=address)
        assert "has no capsules" in browser.find_element(By.ID, "prediction").text
        assert shown_tabs(browser) == []
        assert not browser.find_element(By.ID, "problem").is_displayed()


def test_a_finger_draws(page):
    browser = page()
    browser.execute_cdp_cmd("Emulation.setTouchEmulationEnabled", {"enabled": True})
    try:
        browser.find_element(By.ID, "clear").click()
        wait(browser, lambda: max(pixels(browser, "seen")) == 0)
        box = browser.execute_script(
            "return document.getElementById('paper').getBoundingClientRect().toJSON()"
        )
        for k, (x, y) in enumerate(SEVEN):
            place = {"x": box["x"] + x * box["width"], "y": box["y"] + y * box["height"]}
            kind = "touchMove" if k else "touchStart"
            browser.execute_cdp_cmd(
                "Input.dispatchTouchEvent", {"type": kind, "touchPoints": [place]}
            )
        browser.execute_cdp_cmd("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})
        wait(browser, lambda: longest(browser) == "7")
        assert browser.execute_script("return scrollY") == 0
    finally:
        browser.execute_cdp_cmd("Emulation.setTouchEmulationEnabled", {"enabled": False})


def test_tabs_follow_the_arrow_keys(page):
    browser = page()
    browser.find_element(By.ID, "tab-pose").send_keys(Keys.ARROW_RIGHT)
    assert browser.switch_to.active_element.get_attribute("id") == "tab-routing"
    assert browser.find_element(By.ID, "routing").is_displayed()
    assert not browser.find_element(By.ID, "pose").is_displayed()


@pytest.mark.parametrize("tab", ["pose", "routing", "overlap", "transform", "compare"])
def test_nothing_is_cut_on_a_phone(page, tab):
    browser = page()
    size = {"width": 360, "height": 700, "deviceScaleFactor": 1, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        page(f"tab={tab}&ex=0")
        browser.execute_script("return new Promise((done) => setTimeout(done, 500))")
        assert browser.execute_script("return document.documentElement.scrollWidth") <= 360
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_every_control_has_a_name(page):
    browser = page()
    script = """return [...document.querySelectorAll('button, input, select, canvas[role=img]')]
      .filter((e) => !(e.getAttribute('aria-label') || e.labels?.length || e.textContent.trim()))
      .map((e) => e.outerHTML)"""
    for tab in ("pose", "routing", "overlap", "transform", "compare"):
        browser.find_element(By.ID, f"tab-{tab}").click()
        assert browser.execute_script(script) == []
