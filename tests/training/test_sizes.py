"""Images of any size: networks without weights of a place, and guards on sizes that cannot be."""

import pytest
import torch

import torchcaps as tc
from torchcaps.errors import ArgumentError, TorchcapsError
from torchcaps.testing import seeded

SIZES = [(32, 40), (48, 33), (40, 40), (32, 40), (36, 36), (50, 34)] * 2
NETWORKS = {
    "segcaps_small": {"num_classes": 2, "dim": 2},
    "unet": {"num_classes": 2, "channels": 2, "levels": 3},
    "matrix_caps_small": {"num_classes": 3, "channels": 4, "primary_types": 2, "types": (2, 2)},
    "vb_caps": {"num_classes": 3, "channels": 4, "primary_types": 2, "types": (2, 2)},
    "heinsen": {"num_classes": 3, "channels": 4, "hidden": (4,)},
    "capsule_head": {"num_classes": 3},
}


@pytest.mark.parametrize("name", NETWORKS)
def test_images_of_several_sizes_count_as_each_by_itself(name, tmp_path):
    model = tc.create_model(name, in_chans=3, img_size=32, **NETWORKS[name])
    images = [torch.rand(3, *size, generator=seeded(k)) for k, size in enumerate(SIZES)]
    labels = [k % 3 for k in range(len(SIZES))]
    if model.spec.is_dense:
        labels = [(image[0] > 0.5).byte() for image in images]
    model, [row] = tc.fit(model, images, labels, epochs=1, batch_size=4, verbose=False)
    assert row["train_loss"] > 0
    assert row["val_loss"] > 0

    evaluation = tc.evaluate(model, (images, labels))
    alone = [model(image.unsqueeze(0))[0] for image in images]
    if model.spec.is_dense:
        masks = [outputs[0] > 0.5 for outputs in alone]
        both = sum((m & t.bool()).sum() for m, t in zip(masks, labels, strict=True))
        total = sum(m.sum() + t.sum() for m, t in zip(masks, labels, strict=True))
        assert evaluation.dice == pytest.approx(float(2 * both / total), abs=1e-6)
    else:
        answers = [int(outputs.argmax()) for outputs in alone]
        right = sum(a == t for a, t in zip(answers, labels, strict=True))
        assert evaluation.accuracy == pytest.approx(right / len(labels))
        rows = tc.predict(model, images)
        assert [int(row["label"]) for row in rows] == answers
    loaded = tc.load(tc.save(model, tmp_path / "model.safetensors"))
    assert loaded.img_size == model.img_size == (32, 32)
    assert torch.equal(loaded(images[1].unsqueeze(0))[0], alone[1])

    with pytest.raises(ArgumentError, match="takes 32x32 pixels, its img_size, and larger"):
        model(torch.rand(1, 3, 31, 40))


def test_what_needs_its_size_says_so():
    model = tc.create_model("capsnet_small", num_classes=3)
    with pytest.raises(ArgumentError, match="CapsNet has weights for each place"):
        model(torch.rand(1, 1, 30, 28))
    images = [torch.rand(1, 28, 28 + k) for k in range(4)]
    with pytest.raises(ArgumentError, match="expected one size, as CapsNet takes no other"):
        tc.fit(model, images, [0, 1, 2, 0], verbose=False)


def test_the_channels_of_the_model_tell_axes_apart():
    cubes = torch.rand(12, 19, 19, 103, generator=seeded())
    labels = [k % 2 for k in range(12)]
    options = {"num_classes": 2, "in_chans": 103, "img_size": 19, "channels": 4, "hidden": (4,)}
    model = tc.create_model("heinsen", **options)
    tc.fit(model, cubes, labels, epochs=1, verbose=False)
    [row, *_] = tc.predict(model, cubes)
    expected = model(cubes[:1].movedim(3, 1)).detach().max()
    assert row["activation"] == pytest.approx(float(expected), abs=1e-6)


GUARDS = [
    ({"img_size": (28, 28, 28)}, r"img_size: expected pixels of a side, or \(height, width\)"),
    ({"num_classes": 0}, "num_classes: expected at least 1, got 0"),
    ({"in_chans": -1}, "in_chans: expected at least 1, got -1"),
    ({"num_classes": 2.5}, "num_classes: expected a whole number of at least 1, got 2.5"),
    ({"num_classes": "10"}, "num_classes: expected a whole number of at least 1, got '10'"),
    ({"in_chans": True}, "in_chans: expected a whole number of at least 1, got True"),
    ({"img_size": "28"}, "img_size: expected a whole number of at least 1, got '28'"),
    ({"img_size": 28.0}, "img_size: expected a whole number of at least 1, got 28.0"),
]


@pytest.mark.parametrize(("sizes", "sentence"), GUARDS)
def test_sizes_that_cannot_be_are_one_sentence(sizes, sentence):
    with pytest.raises(ArgumentError, match=sentence):
        tc.create_model("capsnet", **sizes)
    with pytest.raises(ArgumentError, match=sentence):
        tc.models.with_backbone(torch.nn.Conv2d(3, 4, 3), **{"num_classes": 2, **sizes})


@pytest.mark.parametrize(
    "call",
    [
        lambda: tc.fit("capsnet", torch.rand(4, 1, 28, 28), [0, 1, 0, 1]),
        lambda: tc.predict(3, torch.rand(4, 1, 28, 28)),
        lambda: tc.models.with_backbone("resnet", 2),
        lambda: tc.create_model(3),
        lambda: tc.nn.CapsuleHead(12.0, 3),
        lambda: tc.create_model("capsnet", num_classes=196, img_size=2270, in_chans=3),
    ],
)
def test_other_things_are_one_sentence(call):
    with pytest.raises(TorchcapsError, match="expected .*, got"):
        call()
