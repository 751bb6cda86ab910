from __future__ import annotations

import base64
import json
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser

import pytest
import torch

from torchcaps.data import load_dataset, make_pairs
from torchcaps.errors import ArgumentError, RunError, TrainingError
from torchcaps.evaluation import score
from torchcaps.models import create_model
from torchcaps.reporting import (
    classes,
    compare,
    html,
    register_section,
    report,
    sections,
    side_by_side,
)
from torchcaps.reporting.answers import check_same_task, have_same_images
from torchcaps.reporting.evaluated import evaluate_run
from torchcaps.reporting.markup import page
from torchcaps.settings import TrainConfig
from torchcaps.tasks import Multilabel, ReportItem, Task, register_task
from torchcaps.templates import Picture
from torchcaps.training import train
from training.makers import leftovers, tiny, write_bars

VOID = {"meta", "link", "img"}
HOSTILE = ("<script>alert('1')</script>", 'a "quoted" onload="1" & \'b\'', "標識 <&> عربي\x07")


class Page(HTMLParser):
    """A document taken apart, which fails on tags that are not closed in their order."""

    def __init__(self, content):
        super().__init__()
        self.tags = []
        self.open = []
        self.words = []
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
        return [attributes for name, attributes in self.tags if name == tag]


def check(content):
    """What holds of every page: whole, offline, readable by everybody."""
    document = Page(content)
    assert content.startswith("<!DOCTYPE html>")
    loaded = [
        a[key]
        for _, a in document.tags
        for key in ("src", "href", "srcset", "data", "action")
        if key in a
    ]
    assert all(address.startswith(("data:", "#")) for address in loaded)
    assert "url(" not in content and "@import" not in content and "<script" not in content
    ids = [a["id"] for _, a in document.tags if "id" in a]
    assert len(set(ids)) == len(ids)
    assert [a["href"][1:] for a in document.all("a")] == ids
    levels = [int(tag[1]) for tag, _ in document.tags if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after <= before + 1 for before, after in zip(levels, levels[1:], strict=False))
    assert all(len(image["alt"]) > 10 for image in document.all("img"))
    assert all(head["scope"] in ("col", "row") for head in document.all("th"))
    return document


@pytest.fixture(scope="module")
def written(trained, tmp_path_factory):
    """The report on a run that nobody evaluated."""
    run = shutil.copytree(trained, tmp_path_factory.mktemp("written") / "a <run> & more")
    return report(run, diagnose=8)


@pytest.fixture
def plain(monkeypatch):
    """Pictures by their words alone: drawing takes most of the time."""
    for module in (sections, side_by_side, classes):
        monkeypatch.setattr(module, "picture", lambda _, alt: Picture("data:,", alt, 1, 1))


@pytest.fixture(scope="module")
def finished(trained):
    return evaluate_run(trained)


def test_a_report_is_one_whole_file_that_loads_nothing(written):
    document = check(written.read_text(encoding="utf-8"))
    assert written.name == "report.html"
    assert [file.name for file in written.parent.iterdir() if "report" in file.name] == [
        "report.html"
    ]
    assert len(document.all("img")) >= 10
    for image in document.all("img"):
        kind, content = re.fullmatch(
            r"data:image/(svg\+xml|webp);base64,(.*)", image["src"]
        ).groups()
        start = {"svg+xml": b"<?xml", "webp": b"RIFF"}[kind]
        assert base64.b64decode(content).startswith(start)
        assert int(image["width"]) > 0 and int(image["height"]) > 0


def test_a_report_says_what_was_trained_on_what_and_how_long(written, bars):
    text = Page(written.read_text(encoding="utf-8")).text
    assert "Report on a <run> & more" in text
    for words in (
        "capsnet (Dynamic Routing Between Capsules, 2017)",
        "channels = 8, primary_types = 2",
        str(bars),
        "20 × 18 pixels (width × height), gray",
        "3: 0 , 1 , 2",
        "3 epochs of 42 images, batches of 16",
        "thread",
        "chosen by validation",
        "of 12 images",
        "checkpoint_every",
        "classify, trained with the margin loss",
        "lengths of capsules; capsules with poses",
    ):
        assert words in text, words


def test_every_section_is_there_with_something_in_it(written):
    content = written.read_text(encoding="utf-8")
    ids = [
        "summary",
        "curves",
        "confusion_matrix",
        "per_class",
        "calibration",
        "activations",
        "reconstructions",
        "mistakes",
        "dimensions",
        "maps",
        "routing",
        "configuration",
    ]
    assert [a["id"] for a in Page(content).all("h2")] == ids
    parts = dict(zip(ids, content.split("<h2 ")[1:], strict=True))
    for key in (
        "curves",
        "confusion_matrix",
        "per_class",
        "calibration",
        "activations",
        "reconstructions",
        "maps",
    ):
        assert parts[key].count("<img") == 1
    assert parts["dimensions"].count("<img") == 3  # a grid for each class
    assert (
        "With and without its routing" in parts["routing"]
        and "Measured on 8 test images" in parts["routing"]
    )
    assert "Precision" in parts["per_class"]


def test_the_same_run_gives_the_same_page(finished):
    assert sections.curves(finished).body == sections.curves(finished).body


def test_names_are_text_whatever_they_hold(finished, plain):
    images = replace(finished.images, classes=HOSTILE)
    evaluation = score(finished.activations.flip(1), images.labels, HOSTILE)
    hostile = replace(
        finished,
        images=images,
        evaluation=evaluation,
        num_diagnosed=0,
        config=finished.config.updated(data="<data>&.npz"),
    )
    content = page(
        "<title> & more", sections.lead(hostile), sections.sections_of(hostile), "foot <&>"
    )
    document = check(content)
    for name in HOSTILE:
        assert name.replace("\x07", "\N{REPLACEMENT CHARACTER}") in document.text
    assert (
        "Taken for" in document.text
        and "<data>&.npz" in document.text
        and "foot <&>" in document.text
    )
    assert any(
        f"Drawings of an image of class {HOSTILE[1]}," in a["alt"] for a in document.all("img")
    )
    attributes = {key for _, attributes in document.tags for key in attributes}
    assert not attributes & {"onload", "quoted", "b"}
    assert "it says the class's number in the table below" in document.text


def test_mistakes_are_ordered_by_how_sure_the_model_was(finished):
    activations = torch.full((12, 3), 0.1)
    activations[torch.arange(12), finished.images.labels] = 0.5
    label = int(finished.images.labels[4])
    next_label = (label + 1) % 3
    activations[4, next_label] = 0.9
    activations[7, int(finished.images.labels[7] - 1) % 3] = 0.6
    item = classes.mistakes(with_activations(finished, activations))
    assert (
        "2 of the 12 test images looked at are wrong" in item.about
        and "The bars are lengths" in item.about
    )
    assert item.rows[0] == (str(label), str(next_label), "0.500", "0.900")
    assert [row[2:] for row in item.rows] == [("0.500", "0.900"), ("0.500", "0.600")]
    assert item.figure is not None
    activations[[4, 7]] = torch.nn.functional.one_hot(finished.images.labels[[4, 7]], 3).float()
    assert "None: all of the 12" in classes.mistakes(with_activations(finished, activations)).about


def with_activations(run, activations):
    return replace(run, evaluation=score(activations, run.images.labels, run.images.classes))


def test_figures_are_those_of_the_evaluation_where_there_is_one(run, finished, plain):
    figures = finished.evaluation.to_dict() | {"accuracy": 0.25, "error": 0.75}
    (run / "evaluation.json").write_text(json.dumps(figures))
    recorded = evaluate_run(run)
    assert recorded.accuracy == sections._recorded_evaluation(recorded).accuracy == 0.25
    body = sections.summary(recorded).body
    assert "25.00 % of 12 images" in body
    assert "The figures are those of evaluation.json. Measured again for this report" in body
    assert "evaluation.json" not in sections.summary(finished).body


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("{", "is no readable evaluation"),
        ("5", "is no readable evaluation"),
        ('{"accuracy": 1}', "does not hold the figures of an evaluation"),
    ],
)
def test_an_evaluation_that_cannot_be_read_is_named(run, content, complaint):
    (run / "evaluation.json").write_text(content)
    with pytest.raises(
        RunError, match=rf"evaluation\.json: {complaint}.*write it anew with: torchcaps evaluate"
    ):
        evaluate_run(run)


def test_an_evaluation_of_other_classes_is_named(run, finished):
    (run / "evaluation.json").write_text(
        json.dumps(finished.evaluation.to_dict() | {"classes": ["a", "b", "c"]})
    )
    with pytest.raises(RunError, match="its classes are not those of the model"):
        evaluate_run(run)


def test_of_many_test_images_some_are_looked_at_and_the_figures_stay_whole(run, finished):
    (run / "evaluation.json").write_text(json.dumps(finished.evaluation.to_dict()))
    evaluated = evaluate_run(run, max_images=5)
    assert (len(evaluated.images), evaluated.num_images, evaluated.figures["num_samples"]) == (
        5,
        12,
        12,
    )
    assert (
        "Mistakes and pictures are those of 5 evenly spread of 12 test images"
        in sections.summary(evaluated).body
    )
    (run / "evaluation.json").unlink()
    assert len(evaluate_run(run, max_images=5).images) == 12


def test_a_run_that_is_not_finished_says_how_to_go_on(run):
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps(config | {"epochs": 7}))
    with pytest.raises(
        RunError,
        match=r"has done 3 of 7 epochs; continue it with: torchcaps train capsnet .* --resume",
    ):
        report(run)
    assert not (run / "report.html").exists()
    (run / "config.json").write_text(json.dumps(config | {"epochs": 7, "stop_at": 0.01}))
    assert len(evaluate_run(run).epochs) == 3
    (run / "metrics.jsonl").unlink()
    with pytest.raises(RunError, match="has done 0 of 7 epochs"):
        evaluate_run(run)
    (run / "model.safetensors").unlink()
    with pytest.raises(RunError, match="no trained model here"):
        evaluate_run(run)


def test_what_is_no_run_is_refused(run, tmp_path):
    for path in (tmp_path / "absent", run / "model.safetensors"):
        with pytest.raises(RunError, match="no run folder"):
            report(path)


@pytest.mark.parametrize("write", [report, lambda run: report([run, run.parent])])
def test_without_matplotlib_the_way_out_is_named(run, monkeypatch, write):
    monkeypatch.setattr(html, "can_plot", lambda: False)
    with pytest.raises(
        ImportError, match=r"a report needs matplotlib .* pip install 'torchcaps\[plots\]'"
    ):
        write(run)


@pytest.mark.parametrize(
    ("options", "complaint"), [({"images": 0}, "images"), ({"diagnose": 1}, "diagnose")]
)
def test_options_that_cannot_be_are_refused(run, options, complaint):
    with pytest.raises(ValueError, match=f"{complaint}: expected at least"):
        report(run, **options)


def test_a_page_that_cannot_be_written_leaves_the_old_one(run, monkeypatch):
    monkeypatch.setattr(sections, "sections_of", lambda run: [])
    path = report(run, run / "new" / "page.html")
    before = path.read_bytes()
    monkeypatch.setattr(
        "os.replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device"))
    )
    with pytest.raises(TrainingError, match="No space left on device"):
        report(run, path)
    assert path.read_bytes() == before
    assert leftovers(run) == []


def test_a_model_without_decoder_says_so(blind, plain):
    evaluated = replace(evaluate_run(blind), num_diagnosed=0)
    assert "no decoder, so nothing is drawn" in sections.summary(evaluated).body
    keys = [section.key for section in sections.sections_of(evaluated)]
    assert "maps" in keys and not {"reconstructions", "dimensions", "routing"} & {*keys}
    check(page("t", sections.lead(evaluated), sections.sections_of(evaluated), "f"))


def test_a_network_without_capsules_has_no_sections_of_them(bars, tmp_path, plain):
    options = {"channels": [4, 4], "hidden": [8]}
    config = tiny(bars, epochs=1).updated(model="cnn_smallnorb", model_options=options)
    evaluated = evaluate_run(train(config, tmp_path / "cnn").path)
    parts = {section.key: section.body for section in sections.sections_of(evaluated)}
    assert not {"reconstructions", "dimensions", "maps", "routing"} & {*parts}
    assert "probabilities; no capsules; no decoder" in parts["summary"]
    assert "trained with the cross entropy loss" in parts["summary"]
    assert "of the activations of test images, whatever the training loss is" in parts["summary"]
    assert "The loss is the cross entropy loss" in parts["curves"]
    assert "its largest output" in parts["calibration"]
    assert "not probabilities" not in html._foot([evaluated])
    check(page("t", sections.lead(evaluated), sections.sections_of(evaluated), "f"))


def test_matrix_capsules_have_maps_and_measures(bars, tmp_path, plain):
    options = {"channels": 4, "primary_types": 2, "types": [2, 2]}
    config = tiny(bars, epochs=1).updated(model="matrix_caps_small", model_options=options)
    evaluated = replace(evaluate_run(train(config, tmp_path / "matrix").path), num_diagnosed=4)
    assert classes.maps(evaluated).figure is not None
    routing = classes.routing(evaluated).body
    assert "conv_capsules.0" in routing and "class_capsules" in routing
    assert "no decoder" in sections.summary(evaluated).body
    assert "spread loss, whose margin rises" in sections.curves(evaluated).body
    assert (
        "The activation of a capsule"
        in sections.sections_of(replace(evaluated, num_diagnosed=0))[4].body
    )
    assert "are numbers in [0, 1]" in html._foot([evaluated])


def test_images_of_two_classes_are_scored_by_both(finished, bars, plain):
    torch.manual_seed(0)
    pairs = make_pairs(load_dataset(str(bars), "test"), max_shift=1)
    model = create_model(
        "capsnet", num_classes=3, img_size=pairs.img_size, channels=8, primary_types=2
    )
    model.classes = pairs.classes
    task = Multilabel(model, TrainConfig(), pairs)
    evaluation = task.evaluate(pairs)
    run = replace(
        finished,
        task=task,
        images=pairs,
        num_images=len(pairs),
        evaluation=evaluation,
        num_diagnosed=8,
    )
    assert run.accuracy == pytest.approx(float(run.is_correct.double().mean())) == evaluation.exact
    parts = sections.sections_of(run)
    text = check(page("t", sections.lead(run), parts, "f")).text
    for words in (
        "have all their classes found",
        "At least one found",
        "is among its 2 most active ones",
        "one at a time",
        "need one class an image",
        " + ",
    ):
        assert words in text, words
    assert "images of two overlapping classes" in next(
        part.body for part in parts if part.key == "overlaps"
    )
    body = side_by_side.figures({"a": run, "b": run}).body
    assert "all of their classes found" in body
    assert "needs one class an image" in side_by_side.classes({"a": run, "b": run}).body
    with pytest.raises(
        RunError,
        match="the task classify, and .* for multilabel",
    ):
        check_same_task([run, finished])


@pytest.fixture
def clouds(bars, tmp_path, restore):
    """A finished run of a task of somebody else, with a loss, a score and a figure of its own."""
    from torchcaps.tasks import _base

    restore(_base.TASKS, sections.SECTIONS)

    @register_task("clouds")
    class Clouds(Task):
        """How dark images come out."""

        score = "darkness"
        losses = ("glow",)

        def sample_batch(self, images, indices, generator):
            return (images.float_images(indices),)

        def training_step(self, batch, progress):
            glow = self.model(batch[0]).square().mean()
            return {"loss": 2 * glow, "glow": glow}

        def eval_step(self, batch):
            glow = self.model(batch[0]).square().mean(dim=1)
            return {"loss": glow, "darkness": -glow}

        def report_items(self, evaluation, images):
            return [
                ReportItem(
                    "sky",
                    "The sky",
                    "What is < above.",
                    heads=("What", "How"),
                    rows=(("sun", "high"),),
                )
            ]

    return train(
        tiny(bars, epochs=2, reconstruction=None).updated(task="clouds"), tmp_path / "clouds"
    ).path


def test_a_task_without_sections_of_its_own_gets_a_whole_report(clouds):
    page = report(clouds).read_text(encoding="utf-8")
    document = check(page)
    assert [a["id"] for a in document.all("h2")] == ["summary", "curves", "sky", "configuration"]
    figures = evaluate_run(clouds).evaluation.figures
    for words in (
        "clouds, trained with the glow loss",
        f"{figures['darkness']:.4f}",
        "Measured: darkness",
        "The loss is the glow loss",
        "What is < above.",
        "sun high",
    ):
        assert words in document.text, words
    assert "Validation darkness goes from" in document.all("img")[0]["alt"]
    comparison = report([clouds, shutil.copytree(clouds, clouds.parent / "again")])
    text = check(comparison.read_text(encoding="utf-8")).text
    assert "darkness" in text and "Is one better?" not in text and "accuracy" not in text
    with pytest.raises(
        RunError, match="the task clouds gives no right and wrong answers to compare"
    ):
        compare([clouds], [clouds.parent / "again"])


def test_a_section_may_be_registered_for_a_task_or_for_all(clouds, trained, plain):
    @register_section("clouds")
    def rain(run):
        return ReportItem("rain", "Rain", f"None on {len(run.images)} images.")

    @register_section()
    def nothing(run):
        return None

    with pytest.raises(ValueError, match="section: 'rain' is registered already"):
        register_section()(rain)
    assert [part.key for part in sections.sections_of(evaluate_run(clouds))][-2:] == [
        "rain",
        "configuration",
    ]
    classifier = replace(evaluate_run(trained), num_diagnosed=0)
    assert "rain" not in [part.key for part in sections.sections_of(classifier)]


def test_runs_are_compared_side_by_side(trained, blind, tmp_path):
    copy = shutil.copytree(trained, tmp_path / "other" / "run")
    path = report([trained, blind, copy])
    assert path == trained / "comparison.html"
    text = check(path.read_text(encoding="utf-8")).text
    path.unlink()
    for words in (
        f"{trained.parent.name}/run",
        "other/run",
        "Parameters",
        "Right there alone",
        "Training time",
        "Accuracy by class",
        "model_options",
        "give the same answers",
    ):
        assert words in text, words


def test_runs_on_other_images_are_not_tested_against_each_other(finished, run, tmp_path):
    bars = write_bars(tmp_path / "other.npz", seed=5)
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps(config | {"data": str(bars)}))
    runs = {"a": finished, "b": evaluate_run(run), "c": finished}
    assert not have_same_images(runs["a"], runs["b"])
    assert have_same_images(runs["a"], runs["c"])
    body = side_by_side.difference(runs).body
    assert body.count("not tested on the same images.") == 1
    assert "The two models give the same answers, right or wrong, on all" in body


def test_images_of_other_sizes_are_the_same_where_their_set_is(finished):
    smaller = replace(
        finished, images=replace(finished.images, images=finished.images.images[..., 1:])
    )
    assert have_same_images(finished, smaller)
    elsewhere = replace(smaller, config=TrainConfig.of(data="elsewhere"))
    assert not have_same_images(finished, elsewhere)


def test_the_one_that_is_better_is_named(finished):
    perfect = torch.nn.functional.one_hot(finished.images.labels, 3).float()
    runs = {
        "bad": with_activations(finished, perfect.roll(1, dims=1)),
        "good": with_activations(finished, perfect),
    }
    assert (
        "This run is better on these images (+100.00 points" in side_by_side.difference(runs).body
    )
    turned = dict(reversed(runs.items()))
    assert (
        "The reference is better on these images (-100.00 points"
        in side_by_side.difference(turned).body
    )


def test_a_comparison_needs_different_runs(run):
    with pytest.raises(ArgumentError, match="got .* twice") as error:
        report([run, run.parent / "." / run.name])
    assert error.value.argument == "run"
