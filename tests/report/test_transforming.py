"""Figures and plots of a run of a transforming auto-encoder."""

import json

import numpy as np
import pytest

from torchcaps.errors import RunError
from torchcaps.report import finish_transforming, write_report
from torchcaps.training import TransformingConfig, run_transforming

from .test_html import check


@pytest.mark.parametrize("pose", ["translation", "affine"])
def test_a_run_gets_its_figures_and_plots(tmp_path, pose):
    images = np.random.default_rng(0).integers(0, 256, (40, 8, 10), dtype=np.uint8)
    np.savez(tmp_path / "noise.npz", images=images, labels=np.arange(40) % 2)
    config = TransformingConfig(
        data=str(tmp_path / "noise.npz"), capsules=2, recognition=3, generation=3, epochs=1, pose=pose, device="cpu"
    )
    run = run_transforming(config, tmp_path / "run")
    found = finish_transforming(run)
    written = json.loads((run.path / "evaluation.json").read_text())
    assert written == json.loads(json.dumps(found.to_dict()))
    plots = {path.name: path.read_bytes() for path in (run.path / "plots").iterdir()}
    assert plots.keys() == {"scatter.png", "triplets.png", "generation.png"}
    assert all(content.startswith(b"\x89PNG") for content in plots.values())
    assert finish_transforming(run).to_dict() == found.to_dict()  # the same pairs again


@pytest.mark.parametrize("pose", ["translation", "affine"])
def test_a_run_gets_a_report(tmp_path, pose):
    images = np.random.default_rng(0).integers(0, 256, (40, 8, 10), dtype=np.uint8)
    np.savez(tmp_path / "noise.npz", images=images, labels=np.arange(40) % 2)
    config = TransformingConfig(
        data=str(tmp_path / "noise.npz"), capsules=2, recognition=3, generation=3, epochs=2, pose=pose, device="cpu"
    )
    run = run_transforming(config, tmp_path / "run")
    found = finish_transforming(run)
    page = check(write_report(run.path).read_text(encoding="utf-8"))
    assert [a["id"] for a in page.all("h2")] == ["summary", "poses", "drawings", "capsules", "configuration"]
    assert len(page.all("img")) == 3
    for words in (config.data, "2 capsules", "2 epochs", "10 × 8 pixels", f"{found.error:.5f}", "recognition",
                  f"{found.correlation[found.names[0]]:.3f}"):  # fmt: skip
        assert words in page.text, words
    rows = run.metrics.read_text().splitlines()
    run.metrics.write_text("\n".join(rows[:-1]) + "\n")
    with pytest.raises(RunError, match="not finished, it has done 1 of 2 epochs"):
        write_report(run.path)
