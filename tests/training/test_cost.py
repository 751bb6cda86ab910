"""What a training takes, and refusal of one that cannot fit."""

import re
import time

import pytest
import torch
from PIL import Image
from PIL.PngImagePlugin import PngImageFile
from torch import nn

import torchcaps as tc
from tasks.makers import batch_of
from torchcaps.data import Dataset
from torchcaps.errors import ArgumentError
from torchcaps.nn import use_generator
from torchcaps.settings import TrainConfig
from torchcaps.tasks import create_task
from torchcaps.training import cost
from torchcaps.training.available import available_memory
from torchcaps.training.cost import (
    bare_copy,
    check_cost,
    check_unread,
    create_estimator,
    moments_per_weight,
    weight_bytes,
)
from torchcaps.types import ModelMetadata, set_model_metadata, spec_of

CPU = torch.device("cpu")
TINY = {"channels": 8, "primary_types": 2}
LIMIT = 8_000_000_000
CONFIG_OF_FOUR = TrainConfig.of(batch_size=4)


def bare(name, **options):
    with torch.device("meta"):
        return tc.create_model(name, **options)


def images_of(channels, side, count=8):
    pixels = torch.zeros(count, channels, side, side, dtype=torch.uint8)
    return Dataset(pixels, {"label": torch.arange(count) % 10}, tuple("0123456789"), "zeros")


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
    assert line.endswith(" of memory at 4 images a step")
    assert 200e6 < in_bytes(line) < 700e6


def test_a_network_that_cannot_fit_is_refused_with_a_size_that_does():
    with pytest.raises(
        ArgumentError, match=r"where 7.5 GiB are available; it fits with"
    ) as refusal:
        check("capsnet", 224)
    sentence = str(refusal.value)
    assert "582,039,040 parameters, 23% of them in the decoder; 15.2 GiB of memory" in sentence
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
        check_unread(config, CPU, limit=LIMIT)
    check_unread(config.updated(img_size=28), CPU, limit=LIMIT)
    check_unread(config.updated(data="some/folder"), CPU, limit=1)
    monkeypatch.setattr(cost, "available_memory", lambda device: LIMIT)
    with pytest.raises(ArgumentError, match="where 7.2 GiB are available"):
        tc.train(config, "runs/none")


def test_the_images_of_a_named_set_take_memory_too(monkeypatch):
    limits = []
    monkeypatch.setattr(cost, "check_cost", lambda *_, limit: limits.append(limit))
    config = TrainConfig.of(model="capsnet", data="digits", img_size=224)
    check_unread(config, CPU, limit=LIMIT)
    assert limits == [LIMIT - 6000 * 224 * 224]


def test_without_a_listener_only_what_may_not_fit_is_estimated(monkeypatch):
    def fail(*_):
        raise AssertionError("estimated")

    monkeypatch.setattr(cost, "moments_per_weight", fail)
    model = bare("capsnet", **TINY)
    config = TrainConfig.of(batch_size=4)
    assert check_cost(model, config, images_of(1, 28), CPU, limit=LIMIT, quick=True) == ""
    with pytest.raises(AssertionError, match="estimated"):
        check_cost(model, config, images_of(1, 28), CPU, limit=1 << 20, quick=True)


def test_a_model_that_fake_tensors_cannot_run_has_a_lower_bound(monkeypatch):
    def fail(*_):
        raise RuntimeError("no values")

    monkeypatch.setattr(cost, "estimate_step", fail)
    line = check("capsnet", 28, in_chans=1)
    assert line.endswith(
        "more than 219 MiB of memory (no estimate of a step: RuntimeError: no values)"
    )
    with pytest.raises(ArgumentError, match="for its weights alone"):
        check("capsnet", 224)


def test_a_folder_is_refused_before_its_images_are_decoded(tmp_path, monkeypatch):
    for index in range(6):
        folder = tmp_path / f"class {index % 3}"
        folder.mkdir(exist_ok=True)
        Image.new("RGB", (300, 200)).save(folder / f"{index}.png")
    monkeypatch.setattr(PngImageFile, "load", lambda self: pytest.fail("decoded"))
    config = TrainConfig.of(model="capsnet", data=str(tmp_path), img_size=224, batch_size=4)
    with pytest.raises(ArgumentError, match=r"capsnet: \d+,\d+,\d+ parameters") as refusal:
        check_unread(config, CPU, limit=LIMIT // 2)
    assert str(refusal.value) == refusal_of("capsnet", 224, LIMIT // 2 - 5 * 3 * 224**2, classes=3)
    unsized = TrainConfig.of(model="capsnet", data=str(tmp_path), batch_size=4)
    with pytest.raises(ArgumentError, match=r"it fits with img_size=\d+x\d+"):
        check_unread(unsized, CPU, limit=LIMIT // 2)
    check_unread(config.updated(img_size=28), CPU, limit=LIMIT)


def refusal_of(name, side, limit, classes):
    """The sentence with which a training of color images of so many classes is refused."""
    model = bare(name, in_chans=3, img_size=side, num_classes=classes)
    images = images_of(3, side)
    images = Dataset(
        images.images, {"label": images.labels % classes}, tuple("0123456789")[:classes], "x"
    )
    with pytest.raises(ArgumentError) as refusal:
        check_cost(model, TrainConfig.of(batch_size=4), images, CPU, limit=limit)
    return str(refusal.value)


@pytest.mark.parametrize(
    ("settings", "moments", "kept", "checkpoint"),
    [
        ({"optimizer": "adam"}, 2, 4, 3),
        ({"optimizer": "adam", "optimizer_options": {"amsgrad": True}}, 3, 5, 4),
        ({"optimizer": "sgd", "momentum": 0.0}, 0, 2, 1),
        ({"optimizer": "sgd", "momentum": 0.9}, 1, 3, 2),
        ({"optimizer": "adam", "ema": 0.99}, 2, 5, 4),
    ],
)
def test_optimizer_and_average_count(settings, moments, kept, checkpoint):
    config = TrainConfig.of(**settings)
    layer = nn.Linear(30, 20, device="meta")
    size = 4 * (30 * 20 + 20)
    assert moments_per_weight(config.optimizer) == moments
    step, copies, state = weight_bytes(layer, config, moments, CPU, in_place=False)
    assert (step + copies, state) == (kept * size, checkpoint * size)
    layer.weight.requires_grad_(False)  # frozen: a weight and its part in average and checkpoint
    frozen_step = weight_bytes(layer, config, moments, CPU, in_place=False).step
    assert step - frozen_step == (1 + moments) * 4 * 30 * 20


def cost_on_backbone(config=CONFIG_OF_FOUR, in_place=False, **options):
    """The cost of a head on a small convolution of random weights."""
    module = nn.Sequential(nn.Conv2d(3, 64, 9, 2), nn.ReLU(), nn.Conv2d(64, 64, 9, 4))
    model, problem = bare_copy(tc.models.with_backbone(module, 10, img_size=64, **options))
    assert problem == ""
    images = images_of(3, 64)
    task = create_task(model, config, images)
    return create_estimator(task, config, images, CPU, in_place=in_place).estimate(4)


def test_a_frozen_backbone_takes_less_and_stored_features_least():
    tuned = cost_on_backbone(freeze=False, in_place=True)
    frozen = cost_on_backbone(freeze=True, in_place=True)
    stored = cost_on_backbone(freeze=True)
    assert tuned.weights.step > 2 * frozen.weights.step  # nearly all weights are the backbone's
    assert tuned.step_bytes > frozen.step_bytes > stored.step_bytes
    # The pass that computes features has 64 images, of which a map of 64 x 28 x 28 is needed.
    assert stored.features_bytes > 64 * 64 * 28 * 28 * 4
    assert stored.num_bytes >= stored.features_bytes


def test_a_fine_tuned_backbone_that_does_not_fit_may_be_frozen():
    module = nn.Sequential(nn.Conv2d(3, 64, 9, 2), nn.ReLU(), nn.Conv2d(64, 64, 9, 4))
    model = tc.models.with_backbone(module, 10, img_size=64, freeze=False)
    set_model_metadata(model, ModelMetadata(name="capsule_head", options={"freeze": False}))
    with pytest.raises(ArgumentError, match=r"a frozen backbone \(freeze=True\)"):
        check_cost(model, CONFIG_OF_FOUR, images_of(3, 64), CPU, limit=1 << 20, in_place=True)


class Counting(nn.Module):
    """Counts its passes, and keeps what it computed."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten())
        self.classes = nn.Linear(4 * 6 * 6, 2)
        self.num_passes = 0

    def forward(self, images):
        self.num_passes += 1
        self.features = self.layers(images)
        return self.classes(self.features)


def fit_messages(model, **settings):
    """The sentences that `fit` says of a model on 16 images of 8 x 8 pixels, and its history."""
    rows = []
    images = torch.rand(16, 1, 8, 8)
    fitted = tc.fit(model, images, torch.arange(16) % 2, emit=rows.append, epochs=1, **settings)
    return [row["text"] for row in rows if row["kind"] == "message"], fitted


def test_fit_says_what_a_module_takes_and_leaves_it_as_it_was():
    model = Counting()
    messages, _ = fit_messages(model, batch_size=8, holdout=4)
    assert any(re.match(r"Counting: 338 parameters; about \d+ MiB .* at 8 ", x) for x in messages)
    # One image before the training, two batches, and the held-out images.
    assert model.num_passes == 4
    assert type(model.features) is torch.Tensor
    assert model.layers[1].num_batches_tracked == 2


def test_fit_refuses_what_does_not_fit(monkeypatch):
    monkeypatch.setattr(cost, "available_memory", lambda device: 8 << 20)
    with pytest.raises(ArgumentError, match=r"Counting: 338 parameters; .* 8 MiB are available"):
        fit_messages(Counting(), batch_size=8)


class Looking(Counting):
    """Looks at a number of its images, which fake tensors do not have."""

    def forward(self, images):
        return super().forward(images if images.mean().item() < 2 else images / 2)


def test_fit_says_why_it_has_no_estimate():
    messages, _ = fit_messages(Looking())
    assert any("more than" in text and "DataDependentOutput" in text for text in messages)
    hooked = Counting()
    passes = []
    hooked.layers.register_forward_hook(lambda module, args, output: passes.append(output))
    messages, _ = fit_messages(hooked)
    assert any("(no estimate of a step: it has hooks)" in text for text in messages)
    assert len(passes) == hooked.num_passes


@pytest.mark.slow
@pytest.mark.parametrize("name", tc.list_models())
def test_a_model_at_224_pixels_trains_a_step_or_is_refused_at_once(name):
    """With 8 GB. Those of small cost take the step."""
    config = TrainConfig.of(model=name, batch_size=2, precision="fp32")
    start = time.process_time()
    try:
        model = bare(name, in_chans=3, img_size=224)
        images = images_of(3, 224, count=2)
        if spec_of(model).is_dense:
            images = images.with_targets(mask=images.images[:, 0])
        check_cost(model, config, images, CPU, limit=LIMIT)
    except ArgumentError as refusal:
        assert time.process_time() - start < 3
        assert re.search(r"it fits with img_size=\d+|takes sets of points|expected", str(refusal))
        return
    estimate = create_estimator(create_task(model, config, images), config, images, CPU)
    if estimate.estimate(2).num_bytes > 600 << 20:
        return
    task = create_task(tc.create_model(name, in_chans=3, img_size=224), config, images).train()
    batch = batch_of(task, images, torch.arange(2))
    loss = task.training_step(batch, 0.0)["loss"]
    loss.backward()
    assert torch.isfinite(loss)


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
