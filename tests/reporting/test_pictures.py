from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from torchcaps import viz
from torchcaps.errors import DataError, RunError
from torchcaps.reporting import api as pictures, perturb_run, reconstruct_run


@pytest.fixture
def photos(tmp_path):
    """Own pictures of another size, two of them with the same name."""
    folder = tmp_path / "photos"
    random = np.random.default_rng(7)
    for name in ("a/x.png", "b/x.png", "b/y.png"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        pixels = random.integers(0, 256, (40, 30, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / name)
    return folder


@pytest.fixture
def drawing_calls(monkeypatch):
    """Arguments of the drawing functions, which draw nothing here."""
    calls = []
    figure = viz.canvas.new_figure(1, 1)
    for name in ("reconstructions", "perturbations"):
        monkeypatch.setattr(viz, name, lambda *args, **named: calls.append((args, named)) or figure)
    return calls


def paths_in(folder, *names):
    return list(map(folder.joinpath, names))


def test_the_same_seed_chooses_the_same_images_of_each_class(run, drawing_calls):
    for seed in (0, 0, 1):
        reconstruct_run(run, per_class=2, seed=seed)
    [((images, *_), _), ((repeated, *_), _), ((images_of_seed_1, *_), _)] = drawing_calls
    assert len(images) == 6
    assert torch.equal(images, repeated)
    assert not torch.equal(images, images_of_seed_1)


def test_a_limit_of_pairs_takes_images_of_all_classes(run, drawing_calls, monkeypatch):
    monkeypatch.setattr(pictures, "MAX_PAIRS", 4)
    reconstruct_run(run, per_class=2)
    [((_, _, labels), _)] = drawing_calls
    assert labels.tolist() == [0, 1, 1, 2]


def test_own_images_have_no_wrong_answers(run, photos, drawing_calls):
    reconstruct_run(run, [photos])
    [((images, rebuilt, labels), named)] = drawing_calls
    assert images.shape == rebuilt.shape == (3, 1, 18, 20)
    assert torch.equal(labels, named["predictions"])


def test_a_model_file_draws_own_images_into_its_folder(run, photos):
    path = reconstruct_run(run / "model.safetensors", [photos])
    assert path == run / "plots" / "reconstructions.png"


def test_a_grid_for_each_class_named_after_it(run, drawing_calls):
    paths = perturb_run(run, span=0.5, steps=3)
    assert paths == paths_in(run / "plots", "perturb_0.png", "perturb_1.png", "perturb_2.png")
    for index, ((grid, offsets), named) in enumerate(drawing_calls):
        assert grid.shape == (16, 3, 1, 18, 20)
        assert offsets.tolist() == [-0.5, 0.0, 0.5]
        assert f"'{index}'" in named["title"]


def test_a_grid_for_each_own_image_even_of_the_same_name(run, photos, drawing_calls, tmp_path):
    folder = tmp_path / "grids"
    paths = perturb_run(run, [photos], output=folder)
    assert paths == paths_in(folder, "perturb_x.png", "perturb_x-2.png", "perturb_y.png")
    assert sorted(paths) == sorted(folder.iterdir())


@pytest.mark.parametrize("draw", [reconstruct_run, perturb_run])
def test_a_model_without_decoder_is_refused_in_one_sentence(blind, draw):
    with pytest.raises(RunError, match="blind: this model has no decoder"):
        draw(blind)
    assert not (blind / "plots").exists()


@pytest.mark.parametrize("draw", [reconstruct_run, perturb_run])
def test_absent_and_damaged_images_are_named(run, draw, tmp_path):
    (tmp_path / "bad.png").write_bytes(b"no picture")
    for path in (tmp_path / "bad.png", tmp_path / "absent.png"):
        with pytest.raises(DataError, match=path.name):
            draw(run, [path])
    assert not (run / "plots").exists()


@pytest.mark.parametrize(
    ("named", "complaint"), [({"steps": 1}, "steps"), ({"span": -1.0}, "span")]
)
def test_a_grid_out_of_range_is_refused(run, named, complaint):
    with pytest.raises(ValueError, match=f"{complaint}: expected at least"):
        perturb_run(run, **named)
