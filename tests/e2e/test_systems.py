"""Every system through the ordinary commands: train, stop and resume, evaluate, predict, report, perturb, explore."""

from __future__ import annotations

import json

import pytest
from PIL import Image

import torchcaps as tc
from properties.variants import SMALLER
from torchcaps.cli.main import main
from torchcaps.data import load_dataset
from torchcaps.explorer import open_session
from torchcaps.training import Interrupted, TrainConfig, train
from training.makers import contents

pytestmark = pytest.mark.slow
# Others have data and pictures of their own: see tests/tasks.
PIXELS = ("segcaps", "unet")
SYSTEMS = [
    name for name in tc.list_models() if tc.models.model_passport(name).num_classes and not name.startswith(PIXELS)
]


@pytest.mark.parametrize("name", SYSTEMS)
def test_every_command_takes_it(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    size = {"img_size": (36, 36)} if name.endswith(("smallnorb", "multimnist", "2019")) else {}
    config = TrainConfig.of(
        model=name, model_options=SMALLER.get(name, {}), data="digits", per_class=5, holdout=0.2, epochs=2,
        batch_size=8, device="cpu", precision="fp32", **size,
    )  # fmt: skip
    train(config, "whole")
    steps = iter([False] * 6 + [True] * 100)
    with pytest.raises(Interrupted):
        train(config, "stopped", should_stop=lambda: next(steps))
    train(config, "stopped", resume=True)
    assert contents(tmp_path / "whole") == contents(tmp_path / "stopped")

    image = load_dataset("digits", "test").images[0, 0]
    Image.fromarray(image.numpy()).save("one.png")
    assert main(["evaluate", "whole", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["num_samples"] == 1000
    assert main(["predict", "whole", "one.png", "--json"]) == 0
    assert main(["report", "whole", "--output", "report.html"]) == 0
    spec = tc.load("whole").spec
    status = [main([verb, "whole"]) for verb in ("perturb", "reconstruct")]
    assert status == ([0, 0] if spec.decoder else [1, 1])
    session = open_session("whole")
    picture, _ = session.example(0)
    look = session.look(picture)
    assert len(look.activation) == 10
    assert (look.pose is not None) == spec.pose
    if session.steps:
        session.routing(picture, 0)
    if session.routes:
        session.look(picture, routing="uniform")
