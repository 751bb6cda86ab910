"""What the processes of one run exchange.

This file is started once for each of them, as torchrun does, and writes how its checks went.
"""

import copy
import json
import os
import subprocess
import sys
import traceback
import warnings
from datetime import timedelta
from pathlib import Path

import pytest
import torch
from torch import distributed as dist, nn

from torchcaps import distributed
from torchcaps.data import Dataset
from torchcaps.distributed import (
    Ranks,
    current,
    data_parallel,
    exclude_padding_rows,
    hard_exit,
    init,
    lost_rank_errors,
    sync_batch_norms,
)
from torchcaps.errors import TrainingError
from torchcaps.nn.vb import VBRouting
from torchcaps.settings import TrainConfig
from torchcaps.tasks import create_task
from torchcaps.tasks.unsupervised import TEMPERATURE, contrastive_loss, logit_directions
from torchcaps.testing import seeded
from torchcaps.training.update import Updater
from torchcaps.types import LayerSizes

WORLDS = [2, pytest.param(3, marks=pytest.mark.slow)]
CHECKS = [
    "rows",
    "exchange",
    "first",
    "norm",
    "norm_of_no_rows",
    "norm_of_rows_that_do_not_count",
    "norm_of_one_value",
    "norm_that_knows_one_value",
    "norm_in_bf16",
    "copy",
    "gradient",
    "accumulation",
    "agreement",
]
NORMS = [
    (nn.BatchNorm1d(3), (3,)),
    (nn.BatchNorm1d(3), (3, 5)),
    (nn.BatchNorm2d(3), (3, 4, 2)),
    (nn.BatchNorm2d(3, affine=False, eps=0.1), (3, 2, 2)),
    (nn.BatchNorm1d(3, momentum=None), (3,)),
    (nn.BatchNorm1d(3, track_running_stats=False), (3,)),
]


def close(actual, expected, tolerance=1e-9):
    torch.testing.assert_close(
        actual,
        expected,
        rtol=tolerance,
        atol=tolerance,
    )


def check_rows(ranks):
    assert current() == ranks and ranks.is_main == (ranks.rank == 0)
    for count in (0, 1, 2, 5, 7):
        share = torch.arange(count)[ranks.shard(count)]
        assert torch.equal(share, torch.arange(count).tensor_split(ranks.world_size)[ranks.rank])
        assert torch.equal(ranks.cat(share), torch.arange(count))


def check_exchange(ranks):
    everyone = range(ranks.world_size)
    values = torch.tensor([1.0, ranks.rank], dtype=torch.float64)
    assert ranks.sum(values).tolist() == [ranks.world_size, sum(everyone)]
    assert values.tolist() == [1, ranks.rank]
    assert ranks.gather({"rank": ranks.rank}) == [{"rank": n} for n in everyone]
    assert ranks.broadcast([ranks.rank, "zero"]) == [0, "zero"]
    uneven = torch.full((2 * ranks.rank, 3), ranks.rank, dtype=torch.uint8)  # rank 0 has none
    assert ranks.cat(uneven)[:, 0].tolist() == [n for n in everyone for _ in range(2 * n)]
    assert ranks.cat(torch.ones(1, requires_grad=True)[:0] > 0).shape == (0,)


def check_first(ranks):
    assert sum(ranks.gather(ranks.claim_report())) == 1
    assert not ranks.claim_report()


def trained(layer, images, weights, rows):
    """Output, gradient of the images and gradients of the weights, of a sum over these rows."""
    images = images.clone().requires_grad_()
    layer.zero_grad()
    out = layer(images[rows])
    (out.sin() * weights[rows]).sum().backward()
    return out.detach(), images.grad, [p.grad for p in layer.parameters()]


def compare_norm(ranks, layer, shape, count):
    torch.manual_seed(count)
    images, weights = 3 + 5 * torch.randn(2, count, *shape, dtype=torch.float64)
    layer = copy.deepcopy(layer).double()
    for parameter in layer.parameters():
        nn.init.normal_(parameter)
    synced = sync_batch_norms(copy.deepcopy(layer), ranks)
    for _ in range(2):  # the second time the running statistics are not those of the start
        out, to_images, to_weights = trained(layer, images, weights, slice(None))
        shard_out, shard_to_images, shard_to_weights = trained(
            synced, images, weights, ranks.shard(count)
        )
        close(ranks.cat(shard_out), out)
        close(ranks.sum(shard_to_images), to_images)
        for gradient, expected_gradient in zip(shard_to_weights, to_weights, strict=True):
            close(ranks.sum(gradient), expected_gradient)
    assert synced.state_dict().keys() == layer.state_dict().keys()
    close(dict(synced.state_dict()), dict(layer.state_dict()))
    synced.load_state_dict(layer.state_dict())
    assert torch.equal(synced.eval()(images), layer.eval()(images))


def check_norm(ranks):
    for layer, shape in NORMS:
        compare_norm(ranks, layer, shape, count=7)


def check_norm_of_no_rows(ranks):
    compare_norm(ranks, *NORMS[2], count=1)


def check_norm_of_rows_that_do_not_count(ranks):
    images, layer = torch.randn(2, 3, dtype=torch.float64), nn.BatchNorm1d(3).double()
    synced, shares = (
        sync_batch_norms(copy.deepcopy(layer), ranks),
        [slice(0, 2), *[slice(0, 1)] * (ranks.world_size - 1)],
    )
    images = ranks.broadcast(images)
    with exclude_padding_rows(2 if ranks.is_main else 0):
        out = synced(images[shares[ranks.rank]])
    close(out, layer(images)[shares[ranks.rank]])
    close(dict(synced.state_dict()), dict(layer.state_dict()))


def check_norm_of_one_value(ranks):
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        sync_batch_norms(nn.BatchNorm1d(3), ranks)(torch.zeros(1, 3)[ranks.shard(1)])
    with pytest.raises(ValueError, match="expected 4D input"):
        sync_batch_norms(nn.BatchNorm2d(3), ranks)(torch.zeros(5, 3))


def check_norm_that_knows_one_value(ranks):
    """By the rows of all processes, not by those of one."""
    layer = VBRouting(batch_norm=True)
    layer.build_parameters(LayerSizes(2, 4, 3, 4))
    for count in (ranks.world_size, ranks.world_size + 1, 1):
        compare_norm(ranks, layer.norms[1], (3,), count)


def check_norm_in_bf16(ranks):
    torch.manual_seed(0)
    images = (torch.randn(64, 3) + 30).bfloat16()
    layer = nn.BatchNorm1d(3)
    synced = sync_batch_norms(copy.deepcopy(layer), ranks)
    with torch.autocast("cpu", torch.bfloat16):
        out, expected = synced(images[ranks.shard(64)]), layer(images)
    assert out.dtype == expected.dtype == torch.bfloat16
    close(ranks.cat(out), expected, 0.01)
    close(dict(synced.state_dict()), dict(layer.state_dict()), 1e-5)


def check_copy(ranks):
    layer = sync_batch_norms(nn.Sequential(nn.BatchNorm1d(3)), ranks)
    copied = copy.deepcopy(layer)
    copied(torch.randn(4, 3))
    assert layer[0].num_batches_tracked == 0 and copied[0].num_batches_tracked == 1
    assert layer[0].running_mean.eq(0).all() and not copied[0].running_mean.eq(0).any()


class Task(nn.Module):
    """Has a part that no pass uses, and a batch norm."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(4, 8),
            nn.BatchNorm1d(8),
            nn.Tanh(),
            nn.Linear(8, 3),
        )
        self.unused = nn.Linear(2, 2)

    def forward(self, images, labels):
        return {"loss": nn.functional.cross_entropy(self.layers(images), labels)}


def check_gradient(ranks):
    torch.manual_seed(0)
    images, labels = torch.randn(7, 4, dtype=torch.float64), torch.arange(7) % 3
    torch.manual_seed(0)
    single = Task().double()
    torch.manual_seed(ranks.rank)  # all start from the weights of rank 0
    shared = sync_batch_norms(Task().double(), ranks)
    wrapper = data_parallel(shared)
    rows = ranks.shard(7)
    for _ in range(3):
        single.zero_grad()
        single(images, labels)["loss"].backward()
        wrapper.zero_grad()
        share = ranks.world_size * (rows.stop - rows.start) / 7
        (share * wrapper(images[rows], labels[rows])["loss"]).backward()
        for (name, parameter), expected in zip(
            shared.named_parameters(), single.parameters(), strict=True
        ):
            assert (parameter.grad is None) == (expected.grad is None) == name.startswith("unused")
            if expected.grad is not None:
                close(parameter.grad, expected.grad)
    close(dict(shared.state_dict()), dict(single.state_dict()))


class Doubled(nn.Module):
    """Logits in float64, with a part that no pass uses."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(16, 5), nn.Tanh(), nn.Linear(5, 3))
        self.unused = nn.Linear(2, 2)
        self.double()

    def forward(self, images):
        return self.layers(images.double())


def check_accumulation(ranks):
    """The gradient of parts on several ranks is that of one batch, averaged once."""
    for count in (23, 1):  # of one image the others have none
        compare_accumulation(ranks, count)


def compare_accumulation(ranks, count):
    pixels = torch.rand(count, 1, 4, 4, generator=seeded())
    images = Dataset(pixels, {"label": torch.arange(count) % 3}, ("a", "b", "c"), "some")
    gradients = []
    mean_losses = []
    for world, batch_size, accumulate in ((Ranks(), 23, 1), (ranks, 8, 3)):
        torch.manual_seed(0)
        config = TrainConfig.of(batch_size=batch_size, accumulate=accumulate, precision="fp32")
        task = create_task(Doubled(), config, images)
        updater = Updater(task, task.config, world)
        [batch] = images.batches([torch.arange(count)], images.targets)
        losses = updater.compute_gradients(batch, 0.0)
        gradients.append([p.grad for p in task.model.layers.parameters()])
        mean_losses.append(world.sum(losses["loss"].detach() * world.shard_size(count) / count))
    close(mean_losses[1], mean_losses[0])
    for gradient, expected in zip(gradients[1], gradients[0], strict=True):
        close(gradient, expected)


def check_agreement(ranks):
    """Views are told from those of all processes; some process may have none that counts."""
    for count in (5, 1):
        presence = torch.rand(2, count, 4, dtype=torch.float64, generator=seeded(count))
        views, shard = (presence.clone().requires_grad_() for _ in range(2))
        likeness = logit_directions(views[0]) @ logit_directions(views[1]).mT / TEMPERATURE
        targets = torch.arange(count)
        expected = (
            sum(
                nn.functional.cross_entropy(likenesses, targets)
                for likenesses in (likeness, likeness.mT)
            )
            / 2
        )
        expected.backward()
        rows = ranks.shard(count)
        num_rows = rows.stop - rows.start
        with exclude_padding_rows(num_rows):
            loss = contrastive_loss(shard[:, rows if num_rows else slice(0, 1)].flatten(0, 1)) * (
                num_rows / count
            )
        loss.backward()
        close(ranks.sum(loss.detach()), expected.detach())
        close(ranks.sum(shard.grad), views.grad)


def attempt(check, ranks):
    try:
        check(ranks)
    except Exception:
        return traceback.format_exc()
    return "passed"


def run_checks(folder):
    with init(os.environ, "cpu") as ranks:
        results = {name: attempt(globals()[f"check_{name}"], ranks) for name in CHECKS}
    results["afterwards"] = "passed" if current() == Ranks() else "still joined"
    (folder / f"{ranks.rank}.json").write_text(json.dumps(results))


def launch(folder, world):
    """Results by rank, and what was printed."""
    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    environ = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(Path(distributed.__file__).parents[1]),
        "WORLD_SIZE": str(world),
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }
    processes = [
        subprocess.Popen(
            [sys.executable, __file__, str(folder)],
            env=environ | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(world)
    ]
    try:
        printed = "".join(process.communicate(timeout=120)[0] for process in processes)
    finally:
        for process in processes:
            process.kill()
    results = {int(file.stem): json.loads(file.read_text()) for file in folder.glob("*.json")}
    return results, printed


@pytest.fixture(scope="module", params=WORLDS)
def checked(request, tmp_path_factory):
    return request.param, *launch(tmp_path_factory.mktemp("ranks"), request.param)


@pytest.mark.parametrize("name", [*CHECKS, "afterwards"])
def test_processes_together(checked, name):
    world, results, printed = checked
    assert sorted(results) == list(range(world)), printed
    for result in results.values():
        assert result[name] == "passed", result[name]


def test_leaving_prints_what_was_written(checked):
    assert checked[2].count("leaving") == checked[0]


def test_a_process_alone_calls_nothing():
    with init({}) as ranks:
        assert ranks == current() == Ranks(0, 1)
    with init({"WORLD_SIZE": "1", "RANK": "0"}, "cuda:1") as ranks:
        assert ranks.is_main and ranks.claim_report() and ranks.claim_report()
    values = torch.ones(2)
    assert ranks.sum(values) is ranks.cat(values) is ranks.broadcast(values) is values
    assert ranks.gather("it") == ["it"]
    assert ranks.shard(5) == slice(0, 5)
    module = nn.Sequential(nn.BatchNorm1d(2))
    assert sync_batch_norms(module, ranks) is module
    assert "forward" not in vars(module[0])


TORCHRUN = {"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": "0"}


@pytest.mark.parametrize("missing", ["RANK", "MASTER_ADDR", "MASTER_PORT"])
def test_an_environment_that_is_not_torchruns(missing):
    environ = dict(TORCHRUN)
    del environ[missing]
    with (
        pytest.raises(TrainingError, match=f"{missing}: expected in the environment"),
        init(environ),
    ):
        pass


def test_a_device_that_processes_cannot_share(monkeypatch):
    monkeypatch.setattr(distributed, "_store", None)
    environ = TORCHRUN | {"LOCAL_RANK": "1"}
    with (
        pytest.raises(ValueError, match="device: expected auto, cpu or cuda .* got cuda:1"),
        init(environ, "cuda:1"),
    ):
        pass
    assert (
        Ranks().claim_report() and not Ranks().claim_report()
    )  # they have met, though they are no group
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with (
        pytest.raises(TrainingError, match="a GPU for each process of this machine, found 1"),
        init(environ, "cuda"),
    ):
        pass


def test_a_process_that_does_not_come(monkeypatch):
    monkeypatch.setattr(distributed, "_store", None)
    monkeypatch.setattr(distributed, "PATIENCE", timedelta(seconds=1))
    with (
        pytest.raises(TrainingError, match="a process of this run was lost"),
        init(TORCHRUN, "cpu"),
    ):
        pass


def test_other_errors_stay_what_they_are():
    with pytest.raises(RuntimeError, match="out of memory"), lost_rank_errors():
        raise RuntimeError("out of memory")


if __name__ == "__main__":
    warnings.simplefilter("error")
    distributed.PATIENCE = timedelta(seconds=30)
    run_checks(Path(sys.argv[1]))
    sys.stdout.write("leaving\n")
    hard_exit(0)
