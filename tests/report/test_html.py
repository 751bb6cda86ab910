from __future__ import annotations

import base64
import copy
import json
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser

import pytest
import torch

from torchcaps.data import load_dataset
from torchcaps.data.pairs import make_pairs
from torchcaps.errors import RunError, TrainingError
from torchcaps.evaluation import score, score_multilabel
from torchcaps.models import create_model
from torchcaps.report import comparison, html, sections, write_comparison, write_report
from torchcaps.report.markup import Html, page, text
from torchcaps.report.subject import open_subject
from torchcaps.training import TrainConfig, train
from training.makers import left_behind, tiny, write_bars

VOID = {"meta", "link", "img"}
HOSTILE = ("<script>alert('1')</script>", "a \"quoted\" & 'b'", "標識 <&> عربي\x07")


class Page(HTMLParser):
    """A document taken apart, which fails on tags that are not closed in their order."""

    def __init__(self, content):
        super().__init__()
        self.tags, self.open, self.words = [], [], []
        self.feed(content)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if not self.open or self.open[-1] != "style":
            self.words.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())

    def all(self, tag):
        return [attributes for found, attributes in self.tags if found == tag]


def check(content):
    """What holds of every page: whole, offline, readable by everybody."""
    found = Page(content)
    assert content.startswith("<!DOCTYPE html>")
    loaded = [a[key] for _, a in found.tags for key in ("src", "href", "srcset", "data", "action") if key in a]
    assert all(address.startswith(("data:", "#")) for address in loaded)
    assert "url(" not in content and "@import" not in content and "<script" not in content
    ids = [a["id"] for _, a in found.tags if "id" in a]
    assert len(set(ids)) == len(ids)
    assert [a["href"][1:] for a in found.all("a")] == ids
    levels = [int(tag[1]) for tag, _ in found.tags if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after <= before + 1 for before, after in zip(levels, levels[1:], strict=False))
    assert all(len(image["alt"]) > 10 for image in found.all("img"))
    assert all(head["scope"] in ("col", "row") for head in found.all("th"))
    return found


@pytest.fixture(scope="module")
def written(trained, tmp_path_factory):
    """The report on a run that nobody evaluated."""
    run = shutil.copytree(trained, tmp_path_factory.mktemp("written") / "a <run> & more")
    return write_report(run, diagnose=8)


@pytest.fixture
def plain(monkeypatch):
    """Pictures by their words alone: drawing takes most of the time."""
    for module in (sections, comparison):
        monkeypatch.setattr(module, "picture", lambda _, alt, **kind: Html(f'<img src="data:," alt="{text(alt)}">'))


@pytest.fixture(scope="module")
def subject(trained):
    return open_subject(trained)


def test_a_report_is_one_whole_file_that_loads_nothing(written):
    found = check(written.read_text(encoding="utf-8"))
    assert written.name == "report.html"
    assert [file.name for file in written.parent.iterdir() if "report" in file.name] == ["report.html"]
    assert len(found.all("img")) >= 9
    for image in found.all("img"):
        kind, content = re.fullmatch(r"data:image/(svg\+xml|webp|png);base64,(.*)", image["src"]).groups()
        start = {"svg+xml": b"<?xml", "webp": b"RIFF", "png": b"\x89PNG"}[kind]
        assert base64.b64decode(content).startswith(start)
        assert int(image["width"]) > 0 and int(image["height"]) > 0


def test_a_report_says_what_was_trained_on_what_and_how_long(written, bars):
    said = Page(written.read_text(encoding="utf-8")).text
    assert "Report on a <run> & more" in said
    for words in ("capsnet (Dynamic Routing Between Capsules, 2017)", "channels = 8, primary_types = 2", str(bars),
                  "20 × 18 pixels (width × height), grey", "3: 0 , 1 , 2", "3 epochs of 42 images, batches of 16",
                  "threads", "chosen by validation", "of 12 images", "checkpoint_every"):  # fmt: skip
        assert words in said, words


def test_every_section_is_there_with_something_in_it(written):
    content = written.read_text(encoding="utf-8")
    ids = ["summary", "curves", "classes", "calibration", "mistakes", "reconstructions", "dimensions", "maps",
           "routing", "configuration"]  # fmt: skip
    assert [a["id"] for a in Page(content).all("h2")] == ids
    parts = content.split("<h2 ")[1:]
    for part in (parts[k] for k in (1, 2, 3, 5, 7, 8)):
        assert "<img" in part
    assert parts[6].count("<img") == 3  # a grid for each class
    assert "With and without its routing" in parts[8] and "Measured on 8 test images" in parts[8]


def test_the_same_run_gives_the_same_page(subject):
    once, again = (sections.curves(subject).body for _ in range(2))
    assert once == again


def test_names_are_text_whatever_they_hold(subject, plain):
    images = replace(subject.images, classes=HOSTILE)
    measured = score(subject.activations.flip(1), images.labels, HOSTILE)
    hostile = replace(
        subject, images=images, measured=measured, figures=measured.to_dict(), activations=subject.activations.flip(1),
        config=subject.config.updated(data="<data>&.npz"),
    )  # fmt: skip
    content = page("<title> & more", sections.lead(hostile), html._of_one(hostile, 0), "foot <&>")
    found = check(content)
    for name in HOSTILE:
        assert name.replace("\x07", "\N{REPLACEMENT CHARACTER}") in found.text
    assert "taken for" in found.text and "<data>&.npz" in found.text and "foot <&>" in found.text
    assert "it says the class's number in the table below" in found.text


def test_mistakes_are_ordered_by_how_sure_the_model_was(subject):
    activations = torch.full((12, 3), 0.1)
    activations[torch.arange(12), subject.images.labels] = 0.5
    label, other = int(subject.images.labels[4]), (int(subject.images.labels[4]) + 1) % 3
    activations[4, other] = 0.9
    activations[7, int(subject.images.labels[7] - 1) % 3] = 0.6
    body = sections.mistakes(replace(subject, activations=activations)).body
    assert "2 of the 12 test images looked at are wrong" in body
    first, second = body.split("<li>")[1:]
    assert f'alt="Test image of class {label}, taken for {other}"' in first
    assert first.index("0.900") < first.index("0.500") < first.index("0.100")
    assert 'class="bar wrong" style="width:90.0%"' in first and 'class="bar true" style="width:50.0%"' in first
    assert "0.600" in second
    activations[[4, 7]] = torch.nn.functional.one_hot(subject.images.labels[[4, 7]], 3).float()
    assert "None: all of the 12" in sections.mistakes(replace(subject, activations=activations)).body


def test_of_very_many_classes_the_least_accurate_are_listed(subject, monkeypatch):
    monkeypatch.setattr(sections, "MOST_ROWS", 2)
    rows = [row | {"accuracy": share} for row, share in zip(subject.figures["per_class"], (0.1, 0.9, 0.5), strict=True)]
    body = sections.class_table(replace(subject, figures=subject.figures | {"per_class": rows}))
    assert "The 2 least accurate of 3 classes" in body
    assert re.findall("<bdi>(.)</bdi>", body) == ["0", "2"]


def test_figures_are_those_of_the_evaluation_where_there_is_one(run, subject, plain):
    found = subject.measured.to_dict() | {"accuracy": 0.25, "error": 0.75}
    (run / "evaluation.json").write_text(json.dumps(found))
    recorded = open_subject(run)
    assert recorded.accuracy == 0.25
    body = sections.summary(recorded).body
    assert "25.00 % of 12 images" in body
    assert "The figures are those of evaluation.json. Measured again for this report" in body
    assert "evaluation.json" not in sections.summary(subject).body


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("{", "is no readable evaluation"),
        ("[]", "does not hold the figures of an evaluation"),
        ('{"accuracy": 1}', "does not hold the figures of an evaluation"),
    ],
)
def test_an_evaluation_that_cannot_be_read_is_named(run, content, complaint):
    (run / "evaluation.json").write_text(content)
    with pytest.raises(RunError, match=rf"evaluation\.json: {complaint}.*write it anew with: torchcaps evaluate"):
        open_subject(run)


def test_an_evaluation_of_other_classes_is_named(run, subject):
    (run / "evaluation.json").write_text(json.dumps(subject.measured.to_dict() | {"classes": ["a", "b", "c"]}))
    with pytest.raises(RunError, match="its classes are not those of the model"):
        open_subject(run)


def test_of_many_test_images_some_are_looked_at_and_the_figures_stay_whole(run, subject):
    (run / "evaluation.json").write_text(json.dumps(subject.measured.to_dict()))
    few = open_subject(run, most_images=5)
    assert (len(few.images), few.total, few.figures["num_samples"]) == (5, 12, 12)
    assert "Mistakes and pictures are those of 5 evenly spread of 12 test images" in sections.summary(few).body
    (run / "evaluation.json").unlink()
    assert len(open_subject(run, most_images=5).images) == 12


def test_a_run_that_is_not_finished_says_how_to_go_on(run):
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps(config | {"epochs": 7}))
    with pytest.raises(
        RunError, match=r"has done 3 of 7 epochs; continue it with: torchcaps train capsnet .* --resume"
    ):
        write_report(run)
    assert not (run / "report.html").exists()
    (run / "config.json").write_text(json.dumps(config | {"epochs": 7, "stop_at": 0.01}))
    assert len(open_subject(run).epochs) == 3
    (run / "metrics.jsonl").unlink()
    with pytest.raises(RunError, match="has done 0 of 7 epochs"):
        open_subject(run)
    (run / "model.safetensors").unlink()
    with pytest.raises(RunError, match="no trained model here"):
        open_subject(run)


def test_what_is_no_run_is_refused(run, tmp_path):
    for path in (tmp_path / "absent", run / "model.safetensors"):
        with pytest.raises(RunError, match="no run folder"):
            write_report(path)


@pytest.mark.parametrize("write", [write_report, lambda run: write_comparison([run, run.parent])])
def test_without_matplotlib_the_way_out_is_named(run, monkeypatch, write):
    monkeypatch.setattr(html, "can_plot", lambda: False)
    with pytest.raises(ImportError, match=r"a report needs matplotlib .* pip install 'torchcaps\[plots\]'"):
        write(run)


@pytest.mark.parametrize(("options", "complaint"), [({"images": 0}, "images"), ({"diagnose": 1}, "diagnose")])
def test_options_that_cannot_be_are_refused(run, options, complaint):
    with pytest.raises(ValueError, match=f"{complaint}: expected at least"):
        write_report(run, **options)


def test_a_page_that_cannot_be_written_leaves_the_old_one(run, monkeypatch):
    monkeypatch.setattr(html, "_of_one", lambda subject, diagnose: [])
    path = write_report(run, output=run / "new" / "page.html")
    before = path.read_bytes()
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(TrainingError, match="No space left on device"):
        write_report(run, output=path)
    assert path.read_bytes() == before
    assert left_behind(run) == []


def test_a_model_without_decoder_says_so(blind, plain):
    found = open_subject(blind)
    assert "This model has no decoder, so there is no reconstruction." in sections.drawings(found).body
    assert "This model has no decoder, so there is no pose to draw from." in sections.dimensions(found).body
    assert "<img" in sections.maps(found).body
    check(page("t", sections.lead(found), html._of_one(found, 0), "f"))


def test_a_network_without_capsules_has_no_sections_of_them(bars, tmp_path, plain):
    options = {"channels": [4, 4], "hidden": [8]}
    config = replace(tiny(bars, epochs=1), model="cnn_smallnorb", model_options=options)
    found = open_subject(train(config, tmp_path / "cnn").path)
    bodies = [part(found).body for part in (sections.drawings, sections.dimensions, sections.maps)]
    for body in (*bodies, sections.routing(found, 8).body):
        assert "This model has no capsules, so there is no" in body and "<img" not in body
    assert "its largest output" in sections.calibration(found).body
    check(page("t", sections.lead(found), html._of_one(found, 8), "f"))


def test_matrix_capsules_have_maps_and_measures(bars, tmp_path, plain):
    options = {"channels": 4, "primary_types": 2, "types": [2, 2]}
    config = replace(tiny(bars, epochs=1), model="matrix_caps_small", model_options=options)
    found = open_subject(train(config, tmp_path / "matrix").path)
    assert "<img" in sections.maps(found).body
    routing = sections.routing(found, 4).body
    assert "conv_capsules.0" in routing and "class_capsules" in routing
    assert "no decoder" in sections.drawings(found).body


def test_images_of_two_classes_are_scored_by_both(subject, bars, plain):
    torch.manual_seed(0)
    pairs = make_pairs(load_dataset(str(bars), "test"), max_shift=1)
    model = create_model("capsnet", num_classes=3, img_size=pairs.img_size, channels=8, primary_types=2)
    with torch.inference_mode():
        activations = model(pairs.float_images(torch.arange(len(pairs)))).clone()
    measured = score_multilabel(activations, pairs.labels)
    several = replace(
        subject, model=model, images=pairs, total=len(pairs), activations=activations, measured=measured,
        figures=measured.to_dict(),
    )  # fmt: skip
    assert several.accuracy == pytest.approx(float(several.right.double().mean())) == measured.exact
    content = page("t", sections.lead(several), html._of_one(several, 8), "f")
    told = check(content).text
    for words in ("have all their classes found", "At least one found", "is among its 2 longest capsules",
                  "one at a time", "need one class an image"):  # fmt: skip
        assert words in told, words
    assert "images of two overlapping classes" in sections.drawings(several).body
    beside = comparison.figures({"a": several, "b": several}).body
    assert "all of their classes found" in beside
    assert "needs one class an image" in comparison.classes({"a": several, "b": several}).body


def test_runs_are_compared_side_by_side(trained, blind, tmp_path):
    other = shutil.copytree(trained, tmp_path / "other" / "run")
    path = write_comparison([trained, blind, other])
    assert path == trained / "comparison.html"
    said = check(path.read_text(encoding="utf-8")).text
    path.unlink()
    for words in (f"{trained.parent.name}/run", "other/run", "Parameters", "Right there alone",
                  "Training time", "Accuracy by class", "model_options", "give the same answers"):  # fmt: skip
        assert words in said, words


def test_runs_on_other_images_are_not_tested_against_each_other(subject, run, tmp_path):
    other = write_bars(tmp_path / "other.npz", seed=5)
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps(config | {"data": str(other)}))
    runs = {"a": subject, "b": open_subject(run), "c": subject}
    assert not comparison.same_images(runs["a"], runs["b"])
    assert comparison.same_images(runs["a"], runs["c"])
    body = comparison.difference(runs).body
    assert body.count("not tested on the same images.") == 1
    assert "The two models give the same answers, right or wrong, on all" in body


def test_images_of_other_sizes_are_the_same_where_their_set_is(subject):
    smaller = replace(subject, images=replace(subject.images, images=subject.images.images[..., 1:]))
    assert comparison.same_images(subject, smaller)
    elsewhere = replace(smaller, config=TrainConfig.of(data="elsewhere"))
    assert not comparison.same_images(subject, elsewhere)


def test_the_one_that_is_better_is_named(subject):
    perfect = torch.nn.functional.one_hot(subject.images.labels, 3).float()
    runs = {"bad": replace(subject, activations=perfect.roll(1, dims=1)), "good": replace(subject, activations=perfect)}
    assert "This run is better on these images (+100.00 points" in comparison.difference(runs).body
    turned = dict(reversed(runs.items()))
    assert "The reference is better on these images (-100.00 points" in comparison.difference(turned).body


@pytest.mark.parametrize(
    ("twice", "complaint"), [(False, "number of runs: expected at least 2"), (True, "got .* twice")]
)
def test_a_comparison_needs_different_runs(run, twice, complaint):
    with pytest.raises(ValueError, match=complaint):
        write_comparison([run] * (1 + twice))


def test_time_is_that_of_the_images_of_all_epochs(subject):
    epochs = [{"step": 4, "images_per_second": 8.0}, {"step": 8, "images": 20, "images_per_second": 10.0}]
    assert replace(subject, epochs=epochs).seconds == 4 * 16 / 8 + 20 / 10
    assert replace(subject, epochs=[{"step": 4, "images_per_second": 0.0}]).seconds is None


def test_what_is_no_length_is_not_called_so(subject, plain):
    class Numbers(type(subject.model)):
        """Capsules whose activations are numbers of their own, as those of matrix capsules are."""

        loss = "spread"

        def capsules(self, images):
            found = super().capsules(images)
            return found._replace(activation=found.activation / 2)

    model = copy.copy(subject.model)
    model.__class__ = Numbers
    other = replace(subject, model=model, activations=subject.activations.flip(1))
    wrong = replace(subject, activations=subject.activations.flip(1))
    assert (subject.has_lengths, other.has_lengths) == (True, False)
    assert "The bars are lengths" in sections.mistakes(wrong).body
    assert "The bars are activations" in sections.mistakes(other).body
    assert "The activation of a capsule" in sections.calibration(other).body
    assert "are lengths in [0, 1]" in html._foot([subject])
    assert "are numbers in [0, 1]" in html._foot([other])
    assert "spread loss, whose margin rises" in sections.curves(other).body
    assert "spread" not in sections.curves(subject).body
