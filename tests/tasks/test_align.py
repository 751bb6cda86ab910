"""The task of canonical poses: its losses by loops, its motions, its figures, its runs."""

import json
import math

import numpy as np
import pytest
import torch
from torch.testing import assert_close
from torch.utils._pytree import tree_map

import torchcaps as tc
from tasks.makers import SHORT_RUN, batch_of
from torchcaps.cli.main import main
from torchcaps.data import make_planes
from torchcaps.data.points import point_set, standardized_points
from torchcaps.errors import ArgumentError
from torchcaps.explorer.page import describe_run
from torchcaps.tasks import create_task, eval_outputs
from torchcaps.tasks.align import (
    WEIGHTS,
    capsule_losses,
    principal_axes,
    random_motions,
    resultant_lengths,
    view,
)
from torchcaps.testing import seeded
from torchcaps.training import TrainConfig, train
from training.makers import assert_resumes

MODEL = {"capsules": 3, "channels": 4, "grid": 2, "decoder": [6]}
SETS = np.random.RandomState(0).normal(size=(40, 8, 2))


def points_of(dim=2, count=10, points=8):
    sets = np.random.RandomState(1).normal(size=(count, points, dim))
    return point_set(standardized_points("some", sets), "some")


def task(dim=2, **settings):
    images = points_of(dim)
    with tc.nn.use_generator(seeded(0)):
        model = tc.create_model("canonical_capsules_small", in_chans=dim, img_size=(8, 1), **MODEL)
    return create_task(model, TrainConfig.of(**settings), images), images


def circle(angles):
    return torch.stack([angles.cos(), -angles.sin(), angles.sin(), angles.cos()], dim=-1).unflatten(
        -1, (2, 2)
    )


@pytest.mark.parametrize("dim", [2, 3])
def test_motions_are_rigid_uniform_and_from_the_generator(dim):
    rotation, shift = random_motions(2000, 2, dim, seeded(1)).values()
    repeated_rotation = random_motions(2000, 2, dim, seeded(1))["rotation"]
    different_rotation = random_motions(2000, 2, dim, seeded(2))["rotation"]
    assert torch.equal(rotation, repeated_rotation)
    assert not torch.equal(rotation, different_rotation)
    identity = torch.eye(dim).expand_as(rotation)
    assert_close(rotation @ rotation.mT, identity, atol=1e-5, rtol=0)
    assert_close(torch.linalg.det(rotation), torch.ones(2000, 2))
    assert rotation.mean(dim=(0, 1)).abs().max() < 0.05
    assert shift.abs().max() <= 0.2
    assert shift.std() == pytest.approx(0.2 / math.sqrt(3), rel=0.05)


@pytest.mark.parametrize("dim", [2, 3])
def test_the_losses_by_loops_over_sets_capsules_and_points(dim):
    align, images = task(dim)
    align.train()
    batch = batch_of(align, images, torch.arange(5), seeded(3))
    align.eval()
    with torch.no_grad():
        aligned = align.model.align(torch.cat([view(batch, 0), view(batch, 1)]))
    aligned = tree_map(torch.Tensor.double, aligned)
    batch = tree_map(torch.Tensor.double, batch)
    points = torch.cat([view(batch, 0), view(batch, 1)])
    losses = tree_map(torch.Tensor.numpy, capsule_losses(aligned, batch, points))
    points, turns, shifts = (tensor.numpy() for tensor in (batch.inputs, *batch.targets.values()))
    attention, theta, beta, canonical, rotation, translation, _ = tree_map(
        torch.Tensor.numpy, aligned
    )
    for b in range(5):
        expected = dict.fromkeys(losses, 0.0)
        for k in range(3):
            home = turns[b, 0].T @ (theta[b, k] - shifts[b, 0])
            target = turns[b, 1] @ home + shifts[b, 1]
            expected["equivariance"] += ((target - theta[5 + b, k]) ** 2).sum() / 3
            expected["invariance"] += ((beta[b, k] - beta[5 + b, k]) ** 2).mean() / 3
        for number, s in enumerate((b, 5 + b)):
            mass = attention[s].sum(axis=0)
            expected["equilibrium"] += ((mass - mass.mean()) ** 2).sum() / 2 / 2
            for k in range(3):
                for n in range(8):
                    x = turns[b, number] @ points[b, :, n, 0] + shifts[b, number]
                    expected["localization"] += (
                        attention[s, n, k] * ((x - theta[s, k]) ** 2).sum() / mass[k] / 2
                    )
                fitted = rotation[s] @ theta[s, k] + translation[s]
                expected["canonical"] += ((fitted - canonical[s, k]) ** 2).sum() / 3 / 2
        for name, loss in expected.items():
            assert losses[name][b] == pytest.approx(loss, rel=1e-4, abs=1e-7), name


def test_the_weights_are_those_of_the_authors_code():
    align, images = task()
    batch = batch_of(align.eval(), images, torch.arange(4), seeded())
    losses = align.training_step(batch, 0.0)
    assert losses.keys() == {"loss", *WEIGHTS}
    expected = (
        5 * losses["equivariance"]
        + losses["localization"]
        + 1e-3 * losses["equilibrium"]
        + losses["invariance"]
        + losses["canonical"]
        + losses["chamfer"]
    )
    assert_close(losses["loss"], expected)
    unweighted, _ = task(loss="without_equivariance")
    unweighted_losses = unweighted.eval().training_step(batch, 0.0)
    assert_close(unweighted_losses["loss"], expected - 5 * losses["equivariance"])


def test_outputs_of_an_evaluation_do_not_depend_on_the_batch():
    align, images = task()
    outputs = eval_outputs(align, images)
    repeated = eval_outputs(align, images)  # the motions are fixed
    for name, values in outputs.items():
        assert_close(repeated[name], values, rtol=0, atol=0)
    batch = batch_of(align.eval(), images, torch.tensor([7]), seeded(9))
    assert_close(align.eval_step(batch)["chamfer"], outputs["chamfer"][7:8])


def test_steady_opposite_and_agreeing_rotations():
    angles = torch.tensor([0.3, 0.3, 0.3])
    lengths, agreement = resultant_lengths(circle(angles))
    assert_close(lengths, torch.ones(3, dtype=torch.float64))
    assert agreement == pytest.approx(1)
    lengths, agreement = resultant_lengths(circle(torch.tensor([0.0, math.pi / 2])))
    assert_close(lengths, torch.ones(2, dtype=torch.float64))
    assert agreement == pytest.approx(math.sqrt(0.5))
    opposite = circle(torch.tensor([[0.0, math.pi / 2], [0.0, math.pi / 2]])).mean(dim=1)
    lengths, agreement = resultant_lengths(opposite)
    assert_close(lengths, torch.full((2,), math.sqrt(0.5), dtype=torch.float64))
    assert agreement == pytest.approx(1)
    align, images = task()
    outputs = eval_outputs(align, images) | {"canonical_rotation": opposite}
    assert align.compute_metrics(outputs)["spread"] == pytest.approx(
        math.degrees(math.sqrt(math.log(2))), rel=1e-5
    )


@pytest.mark.parametrize("dim", [2, 3])
def test_principal_axes_follow_a_motion_up_to_half_turns(dim):
    points = points_of(dim).images.squeeze(3).mT.double()
    rotation = random_motions(10, 1, dim, seeded(4))["rotation"][:, 0].double()
    before = principal_axes(points)
    after = principal_axes(points @ rotation.mT + 0.1)
    assert_close(torch.linalg.det(after), torch.ones(10, dtype=torch.float64))
    assert_close((after @ rotation).abs(), before.abs(), atol=1e-5, rtol=0)


def test_axes_are_those_of_full_precision_under_autocast():
    points = torch.randn(3, 20, 2, generator=seeded()) * torch.tensor([3.0, 1.0])
    exact = principal_axes(points)
    align, images = task()
    batch = batch_of(align.eval(), images, torch.arange(3), seeded())
    axes_rotation = align.eval_step(batch)["axes_rotation"]
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(align.eval_step(batch)["axes_rotation"], axes_rotation)
        assert torch.equal(principal_axes(points), exact)
        assert principal_axes(points.bfloat16()).dtype == torch.float32


def test_images_settings_and_models_that_do_not_fit_are_refused():
    model = tc.create_model("canonical_capsules_small", img_size=(8, 1), **MODEL)
    digits = tc.data.load_dataset("digits", "test")
    with pytest.raises(ArgumentError, match="task: align takes sets of points, got Dataset"):
        create_task(model, TrainConfig(), digits)
    for name, setting in {
        "erase": 2,
        "degrees": 10.0,
        "shift": 3,
    }.items():
        with pytest.raises(ArgumentError, match=f"^{name}: "):
            create_task(model, TrainConfig.of(**{name: setting}), points_of())
    with pytest.raises(
        ArgumentError, match="task: align takes a model of sets of points, got CapsNet"
    ):
        create_task(tc.create_model("capsnet_small"), TrainConfig.of(task="align"))
    with pytest.raises(ArgumentError, match="unknown loss 'margin'"):
        create_task(model, TrainConfig.of(loss="margin"), points_of())


@pytest.fixture
def settings(tmp_path):
    data = tmp_path / "sets.npz"
    np.savez(data, points=SETS)
    model = {"model": "canonical_capsules_small", "model_options": MODEL}
    return SHORT_RUN | model | {"data": str(data)}


def test_a_stopped_run_ends_in_the_same_bytes(settings, tmp_path):
    assert_resumes(TrainConfig.of(**settings), tmp_path, step=5)


def test_a_run_goes_through_the_ordinary_commands(settings, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    train(TrainConfig.of(**settings | {"epochs": 1}), "run")
    assert main(["evaluate", "run", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert json.loads((tmp_path / "run" / "evaluation.json").read_text()) == figures
    assert figures["num_samples"] == 8
    assert (tmp_path / "run" / "plots" / "capsules.png").read_bytes().startswith(b"\x89PNG")
    np.savez("one.npz", points=SETS[0])
    assert main(["predict", "run", "one.npz", "--json"]) == 0
    [row] = json.loads(capsys.readouterr().out)
    assert row["path"] == "one.npz"
    turn = math.radians(row["angle"])
    assert row["rotation"][0] == pytest.approx([math.cos(turn), -math.sin(turn)], abs=1e-6)
    assert (np.shape(row["points"]), np.shape(row["keypoints"])) == ((8, 2), (3, 2))
    assert {*row["capsule"]} <= {0, 1, 2}
    assert main(["report", "run", "--output", "report.html"]) == 0
    page = (tmp_path / "report.html").read_text()
    assert "8 points in 2 dimensions each" in page
    assert main(["perturb", "run"]) == 1
    assert main(["evaluate", "run", "--data", "planes"]) == 1
    message = "expected 8 points in 2 dimensions, got 256 points in 2 dimensions each"
    assert message in capsys.readouterr().err
    with pytest.raises(
        ArgumentError, match="the explorer shows pictures, and this model takes points"
    ):
        describe_run("run", "run")


def test_planes_are_what_the_recipe_takes():
    recipe = tc.training.load_recipe("canonical-capsules")
    one = create_task(
        tc.create_model("canonical_capsules_small"),
        recipe.resolve(recipe.rows[0], "small"),
        make_planes(2),
    )
    assert {*recipe.figures} <= one.compute_metrics(eval_outputs(one, make_planes(2))).keys()
