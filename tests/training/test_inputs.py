"""What `fit` takes: arrays of any usual layout, pictures, paths, labels, data sets and loaders."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
    WeightedRandomSampler,
)

import torchcaps as tc
from data.makers import write_folder
from torchcaps.data.preprocess import ArrayPreprocess
from torchcaps.data.targets import class_names, known_indices
from torchcaps.errors import ArgumentError, DataError
from torchcaps.testing import seeded
from torchcaps.training.inputs import as_set, image_tensor
from torchcaps.types import model_metadata

from .makers import Watch

SETTINGS = {"epochs": 2, "batch_size": 8, "holdout": 0.25, "precision": "fp32"}


def linear(channels=1, classes=3):
    return nn.Sequential(nn.Flatten(), nn.Linear(channels * 16, classes))


def pixels(count=24, channels=1):
    generator = seeded()
    return torch.randint(256, (count, channels, 4, 4), dtype=torch.uint8, generator=generator)


def labels(count=24):
    return torch.arange(count) % 3


class Pictures(Dataset):
    """A map-style data set with a random transform; labels are words."""

    def __init__(self, count=24):
        self.images = pixels(count)
        self.words = [("cat", "dog", "owl")[index % 3] for index in range(count)]
        self.num_reads = 0

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        self.num_reads += 1
        noise = torch.rand(1, 4, 4) * 0.01
        return (self.images[index] / 255 + noise).clamp(0, 1), self.words[index]


@pytest.mark.parametrize(
    "layout",
    [
        lambda images: images,
        lambda images: images.numpy(),
        lambda images: images.movedim(1, 3).numpy(),
        lambda images: images.long(),
        lambda images: images.numpy().astype(np.uint16) * 257,
        lambda images: [[rows.tolist() for rows in image] for image in images],
    ],
)
@pytest.mark.parametrize("channels", [1, 3])
def test_layouts_of_arrays_give_the_same_images(layout, channels):
    images = torch.cat([pixels(5, channels)] * 2, dim=2)  # 8 rows, so that no axis is ambiguous
    images = torch.cat([images] * 2, dim=3)
    assert torch.equal(image_tensor(layout(images)), images)


def test_gray_images_need_no_axis_of_channels():
    assert torch.equal(image_tensor(pixels().squeeze(1)), pixels())


def test_pictures_and_paths_are_brought_to_the_size_of_the_model(tmp_path):
    model = tc.create_model("capsnet_small", num_classes=2, img_size=20)
    Image.new("RGB", (50, 30), "red").save(tmp_path / "red.png")
    pictures = [Image.new("L", (40, 40), 90), tmp_path / "red.png"]
    images = as_set(pictures, ["gray", "red"], model)
    assert (images.img_size, images.in_chans, images.classes) == ((20, 20), 1, ("gray", "red"))
    with pytest.raises(DataError, match="as the first one of the set, got"):
        as_set(pictures, ["gray", "red"])


@pytest.mark.parametrize(
    ("values", "num_classes", "classes", "indices"),
    [
        ([1, 2, 3], None, "123", [0, 1, 2]),
        ([1, 2, 3], 3, "123", [0, 1, 2]),
        ([1, 2, 3], 4, "0123", [1, 2, 3]),
        ([True, False], None, "01", [1, 0]),
    ],
)
def test_labels_are_numbers_from_0_or_names(values, num_classes, classes, indices):
    names = class_names(np.asarray(values), num_classes)
    assert names == tuple(classes)
    assert known_indices(np.asarray(values), names).tolist() == indices


@pytest.mark.parametrize("values", [[0.5, 1], [None, "a"]])
def test_other_labels_are_refused_in_one_sentence(values):
    with pytest.raises(ArgumentError, match="labels: expected whole numbers from 0, or names"):
        class_names(np.asarray(values), None)


def test_numbers_up_to_255_as_floats_are_refused_and_normalized_ones_taken():
    with pytest.raises(DataError, match="scale them, or store 0..255 as uint8"):
        as_set(pixels().float(), labels())
    normalized = (pixels() / 255 - 0.5) / 0.25
    images = as_set(normalized, labels())
    assert torch.equal(images.images, normalized)


def test_a_model_of_normalized_floats_takes_arrays_alone():
    normalized = (pixels() / 255 - 0.5) / 0.25
    model, _ = tc.fit(linear(), normalized, labels(), **SETTINGS)
    preprocess = model_metadata(model).preprocess
    assert type(preprocess) is ArrayPreprocess
    assert torch.equal(preprocess(normalized[0]), normalized[0])
    with pytest.raises(DataError, match="expected an array"):
        preprocess(Image.new("L", (4, 4)))
    with pytest.raises(ArgumentError, match="height=4"):
        preprocess(torch.zeros(1, 5, 4))
    assert tc.predict(model, [normalized[0]])[0]["label"] in model.classes


def test_a_line_says_what_is_done_and_each_epoch_has_one(capsys):
    tc.fit(linear(), pixels(), labels(), flip=True, **SETTINGS)
    line, *epochs = capsys.readouterr().err.splitlines()
    for words in ("18 images, 6 held out", "2 epochs of batch 8", "adam at 0.001", "flip"):
        assert words in line
    assert [epoch.split()[1] for epoch in epochs if epoch.startswith("epoch")] == ["1/2", "2/2"]
    tc.fit(linear(), pixels(), labels(), verbose=False, **SETTINGS)
    assert capsys.readouterr().err == ""


def test_a_folder_of_classes_is_read_by_its_path(tmp_path):
    write_folder(tmp_path, count=6, size=(30, 30))
    model = tc.create_model("capsnet_small", num_classes=2, img_size=20)
    tc.fit(model, tmp_path, epochs=1, batch_size=4, holdout=2)
    assert model.classes == ("cat", "dog")


def test_samples_of_a_data_set_are_read_again_in_each_epoch():
    dataset = Pictures()
    model, history = tc.fit(linear(), dataset, **SETTINGS)
    assert model.classes == ("cat", "dog", "owl")
    assert [row["images"] for row in history] == [18, 18]
    # Once for the labels, the held-out ones once more, each epoch the others, and these for the
    # form of pictures to predict.
    assert dataset.num_reads == 24 + 6 + 2 * 18 + 18


def test_the_order_of_a_data_set_is_that_of_the_seed():
    orders = {}
    for seed in (1, 1, 2):
        dataset = TensorDataset(pixels(), labels())
        batches = []
        model = linear()
        model.register_forward_pre_hook(
            lambda module, inputs, batches=batches: batches.append(inputs[0].clone())
        )
        tc.fit(model, dataset, seed=seed, **SETTINGS)
        orders.setdefault(seed, []).append(torch.cat(batches))
    assert torch.equal(*orders[1])
    assert not torch.equal(orders[1][0], orders[2][0])


@pytest.mark.parametrize("workers", [0, 1])
def test_a_loader_keeps_its_batches_and_workers(workers):
    loader = DataLoader(TensorDataset(pixels(), labels()), batch_size=5, num_workers=workers)
    watch = Watch()
    model, history = tc.fit(linear(), loader, callbacks=[watch], epochs=1, holdout=0.25)
    assert [row["images"] for row in history] == [18]
    assert len(watch.steps) == 4  # 18 samples by 5
    assert "1 epoch of batch 5" in watch.messages[0]
    assert model.classes == ("0", "1", "2")


def test_a_loader_with_a_sampler_of_its_own_is_kept_whole_and_says_so():
    sampler = WeightedRandomSampler(torch.ones(24), 24)
    loader = DataLoader(TensorDataset(pixels(), labels()), batch_size=8, sampler=sampler)
    watch = Watch()
    _, history = tc.fit(linear(), loader, callbacks=[watch], epochs=1)
    assert [row["images"] for row in history] == [24]
    assert any("give validation=" in text for text in watch.messages)
    validation = TensorDataset(pixels(9), labels(9))
    tc.fit(linear(), loader, validation=DataLoader(validation), callbacks=[watch], epochs=1)
    assert not any("give validation=" in text for text in watch.messages)


class Endless(torch.utils.data.IterableDataset):
    def __iter__(self):
        yield torch.zeros(1, 4, 4), 0


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (DataLoader(Endless()), "expected a map-style Dataset"),
        (TensorDataset(torch.zeros(8, 1, 4, 4)), "expected samples"),
        (torch.zeros(8, 1, 4, 4), "expected a Dataset, a path"),
        ("nowhere/folder", "no such file or folder"),
    ],
)
def test_other_data_is_refused_in_one_sentence(data, sentence):
    with pytest.raises((ArgumentError, DataError), match=sentence):
        tc.fit(linear(), data, epochs=1)


def test_settings_that_a_loader_decides_are_refused():
    loader = DataLoader(TensorDataset(pixels(), labels()), batch_size=8)
    for setting in (
        {"labels": labels()},
        {"batch_size": 4},
        {"balance": True},
        {"epoch_size": 9},
        {"per_class": 2},
    ):
        [name] = setting
        with pytest.raises(ArgumentError, match=f"{name}: expected none beside a DataLoader"):
            tc.fit(linear(), loader, epochs=1, **setting)
    for name in ("per_class", "folds", "fold", "img_size"):
        with pytest.raises(ArgumentError, match=f"{name}: expected none beside a TensorDataset"):
            tc.fit(linear(), loader.dataset, epochs=1, **{name: 2})


def test_a_loader_with_fewer_batches_than_it_says_is_refused():
    class Short(SequentialSampler):
        def __iter__(self):
            return iter(range(12))

    samples = TensorDataset(pixels(), labels())
    loader = DataLoader(samples, batch_size=4, sampler=Short(samples))
    with pytest.raises(DataError, match="data: expected 6 steps in an epoch, got 3"):
        tc.fit(linear(), loader, validation=samples, epochs=2)


@pytest.mark.parametrize(
    "options",
    [
        {"batch_size": 20, "drop_last": True},  # fewer are held out than a batch has
        {"batch_sampler": BatchSampler(RandomSampler(range(24)), 7, drop_last=False)},
    ],
)
def test_held_out_samples_are_read_whatever_the_loader_does_with_batches(options):
    watch = Watch()
    loader = DataLoader(TensorDataset(pixels(), labels()), **options)
    tc.fit(linear(), loader, callbacks=[watch], epochs=1, holdout=0.1)
    [epoch] = watch.rows
    assert epoch["images"] == (24 if "batch_sampler" in options else 20)
    assert 0 <= epoch["val_accuracy"] <= 1


def test_batches_of_a_sampler_of_the_caller_are_accumulated_one_by_one():
    sizes = []

    class Counting(nn.Sequential):
        def forward(self, images):
            if self.training:
                sizes.append(len(images))
            return super().forward(images)

    sampler = BatchSampler(RandomSampler(range(24)), 3, drop_last=False)
    loader = DataLoader(TensorDataset(pixels(), labels()), batch_sampler=sampler)
    network = Counting(*linear())
    tc.fit(network, loader, validation=loader, epochs=1, accumulate=4)
    assert sizes == [3] * 8


@pytest.mark.parametrize(
    ("data", "names", "validation"),
    [
        (pixels(), ["a", "b", "c"] * 8, (pixels(2), ["c", "b"])),
        (
            TensorDataset(pixels(), labels() + 1),
            None,
            TensorDataset(pixels(2), torch.tensor([3, 2])),
        ),
    ],
)
def test_classes_of_validation_images_are_matched_by_name(data, names, validation):
    """The two images are of the second and the third class, which a network of ours always says."""

    class Constant(nn.Module):
        def __init__(self, label):
            super().__init__()
            self.logits = nn.Parameter(torch.eye(3)[label] * 9)

        def forward(self, images):
            return self.logits.expand(len(images), 3)

    for label, accuracy in ((0, 0.0), (1, 0.5), (2, 0.5)):
        _, [row] = tc.fit(
            Constant(label), data, names, validation=validation, epochs=1, lr=1e-9, batch_size=24
        )
        assert row["val_accuracy"] == accuracy
    with pytest.raises(ArgumentError, match="labels: expected one of a, b, got z"):
        tc.fit(linear(), pixels(), ["a", "b"] * 12, validation=(pixels(2), ["a", "z"]))


HALVES = torch.zeros(24, 4, 4, dtype=torch.int64)
HALVES[:, :, 2:] = 1
PAIRS = torch.eye(3)[labels()] + torch.eye(3)[(labels() + 1) % 3]
LISTS = [row.nonzero().flatten().tolist() if row[0] else [2] for row in PAIRS]


class Rows(Dataset):
    """Samples with labels of any form."""

    def __init__(self, images, rows):
        self.images = images
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.images[index], self.rows[index]


def collate(samples):
    images, rows = zip(*samples, strict=True)
    return torch.stack(images), list(rows)


@pytest.mark.parametrize(
    ("values", "task", "target"),
    [
        (PAIRS, "multilabel", "labels"),
        (LISTS, "multilabel", "labels"),
        (torch.eye(3)[labels()], "classify", "label"),
        (HALVES.float()[:, None], "segment", "mask"),
        (255 * HALVES, "segment", "mask"),
        (labels() / 2, "regress", "value"),
    ],
)
def test_the_task_follows_from_the_targets_of_arrays_and_loaders(values, task, target, capsys):
    images = pixels()
    network = linear()
    if task == "segment":
        network = nn.Conv2d(1, 1, 3, padding=1)
    if task == "regress":
        images = nn.functional.pad(images, (8, 8, 8, 8))
        network = tc.create_model("capsnet_small", num_classes=1, img_size=20)
    weights = copy.deepcopy(network.state_dict())
    loader = DataLoader(Rows(images, values), batch_size=8, collate_fn=collate)
    expected = as_set(images, values)
    assert [*expected.targets] == [target]
    evaluations = []
    for data in ((images, values), loader):
        network.load_state_dict(weights)
        model, _ = tc.fit(network, data, epochs=1, batch_size=8, holdout=0.25)
        assert f"task {task} by the targets" in capsys.readouterr().err
        assert model_metadata(model).task == task
        for data in ((images, values), loader, expected):
            evaluations.append(tc.evaluate(model, data).to_dict())
        assert evaluations[-3] == evaluations[-2] == evaluations[-1]
    assert evaluations[0]["num_samples"] == 24


@pytest.mark.parametrize(("names", "numbers"), [(["dog", "owl"], [1, 2]), (["owl"] * 2, [2, 2])])
def test_labels_to_evaluate_with_are_of_the_classes_of_the_model(names, numbers):
    words = [("cat", "dog", "owl")[index % 3] for index in range(24)]
    model, _ = tc.fit(linear(), pixels(), words, **SETTINGS)
    with torch.no_grad():
        predicted = model(pixels(2) / 255).argmax(dim=1)
    accuracy = (predicted == torch.tensor(numbers)).double().mean().item()
    for labels_to_read in (names, numbers):
        assert tc.evaluate(model, (pixels(2), labels_to_read)).accuracy == accuracy


def test_a_task_says_which_target_it_lacks_and_what_to_pass():
    with pytest.raises(
        ArgumentError, match="segment takes images with masks, got .* label; give 'mask' by name"
    ):
        tc.fit(nn.Conv2d(1, 1, 3, padding=1), pixels(), labels(), task="segment")
