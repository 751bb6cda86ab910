from __future__ import annotations

import pytest
import torch

from torchcaps import create_model
from torchcaps.functional import margin_loss, reconstruction_loss, spread_loss
from torchcaps.models import CNN
from torchcaps.training import MarginObjective, SpreadObjective, create_objective

from .makers import TINY

LABELS = torch.tensor([2, 0, 1, 2])


def model_of(size=20, channels=1, **options):
    torch.manual_seed(0)
    return create_model("capsnet", num_classes=3, in_chans=channels, img_size=size, **TINY, **options)


def images_of(size=20, channels=1):
    return torch.rand(4, channels, size, size, generator=torch.Generator().manual_seed(1))


def test_the_total_is_the_margin_plus_the_weighted_error_of_the_labelled_capsules_picture():
    model, images = model_of(28), images_of(28)
    found = MarginObjective(model, reconstruction=0.0005)(images, LABELS)
    capsules = model.capsules(images)
    error = reconstruction_loss(model.reconstruct(capsules, LABELS), images)
    torch.testing.assert_close(found.margin, margin_loss(capsules.activation, LABELS))
    torch.testing.assert_close(found.reconstruction, error)
    torch.testing.assert_close(found.total, found.margin + 0.0005 * error)  # 28 x 28 is the paper's size
    torch.testing.assert_close(found.activation, capsules.activation)


def test_training_masks_by_the_label_and_not_by_the_longest_capsule():
    model, images = model_of(), images_of()
    longest = model.capsules(images).activation.argmax(dim=1)
    others = (longest + 1) % 3
    found = MarginObjective(model, reconstruction=1.0)(images, others)
    of_labels = reconstruction_loss(model.reconstruct(model.capsules(images), others), images)
    of_longest = reconstruction_loss(model.reconstruct(model.capsules(images)), images)
    torch.testing.assert_close(found.reconstruction, of_labels)
    assert abs(of_labels - of_longest) > 1e-4


@pytest.mark.parametrize(("size", "channels"), [(20, 1), (28, 3), (32, 3)])
def test_the_weight_is_per_784_values_so_that_a_pixel_counts_the_same_at_every_size(size, channels):
    found = MarginObjective(model_of(size, channels), reconstruction=0.5)(images_of(size, channels), LABELS)
    weight = 0.5 * 784 / (channels * size * size)
    torch.testing.assert_close(found.total, found.margin + weight * found.reconstruction)


def test_a_weight_of_zero_leaves_the_decoder_without_gradient():
    model = model_of()
    found = MarginObjective(model, reconstruction=0)(images_of(), LABELS)
    found.total.backward()
    assert found.reconstruction == 0
    assert found.total == found.margin
    assert all(weight.grad is None for weight in model.decoder.parameters())
    assert all(weight.grad.abs().sum() > 0 for weight in model.class_capsules.parameters())


def test_a_weight_above_zero_reaches_every_parameter():
    model = model_of()
    MarginObjective(model, reconstruction=0.0005)(images_of(), LABELS).total.backward()
    assert all(weight.grad is not None and weight.grad.isfinite().all() for weight in model.parameters())


def test_a_weight_without_a_decoder_is_refused():
    model = model_of(decoder=False)
    MarginObjective(model, reconstruction=0)
    with pytest.raises(ValueError, match="reconstruction: expected 0 for a model without a decoder, got 0.0005"):
        MarginObjective(model, reconstruction=0.0005)


def matrix_model(**options):
    torch.manual_seed(0)
    return create_model("matrix_caps", num_classes=3, in_chans=1, img_size=20, types=(2, 2), **TINY, **options)


def test_the_margin_of_the_spread_loss_rises_with_the_training():
    objective = SpreadObjective(matrix_model())
    margins = []
    for progress in (0.0, 0.5, 1.0, 1.5):
        objective.progress = progress
        margins.append(objective.margin)
    assert margins == pytest.approx([0.2, 0.55, 0.9, 0.9])
    found = objective(images_of(), LABELS)
    torch.testing.assert_close(found.total, spread_loss(found.activation, LABELS, 0.9))
    torch.testing.assert_close(found.margin, found.total)
    assert found.reconstruction == 0
    with pytest.raises(ValueError, match="last: expected between 0.0 and 1.0, got 1.5"):
        SpreadObjective(matrix_model(), last=1.5)


def test_auto_is_what_the_model_was_published_with():
    assert isinstance(create_objective(matrix_model()), SpreadObjective)
    assert isinstance(create_objective(model_of()), MarginObjective)
    assert isinstance(create_objective(model_of(), "spread"), SpreadObjective)
    assert isinstance(create_objective(matrix_model(), "margin", reconstruction=0), MarginObjective)
    with pytest.raises(ValueError, match="reconstruction: expected 0 for a model without a decoder"):
        create_objective(matrix_model(), "margin")
    with pytest.raises(ValueError, match="unknown loss 'spred'; did you mean 'spread'"):
        create_objective(model_of(), "spred")


def test_spread_reaches_every_parameter():
    model = matrix_model()
    create_objective(model)(images_of(), LABELS).total.backward()
    assert all(weight.grad is not None and weight.grad.isfinite().all() for weight in model.parameters())


TWO = torch.tensor([[2, 0], [0, 1], [1, 2], [2, 1]])


def test_of_two_labels_each_capsule_draws_its_own_single_image():
    model, images = model_of(), images_of()
    singles = torch.rand(4, 2, 1, 20, 20, generator=torch.Generator().manual_seed(2))
    found = MarginObjective(model, reconstruction=0.5)(images, TWO, singles)
    capsules = model.capsules(images)
    wanted = torch.tensor([[1, 0, 1], [1, 1, 0], [0, 1, 1], [0, 1, 1]])
    torch.testing.assert_close(found.margin, margin_loss(capsules.activation, wanted))
    first, second = (reconstruction_loss(model.reconstruct(capsules, TWO[:, k]), singles[:, k]) for k in (0, 1))
    torch.testing.assert_close(found.reconstruction, first + second)
    crossed = MarginObjective(model, reconstruction=0.5)(images, TWO.flip(1), singles)
    assert abs(crossed.reconstruction - found.reconstruction) > 1e-4


def test_two_labels_without_what_they_look_like_alone_are_refused():
    with pytest.raises(ValueError, match="singles: expected what each labelled class looks like alone, got none"):
        MarginObjective(model_of(), reconstruction=0.5)(images_of(), TWO)


def test_two_labels_have_a_margin_loss_without_a_decoder_and_no_spread_loss():
    model = model_of(decoder=False)
    assert MarginObjective(model, reconstruction=0)(images_of(), TWO).total > 0
    with pytest.raises(ValueError, match="several classes; take margin"):
        SpreadObjective(model)(images_of(), TWO)


@pytest.mark.parametrize("labels", [LABELS, TWO])
def test_a_network_for_several_classes_takes_each_by_itself(labels):
    torch.manual_seed(0)
    cnn = CNN(3, 1, 20, channels=(4,), kernels=(3,), hidden=(8,), pool=True, several=True)
    found = create_objective(cnn)(images_of(), labels)
    p = cnn.eval()(images_of())
    wanted = torch.zeros(4, 3).scatter_(1, labels.view(4, -1), 1.0)
    assert found.activation.shape == p.shape
    expected = -(wanted * p.log() + (1 - wanted) * (1 - p).log()).sum(dim=1).mean()
    cnn.dropout.p = 0.0
    torch.testing.assert_close(create_objective(cnn)(images_of(), labels).total, expected)


def test_a_network_for_one_class_refuses_two_labels():
    with pytest.raises(ValueError, match="several=true"):
        create_objective(CNN(3, 1, 20, channels=(4,), kernels=(3,), hidden=(8,)))(images_of(), TWO)
