"""The task without labels: its loss against NumPy, clusters, figures, pictures, and runs."""

import json
import math
import os

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close
from torch.utils._pytree import tree_map_only

import torchcaps as tc
from checks import assert_equal, column
from tasks.makers import SHORT_RUN, batch_of
from torchcaps.data import Dataset
from torchcaps.errors import ArgumentError
from torchcaps.evaluation.accuracy.clusters import (
    kmeans,
    linear_accuracy,
    match_clusters,
    nearest,
)
from torchcaps.models import SCAE
from torchcaps.reporting import evaluate
from torchcaps.tasks import create_task, eval_outputs
from torchcaps.tasks.unsupervised import (
    contrastive_loss,
    entropy,
    explained_share,
    logit_directions,
    loss_terms,
)
from torchcaps.testing import seeded
from torchcaps.training import TrainConfig, load_recipe
from training.makers import assert_resumes

MODEL = {"parts": 3, "objects": 4, "clusters": 2, "channels": 4, "strides": [2, 2, 1], "units": 8}


def task_of(**settings):
    torch.manual_seed(0)
    return create_task(SCAE(1, 20, **MODEL), TrainConfig.of(**settings))


def image_set(count=12, size=20):
    """Images of noise."""
    return Dataset(
        torch.rand(count, 1, size, size, generator=seeded()),
        {"label": torch.arange(count) % 2},
        ("a", "b"),
        "noise",
    )


@pytest.fixture
def settings(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (40, 20, 22), dtype=np.uint8)
    np.savez(tmp_path / "noise.npz", images=images, labels=np.arange(40) % 2)
    data = str(tmp_path / "noise.npz")
    return SHORT_RUN | {"model": "scae", "model_options": MODEL, "data": data}


def test_the_loss_is_that_of_the_paper():
    task = task_of().double().train()
    images = image_set()
    batch = batch_of(task, images, torch.arange(5), seeded())
    batch = tree_map_only(torch.Tensor, lambda x: x.double() if x.is_floating_point() else x, batch)
    with torch.no_grad():
        explained = task.model.explain(batch.inputs, None)
        parts = loss_terms(explained, 2)
    q = explained.posterior.numpy()[:, :3, :4].sum(axis=1) / 3
    a = explained.objects.log_vote_presence.exp().numpy().max(axis=2)
    assert q.shape == a.shape == (5, 4)
    np.testing.assert_allclose(explained_share(explained), q)

    def uncertainty(q):
        p = q / q.sum(axis=-1, keepdims=True)
        return -(p * np.log(p)).sum(axis=-1)

    expected = {
        "pixels": -explained.pixel_log_likelihood.mean().item(),
        "poses": -explained.pose_log_likelihood.mean().item(),
        "dynamic": 0.5 * (explained.objects.dynamic.numpy() ** 2).sum() / 5,
        "within": uncertainty(q).mean(),
        "between": -uncertainty(q.sum(axis=0)),
        "objects": ((a.sum(axis=1) - 4 / 2) ** 2).mean(),
        "examples": ((a.sum(axis=0) - 5 / 2) ** 2).mean(),
    }
    for name, term in expected.items():
        assert parts[name].item() == pytest.approx(term), name
    quiet = batch._replace(targets={"label": batch.targets["label"]})
    weights = {
        "pixels": 1,
        "poses": 1,
        "dynamic": 10,
        "within": 0.7,
        "between": 0.2,
        "objects": 2,
        "examples": 0.35,
    }
    total = np.dot(list(weights.values()), list(map(expected.get, weights)))
    assert task.training_step(quiet, 0.0)["loss"].item() == pytest.approx(total)
    assert task.training_step(batch, 0.0)["loss"].item() != pytest.approx(total)  # with noise


def test_agreement_is_the_cross_entropy_of_choosing_the_view_of_the_same_image():
    presence = torch.rand(6, 4, generator=seeded(), dtype=torch.float64)
    z = np.log(presence.numpy() / (1 - presence.numpy()))
    z = z / np.linalg.norm(z, axis=1, keepdims=True)
    np.testing.assert_allclose(logit_directions(presence), z)
    likeness = np.exp(z[:3] @ z[3:].T / 0.1)
    shares = likeness / likeness.sum(axis=1, keepdims=True)
    shares_of_views = likeness / likeness.sum(axis=0)
    log_shares = np.log([shares.diagonal(), shares_of_views.diagonal()])
    assert contrastive_loss(presence).item() == pytest.approx(-log_shares.mean())
    clear = torch.eye(3).clamp(0.1, 0.9).repeat(2, 1)
    assert contrastive_loss(clear) < 0.01
    assert contrastive_loss(torch.cat([clear[:3], clear[:3].roll(1, 0)])) > 5
    sure = torch.tensor([[0.0, 1.0], [1.0, 0.0], [0.5, 0.5], [0.5, 0.5]], requires_grad=True)
    contrastive_loss(sure).backward()
    assert sure.grad.isfinite().all()


def has_gradient(module):
    return any(parameter.grad is not None for parameter in module.parameters())


def test_parts_learn_first_and_then_objects_by_views():
    torch.manual_seed(0)
    model = SCAE(1, 20, **MODEL, weights={"views": 5.0})
    task = create_task(model, TrainConfig.of(degrees=20.0)).train()
    assert task.lr_restarts == (0.0, 0.75)
    batch = batch_of(task, image_set(), torch.arange(6), seeded())
    assert batch.targets["second_view"].shape == batch.inputs.shape
    assert not torch.equal(batch.targets["second_view"], batch.inputs)

    losses = task.training_step(batch, 0.74)
    losses["loss"].backward()
    assert losses.keys() == {"loss", "pixels"}
    assert has_gradient(model.part_capsules)
    assert not has_gradient(model.object_capsules)
    pixels = -model.explain_pixels(batch.inputs, batch.targets["noise.parts"])[3].mean()
    assert_close(losses["pixels"], pixels)

    model.zero_grad()
    losses = task.training_step(batch, 0.75)
    losses["loss"].backward()
    assert losses.keys() == {"loss", "poses", "dynamic", "views"}
    assert not has_gradient(model.part_capsules)
    assert has_gradient(model.object_capsules)
    explained = model.explain(torch.cat([batch.inputs, batch.targets["second_view"]]))
    assert_close(losses["poses"], -explained.pose_log_likelihood.mean())
    assert_close(losses["views"], contrastive_loss(explained.objects.presence))
    total = losses["poses"] + 10 * losses["dynamic"] + 5 * losses["views"]
    assert_close(losses["loss"], total)
    assert "second_view" not in batch_of(task.eval(), image_set(), torch.arange(4)).targets


def test_clusters_are_those_of_the_directions_that_views_compare():
    task = create_task(SCAE(1, 20, **MODEL, weights={"views": 1.0}), TrainConfig()).train()
    logits = torch.tensor([[1.0, -1, 0, 0], [1, -1, 0, 0], [0, 0, 1, -1], [0, 0, 1, -1]])
    certainty = torch.tensor([[0.1], [5], [0.1], [5]])
    presence = (certainty * logits).sigmoid()
    assert_close(logit_directions(presence), F.normalize(logits, dim=1))
    outputs = {
        "pixels": torch.zeros(4),
        "poses": torch.zeros(4),
        "presence": presence,
        "explained_share": presence,
        "labels": torch.tensor([0, 0, 1, 1]),
    }
    metrics = task.compute_metrics(outputs)
    assert (metrics["accuracy_presence"], metrics["accuracy_posterior"]) == (1, 0.75)
    task.model.forward = lambda pictures: presence
    answers = task.eval().predict(torch.zeros(4, 1, 20, 20))
    assert column(answers, "class") == [0, 0, 1, 1]


def test_entropy_is_that_of_shares_and_has_a_gradient_at_zero():
    shares = torch.tensor(
        [[1.0, 0, 0, 0], [1, 1, 0, 0], [2, 2, 2, 2], [0, 0, 0, 0]], requires_grad=True
    )
    entropies = entropy(shares)
    assert_close(
        entropies, torch.tensor([0.0, math.log(2), math.log(4), 0.0]), atol=1e-6, rtol=1e-6
    )
    entropies.sum().backward()
    assert shares.grad.isfinite().all()


def test_noise_is_drawn_for_training_alone():
    task = task_of()
    images = image_set()
    batch = batch_of(task.train(), images, torch.arange(4), seeded())
    shapes = {"parts": (4, 3), "objects": (4, 4), "votes": (4, 4, 3)}
    for name, shape in shapes.items():
        noise = batch.targets[f"noise.{name}"]
        assert noise.shape == shape
        assert noise.abs().max() <= 2
    repeated = batch_of(task, images, torch.arange(4), seeded())
    assert torch.equal(batch.targets["noise.votes"], repeated.targets["noise.votes"])
    assert [*batch_of(task.eval(), images, torch.arange(4)).targets] == ["label"]


def test_labels_have_no_part_in_a_step():
    task = task_of().train()
    images = image_set()
    swapped = Dataset(images.images, {"label": 1 - images.labels}, images.classes, images.name)
    batch = batch_of(task, images, torch.arange(6), seeded())
    swapped_batch = batch_of(task, swapped, torch.arange(6), seeded())
    assert_equal(task.training_step(batch, 0.0), task.training_step(swapped_batch, 0.0))
    assert (task.name, task.score, task.labeled) == ("unsupervised", "log_likelihood", False)


def test_of_more_clusters_than_classes_one_has_no_name():
    clusters = torch.tensor([0, 0, 0, 1, 1, 1, 2, 2])
    two_classes = torch.tensor([1, 1, 1, 1, 1, 0, 0, 0])
    assert match_clusters(clusters, two_classes, 3).tolist() == [1, -1, 0]


def test_kmeans_finds_clusters_that_are_far_apart():
    centers = torch.tensor([[0.0, 0], [10, 0], [0, 10], [10, 10]])
    points = centers.repeat_interleave(25, dim=0) + 0.3 * torch.randn(100, 2, generator=seeded())
    clusters = kmeans(points, 4, generator=seeded())
    means = points.view(4, 25, 2).mean(dim=1)
    assert_close(clusters[nearest(means, clusters)], means)
    assert torch.equal(clusters, kmeans(points, 4, generator=seeded()))
    fewer_points_than_clusters = points[:2]
    assert kmeans(fewer_points_than_clusters, 4, generator=seeded()).isfinite().all()
    assert kmeans(torch.ones(5, 2), 3, generator=seeded()).eq(1).all()
    with pytest.raises(ArgumentError, match="clusters: expected at least 1, got 0"):
        kmeans(points, 0, generator=seeded())


def test_the_linear_accuracy_is_that_of_a_linear_classifier():
    points = torch.randn(400, 3, generator=seeded())
    labels = (points @ torch.tensor([1.0, -2, 0.5]) > 0.3).long()
    assert linear_accuracy(points, labels) > 0.97
    assert linear_accuracy(torch.zeros(400, 3), labels) == pytest.approx(0.5, abs=0.1)
    assert math.isnan(linear_accuracy(points[:1], labels[:1]))


def test_figures_name_clusters_in_training_alone():
    task = task_of()
    presence = torch.eye(4)[torch.tensor([0, 0, 1, 1, 0, 1, 0, 1])]
    outputs = {
        "pixels": torch.full((8,), 3.0),
        "poses": torch.full((8,), 2.0),
        "presence": presence,
        "explained_share": presence,
        "labels": torch.tensor([1, 1, 0, 0, 1, 0, 1, 0]),
    }
    metrics = task.train().compute_metrics(outputs)
    for name in ("accuracy_presence", "accuracy_posterior", "linear_presence"):
        assert metrics[name] == 1, name
    assert (metrics["loss"], metrics["log_likelihood"]) == (5, -5)
    swapped = outputs | {"labels": 1 - outputs["labels"]}
    # An evaluation does not change the names of clusters.
    assert task.eval().compute_metrics(swapped)["accuracy_presence"] == 0
    assert task.train().compute_metrics(swapped)["accuracy_presence"] == 1


def test_a_stopped_run_ends_in_the_same_bytes_figures_and_plots(settings, tmp_path):
    options = {**MODEL, "weights": {"views": 9.0}}
    run = assert_resumes(TrainConfig.of(**settings | {"model_options": options}), tmp_path, step=8)
    names = {"train_pixels", "train_views", "val_accuracy_presence", "val_linear_posterior"}
    assert names <= run.rows[-1].keys()
    figures = evaluate(run, output=run.path).to_dict()
    assert figures == json.loads((run.path / "evaluation.json").read_text())
    plots = os.listdir(run.path / "plots")
    assert {"templates.png", "parts.png", "objects.png"} <= set(plots)
    assert evaluate(run, output=run.path).to_dict() == figures
    model = tc.load(run.path)
    task = create_task(model, TrainConfig())
    [answer] = task.predict(image_set(1).images.expand(1, 1, 20, 20).new_zeros(1, 1, 20, 22))
    assert 0 <= answer["cluster"] < 2
    assert len(answer["objects"]) == 4
    assert answer["objects"][0]["presence"] >= answer["objects"][1]["presence"]


def test_the_recipe_shows_figures_that_the_evaluation_has():
    recipe = load_recipe("scae-mnist")
    task = task_of()
    outcomes = eval_outputs(task, image_set())
    names = {*task.compute_metrics(outcomes), "num_samples"}
    assert set(recipe.figures) <= names
    for budget in recipe.budgets:
        for row in recipe.rows_of(budget):
            assert row.published.keys() <= names
