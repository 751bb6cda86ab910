import pytest
import torch
from torch import nn

from torchcaps.errors import ArgumentError
from torchcaps.evaluation import decoding, perturb, reconstructions
from torchcaps.types import ModelSpec

from ..stubs import PoseReader

# Two images of three capsules of two dimensions; the longest is capsule 2, then capsule 0.
IMAGES = torch.tensor(
    [[[0.1, 0.2], [0.0, 0.3], [0.6, 0.5]], [[0.9, 0.1], [0.2, 0.2], [0.4, 0.3]]]
).unsqueeze(1)


def test_only_the_most_active_capsule_reaches_the_decoder():
    decoded = reconstructions(PoseReader(), IMAGES)
    assert decoded.selected.tolist() == [2, 0]
    assert decoded.predictions.tolist() == [2, 0]
    expected = torch.zeros_like(IMAGES)
    expected[0, 0, 2] = IMAGES[0, 0, 2]
    expected[1, 0, 0] = IMAGES[1, 0, 0]
    assert torch.equal(decoded.images, expected)
    assert torch.allclose(decoded.activations, IMAGES[:, 0].norm(dim=-1))


def test_labels_choose_the_capsule():
    decoded = reconstructions(PoseReader(), IMAGES, torch.tensor([1, 1]))
    assert decoded.selected.tolist() == [1, 1]
    assert decoded.predictions.tolist() == [2, 0]
    assert torch.equal(decoded.images[:, 0, 1], IMAGES[:, 0, 1])
    assert not decoded.images[:, 0, [0, 2]].any()


def test_each_dimension_of_the_decoded_capsule_moves_alone():
    perturbed = perturb(PoseReader(), IMAGES, span=0.25, steps=11)
    offsets = torch.arange(-5, 6) * 0.05
    assert torch.allclose(perturbed.offsets, offsets, atol=1e-6)
    expected = torch.zeros(2, 2, 11, 1, 3, 2)
    for image, label in enumerate([2, 0]):
        expected[image, ..., 0, label, :] = IMAGES[image, 0, label]
        for dim in range(2):
            expected[image, dim, :, 0, label, dim] += offsets
    assert torch.allclose(perturbed.reconstructions, expected, atol=1e-6)


def test_absent_classes_stay_zero_and_activations_unchanged():
    model = PoseReader()
    perturb(model, IMAGES, torch.tensor([1, 2]), span=0.1, steps=2)
    [(capsules, labels)] = model.decoded
    assert labels.tolist() == [1] * 4 + [2] * 4
    assert not capsules.pose[torch.arange(3) != labels.unsqueeze(1)].any()
    lengths = IMAGES[:, 0].norm(dim=-1).repeat_interleave(4, dim=0)
    assert torch.allclose(capsules.activation, lengths)


def test_encoding_and_decoding_go_by_bounded_chunks(monkeypatch):
    expected = perturb(PoseReader(), IMAGES)
    model = PoseReader()
    monkeypatch.setattr(decoding, "CHUNK", 7)
    perturbed = perturb(model, IMAGES)
    assert max(len(labels) for _, labels in model.decoded) == 7
    assert torch.equal(perturbed.reconstructions, expected.reconstructions)
    monkeypatch.setattr(decoding, "CHUNK", 1)
    assert reconstructions(PoseReader(), IMAGES).selected.tolist() == [2, 0]


def test_dropout_is_off_the_mode_comes_back_and_images_stay():
    model = PoseReader().train()
    before = IMAGES.clone()
    first = perturb(model, IMAGES, steps=5)
    assert model.training
    assert model.dropout.training
    assert torch.equal(IMAGES, before)
    assert torch.equal(first.reconstructions, perturb(model, IMAGES, steps=5).reconstructions)
    middle = first.reconstructions[:, 1, 2]
    assert torch.allclose(middle, reconstructions(model, IMAGES).images, atol=1e-7)


class Undeclared(PoseReader):
    spec = ModelSpec(pose=True, activation="length")


@pytest.mark.parametrize("model", [nn.Linear(2, 2), Undeclared()])
def test_a_decoder_is_declared_and_not_guessed(model):
    with pytest.raises(
        ArgumentError, match="model: expected one with class capsules and a decoder, got"
    ):
        reconstructions(model, IMAGES)


@pytest.mark.parametrize(
    ("labels", "options", "message"),
    [
        ([0], {}, r"labels: expected \[n=2\]"),
        ([0, 3], {}, "labels: expected between 0 and 2, got 3"),
        ([0, 0], {"steps": 1}, "steps: expected at least 2"),
        ([0, 0], {"span": -0.1}, "span: expected at least 0"),
    ],
)
def test_arguments_that_do_not_fit(labels, options, message):
    with pytest.raises(ArgumentError, match=message):
        perturb(PoseReader(), IMAGES, torch.tensor(labels), **options)
