"""The network of plain torch computes what the library's does; intervals of ratios."""

import pytest
import torch
from benchmarks.peers import EinsumCapsNet, ratio_interval
from torch.testing import assert_close

from benchmarks import peers
from torchcaps import create_model
from torchcaps.data import Batch
from torchcaps.nn import CapsuleLinear
from torchcaps.tasks import create_task
from torchcaps.testing import seeded
from torchcaps.training import TrainConfig


def test_the_peer_has_the_loss_and_the_gradients_of_the_library():
    model = create_model("capsnet", generator=seeded(0))
    peer = EinsumCapsNet()
    layer = next(module for module in model.modules() if isinstance(module, CapsuleLinear))
    peer.weight.data = layer.weight.data.clone()
    convolutions = [m for m in model.modules() if isinstance(m, torch.nn.Conv2d)]
    linears = [m for m in model.modules() if isinstance(m, torch.nn.Linear)]
    pairs = zip(
        [*convolutions, *linears],
        [peer.stem, peer.primary, *peer.decoder[::2]],
        strict=True,
    )
    for source, target in pairs:
        target.load_state_dict(source.state_dict())
    images = torch.rand(3, 1, 28, 28, generator=seeded(1))
    labels = torch.tensor([3, 0, 9])

    loss = peer(images, labels)
    task = create_task(model, TrainConfig())
    expected = task.training_step(Batch(images, {"label": labels}, labels), 0.0)["loss"]
    assert_close(loss, expected, rtol=1e-5, atol=1e-6)
    loss.backward()
    expected.backward()
    assert_close(peer.weight.grad, layer.weight.grad, rtol=1e-3, atol=1e-7)


def test_the_interval_of_equal_and_of_scattered_ratios():
    assert ratio_interval([2.0] * 30) == pytest.approx((2.0, 2.0, 2.0))
    middle, low, high = ratio_interval([1.0, 2.0, 3.0, 4.0, 5.0])
    assert middle == 3
    assert low < 3 < high


def test_the_command_measures_both(tmp_path):
    file = tmp_path / "peers.json"
    flags = f"--batch 2 --ways eager --precision fp32 --repeats 2 --output {file}"
    assert peers.main(flags.split()) == 0
    assert "library" in file.read_text()
