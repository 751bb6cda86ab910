"""The page of the misplaced face: its networks, its drawings, and what can be done with it."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.ndimage import rotate

from claims.face import networks
from claims.face.__main__ import main
from claims.face.networks import quantize, read_networks
from claims.face.page import ARRANGEMENTS, BRIGHTNESS, carry_network, describe_drawing
from claims.measures import misplaced
from claims.sets import faces
from claims.sets.faces import BACKGROUND, BITMAPS, CLASSES, OBJECTS, SIDE, Part, render_faces
from explorer.conftest import browser, opened  # noqa: F401 (fixtures)
from explorer.test_browser import WINDOWS

STEP = 1 / 255  # of a pixel, by which the drawing of the page may differ from Python's
LOOK = """
const [images, done] = arguments;
(async () => {
  const all = [];
  for (const image of images) {
    const answers = page.answers.map(({ network }) => lookCalmly(network, Float32Array.from(image)));
    all.push((await Promise.all(answers)).map((scores) => Array.from(scores)));
  }
  done(all);
})();
"""
DRAW = "return Array.from(drawParts(page.drawing, arguments[0]))"


class Even:
    """In the place of random numbers: parts of even brightness at their places, and no patch."""

    def uniform(self, low, high):
        return high if high == 1 else BRIGHTNESS

    def randint(self, _low, _high=None, count=None):
        return 0 if count is None else np.zeros(count, int)


def draw_in_python(parts):
    drawing = np.full((SIDE, SIDE), BACKGROUND)
    faces._draw(drawing, parts, Even())
    return drawing.clip(0, 1)


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    path = tmp_path_factory.mktemp("face") / "face.html"
    assert main(["--output", str(path)]) == 0
    return path.as_uri()


@pytest.fixture
def page(opened, address):  # noqa: F811
    page = opened(address)
    page.open()
    settle(page)
    return page


def settle(page):
    page.wait(lambda: not page.run("return document.documentElement.dataset.busy"))


def answers_of(page):
    """The bars of all objects, lengths and probabilities, as they are drawn."""
    script = """
      const widths = (unit) => [...unit.querySelectorAll(".track i")].map((bar) => bar.style.width);
      return [...document.querySelectorAll("#answers section")].map((unit) => widths(unit).join());
    """
    return page.run(script)


def handles(page):
    return page.select(".part")


def place_of(handle):
    """Row, column and angle of a part, as its name says."""
    name = handle.get_attribute("aria-label")
    return tuple(map(int, re.findall(r"-?\d+(?=,|$|°)", name.partition(",")[2] + ",")))


def test_weights_of_eight_bits_are_near_the_weights():
    weight = torch.randn(5, 3, 4, generator=torch.Generator().manual_seed(0))
    weight[2] *= 100
    weight[3] = 0
    steps, scale = quantize(weight)
    assert steps.dtype == torch.int8
    restored = steps * scale.view(-1, 1, 1)
    error = (restored - weight).abs().amax(dim=(1, 2))
    assert (error <= scale / 2 * 1.001).all()
    again, scale_again = quantize(restored)
    assert torch.equal(again, steps)
    torch.testing.assert_close(scale_again, scale)


def test_the_networks_are_those_of_the_claim_and_small(address):
    assert networks.STORED.stat().st_size < 1_000_000
    text = Path(address.removeprefix("file://")).read_text()
    packed = re.findall(r'<script type="text/plain" id="packed-\d">(.*?)</script>', text, re.DOTALL)
    assert len(packed) == 2
    assert sum(map(len, packed)) < 1_000_000
    assert "connect-src 'none'" in text
    images = render_faces("whole", 200, seed=9)
    for network in read_networks():
        with torch.no_grad():
            scores = network.model(images.float_images())
        accuracy = float((scores.argmax(dim=1) == images.labels).double().mean())
        assert accuracy == pytest.approx(network.facts["accuracy"], abs=0.06)


def test_limits_of_the_page_leave_95_percent_of_whole_objects():
    images = render_faces("whole", 400, seed=9)
    for network in read_networks():
        limits = torch.tensor(carry_network(network).head["limits"])[images.labels]
        with torch.no_grad():
            scores = network.model(images.float_images())
        scores = scores.gather(1, images.labels.unsqueeze(1)).squeeze(1)
        assert (scores > limits).double().mean() == pytest.approx(0.95, abs=0.04)


@pytest.mark.slow
def test_figures_of_the_page_are_those_of_its_networks():
    for network in read_networks():
        figures = misplaced.misplaced_figures(network.model, network.facts["measured"])
        for name in ("auroc_misplaced", *(f"accepted_95_{kind}" for kind in ARRANGEMENTS[1:])):
            assert figures[name] == pytest.approx(network.facts["figures"][name], abs=2e-3)
        assert figures["limits"] == pytest.approx(network.facts["figures"]["limits"], abs=1e-3)


def test_arrangements_are_those_of_the_set():
    drawing = describe_drawing()
    assert drawing["objects"] == list(OBJECTS)
    for kind in ARRANGEMENTS:
        for name in CLASSES:
            whole = [Part(*place) for place in OBJECTS[name]]
            parts = [Part(**part) for part in drawing["arrangements"][kind][name]]
            assert (parts == whole) == (kind == "whole"), (kind, name)


def test_a_command_without_a_task_says_so(capsys):
    with pytest.raises(SystemExit):
        main([])
    assert "expected --output FILE or --train" in capsys.readouterr().err


def test_the_page_draws_what_the_set_draws(page):
    for kind, objects in describe_drawing()["arrangements"].items():
        for name, parts in objects.items():
            turned = [part | {"angle": 90 * part["turns"]} for part in parts]
            drawn = np.array(page.run(DRAW, turned)).reshape(SIDE, SIDE)
            expected = draw_in_python([Part(**part) for part in parts])
            np.testing.assert_allclose(drawn, expected, atol=STEP, err_msg=f"{kind} {name}")
    # Between right angles it is bilinear interpolation.
    part = {"glyph": "mouth", "row": 20, "column": 30, "angle": 30}
    drawn = np.array(page.run(DRAW, [part])).reshape(SIDE, SIDE)[18:30, 28:40]
    bitmap = np.pad(BITMAPS["mouth"], 2)
    expected = BACKGROUND + BRIGHTNESS * rotate(bitmap, 30, reshape=False, order=1)
    np.testing.assert_allclose(drawn, expected.clip(0, 1), atol=STEP)


def test_a_part_is_dragged_and_both_answers_change(page):
    before = answers_of(page)
    mouth = handles(page)[3]
    row, column, _ = place_of(mouth)
    pixel = page.find("paper").size["width"] / SIDE
    page.drag(mouth, round(10 * pixel), round(-16 * pixel))
    settle(page)
    moved = place_of(mouth)
    assert moved[0] == pytest.approx(row - 16, abs=1)
    assert moved[1] == pytest.approx(column + 10, abs=1)
    after = answers_of(page)
    assert after[0] != before[0]
    assert after[1] != before[1]
    assert mouth.get_attribute("aria-pressed") == "true"


@pytest.mark.slow
def test_answers_are_those_of_torch_on_fifty_faces(page):
    kinds = ("whole", "swapped", "turned", "moved", "scrambled")
    images = torch.cat([render_faces(kind, 40, seed=3).float_images()[::4] for kind in kinds])
    assert len(images) == 50
    page.browser.set_script_timeout(240)
    answers = torch.tensor(
        page.browser.execute_async_script(LOOK, images.flatten(1).tolist())
    ).transpose(0, 1)
    for network, given in zip(read_networks(), answers, strict=True):
        with torch.no_grad():
            torch.testing.assert_close(given, network.model(images), atol=1e-3, rtol=0)


@pytest.mark.slow
def test_keys_move_and_turn_a_part(page):
    from selenium.webdriver.common.keys import Keys

    eye = handles(page)[0]
    assert place_of(eye) == (2, 8, 0)
    eye.send_keys(Keys.ARROW_DOWN * 3 + Keys.ARROW_RIGHT + "++")
    assert place_of(eye) == (5, 9, 30)
    said = page.run("return document.getElementById('place').textContent")
    assert said == "eye 1, row 5, column 9, turned 30°"
    eye.send_keys(Keys.ARROW_UP * 20 + "---")
    assert place_of(eye) == (0, 9, -15)
    assert page.find("turn").get_attribute("value") == "-15"
    page.find("turn").send_keys(Keys.ARROW_RIGHT)
    assert place_of(eye) == (0, 9, 0)
    settle(page)


@pytest.mark.slow
def test_the_round_handle_turns_a_part(page):
    nose = handles(page)[2]
    nose.click()
    assert place_of(nose)[2] == 0
    reach = nose.size["width"]
    page.drag(page.find("knob"), -reach, reach)  # from above to the left: a quarter
    assert place_of(nose)[2] == 90
    settle(page)


@pytest.mark.slow
def test_a_finger_drags_and_does_not_scroll(page):
    with page.emulate_window(390, 844, touches=True):
        page.open()
        eye = handles(page)[0]
        box = page.run("return arguments[0].getBoundingClientRect().toJSON()", eye)
        assert box["width"] >= 44
        x = box["x"] + box["width"] / 2
        y = box["y"] + box["height"] / 2
        page.touch("touchStart", {"x": x, "y": y})
        for k in range(1, 5):
            page.touch("touchMove", {"x": x + 20 * k, "y": y + 30 * k})
        page.touch("touchEnd")
        assert place_of(eye)[0] > 15
        assert page.run("return scrollY") == 0
        settle(page)


@pytest.mark.slow
def test_every_arrangement_of_every_object_is_shown(page):
    from selenium.webdriver.support.ui import Select

    for name in CLASSES:
        Select(page.find("object")).select_by_visible_text(name)
        for kind in ARRANGEMENTS:
            page.select(f"[data-kind={kind}]")[0].click()
            parts = describe_drawing()["arrangements"][kind][name]
            shown = [place_of(handle)[:2] for handle in handles(page)]
            assert shown == [(part["row"], part["column"]) for part in parts]
        settle(page)
        assert name in page.select(".verdict")[0].text


@pytest.mark.slow
@pytest.mark.parametrize(("width", "height"), WINDOWS)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_without_violations(page, width, height, scheme):
    with page.emulate_window(width, height, scheme):
        page.open()
        settle(page)
        assert page.run("return document.documentElement.scrollWidth") <= width
        bottom = "return document.getElementById('answers').getBoundingClientRect().bottom"
        assert page.run(bottom) <= height
        assert page.violations() == []
