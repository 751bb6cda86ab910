"""The page in a real browser, from the pen to the pixels."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch

import torchcaps as tc
from torchcaps.data import load_dataset
from torchcaps.models import weights_file

from .conftest import SIZE, make_model, random_images, serve

SEVEN = [(0.25, 0.2), (0.75, 0.2), (0.45, 0.85)]  # corners of its stroke, as shares of the paper
WINDOWS = [(1440, 900), (1024, 768), (390, 844)]
TABS = ("votes", "pose", "transform", "compare")
UNSEEN = """
const isCut = (box) => box.width > 0 && (box.right > innerWidth + 1 || box.bottom > innerHeight + 1);
return arguments[0].filter((id) => isCut(document.getElementById(id).getBoundingClientRect()))
"""


@pytest.fixture(scope="module")
def digits():
    return load_dataset("digits", "test")


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """The page of the package's own network, as `torchcaps explore` makes it."""
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(home))
        printed = []
        tc.explore(open_page=False, log=printed.append)
    [path] = printed
    return Path(path).as_uri()


def test_the_page_computes_what_torch_computes(opened, tmp_path):
    model = make_model()
    exported = tc.export(model, tmp_path / "page", format="page")
    page = opened(exported.path.as_uri())
    page.open()
    images = random_images(model, 5)
    lengths, drawings = page.look(images)
    with torch.no_grad():
        capsules = model.capsules(images)
        expected = model.reconstruct(capsules)
    torch.testing.assert_close(lengths, capsules.activation, atol=1e-3, rtol=0)
    torch.testing.assert_close(drawings, expected[:3].flatten(1), atol=2e-3, rtol=0)
    assert page.text("verdict").startswith("empty")
    page.draw([(0.3, 0.3), (0.7, 0.7)])
    page.wait(lambda: not page.text("verdict").startswith("empty"))


def test_the_logits_of_a_child_give_its_couplings(opened, tmp_path):
    model = make_model()
    with torch.no_grad():
        model.class_capsules.weight.mul_(30)  # so that routing changes the couplings
    page = opened(tc.export(model, tmp_path / "page", format="page").path.as_uri())
    page.open()
    script = """
    const [pixels, child] = arguments;
    return page.source.look(Float32Array.from(pixels)).then((look) =>
      look.steps.map((step) => [logitsOf(look, step, child), step.couplings].map((x) => Array.from(x))));
    """
    child = 3
    steps = page.run(script, random_images(model).flatten().tolist(), child)
    assert len(steps) == 3
    for logits, couplings in steps:
        given = torch.tensor(couplings).view(-1, 3)[child]
        torch.testing.assert_close(
            torch.tensor(logits).float().softmax(0), given, atol=1e-4, rtol=0
        )
    assert steps[0][0] == [0, 0, 0]
    assert (torch.tensor(steps[2][1]) - torch.tensor(steps[1][1])).abs().max() > 0.01


def test_the_server_gives_what_torch_gives(opened):
    model = make_model("matrix_caps_small", size=(28, 28))
    with serve(model, make_model(channels=1)) as address:
        page = opened(address)
        page.open()
        images = random_images(model, 2)
        lengths, _ = page.look(images)
        with torch.no_grad():
            torch.testing.assert_close(lengths, model(images), atol=1e-5, rtol=0)
        assert page.select(".path.longest")
        for tab in ("pose", "transform", "compare"):
            page.click(f"tab-{tab}")
        page.wait(lambda: "another size" in page.find("panel-compare").text)
        assert not page.find("problem").is_displayed()
        page.browser.get("about:blank")  # nothing asks the server that stops


@pytest.mark.slow
def test_a_thousand_digits_have_their_lengths(opened, address, digits):
    page = opened(address)
    page.open()
    images = digits.float_images(range(1000))
    model = tc.load(weights_file())
    with torch.no_grad():
        expected = model(images)
    lengths = torch.cat([page.look(part)[0] for part in images.split(250)])
    assert (lengths - expected).abs().max() < 1e-3
    assert (lengths.argmax(1) != expected.argmax(1)).sum() <= 1


@pytest.mark.slow
def test_it_is_small_and_asks_nobody(address):
    text = Path(address.removeprefix("file://")).read_text()
    assert len(gzip.compress(text.encode())) <= 3_000_000
    code = re.sub(r'<script type="text/plain".*?</script>', "", text, flags=re.DOTALL)
    for word in ("fetch(", "url(", "@import", "XMLHttpRequest", "src="):
        assert word not in code
    assert "connect-src 'none'" in code


@pytest.mark.slow
def test_a_drawn_seven_is_a_seven(opened, address):
    page = opened(address)
    page.open()
    page.click("clear")
    page.wait(lambda: page.text("verdict").startswith("empty"))
    page.draw(SEVEN)
    page.wait(lambda: page.text("verdict").startswith("7"))
    [name] = page.select("#lengths .longest .name")
    assert name.text == "7"


@pytest.mark.slow
def test_what_is_no_digit_is_unknown(opened, address):
    page = opened(address)
    page.open()
    page.click("clear")
    page.draw([(0.2, 0.2), (0.8, 0.3), (0.2, 0.4), (0.8, 0.5), (0.2, 0.6), (0.8, 0.7), (0.3, 0.9)])
    page.wait(lambda: page.text("verdict").startswith("unknown"))


@pytest.mark.slow
def test_a_finger_draws_and_does_not_scroll(opened, address):
    page = opened(address)
    with page.emulate_window(390, 844, touches=True):
        page.open()
        box = page.run("return document.getElementById('paper').getBoundingClientRect().toJSON()")
        kind = "touchStart"
        for x, y in SEVEN:
            page.touch(kind, {"x": box["x"] + x * box["width"], "y": box["y"] + y * box["height"]})
            kind = "touchMove"
        page.touch("touchEnd")
        page.wait(lambda: page.text("verdict").startswith("7"))
        assert page.run("return scrollY") == 0


@pytest.mark.slow
def test_the_keyboard_draws_and_reaches_everything(opened, address):
    from selenium.webdriver.common.keys import Keys

    page = opened(address)
    page.open()
    page.find("paper").send_keys(Keys.DELETE)
    page.wait(lambda: page.text("verdict").startswith("empty"))
    page.find("paper").send_keys(" " + Keys.ARROW_DOWN * 8)
    page.wait(lambda: not page.text("verdict").startswith("empty"))
    count = "return [...document.querySelectorAll('button, input, a, canvas[tabindex]')]"
    controls = page.run(
        count
        + ".filter((one) => one.checkVisibility() && !one.disabled && one.tabIndex >= 0).length"
    )
    focused = set()
    page.run("document.activeElement.blur()")
    for _ in range(controls + 5):
        page.actions().send_keys(Keys.TAB).perform()
        focused.add(page.run("return document.activeElement.outerHTML.slice(0, 120)"))
    assert len(focused) >= controls
    page.find("tab-votes").send_keys(Keys.ARROW_RIGHT)
    assert page.find("panel-pose").is_displayed()


@pytest.mark.slow
def test_routing_straightens_the_path_of_the_winner(opened, address):
    def straightness():
        return float(page.find("panel-votes").text.split("Straightness of ")[1][3:7])

    page = opened(address)
    page.open()
    routed = straightness()
    page.select("[data-step=off]")[0].click()
    page.wait(lambda: page.select("[data-step=off][aria-pressed=true]"))
    assert straightness() < 0.7 * routed
    assert page.run("return new Set(stepOf(page.look).couplings).size") == 1


@pytest.mark.slow
def test_a_playback_moves_all_together(opened, address):
    moment = """
    const end = document.querySelector(".end.longest");
    return [
      Math.hypot(end.getAttribute("cx"), end.getAttribute("cy")),
      Number(document.querySelector("#lengths .longest .number").textContent),
      document.querySelectorAll("[data-step][aria-pressed=true]").length,
      document.querySelector(".vote").getAttribute("d").length > 0,
    ]
    """
    page = opened(address)
    page.open()
    page.run("page.child = 159; page.play()")
    moments = []
    while not moments or page.run("return page.moving !== null || page.step !== 2"):
        moments.append(page.run(moment))
    reached, written, marked, voted = map(np.array, zip(*moments, strict=True))
    np.testing.assert_allclose(reached, written, atol=0.006)
    assert set(marked) == {0, 1} and voted.all()
    assert len(set(written[marked == 1])) == 2 and len(set(written)) > 4


@pytest.mark.slow
def test_a_child_shows_its_place_and_its_numbers(opened, address):
    page = opened(address)
    page.open()
    page.run("page.child = 137; render()")
    page.wait(lambda: "Child 138 of 288" in page.text("child"))
    n = "137 * 10 + chosenOf(page.look)"
    coupling = page.run(f"return stepOf(page.look).couplings[{n}]")
    assert page.text("child").endswith(f"= {coupling:.2f}")
    assert page.run("return document.querySelector('.vote').getAttribute('d').length") > 10


@pytest.mark.slow
def test_a_slider_and_a_drag_change_the_drawing(opened, address):
    pixels = """
    const canvas = document.getElementById('pose-drawing');
    return Array.from(canvas.getContext('2d').getImageData(0, 0, 28, 28).data)
    """
    page = opened(address)
    page.open("tab=pose")
    page.wait(lambda: max(page.run(pixels)[::4]) > 100)
    start = np.array(page.run(pixels))
    slider = page.select("#panel-pose input[type=range]")[0]
    slide = "arguments[0].value = -2; arguments[0].dispatchEvent(new Event('input'))"
    page.run(slide, slider)
    page.wait(lambda: np.abs(np.array(page.run(pixels)) - start).max() > 40)
    [reset] = page.select("#panel-pose .row button")
    reset.click()
    page.wait(lambda: np.abs(np.array(page.run(pixels)) - start).max() == 0)
    page.drag(page.find("pose-drawing"), 60, 0)
    page.wait(lambda: np.abs(np.array(page.run(pixels)) - start).max() > 20)


@pytest.mark.slow
def test_the_story_has_seven_short_steps(opened, address):
    page = opened(address)
    page.open()
    for step in range(1, 8):
        assert page.text("story-place") == f"{step} of 7"
        assert len(page.text("story-text").split()) <= 60
        assert page.text("story-equation")
        assert page.find("story-link").get_attribute("href").startswith("https://arxiv.org/abs/")
        if step < 7:
            page.click("story-next")


@pytest.mark.slow
@pytest.mark.parametrize(("width", "height"), WINDOWS)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_one_screen_without_violations(opened, address, width, height, scheme):
    page = opened(address)
    with page.emulate_window(width, height, scheme):
        page.open()
        needed = ["paper", "lengths", "tabs"]
        if width > 600:
            needed += ["figure", "pictures"]
        assert page.run(UNSEEN, needed) == []
        for tab in TABS:
            page.open(f"tab={tab}")
            assert page.run("return document.documentElement.scrollWidth") <= width
            assert page.violations() == [], tab


@pytest.mark.slow
def test_pages_of_other_sizes_and_attention(opened, tmp_path):
    options = {"norm": "instance", "slope": 0.3, "stem": ((5, 1, 8, 0), (3, 2, 16, 0))}
    for k, model in enumerate(
        (
            make_model(channels=3, size=(20, 26), between=(5,), class_dim=6, leaky=True),
            make_model(channels=2, grouping="flat", iterations=2, decoder=False),
            make_model("efficient_capsnet", channels=3, size=SIZE, **options),
        )
    ):
        exported = tc.export(model, tmp_path / str(k), format="page")
        page = opened(exported.path.as_uri())
        page.open()
        images = random_images(model, 3)
        lengths, _ = page.look(images)
        with torch.no_grad():
            torch.testing.assert_close(lengths, model(images), atol=1e-3, rtol=0)
        steps = [button.text for button in page.select("[data-step]")]
        assert ("Attention" in steps) == (k == 2)
        content = json.loads(page.run("return document.getElementById('content').textContent"))
        assert content["networks"][0]["decoder"] == (k != 1)
