from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import shutil
from dataclasses import replace
from html import unescape
from itertools import pairwise, product
from unittest.mock import Mock

import pytest
import torch
from PIL import Image

from checks import column
from torchcaps.data import load_dataset, make_pairs
from torchcaps.errors import ArgumentError, RunError, TrainingError
from torchcaps.evaluation import score
from torchcaps.models import create_model
from torchcaps.reporting import compare, html, register_section, report
from torchcaps.reporting.evaluated import diagnosis_of, evaluate_run, have_same_images
from torchcaps.settings import TrainConfig
from torchcaps.tasks import Multilabel, ReportItem, Task, evaluate_task, register_task
from torchcaps.tasks.report_items import by_class
from torchcaps.templates import Picture
from torchcaps.training import train
from training.makers import edit_config, leftovers, tiny, write_bars

from .pages import Page

LOADING_ATTRIBUTES = ("src", "href", "srcset", "data", "action")
HOSTILE = ("<script>alert('1')</script>", 'a "quoted" onload="1" & \'b\'', "標識 <&> عربي\x07")


def check(content):
    """What holds of every page: complete, offline, accessible."""
    assert content.startswith("<!DOCTYPE html>")
    document = Page(content)
    check_loads_nothing(content, document)
    check_headings(re.findall("<h([1-6])", content))

    ids = document.values("id")
    assert len(set(ids)) == len(ids)
    assert column(document.elements("a"), "href") == list(map("#{}".format, ids))
    for image in document.elements("img"):
        assert len(image["alt"]) > 10
    assert {*column(document.elements("th"), "scope")} <= {"col", "row"}
    return document


def check_loads_nothing(content, document):
    for attribute in LOADING_ATTRIBUTES:
        for address in document.values(attribute):
            assert address.startswith(("data:", "#"))
    for command in ("url(", "@import", "fetch(", "import("):
        assert command not in content
    # The policy of the page allows its one script, by its hash, and no other.
    [script] = re.findall("<script>(.*?)</script>", content, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in content
    assert content.count("<script") == 1


def check_headings(levels):
    """One heading of level 1 at the top, and no level skipped on the way down."""
    assert levels[0] == "1" and levels.count("1") == 1
    for above, below in pairwise(map(int, levels)):
        assert below <= above + 1


def check_words(text, *expected):
    for words in expected:
        assert words in text, words


def parts_of(content):
    """The words of each section of a page, by key, in their order."""
    document = check(content)
    keys = column(document.elements("h2"), "id")
    parts = {}
    for key, part in zip(keys, re.split('<section aria-labelledby="', content)[1:], strict=True):
        texts = re.findall('alt="([^"]*)"', part)
        words = re.sub("<[^>]*>", " ", part)
        parts[key] = " ".join(" ".join([words, *texts]).split())
    return parts


def parts_of_runs(*runs):
    """The sections of the page on a run, or on several."""
    return parts_of(html.render_runs({f"run {k}": run for k, run in enumerate(runs)}))


@pytest.fixture(scope="module")
def written(trained, tmp_path_factory):
    """The report on a run that nobody evaluated."""
    run = shutil.copytree(trained, tmp_path_factory.mktemp("written") / "a <run> & more")
    return report(run, diagnose=8)


@pytest.fixture
def no_drawing(monkeypatch):
    """Pictures are only their alternative text, because drawing takes most of the time."""
    monkeypatch.setattr(html, "picture", lambda _, alt: Picture("data:,", alt, 1, 1))


@pytest.fixture(scope="module")
def finished(trained):
    return evaluate_run(trained)


def test_a_report_is_one_whole_file_that_loads_nothing(written):
    document = check(written.read_text(encoding="utf-8"))
    assert written.name == "report.html"
    assert list(written.parent.glob("*report*")) == [written]
    images = document.elements("img")
    assert len(images) >= 8
    for image in images:
        address = re.fullmatch(r"data:image/(svg\+xml|webp);base64,(.*)", image["src"])
        kind, content = address.groups()
        signature = {"svg+xml": b"<?xml", "webp": b"RIFF"}[kind]
        assert base64.b64decode(content).startswith(signature)
        assert int(image["width"]) > 0 and int(image["height"]) > 0


def test_a_report_says_what_was_trained_on_what_and_how_long(written, bars):
    text = Page(written.read_text(encoding="utf-8")).text
    assert "Report on a <run> & more" in text
    check_words(
        text,
        "capsnet (Dynamic Routing Between Capsules, 2017)",
        "channels = 8, primary_types = 2",
        str(bars),
        "20 × 18 pixels (width × height), gray",
        "3: 0 , 1 , 2",
        "3 of at most 3 epochs of 42 images, batches of 16",
        "thread",
        "chosen by validation",
        "of 12 images",
        "checkpoint_every",
        "classify, trained with the margin loss",
        "lengths of capsules; capsules with poses",
    )


def test_every_section_is_there_with_something_in_it(written):
    content = written.read_text(encoding="utf-8")
    above = ["confusion_matrix", "mistakes", "dimensions", "maps", "routing"]
    below = [
        "summary",
        "curves",
        "per_class",
        "calibration",
        "activations",
        "reconstructions",
        "measures",
        "configuration",
    ]
    ids = [*above, *below]
    assert column(Page(content).elements("h2"), "id") == ids
    parts = dict(zip(ids, content.split("<h2 ")[1:], strict=True))
    assert '<details class="fold">' in parts["routing"]  # after the last that is open
    for key in ("curves", "confusion_matrix", "per_class", "calibration", "activations", "maps"):
        assert parts[key].count("<img") == 1
    assert "Does routing raise accuracy?" in parts["routing"]
    assert "all else of 8" in parts["measures"]
    assert "Precision" in parts["per_class"]


def test_a_class_has_a_slider_for_each_axis_of_its_poses(finished, monkeypatch):
    monkeypatch.setattr("torchcaps.evaluation.decoding.MIN_IMAGES", 2)
    text, strips = html.dimensions(finished).blocks
    right = finished.images.labels[finished.is_correct]
    assert text.startswith(f"Class {finished.images.classes[int(right.mode().values)]}: ")
    assert 1 <= len(strips.axes) <= 4
    for _, image in strips.axes:
        assert (image.width, image.height) == (4 * 11 * 20, 4 * 18)
    content = html.render_runs({"run": finished})
    assert len(check(content).elements("input")) == len(strips.axes)


def test_a_report_begins_with_its_conclusions(finished, no_drawing):
    answers = torch.nn.functional.one_hot(torch.tensor([1, 1, 1, 2] * 3), 3).float()
    labels = finished.images.labels
    run = with_activations(finished, answers)
    lead = html.render_runs({"run": run}).partition('class="lead"')[2]
    paragraphs = re.findall(r"<p>(.*?)</p>", lead, re.DOTALL)[:3]
    accuracy, confusion, verdict = (unescape(" ".join(text.split())) for text in paragraphs)
    right = int((answers.argmax(dim=1) == labels).sum())
    assert accuracy.startswith(
        f"{100 * right / 12:.2f} % of 12 test images are right (95 % interval"
    )
    assert re.fullmatch(r"Most often, \d is taken for 1: \d of \d images\.", confusion)
    diagnosis = diagnosis_of(run)
    assert verdict == diagnosis.verdict
    assert diagnosis.ablation.comparison.num_samples == 12


def test_markup_in_names_is_shown_as_text(finished, no_drawing):
    images = replace(finished.images, classes=HOSTILE)
    evaluation = score(finished.activations.flip(1), images.labels, HOSTILE)
    hostile = replace(
        finished,
        evaluation=evaluation,
        num_diagnosed=0,
        config=finished.config.updated(data="<data>&.npz"),
        images=images,
    )
    document = check(html.render_runs({"<title> & more": hostile}))
    for name in HOSTILE:
        assert name.replace("\x07", "\N{REPLACEMENT CHARACTER}") in document.text
    check_words(
        document.text,
        "Taken for",
        "<data>&.npz",
        "<title> & more",
    )
    for attribute in ("onload", "quoted", "b"):
        assert document.values(attribute) == []


def test_mistakes_are_ordered_by_how_sure_the_model_was(finished):
    activations = torch.full((12, 3), 0.1)
    activations[torch.arange(12), finished.images.labels] = 0.5
    label = int(finished.images.labels[4])
    next_label = (label + 1) % 3
    activations[4, next_label] = 0.9
    activations[7, int(finished.images.labels[7] - 1) % 3] = 0.6
    item = html.mistakes(with_activations(finished, activations))
    assert "2 of the 12 test images looked at are wrong" in item.about
    assert "The bars are lengths" in item.about
    surest, second = item.rows
    assert surest == (str(label), str(next_label), "0.500", "0.900")
    assert second[2:] == ("0.500", "0.600")
    assert item.figure is not None
    assert "None: all of the 12" in html.mistakes(with_truth(finished)).about


def test_mistakes_name_their_files_where_the_images_have_some(finished, tmp_path):
    for label, number in product(range(3), range(5)):
        (tmp_path / str(label)).mkdir(exist_ok=True)
        image = Image.new("L", (20, 18), 80 * label + number)
        image.save(tmp_path / str(label) / f"{number}.png")
    images = load_dataset(tmp_path, "train", storage="disk").subset(range(11, -1, -1))
    activations = torch.full((12, 3), 0.1)
    activations[torch.arange(12), images.labels] = 0.5
    activations[6, 0] = 0.9
    evaluation = score(activations, images.labels, images.classes)
    item = html.mistakes(replace(finished, evaluation=evaluation, images=images))
    [row] = item.rows
    pixel = round(255 * float(images.float_images([6])[0, 0, 0, 0]))
    assert row == ("1", "0", "0.500", "0.900", f"1/{pixel - 80}.png")
    assert "File" not in html.mistakes(with_activations(finished, 1 - activations)).heads


def test_classes_that_are_never_predicted_are_in_the_summary_and_the_table(finished, no_drawing):
    activations = torch.tensor([0.9, 0.2, 0.1]).expand(12, 3)
    run = with_activations(finished, activations)
    check_words(parts_of_runs(run)["summary"], "Never predicted", "1, 2", "33.33 %", "0.1667")
    item = by_class(run.evaluation)
    assert "Never predicted: 1, 2." in item.about
    assert item.heads[-2:] == ("F1", "AUROC")
    assert item.rows[0][-2:] == ("0.5000", "0.5000")
    assert "Never predicted none" in parts_of_runs(with_truth(finished))["summary"]


def with_truth(run):
    """The run with a model that is always right."""
    return with_activations(run, torch.nn.functional.one_hot(run.images.labels, 3).float())


def with_activations(run, activations):
    return replace(run, evaluation=score(activations, run.images.labels, run.images.classes))


def test_figures_are_those_of_a_recorded_evaluation(run, finished, no_drawing):
    figures = finished.evaluation.to_dict() | {"accuracy": 0.25, "error": 0.75}
    (run / "evaluation.json").write_text(json.dumps(figures))
    recorded = evaluate_run(run)
    assert recorded.accuracy == html._recorded_evaluation(recorded).accuracy == 0.25
    summary = parts_of_runs(recorded)["summary"]
    assert "25.00 % of 12 images" in summary
    assert "The figures are those of evaluation.json. Measured again for this report" in summary
    assert "evaluation.json" not in parts_of_runs(finished)["summary"]


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("{", "is no readable evaluation"),
        ("5", "is no readable evaluation"),
        ('{"accuracy": 1}', "does not hold the figures of an evaluation"),
        (None, "its classes are not those of the model"),
    ],
)
def test_an_evaluation_that_cannot_be_read_is_named(run, finished, content, complaint):
    other = json.dumps(finished.evaluation.to_dict() | {"classes": ["a", "b", "c"]})
    (run / "evaluation.json").write_text(content or other)
    with pytest.raises(
        RunError, match=rf"evaluation\.json: {complaint}.*write it anew with: torchcaps evaluate"
    ):
        evaluate_run(run)


def test_a_limit_of_images_holds_for_pictures_and_not_for_figures(run, finished, no_drawing):
    (run / "evaluation.json").write_text(json.dumps(finished.evaluation.to_dict()))
    evaluated = evaluate_run(run, max_images=5)
    assert len(evaluated.images) == 5
    assert evaluated.num_images == evaluated.figures["num_samples"] == 12
    sentence = "Mistakes and pictures are those of 5 evenly spread of 12 test images"
    assert sentence in parts_of_runs(evaluated)["summary"]
    (run / "evaluation.json").unlink()
    assert len(evaluate_run(run, max_images=5).images) == 12


def test_a_run_that_is_not_finished_says_how_to_go_on(run):
    edit_config(run, epochs=7)
    with pytest.raises(
        RunError,
        match=r"has done 3 of 7 epochs; continue it with: torchcaps train capsnet .* --resume",
    ):
        report(run)
    assert not (run / "report.html").exists()
    edit_config(run, stop_at=0.01)
    assert len(evaluate_run(run).epochs) == 3
    (run / "metrics.jsonl").unlink()
    with pytest.raises(RunError, match="has done 0 of 7 epochs"):
        evaluate_run(run)
    (run / "model.safetensors").unlink()
    with pytest.raises(RunError, match="no trained model here"):
        evaluate_run(run)


def test_a_path_without_a_run_is_refused(run, tmp_path):
    for path in (tmp_path, tmp_path / "absent", run / "model.safetensors"):
        with pytest.raises(RunError, match=f"{path}: no run folder"):
            report(path)


@pytest.mark.parametrize("write", [report, lambda run: report([run, run.parent])])
def test_without_matplotlib_the_error_says_what_to_install(run, monkeypatch, write):
    monkeypatch.setattr(html, "can_plot", lambda: False)
    with pytest.raises(
        ImportError, match=r"a report needs matplotlib .* pip install 'torchcaps\[plots\]'"
    ):
        write(run)


@pytest.mark.parametrize(
    ("options", "complaint"), [({"images": 0}, "images"), ({"diagnose": 1}, "diagnose")]
)
def test_options_out_of_range_are_refused(run, options, complaint):
    with pytest.raises(ValueError, match=f"{complaint}: expected at least"):
        report(run, **options)


def test_a_page_that_cannot_be_written_leaves_the_old_one(run, monkeypatch):
    monkeypatch.setattr(html, "render_runs", lambda runs: "")
    path = report(run, run / "new" / "page.html")
    before = path.read_bytes()
    full_disk = Mock(side_effect=OSError(28, "No space left on device"))
    monkeypatch.setattr(os, "replace", full_disk)
    with pytest.raises(TrainingError, match="No space left on device"):
        report(run, path)
    assert path.read_bytes() == before
    assert leftovers(run) == []


def test_a_report_on_a_model_without_decoder_says_so(blind, no_drawing):
    evaluated = replace(evaluate_run(blind), num_diagnosed=0)
    parts = parts_of_runs(evaluated)
    assert "no decoder, so nothing is drawn" in parts["summary"]
    assert "maps" in parts
    assert {"reconstructions", "dimensions", "routing"}.isdisjoint(parts)


def test_a_network_without_capsules_has_no_sections_of_them(bars, tmp_path, no_drawing):
    options = {"channels": [4, 4], "hidden": [8]}
    config = tiny(bars, epochs=1).updated(model="cnn_smallnorb", model_options=options)
    evaluated = evaluate_run(train(config, tmp_path / "cnn").path)
    content = html.render_runs({"cnn": evaluated})
    assert "not probabilities" not in content
    parts = parts_of(content)
    assert {"reconstructions", "dimensions", "maps", "routing"}.isdisjoint(parts)
    check_words(
        parts["summary"],
        "probabilities; no capsules; no decoder",
        "trained with the cross entropy loss",
        f"{evaluated.evaluation.loss:.4f}, mean cross entropy loss",
    )
    assert "The loss is the cross entropy loss" in parts["curves"]
    assert "of the largest activation" in parts["calibration"]


def test_matrix_capsules_have_maps_and_measures(bars, tmp_path, no_drawing):
    options = {"channels": 4, "primary_types": 2, "types": [2, 2]}
    config = tiny(bars, epochs=1).updated(model="matrix_caps_small", model_options=options)
    evaluated = replace(evaluate_run(train(config, tmp_path / "matrix").path), num_diagnosed=4)
    assert html.maps(evaluated).figure is not None
    parts = parts_of_runs(evaluated)
    check_words(parts["routing"], "conv_capsules.0", "class_capsules")
    assert "no decoder" in parts["summary"]
    assert "spread loss, whose margin rises" in parts["curves"]
    assert "The activation of a capsule" in parts["calibration"]
    assert "are numbers in [0, 1]" in parts["configuration"]  # the last words of the page


@pytest.fixture
def pairs_run(finished, bars):
    """A run whose test images show two classes each."""
    torch.manual_seed(0)
    pairs = make_pairs(load_dataset(str(bars), "test"), max_shift=1)
    model = create_model(
        "capsnet", num_classes=3, img_size=pairs.img_size, channels=8, primary_types=2
    )
    model.classes = pairs.classes
    task = Multilabel(model, TrainConfig(), pairs)
    return replace(
        finished,
        task=task,
        num_images=len(pairs),
        evaluation=evaluate_task(task, pairs),
        num_diagnosed=8,
        images=pairs,
    )


def test_the_other_of_a_mistake_is_a_wrong_class(pairs_run, monkeypatch):
    # Of the two classes of an image, one is nearly as active as the wrong class.
    activations = torch.full((len(pairs_run.images), 3), 0.9)
    rows = torch.arange(len(activations))
    activations[rows, pairs_run.images.labels.argmax(dim=1)] = 0.1
    activations[rows, 2 - pairs_run.images.labels.flip(1).argmax(dim=1)] = 0.8
    monkeypatch.setattr(type(pairs_run), "activations", activations)
    rows = html.mistakes(replace(pairs_run)).rows  # anew: without its own activations
    assert {row[2:] for row in rows} == {("0.100", "0.900")}


def test_images_of_two_classes_are_scored_by_both(pairs_run, no_drawing):
    share_correct = float(pairs_run.is_correct.double().mean())
    assert pairs_run.accuracy == pytest.approx(share_correct) == pairs_run.evaluation.exact
    content = html.render_runs({"pairs": pairs_run})
    check_words(
        Page(content).text,
        "have all their classes found",
        "At least one found",
        "is among its most active ones",
        "one at a time",
        "need one class an image",
        " + ",
    )
    assert "images of two overlapping classes" in parts_of(content)["overlaps"]


def test_runs_on_images_of_two_classes_are_compared(pairs_run, finished, no_drawing):
    parts = parts_of_runs(pairs_run, pairs_run)
    assert "All classes found" in parts["figures"]
    assert "needs one class an image" in parts["classes"]
    with pytest.raises(RunError, match="the task classify, and .* for multilabel"):
        html.render_runs({"a": pairs_run, "b": finished})


@pytest.fixture
def clouds(bars, tmp_path, restore):
    """A finished run of a task of somebody else, with a loss, a score and a figure of its own."""
    from torchcaps.tasks import _base

    restore(_base.TASKS, html.SECTIONS)

    @register_task("clouds")
    class Clouds(Task):
        """How dark images come out."""

        score = "darkness"
        losses = ("glow",)

        def training_step(self, batch, fraction_trained):
            glow = self.model(batch.inputs).square().mean()
            return {"loss": 2 * glow, "glow": glow}

        def eval_step(self, batch):
            glow = self.model(batch.inputs).square().mean(dim=1)
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


def test_a_task_without_sections_of_its_own_gets_a_complete_report(clouds):
    document = check(report(clouds).read_text(encoding="utf-8"))
    ids = column(document.elements("h2"), "id")
    assert ids == ["sky", "summary", "curves", "configuration"]
    figures = evaluate_run(clouds).evaluation.figures
    check_words(
        document.text,
        "clouds, trained with the glow loss",
        f"{figures['darkness']:.4f}",
        "Measured: darkness",
        "The loss is the glow loss",
        "What is < above.",
        "sun high",
    )
    assert "Validation darkness goes from" in document.values("alt")[0]


def test_runs_of_a_task_without_right_answers_are_compared_by_their_score(clouds):
    copy = shutil.copytree(clouds, clouds.parent / "copy")
    text = check(report([clouds, copy]).read_text(encoding="utf-8")).text
    assert "darkness" in text
    assert "Is one better?" not in text and "accuracy" not in text
    with pytest.raises(
        RunError, match="the task clouds gives no right and wrong answers to compare"
    ):
        compare([clouds], [copy])


def test_a_section_may_be_registered_for_a_task_or_for_all(clouds, trained, no_drawing):
    @register_section("clouds")
    def rain(run):
        return ReportItem("rain", "Rain", f"None on {len(run.images)} images.")

    @register_section()
    def nothing(run):
        return None

    assert list(parts_of_runs(evaluate_run(clouds)))[-4] == "rain"
    classifier = replace(evaluate_run(trained), num_diagnosed=0)
    assert "rain" not in parts_of_runs(classifier)


def test_runs_are_compared_side_by_side(trained, blind, tmp_path):
    copy = shutil.copytree(trained, tmp_path / "other" / "run")
    path = report([trained, blind, copy])
    assert path == trained / "comparison.html"
    text = check(path.read_text(encoding="utf-8")).text
    path.unlink()
    check_words(
        text,
        f"{trained.parent.name}/run",
        "other/run",
        "Parameters",
        "Right there alone",
        "Training time",
        "Accuracy by class",
        "model_options",
        "the same answers",
    )


def test_runs_on_other_images_are_not_tested_against_each_other(
    finished, run, tmp_path, no_drawing
):
    bars = write_bars(tmp_path / "other.npz", seed=5)
    edit_config(run, data=str(bars))
    rival = evaluate_run(run)
    assert not have_same_images(finished, rival)
    assert have_same_images(finished, finished)
    difference = parts_of_runs(finished, rival, finished)["difference"]
    assert difference.count("not tested on the same images.") == 1
    assert "the same answers, right or wrong, on all" in difference


def test_images_of_other_sizes_are_the_same_where_their_set_is(finished):
    cropped = replace(finished.images, inputs=finished.images.images[..., 1:])
    smaller = replace(finished, images=cropped)
    assert have_same_images(finished, smaller)
    elsewhere = replace(smaller, config=TrainConfig.of(data="elsewhere"))
    assert not have_same_images(finished, elsewhere)


def test_a_comparison_names_the_better_run(finished, no_drawing):
    good = with_truth(finished)
    bad = with_activations(finished, good.evaluation.activations.roll(1, dims=1))
    improvement = parts_of_runs(bad, good)["difference"]
    assert "This run is better (+100.00 points" in improvement
    assert "The reference is better (-100.00 points" in parts_of_runs(good, bad)["difference"]


def test_a_comparison_needs_different_runs(run):
    with pytest.raises(ArgumentError, match="got .* twice") as error:
        report([run, run.parent / "." / run.name])
    assert error.value.argument == "run"
