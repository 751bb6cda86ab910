"""Pairs of views, and the task that draws one by the other."""

import json
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from checks import assert_equal, column
from tasks.makers import batch_of
from torchcaps.data import Batch, Dataset
from torchcaps.errors import ArgumentError
from torchcaps.functional import move_by_matrix
from torchcaps.models import TransformingAutoencoder
from torchcaps.tasks import (
    check_task,
    create_task,
    eval_outputs,
    evaluate_task,
    evaluate_transforming,
    transformed_pairs,
)
from torchcaps.tasks.transform import pairs_of
from torchcaps.testing import seeded
from torchcaps.training import TrainConfig, fit, load_recipe

SMALL = {"capsules": 3, "recognition": 4, "generation": 5}


def dots(size=11, count=6):
    """Images with one bright pixel in the middle."""
    images = torch.zeros(count, 1, size, size)
    images[:, :, size // 2, size // 2] = 1
    return images


def blobs(count=400, size=12):
    """Round blobs somewhere near the middle."""
    centers = size / 2 + 4 * torch.rand(count, 2, generator=seeded(1)) - 2
    y, x = torch.meshgrid(torch.arange(size) + 0.5, torch.arange(size) + 0.5, indexing="ij")
    distance = (x - centers[:, :1, None]) ** 2 + (y - centers[:, 1:, None]) ** 2
    return torch.exp(-distance / 3).unsqueeze(1)


def as_set(images):
    return Dataset(images, {"label": torch.arange(len(images)) % 2}, ("a", "b"), "images")


def small(pose="translation", size=12, seed=0, **settings):
    """A task around a small model, in evaluation mode."""
    torch.manual_seed(seed)
    model = TransformingAutoencoder(1, size, pose=pose, **SMALL)
    return create_task(model, TrainConfig.of(**settings)).eval()


def test_a_drawing_of_less_than_the_images_is_compared_at_its_size():
    images = torch.rand(2, 1, 72, 72, generator=seeded())
    model = TransformingAutoencoder(1, 72, capsules=2, recognition=1, generation=40)
    task = create_task(model, TrainConfig()).train()
    pairs = transformed_pairs(images, generator=seeded())
    drawings = model.draw(model.move(model.capsules(pairs.source), pairs.transformation))
    size = model.draw_size
    assert size < (72, 72)
    targets = F.interpolate(pairs.target, size, mode="bilinear", antialias=True)
    error = (drawings - targets).square().sum(dim=(1, 2, 3)).mean()
    moved = {"target": pairs.target, "transformation": pairs.transformation}
    batch = Batch(pairs.source, moved, torch.arange(2))
    assert_close(task.training_step(batch, 0.0)["loss"], error)


def test_a_model_without_decoder_is_not_trained_to_draw():
    model = TransformingAutoencoder(1, 12, decoder=False, **SMALL)
    with pytest.raises(ArgumentError, match="reconstruct: this model has no decoder"):
        check_task(create_task(model, TrainConfig()), as_set(dots(12)))


def brightest(image):
    """(x, y) of the brightest pixel, from the left upper corner."""
    row, column = divmod(int(image.flatten().argmax()), image.shape[-1])
    return torch.tensor([column, row], dtype=torch.float32)


def test_shifts_are_those_between_the_bright_pixels():
    pairs = transformed_pairs(dots(), shift=2, generator=seeded())
    assert pairs.transformation.shape == (6, 2)
    for source, target, shift in zip(*pairs, strict=True):
        start = brightest(source)
        end = brightest(target)
        assert torch.equal(end - start, shift)
        assert (start - 5).abs().max() <= 2
        assert (end - 5).abs().max() <= 2
    assert pairs.source.sum(dim=(1, 2, 3)).tolist() == pytest.approx([1.0] * 6, abs=1e-4)


def test_affine_pairs_are_two_views_with_the_matrix_between_them():
    images = blobs(5, 20)
    pairs = transformed_pairs(images, "affine", generator=seeded())
    assert pairs.transformation.shape == (5, 3, 3)
    last_rows = pairs.transformation[:, 2]
    assert_close(last_rows, torch.tensor([0.0, 0.0, 1.0]).expand(5, 3))
    estimate = move_by_matrix(pairs.source, pairs.transformation)
    error = (estimate - pairs.target).square().mean()
    assert error < 0.1 * (pairs.source - pairs.target).square().mean()
    # Shear and rotation leave areas as they are.
    determinants = torch.linalg.det(pairs.transformation)
    assert (determinants > (0.85 / 1.15) ** 2 - 1e-4).all()
    assert (determinants < (1.15 / 0.85) ** 2 + 1e-4).all()


def random_matrices(**ranges):
    pairs = transformed_pairs(blobs(5, 20), "affine", generator=seeded(), **ranges)
    matrices = pairs.transformation[:, :2, :2]
    assert (matrices - torch.eye(2)).abs().max() > 0.02
    return matrices


def test_ranges_switch_rotations_and_shears():
    rotations = random_matrices(zoom=0, shear=0)
    assert_close(rotations @ rotations.mT, torch.eye(2).expand(5, 2, 2))
    assert rotations[:, 0, 1].abs().max() < math.sin(math.radians(40)) + 1e-5
    shears = random_matrices(zoom=0, degrees=0)
    change = shears - torch.eye(2)
    assert_close(change @ change, torch.zeros(5, 2, 2))
    assert not shears[:, 1, 0].any()  # sheared rows stay rows


@pytest.mark.parametrize(
    ("setting", "complaint"),
    [
        ({"shift": -1}, "shift: expected at least 0"),
        ({"zoom": 1.0}, "zoom: expected between 0 and 0.9, got 1.0"),
        ({"pose": "shift"}, "unknown pose 'shift'"),
        ({"images": blobs(2)[0]}, r"images: expected \[batch, channels, height, width\], got"),
    ],
)
def test_bad_arguments_of_pairs_are_refused(setting, complaint):
    arguments = {"images": blobs(2), "pose": "affine"} | setting
    with pytest.raises(ArgumentError, match=complaint):
        transformed_pairs(generator=seeded(), **arguments)


def test_defaults_are_those_of_the_kind_of_pose():
    config = small().config
    assert config.optimizer.lr == 2e-3
    assert (config.augmentation.shift, config.augmentation.degrees) == (2, 0.0)
    settings = small("affine").config.augmentation
    assert (settings.degrees, settings.zoom, settings.shear) == (20.0, 0.15, 0.1)


@pytest.mark.parametrize("pose", ["translation", "affine"])
def test_batches_of_a_training_come_from_the_generator_alone(pose):
    task = small(pose).train()
    images = as_set(blobs(20))
    batch = batch_of(task, images, torch.arange(7), seeded(1))
    assert_equal(batch, batch_of(task, images, torch.arange(7), seeded(1)))
    different = batch_of(task, images, torch.arange(7), seeded(2))
    name = "transformation"
    assert not torch.equal(batch.targets[name], different.targets[name])
    assert_equal(pairs_of(batch), transformed_pairs(images.images[:7], pose, generator=seeded(1)))


@pytest.mark.parametrize("pose", ["translation", "affine"])
def test_pairs_of_an_evaluation_do_not_depend_on_the_batch_or_the_precision(pose):
    task = small(pose)
    images = as_set(blobs(20))
    pairs = pairs_of(batch_of(task, images, torch.arange(20)))
    part = pairs_of(batch_of(task, images, torch.tensor([3, 17])))
    for tensor, rows in zip(pairs, part, strict=True):
        assert_close(tensor[[3, 17]], rows)
    assert pairs.transformation.flatten(1).std(dim=0)[:2].min() > 0.01
    with torch.autocast("cpu", torch.bfloat16):
        assert_equal(pairs, pairs_of(batch_of(task, images, torch.arange(20))))


def test_images_are_mirrored_cropped_and_relit_before_there_are_two_views():
    crop = {"flip": True, "color_jitter": True, "crop": 10, "shift": 0}
    task = small(size=10, **crop).train()
    pairs = pairs_of(batch_of(task, as_set(blobs(30)), torch.arange(30), seeded()))
    assert pairs.source.shape == (30, 1, 10, 10)
    assert_close(pairs.source, pairs.target)  # without shifts the two views are one
    assert not pairs.transformation.any()


@pytest.mark.parametrize("pose", ["translation", "affine"])
def test_the_loss_is_the_error_of_the_drawn_target_summed_over_pixels(pose):
    task = small(pose).train()
    batch = batch_of(task, as_set(blobs(9)), torch.arange(9), seeded())
    losses = task.training_step(batch, 0.5)
    pairs = pairs_of(batch)
    drawings = task.model(pairs.source, pairs.transformation)
    expected = (drawings - pairs.target).square().flatten(1).sum(dim=1).mean()
    assert losses.keys() == {"loss", "reconstruction"}
    assert_close(losses["loss"], expected)
    losses["loss"].backward()
    for name, weight in task.named_parameters():
        assert weight.grad is not None and weight.grad.any(), name


@pytest.mark.parametrize("pose", ["translation", "affine"])
def test_figures_of_held_out_images_are_those_of_the_evaluation(pose):
    task = small(pose)
    images = as_set(blobs(50))
    evaluation = evaluate_task(task, images)
    metrics = task.compute_metrics(eval_outputs(task, images))
    assert metrics.keys() == {"loss", "correlation"}
    assert metrics["loss"] == pytest.approx(144 * evaluation.figures["pixel_mse"], rel=1e-5)
    correlations = list(map(evaluation.figures.get, map("correlation_{}".format, evaluation.names)))
    assert metrics["correlation"] == pytest.approx(np.mean(correlations), abs=1e-5)
    pairs = batch_of(task, images, torch.arange(50))
    expected = evaluate_transforming(task.model, pairs_of(pairs)).to_dict()
    assert evaluation.to_dict() == pytest.approx(expected, rel=1e-4, abs=1e-5)
    metrics = task.compute_metrics(eval_outputs(task, as_set(blobs(1))))  # nothing varies
    assert metrics["correlation"] == 0.0
    assert math.isfinite(metrics["loss"])


def test_predictions_name_the_most_present_capsules():
    task = small("affine")
    images = blobs(4)
    rows = json.loads(json.dumps(task.predict(images)))
    poses, presences = task.model.capsules(images)
    for row, pose, presence in zip(rows, poses, presences, strict=True):
        order = presence.argsort(descending=True).tolist()
        assert column(row["capsules"], "capsule") == order
        most_present = row["capsules"][0]
        assert (row["capsule"], row["presence"]) == (order[0], most_present["presence"])
        assert most_present["presence"] == pytest.approx(presence.max().item())
        assert most_present["pose"] == pytest.approx(pose[order[0]].tolist())


@pytest.mark.parametrize("pose", ["translation", "affine"])
def test_a_report_shows_correlations_drawings_and_the_work_of_capsules(pose):
    task = small(pose)
    images = as_set(blobs(20))
    evaluation = evaluate_task(task, images)
    scatter, triplets, generation = task.report_items(evaluation, images)
    assert (scatter.key, triplets.key, generation.key) == ("scatter", "triplets", "generation")
    for item in (scatter, triplets, generation):
        assert item.figure is not None
        assert item.title and item.about and item.alt
        assert set(map(len, item.rows)) <= {len(item.heads)}
    assert column(scatter.rows, 0) == list(evaluation.names)
    assert triplets.rows[0] == ("the drawing", f"{evaluation.figures['pixel_mse']:.5f}")
    picture = triplets.figure.axes[0].images[0].get_array()
    assert picture.shape[:2] == (3 * (12 + 2), 14 * (12 + 2))  # gaps of 2


def test_the_recipe_shows_figures_that_the_evaluation_has():
    recipe = load_recipe("transforming-autoencoder")
    names = set()
    for row in recipe.rows:
        options = recipe.resolve(row, "small").model.options
        task = create_task(TransformingAutoencoder(1, 12, **options | SMALL), TrainConfig())
        figures = evaluate_task(task, as_set(blobs(20))).to_dict()
        assert row.published.keys() <= figures.keys()
        names |= figures.keys()
    assert set(recipe.figures) <= names


def test_a_short_training_learns_the_positions_of_blobs():
    torch.manual_seed(0)
    model = TransformingAutoencoder(1, 12, capsules=3, recognition=20, generation=20)
    images = as_set(blobs(300))
    model, history = fit(model, images, epochs=25, batch_size=32, lr=1e-2, precision="fp32")
    assert history[-1]["train_loss"] < 0.3 * history[0]["train_loss"]
    assert history[-1]["val_correlation"] > 0.9
    pairs = transformed_pairs(blobs(100), generator=seeded(9))
    evaluation = evaluate_transforming(model, pairs)
    assert evaluation.figures["correlation_dx"] > 0.9
    assert evaluation.figures["correlation_dy"] > 0.9
    slopes = evaluation.capsule_slope[evaluation.presence.argmax()]
    assert slopes.tolist() == pytest.approx([1, 1], abs=0.15)
    assert not model.training
    assert model.classes == ()
