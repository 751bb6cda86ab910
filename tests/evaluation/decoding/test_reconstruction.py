from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from torchcaps.evaluation import perturb, reconstructions
from torchcaps.evaluation.decoding import reconstruction
from torchcaps.types import ModelSpec

from ..stubs import PoseReader


@pytest.fixture
def images() -> Tensor:
    """Two images of three capsules of two dimensions; the longest is capsule 2 in the first, 0 in the second."""
    poses = [[[0.1, 0.2], [0.0, 0.3], [0.6, 0.5]], [[0.9, 0.1], [0.2, 0.2], [0.4, 0.3]]]
    return torch.tensor(poses).unsqueeze(1)


def test_only_the_most_active_capsule_reaches_the_decoder(images: Tensor) -> None:
    model = PoseReader()
    found = reconstructions(model, images)
    assert found.shown.tolist() == [2, 0]
    assert found.predictions.tolist() == [2, 0]
    assert found.images[0, 0].tolist() == pytest.approx(torch.tensor([[0, 0], [0, 0], [0.6, 0.5]]))
    assert found.images[1, 0].tolist() == pytest.approx(torch.tensor([[0.9, 0.1], [0, 0], [0, 0]]))
    assert torch.allclose(found.activations, images[:, 0].norm(dim=-1))


def test_labels_choose_the_capsule(images: Tensor) -> None:
    model = PoseReader()
    found = reconstructions(model, images, torch.tensor([1, 1]))
    assert found.shown.tolist() == [1, 1]
    assert found.predictions.tolist() == [2, 0]
    assert model.decoded[0][1].tolist() == [1, 1]
    assert found.images[0, 0].tolist() == pytest.approx(torch.tensor([[0, 0], [0.0, 0.3], [0, 0]]))


def test_each_dimension_of_the_shown_capsule_moves_alone(images: Tensor) -> None:
    found = perturb(PoseReader(), images, span=0.25, steps=11)
    assert found.reconstructions.shape == (2, 2, 11, 1, 3, 2)
    assert found.offsets.tolist() == pytest.approx([-0.25 + 0.05 * i for i in range(11)], abs=1e-6)
    for row, shown in enumerate([2, 0]):
        for dim in range(2):
            for step in range(11):
                want = torch.zeros(3, 2)
                want[shown] = images[row, 0, shown]
                want[shown, dim] += found.offsets[step]
                assert torch.allclose(found.reconstructions[row, dim, step, 0], want, atol=1e-6)


def test_absent_classes_stay_zero_and_activations_unchanged(images: Tensor) -> None:
    model = PoseReader()
    perturb(model, images, torch.tensor([1, 2]), span=0.1, steps=2)
    for capsules, labels in model.decoded:
        absent = torch.arange(3) != labels.unsqueeze(1)
        assert (capsules.pose[absent] == 0).all()
        assert torch.allclose(capsules.activation[0], images[0, 0].norm(dim=-1))
    assert [label for _, labels in model.decoded for label in labels.tolist()] == [1] * 4 + [2] * 4


def test_decoding_goes_by_bounded_chunks(images: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = perturb(PoseReader(), images)
    model = PoseReader()
    monkeypatch.setattr(reconstruction, "CHUNK", 7)
    parts = perturb(model, images)
    assert max(len(labels) for _, labels in model.decoded) == 7
    assert torch.equal(whole.reconstructions, parts.reconstructions)


def test_encoding_goes_by_bounded_chunks(images: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconstruction, "CHUNK", 1)
    assert reconstructions(PoseReader(), images).shown.tolist() == [2, 0]


def test_the_middle_step_is_the_reconstruction(images: Tensor) -> None:
    found = perturb(PoseReader(), images, steps=5)
    assert torch.allclose(
        found.reconstructions[:, 1, 2], reconstructions(PoseReader(), images).images, atol=1e-7
    )


def test_dropout_is_off_the_mode_comes_back_and_images_stay(images: Tensor) -> None:
    model, before = PoseReader().train(), images.clone()
    found = perturb(model, images)
    assert model.training
    assert model.dropout.training
    assert torch.equal(images, before)
    again = perturb(model, images)
    assert torch.equal(found.reconstructions, again.reconstructions)


def test_results_are_ordinary_tensors(images: Tensor) -> None:
    rebuilt, moved = reconstructions(PoseReader(), images), perturb(PoseReader(), images)
    tensors = [rebuilt.images, rebuilt.shown, rebuilt.activations, rebuilt.predictions]
    tensors += [moved.reconstructions, moved.offsets, moved.shown]
    assert not any(tensor.is_inference() for tensor in tensors)


def test_a_model_without_capsules() -> None:
    with pytest.raises(
        ValueError, match="model: expected one with class capsules and a decoder, got Linear"
    ):
        reconstructions(nn.Linear(2, 2), torch.zeros(1, 1, 3, 2))


def test_what_a_model_can_do_is_declared_not_found_out(images: Tensor) -> None:
    class Undeclared(PoseReader):
        spec = ModelSpec(pose=True, activation="length")

    with pytest.raises(
        ValueError, match="model: expected one with class capsules and a decoder, got Undeclared"
    ):
        reconstructions(Undeclared(), images)


@pytest.mark.parametrize(
    ("shape", "labels", "options", "message"),
    [
        ((3, 2), None, {}, r"images: expected \[batch, channels, height, width\], got \[3, 2\]"),
        ((0, 1, 3, 2), None, {}, "images: expected at least one image, got none"),
        ((2, 1, 3, 2), [0], {}, r"labels: expected \[batch=2\], got \[batch=1\]"),
        ((2, 1, 3, 2), [0, 3], {}, "labels: expected class indices from 0 to 2, got 3"),
        ((2, 1, 3, 2), None, {"steps": 1}, "steps: expected at least 2, got 1"),
        ((2, 1, 3, 2), None, {"span": -0.1}, "span: expected at least 0, got -0.1"),
    ],
)
def test_arguments_that_do_not_fit(
    shape: tuple[int, ...], labels: list[int] | None, options: dict[str, float], message: str
) -> None:
    given = None if labels is None else torch.tensor(labels)
    with pytest.raises(ValueError, match=message):
        perturb(PoseReader(), torch.zeros(shape), given, **options)


def test_byte_images_are_refused() -> None:
    with pytest.raises(ValueError, match="images: expected floating-point values"):
        reconstructions(PoseReader(), torch.zeros(1, 1, 3, 2, dtype=torch.uint8))
