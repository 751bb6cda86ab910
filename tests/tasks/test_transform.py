"""Pairs of views, and the task that draws one by the other."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch

import torchcaps as tc
from torchcaps.data import ImageSet
from torchcaps.functional import move_by_matrix
from torchcaps.models import TransformingAutoencoder
from torchcaps.tasks import (
    create_task,
    eval_outputs,
    evaluate_transforming,
    list_tasks,
    task_class,
    transformed_pairs,
)
from torchcaps.training import TrainConfig, fit

SMALL = {"capsules": 3, "recognition": 4, "generation": 5}


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def dots(size=11, count=6):
    """Images with one bright pixel in the middle."""
    images = torch.zeros(count, 1, size, size)
    images[:, :, size // 2, size // 2] = 1
    return images


def blobs(count=400, size=12):
    """Round blobs somewhere near the middle."""
    centers = size / 2 + 4 * torch.rand(count, 2, generator=generator(1)) - 2
    y, x = torch.meshgrid(torch.arange(size) + 0.5, torch.arange(size) + 0.5, indexing="ij")
    distance = (x - centers[:, :1, None]) ** 2 + (y - centers[:, 1:, None]) ** 2
    return torch.exp(-distance / 3).unsqueeze(1)


def as_set(images):
    return ImageSet(images, torch.arange(len(images)) % 2, ("a", "b"), "images")


def small(pose="translation", size=12, seed=0, **settings):
    """A task around a small model, in evaluation mode."""
    torch.manual_seed(seed)
    model = TransformingAutoencoder(1, size, pose=pose, **SMALL)
    return create_task(model, TrainConfig.of(**settings)).eval()


def brightest(image):
    """(x, y) of the brightest pixel, from the left upper corner."""
    row, column = divmod(int(image.flatten().argmax()), image.shape[-1])
    return column, row


def test_shifts_are_those_between_the_bright_pixels():
    pairs = transformed_pairs(dots(), shift=2, generator=generator())
    assert pairs.transformation.shape == (6, 2)
    for source, target, (dx, dy) in zip(*pairs, strict=True):
        (x0, y0), (x1, y1) = brightest(source), brightest(target)
        assert (x1 - x0, y1 - y0) == (dx, dy)
        assert max(abs(v - 5) for v in (x0, y0, x1, y1)) <= 2
    assert pairs.source.sum(dim=(1, 2, 3)).tolist() == pytest.approx([1.0] * 6, abs=1e-4)


def test_affine_pairs_are_two_views_with_the_matrix_between_them():
    images = blobs(5, 20)
    pairs = transformed_pairs(images, "affine", generator=generator())
    assert pairs.transformation.shape == (5, 3, 3)
    torch.testing.assert_close(
        pairs.transformation[:, 2], torch.tensor([0.0, 0.0, 1.0]).expand(5, 3)
    )
    again = move_by_matrix(pairs.source, pairs.transformation)
    assert (again - pairs.target).square().mean() < 0.1 * (
        pairs.source - pairs.target
    ).square().mean()
    determinants = torch.linalg.det(
        pairs.transformation
    )  # shear and rotation leave areas as they are
    assert (determinants > (0.85 / 1.15) ** 2 - 1e-4).all()
    assert (determinants < (1.15 / 0.85) ** 2 + 1e-4).all()
    for options, right in (
        ({"zoom": 0, "shear": 0}, lambda t: t @ t.mT),  # rotations: orthogonal
        (
            {"zoom": 0, "degrees": 0},
            lambda t: (t - torch.eye(2)) @ (t - torch.eye(2)) + torch.eye(2),
        ),  # shears
    ):
        matrices = transformed_pairs(
            images, "affine", generator=generator(), **options
        ).transformation[:, :2, :2]
        torch.testing.assert_close(right(matrices), torch.eye(2).expand(5, 2, 2))
        assert (matrices - torch.eye(2)).abs().max() > 0.02
        assert matrices[:, 0, 1].abs().max() < math.sin(math.radians(40)) + 1e-5
    assert not matrices[:, 1, 0].any()  # sheared rows stay rows


def test_pairs_repeat_by_seed():
    first, second = (
        transformed_pairs(blobs(5), "affine", generator=generator(3)) for _ in range(2)
    )
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_wrong_pairs():
    for setting, complaint in (
        ({"shift": -1}, "shift: expected at least 0"),
        ({"zoom": 1.0}, "zoom: expected between 0 and 0.9, got 1.0"),
    ):
        with pytest.raises(ValueError, match=complaint):
            transformed_pairs(blobs(2), "affine", generator=generator(), **setting)
    with pytest.raises(ValueError, match="unknown pose 'shift'"):
        transformed_pairs(blobs(2), "shift", generator=generator())
    with pytest.raises(
        ValueError, match=r"images: expected \[batch, channels, height, width\], got"
    ):
        transformed_pairs(blobs(2)[0], generator=generator())


def test_it_is_the_task_of_models_made_for_it():
    assert "transform" in list_tasks()
    task = small()
    assert (task.name, task.loss, task.labeled, task.clip) == (
        "transform",
        "reconstruction",
        False,
        0.0,
    )
    assert task_class("auto", task.model, as_set(blobs(4))) is type(task)
    config = task.config
    assert (config.optimizer.lr, config.augmentation.shift, config.augmentation.degrees) == (
        2e-3,
        2,
        0.0,
    )
    how = small("affine").config.augmentation
    assert (how.degrees, how.zoom, how.shear) == (20.0, 0.15, 0.1)


def test_what_it_cannot_do_is_refused():
    with pytest.raises(
        ValueError, match="task: transform takes a model whose poses a known .* moves, got CapsNet"
    ):
        create_task(
            tc.create_model("capsnet", channels=8, primary_types=2),
            TrainConfig.of(task="transform"),
        )
    with pytest.raises(
        ValueError, match=r"degrees: expected 0 for poses that are moved by shifts, got 5\.0"
    ):
        small(degrees=5.0)
    with pytest.raises(ValueError, match="unknown loss.* 'margin'"):
        small(loss="margin")


@pytest.mark.parametrize("pose", ["translation", "affine"])
def test_batches_to_train_on_come_from_the_generator_alone(pose):
    task, images = small(pose).train(), as_set(blobs(20))
    first, again, other = (
        task.sample_batch(images, torch.arange(7), generator(seed)) for seed in (1, 1, 2)
    )
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first.transformation, other.transformation)
    wanted = transformed_pairs(images.images[:7], pose, generator=generator(1))
    assert all(torch.equal(a, b) for a, b in zip(first, wanted, strict=True))


@pytest.mark.parametrize("pose", ["translation", "affine"])
def test_pairs_that_are_measured_do_not_depend_on_the_batch(pose):
    task, images = small(pose), as_set(blobs(20))
    whole = task.sample_batch(images, torch.arange(20), generator(1))
    part = task.sample_batch(images, torch.tensor([3, 17]), generator(2))
    for a, b in zip(whole, part, strict=True):
        torch.testing.assert_close(a[[3, 17]], b)
    assert whole.transformation.flatten(1).std(dim=0)[:2].min() > 0.01


@pytest.mark.parametrize("pose", ["translation", "affine"])
def test_pairs_are_as_exact_under_autocast(pose):
    task, images = small(pose), as_set(blobs(20))
    exact = task.sample_batch(images, torch.arange(20), generator())
    with torch.autocast("cpu", torch.bfloat16):
        cast = task.sample_batch(images, torch.arange(20), generator())
    assert all(torch.equal(a, b) for a, b in zip(exact, cast, strict=True))


def test_images_are_mirrored_cropped_and_relit_before_there_are_two_views():
    crop = {"flip": True, "color_jitter": True, "crop": 10, "shift": 0}
    task = small(size=10, **crop).train()
    pairs = task.sample_batch(as_set(blobs(30)), torch.arange(30), generator())
    assert pairs.source.shape == (30, 1, 10, 10)
    torch.testing.assert_close(pairs.source, pairs.target)  # without shifts the two views are one
    assert not pairs.transformation.any()


@pytest.mark.parametrize("pose", ["translation", "affine"])
def test_the_loss_is_the_error_of_the_drawn_target_summed_over_pixels(pose):
    task, images = small(pose).train(), as_set(blobs(9))
    pairs = task.sample_batch(images, torch.arange(9), generator())
    losses = task.training_step(pairs, 0.5)
    drawn = task.model(pairs.source, pairs.transformation)
    wanted = (drawn - pairs.target).square().flatten(1).sum(dim=1).mean()
    assert losses.keys() == {"loss", "reconstruction"}
    torch.testing.assert_close(losses["loss"], wanted)
    losses["loss"].backward()
    assert all(p.grad is not None and p.grad.any() for p in task.parameters())


@pytest.mark.parametrize("pose", ["translation", "affine"])
def test_figures_of_held_out_images_are_those_of_the_evaluation(pose):
    task, images = small(pose), as_set(blobs(50))
    found, figures = task.evaluate(images), task.compute_metrics(eval_outputs(task, images))
    assert figures.keys() == {"loss", "correlation"}
    assert figures["loss"] == pytest.approx(144 * found.figures["pixel_mse"], rel=1e-5)
    assert figures["correlation"] == pytest.approx(
        np.mean([found.figures[f"correlation_{name}"] for name in found.names]), abs=1e-5
    )
    pairs = task.sample_batch(images, torch.arange(50), generator())
    assert found.to_dict() == pytest.approx(
        evaluate_transforming(task.model, pairs).to_dict(), rel=1e-4, abs=1e-5
    )
    one = task.compute_metrics(eval_outputs(task, as_set(blobs(1))))  # nothing varies
    assert one["correlation"] == 0.0
    assert math.isfinite(one["loss"])


def test_predictions_name_the_most_present_capsules():
    task, images = small("affine"), blobs(4)
    rows = json.loads(json.dumps(task.predict(images)))
    poses, presences = task.model.capsules(images)
    for row, pose, presence in zip(rows, poses, presences, strict=True):
        assert [c["capsule"] for c in row["capsules"]] == presence.argsort(descending=True).tolist()
        best = row["capsule"]
        assert (
            row["presence"]
            == row["capsules"][0]["presence"]
            == pytest.approx(presence.max().item())
        )
        assert row["capsules"][0]["pose"] == pytest.approx(pose[best].tolist())


@pytest.mark.parametrize("pose", ["translation", "affine"])
def test_exhibits(pose):
    task, images = small(pose), as_set(blobs(20))
    found = task.evaluate(images)
    shown = task.report_items(found, images)
    assert [one.key for one in shown] == ["scatter", "triplets", "generation"]
    for one in shown:
        assert one.figure is not None and one.title and one.about and one.alt
        assert {len(row) for row in one.rows} <= {len(one.heads)}
    assert [row[0] for row in shown[0].rows] == [*found.names]
    assert shown[1].rows[0] == ("the drawing", f"{found.figures['pixel_mse']:.5f}")
    assert shown[1].figure.axes[0].images[0].get_array().shape[:2] == (
        3 * (12 + 2),
        14 * (12 + 2),
    )  # gaps of 2


def test_a_short_training_finds_where_blobs_are():
    torch.manual_seed(0)
    model = TransformingAutoencoder(1, 12, capsules=3, recognition=20, generation=20)
    model, history = fit(
        model, as_set(blobs()), epochs=30, batch_size=32, lr=1e-2, precision="fp32"
    )
    assert history[-1]["train_loss"] < 0.3 * history[0]["train_loss"]
    assert history[-1]["val_correlation"] > 0.9
    found = evaluate_transforming(model, transformed_pairs(blobs(100), generator=generator(9)))
    assert min(found.figures["correlation_dx"], found.figures["correlation_dy"]) > 0.95
    best = found.presence.argmax()
    assert found.capsule_slope[best].tolist() == pytest.approx([1, 1], abs=0.1)
    assert not model.training
    assert model.classes == ()
