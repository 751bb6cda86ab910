"""Measures of claims on cases whose truth is known."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from claims.measures import (
    adaptive_attack,
    best_on_test,
    misplaced,
    parse_trees,
    uncrowding,
    unknown,
    viewpoint_match,
)
from claims.measures.scores import class_scores
from claims.sets.faces import render_faces
from torchcaps.data import Dataset, load_dataset
from torchcaps.evaluation import full_margin_loss, pgd
from torchcaps.models import create_model
from torchcaps.types import ModelSpec


class Brightness(nn.Module):
    """Every class is as active as the image is bright."""

    spec = ModelSpec(activation="length")
    num_classes = 4

    def forward(self, images):
        return images.mean(dim=(1, 2, 3)).unsqueeze(1).expand(-1, self.num_classes)


# Brightness of the images of each kind, from 0 to 1, at even steps from one to the other.
PLANTED = {
    "whole": (0.4, 0.8),
    "swapped": (0.4, 0.8),  # as whole objects: 50 %
    "turned": (0.0, 0.3),  # below all of them: 100 %
    "foreign": (0.85, 1.0),  # above all of them: 0 %
    "moved": (0.4, 0.8),
    "upside-down": (0.0, 0.1),
    "scrambled": (0.0, 0.1),
}


def planted_faces(kind, count, *, seed=0):
    """Even images of known brightness; the further a part was moved, the darker its image."""
    levels = torch.linspace(*PLANTED[kind], count // 4).repeat_interleave(4)
    images = levels.view(-1, 1, 1, 1).expand(-1, 1, 2, 2)
    labels = torch.arange(count) % 4
    factors = {"distance": 60 - 50 * torch.arange(count) / count}
    return Dataset(images.contiguous(), {"label": labels, **factors}, ("a", "b", "c", "d"), kind)


def test_misplaced_parts_of_known_scores(monkeypatch):
    monkeypatch.setattr(misplaced, "render_faces", planted_faces)
    figures = misplaced.misplaced_parts(SimpleNamespace(model=Brightness()))
    areas = {kind: figures[f"auroc_{kind}"] for kind in misplaced.KINDS}
    assert areas == pytest.approx(
        {"swapped": 0.5, "turned": 1, "foreign": 0, "moved": 0.5, "upside-down": 1, "scrambled": 1}
    )
    assert figures["auroc_misplaced"] == pytest.approx(0.5)
    assert figures["accepted_whole"] == pytest.approx(0.75, abs=0.01)
    assert figures["accepted_turned"] == 0
    assert figures["accepted_95_swapped"] == pytest.approx(0.95, abs=0.01)
    assert figures["accepted_95_foreign"] == 1
    near, *_, far = figures["accepted_95_by_distance"]
    assert near == 1
    assert far == pytest.approx(0.9, abs=0.01)  # 5 % of all are refused, of the darkest half


def test_entropy_of_couplings_says_whether_routing_was_tested():
    images = render_faces("whole", 4, seed=2)
    options = {"num_classes": 4, "img_size": 64, "channels": 3, "primary_types": 1}
    equal = create_model("capsnet", routing="uniform", decoder=False, **options)
    assert misplaced._coupling_entropy(equal, images)["coupling_entropy"] == pytest.approx(1)
    assert misplaced._coupling_entropy(Brightness(), images) == {}


def test_controls_without_a_network(monkeypatch):
    """Misplaced parts have the ink of whole ones; nothing is nearer than an image to itself."""
    monkeypatch.setattr(misplaced, "NUM_IMAGES", 100)
    monkeypatch.setattr(misplaced, "NUM_REFERENCES", 80)
    figures = misplaced.misplaced_controls(SimpleNamespace())
    assert figures["ink_auroc_misplaced"] == pytest.approx(0.5, abs=0.1)
    faces = misplaced.render_faces("whole", 40, seed=2)
    references = misplaced._blurred(faces.float_images())
    for scores in misplaced._nearest(faces, references, faces.labels):
        assert scores == pytest.approx(torch.ones(10), abs=1e-5)


def test_scores_of_sure_networks_do_not_tie():
    """Two probabilities that both round to one keep their order."""
    model = create_model("resnet20", num_classes=3, in_chans=1, img_size=12)
    logits = torch.tensor([[40.0, 0.0, 0.0], [60.0, 0.0, 0.0]])
    model.logits = lambda images: logits[: len(images)]
    scores = class_scores(model, torch.zeros(2, 1, 12, 12))
    assert (model.probabilities(logits)[:, 0] == 1).all()
    assert scores[0, 1] > scores[1, 1]
    multilabel = create_model("resnet20", num_classes=3, in_chans=1, img_size=12, multilabel=True)
    multilabel.logits = lambda images: logits[: len(images)]
    sure = class_scores(multilabel, torch.zeros(2, 1, 12, 12))
    assert sure[0, 0] < sure[1, 0] < 0


class Offset(nn.Module):
    """Says of an even image "left" if it is darker than one half."""

    spec = ModelSpec(activation="length")

    def forward(self, images):
        brightness = images.mean(dim=(1, 2, 3))
        return torch.stack([1 - brightness, brightness], dim=1)


def test_uncrowding_of_known_answers(monkeypatch):
    """A vernier alone is answered rightly, inside one outline by chance, inside five at 75 %."""
    num_wrong = {"inside": {1: 50, 3: 40, 5: 25}, "mixed": {5: 50}}

    def planted_verniers(count, arrangement, *, number=None, seed=0):
        labels = torch.arange(count) % 2
        shown = labels.clone()
        wrong = num_wrong.get(arrangement, {}).get(number, 0)
        is_wrong = torch.arange(count) % 100 < wrong
        shown[is_wrong] = 1 - shown[is_wrong]
        images = shown.float().view(-1, 1, 1, 1).expand(-1, 1, 2, 2).contiguous()
        hot = torch.nn.functional.one_hot(labels, 4) + torch.nn.functional.one_hot(labels + 2, 4)
        return Dataset(images, {"labels": hot}, ("left", "right", "x", "y"), "planted")

    monkeypatch.setattr(uncrowding, "render_verniers", planted_verniers)
    figures = uncrowding.uncrowding(SimpleNamespace(model=Offset()))
    assert figures["vernier_alone"] == 1
    assert figures["crowding"] == pytest.approx(0.5)
    assert figures["uncrowding"] == pytest.approx(0.25)
    assert figures["uncrowding_mixed"] == pytest.approx(0)


def test_a_planted_tree_is_seen_and_equal_coupling_is_none():
    tree = parse_trees.planted_figures(iterations=3)
    assert tree["right"] > 0.85
    assert tree["support"] > 0.85
    assert tree["information"] > 0.5
    assert tree["entropy"] < 0.35
    assert tree["straightness"] > 0.7
    uniform = parse_trees.planted_figures(iterations=1)
    assert uniform["right"] == pytest.approx(0.1, abs=0.03)
    assert uniform["entropy"] == pytest.approx(1)
    assert uniform["support"] == uniform["dynamics"] == 0
    assert uniform["straightness"] < 0.3


def planted_run(name, model):
    """A run on the test images of a named set, with nothing else."""
    images = load_dataset(name, "test").subset(range(40))
    config = SimpleNamespace(data=SimpleNamespace(name=name, root=None))
    return SimpleNamespace(
        model=model,
        images=images,
        config=config,
        subset=lambda count: images.subset(range(min(count, len(images)))),
    )


def test_unknown_are_the_four_classes_that_were_left_out():
    run = planted_run("digits-last-six", Brightness())
    others = unknown._unknown_images(run)
    assert {others.classes[label] for label in others.labels.tolist()} == set("0123")
    figures = unknown.unknown_classes(run)
    known = run.images.float_images().mean(dim=(1, 2, 3))
    bright = others.float_images().mean(dim=(1, 2, 3))
    wins = (known[:, None] > bright[None]).double().mean().item()
    assert figures["auroc_best"] == figures["auroc_largest"] == pytest.approx(wins, abs=1e-3)


def test_energy_and_reconstruction_are_measured_where_a_model_has_them():
    logits = create_model("resnet20", num_classes=6, in_chans=1, img_size=28, width=2)
    assert unknown.unknown_classes(planted_run("digits-first-six", logits)).keys() == {
        "auroc_largest",
        "auroc_energy",
        "auroc_best",
    }
    drawing = create_model("cnn_decoder", num_classes=6, channels=(2, 3), decoder=(4, 5))
    assert "auroc_reconstruction" in unknown.unknown_classes(
        planted_run("digits-first-six", drawing)
    )


@pytest.fixture(scope="module")
def drawing():
    torch.manual_seed(0)
    return create_model("cnn_decoder", channels=(3, 4), class_dim=4, decoder=(8, 16)).eval()


def test_an_attack_that_aims_at_the_detector_comes_nearer_to_the_reconstruction(drawing):
    images = load_dataset("digits", "test").subset(range(6))
    pixels = images.float_images()
    blind = adaptive_attack.adaptive_pgd(drawing, pixels, images.labels, 0.0)
    steps = adaptive_attack.STEPS
    plain = pgd(drawing, pixels, images.labels, adaptive_attack.STRENGTH, steps=steps)
    assert torch.equal(blind, plain)
    aimed = adaptive_attack.adaptive_pgd(drawing, pixels, images.labels, 10.0)
    assert (aimed - pixels).abs().max() <= adaptive_attack.STRENGTH + 1e-6
    distances = []
    for attacked in (blind, aimed):
        outputs = adaptive_attack._WithDistance(drawing)(attacked)
        distances.append(outputs[:, -1].mean().item())
    assert distances[1] < distances[0]


def test_the_adaptive_loss_is_the_margin_loss_less_the_weighted_distance():
    outputs = torch.tensor([[0.2, 0.9, 3.0], [0.6, 0.1, 5.0]])
    labels = torch.tensor([1, 0])
    loss = adaptive_attack._adaptive_loss(outputs, labels, weight=0.5)
    margin = full_margin_loss(outputs[:, :2], labels)
    assert loss.item() == pytest.approx(margin.item() - 0.5 * 4.0)


def test_detection_counts_the_changes_that_pass(monkeypatch, drawing):
    """With a threshold that nothing exceeds, every change passes; with zero, none does."""
    monkeypatch.setattr(adaptive_attack, "NUM_IMAGES", 12)
    monkeypatch.setattr(adaptive_attack, "WEIGHTS", (0.0, 0.1))
    run = planted_run("digits", drawing)
    answers = drawing(run.images.float_images()).argmax(dim=1)
    images = replace(run.images, targets={**run.images.targets, "label": answers.detach()})
    run.subset = lambda count: images.subset(range(count))
    run.task = SimpleNamespace(spec=drawing.spec)
    run.held_out_images = lambda: images
    for threshold, is_caught in ((1e6, False), (0.0, True)):
        monkeypatch.setattr(
            adaptive_attack.evaluation, "detection_threshold", lambda _, limit=threshold: limit
        )
        figures = adaptive_attack.adaptive_detection(run)
        assert figures["success"] > 0
        assert figures["adaptive_success"] >= figures["success"]
        passed = 0 if is_caught else figures["success"]
        assert figures["undetected"] == passed
        assert figures["detected_share"] == (1 if is_caught else 0)
        assert figures["false_positives"] == is_caught


def test_faces_of_a_run_are_not_its_training_images():
    assert misplaced.SEED != 0
    first = render_faces("whole", 4, seed=0)
    assert not torch.equal(first.images, render_faces("whole", 4, seed=misplaced.SEED).images)


def test_the_novel_error_is_taken_where_familiar_views_are_as_good(monkeypatch):
    """Familiar accuracy meets 80 % halfway between the epochs of 70 and 90 %."""
    curve = {"familiar": [0.5, 0.7, 0.9], "novel": [0.3, 0.5, 0.6]}
    monkeypatch.setattr(viewpoint_match, "viewpoints", lambda run: {"curve": curve})
    figures = viewpoint_match.matched_viewpoints(SimpleNamespace())
    assert figures["novel_error_at_80"] == pytest.approx(0.45)
    assert figures["familiar_error_at_80"] == pytest.approx(0.2)
    short = {"familiar": [0.5, 0.7], "novel": [0.3, 0.5]}
    monkeypatch.setattr(viewpoint_match, "viewpoints", lambda run: {"curve": short})
    figures = viewpoint_match.matched_viewpoints(SimpleNamespace())
    assert figures["familiar_error_at_80"] == pytest.approx(0.3)
    assert figures["novel_error_at_80"] == pytest.approx(0.5)


def test_the_epoch_that_is_best_on_the_test_images(monkeypatch):
    errors = [0.3, 0.1, 0.2]  # in place of the models of three epochs
    monkeypatch.setattr(best_on_test, "epoch_models", lambda run: errors)
    monkeypatch.setattr(
        best_on_test,
        "evaluate",
        lambda error, images: SimpleNamespace(to_dict=lambda: {"error": error}),
    )
    run = SimpleNamespace(images=None)
    assert best_on_test.best_on_test(run) == {"best_on_test_error": 0.1}
    errors.clear()
    assert best_on_test.best_on_test(run) == {}
