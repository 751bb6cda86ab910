"""What a training takes, and refusal of one that cannot fit."""

import re

import pytest
import torch

import torchcaps as tc
from torchcaps.data import ImageSet
from torchcaps.errors import ArgumentError
from torchcaps.nn import use_generator
from torchcaps.settings import TrainConfig
from torchcaps.training import cost
from torchcaps.training.available import available_memory
from torchcaps.training.cost import check_cost, check_named_set

CPU = torch.device("cpu")
TINY = {"channels": 8, "primary_types": 2}
LIMIT = 8_000_000_000


def bare(name, **options):
    with torch.device("meta"):
        return tc.create_model(name, **options)


def images_of(channels, side, count=8):
    pixels = torch.zeros(count, channels, side, side, dtype=torch.uint8)
    return ImageSet(pixels, torch.arange(count) % 10, tuple("0123456789"), "zeros")


def check(name, side, limit=LIMIT, batch_size=4, in_chans=3, **options):
    model = bare(name, in_chans=in_chans, img_size=side, **options)
    config = TrainConfig.of(model=name, batch_size=batch_size, precision="fp32")
    return check_cost(model, config, images_of(in_chans, side), CPU, limit=limit)


def in_bytes(sentence):
    """The first number of GiB or MiB in a sentence, in bytes."""
    number, unit = re.search(r"([\d.]+) (GiB|MiB)", sentence).groups()
    return float(number) * (1 << 30 if unit == "GiB" else 1 << 20)


def test_a_line_on_what_a_training_takes():
    line = check("capsnet", 28, in_chans=1)
    assert line.startswith("capsnet: 8,215,568 parameters, 17% of them in the decoder; about ")
    assert line.endswith(" of memory with checkpoints at 4 images a step")
    assert 200e6 < in_bytes(line) < 700e6


def test_a_network_that_cannot_fit_is_refused_with_a_size_that_does():
    with pytest.raises(
        ArgumentError, match=r"where 7.5 GiB are available; it fits with"
    ) as refusal:
        check("capsnet", 224)
    sentence = str(refusal.value)
    assert "582,039,040 parameters" in sentence
    assert "efficient_capsnet" in sentence
    side = int(re.search(r"img_size=(\d+)", sentence)[1])
    assert 100 < side < 224
    assert in_bytes(check("capsnet", side)) <= LIMIT


def test_a_batch_that_cannot_fit_is_refused_with_one_that_does():
    limit = 400 << 20
    with pytest.raises(
        ArgumentError, match=r"batch_size: .* it fits with batch_size=\d+"
    ) as refusal:
        check("capsnet", 48, limit, batch_size=4096, in_chans=1, **TINY, decoder=False)
    batch_size = int(re.search(r"batch_size=(\d+)", str(refusal.value))[1])
    assert 1 <= batch_size < 4096
    line = check("capsnet", 48, limit, batch_size=batch_size, in_chans=1, **TINY, decoder=False)
    assert in_bytes(line) <= limit


def test_leaving_out_the_decoder_is_advised_where_that_is_enough():
    whole = in_bytes(check("efficient_capsnet", 28, in_chans=1))
    with pytest.raises(ArgumentError, match="the option decoder=False"):
        check("efficient_capsnet", 28, int(whole) - (20 << 20), in_chans=1)
    with pytest.raises(ArgumentError) as refusal:
        check("efficient_capsnet", 28, 1 << 20, in_chans=1)
    assert "decoder=False" not in str(refusal.value)


def test_an_estimate_draws_no_random_numbers_and_allocates_nothing_large():
    state = torch.random.get_rng_state()
    generator = torch.Generator().manual_seed(1)
    with use_generator(generator):
        check("capsnet", 28, in_chans=1)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.equal(generator.get_state(), torch.Generator().manual_seed(1).get_state())


def test_a_named_set_is_not_read_where_weights_alone_do_not_fit(monkeypatch):
    config = TrainConfig.of(model="capsnet", data="digits", img_size=224)
    with pytest.raises(ArgumentError, match=r"img_size: capsnet: 500,391,168 parameters"):
        check_named_set(config, CPU, limit=LIMIT)
    check_named_set(config.updated(img_size=28), CPU, limit=LIMIT)
    check_named_set(config.updated(data="some/folder"), CPU, limit=1)
    monkeypatch.setattr(cost, "available_memory", lambda device: LIMIT)
    with pytest.raises(ArgumentError, match="where 7.2 GiB are available"):
        tc.train(config, "runs/none")


def test_the_images_of_a_named_set_take_memory_too(monkeypatch):
    limits = []
    monkeypatch.setattr(cost, "check_cost", lambda *_, limit: limits.append(limit))
    config = TrainConfig.of(model="capsnet", data="digits", img_size=224)
    check_named_set(config, CPU, limit=LIMIT)
    assert limits == [LIMIT - 6000 * 224 * 224]


def test_without_a_listener_only_what_may_not_fit_is_estimated(monkeypatch):
    def fail(*_):
        raise AssertionError("estimated")

    monkeypatch.setattr(cost, "estimate_cost", fail)
    model = bare("capsnet", **TINY)
    config = TrainConfig.of(batch_size=4)
    assert check_cost(model, config, images_of(1, 28), CPU, limit=LIMIT, quick=True) == ""
    with pytest.raises(AssertionError, match="estimated"):
        check_cost(model, config, images_of(1, 28), CPU, limit=1 << 20, quick=True)


def test_a_model_that_fake_tensors_cannot_run_has_a_lower_bound(monkeypatch):
    def fail(*_):
        raise RuntimeError("no values")

    monkeypatch.setattr(cost, "estimate_step", fail)
    assert "; more than " in check("capsnet", 28, in_chans=1)
    with pytest.raises(ArgumentError, match="more than"):
        check("capsnet", 224)


@pytest.fixture
def system(tmp_path):
    """Folders in place of /proc and /sys/fs/cgroup of a machine with 4 GiB available."""
    proc = tmp_path / "proc"
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text("MemTotal: 8388608 kB\nMemAvailable: 4194304 kB\n")
    (proc / "self" / "cgroup").write_text("0::/jobs/one\n")
    return proc, tmp_path / "cgroups"


def limit_group(folder, limit, usage, inactive):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text(f"{usage}\n")
    (folder / "memory.stat").write_text(f"anon 5\ninactive_file {inactive}\n")


def test_available_memory_is_that_of_the_machine(system):
    assert available_memory(CPU, *system) == 4 << 30


def test_available_memory_is_what_control_groups_leave(system):
    proc, cgroups = system
    limit_group(cgroups / "jobs" / "one", "max", 0, 0)
    assert available_memory(CPU, proc, cgroups) == 4 << 30
    limit_group(cgroups, 3 << 30, 2 << 30, 1 << 20)
    assert available_memory(CPU, proc, cgroups) == (1 << 30) + (1 << 20)


def test_available_memory_is_what_a_control_group_of_version_1_leaves(system):
    proc, cgroups = system
    (proc / "self" / "cgroup").write_text("4:cpu:/\n3:memory:/jobs\n")
    folder = cgroups / "memory" / "jobs"
    folder.mkdir(parents=True)
    (folder / "memory.limit_in_bytes").write_text(str(1 << 30))
    (folder / "memory.usage_in_bytes").write_text(str(1 << 29))
    (folder / "memory.stat").write_text("total_inactive_file 0\n")
    assert available_memory(CPU, proc, cgroups) == 1 << 29


def test_this_machine_has_memory():
    assert available_memory(CPU) > 1 << 20
