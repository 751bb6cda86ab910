"""Rare classes that count as much as frequent ones."""

import pytest
import torch
from torch.testing import assert_close

import torchcaps as tc
from tasks.makers import cnn
from torchcaps.data import Batch, Dataset
from torchcaps.errors import ArgumentError
from torchcaps.settings import TrainConfig
from torchcaps.tasks import create_task
from torchcaps.tasks.classify import balanced_weights, image_weights
from torchcaps.testing import seeded

LABELS = torch.tensor([0, 0, 0, 2, 0, 2])  # no image of class 1
WEIGHTS = torch.tensor([6 / (2 * 4), 1.0, 6 / (2 * 2)])


def set_of(labels, num_classes=3):
    pixels = torch.rand(len(labels), 1, 20, 20, generator=seeded(0))
    return Dataset(pixels, {"label": labels}, tuple(map(str, range(num_classes))), "unbalanced")


def capsnet(**options):
    sizes = {"num_classes": 3, "in_chans": 1, "img_size": 20}
    generator = seeded(0)
    return tc.create_model(
        "capsnet", generator=generator, channels=4, primary_types=2, **sizes, **options
    )


def task_of(model, images, **settings):
    return create_task(model, TrainConfig.of(shift=0, **settings), images).train()


def test_weights_are_inverse_frequencies_whose_mean_over_images_is_one():
    weights = balanced_weights(LABELS, 3)
    assert_close(weights, WEIGHTS)
    assert weights[LABELS].mean() == pytest.approx(1)
    assert balanced_weights(torch.arange(10) % 5, 5).tolist() == [1.0] * 5


def test_the_weight_of_an_image_of_several_classes_is_their_mean():
    labels = torch.tensor([[1, 1, 0], [1, 0, 1], [1, 0, 1]])
    weights = balanced_weights(labels, 3)
    assert_close(weights, torch.tensor([6 / (3 * 3), 6 / (3 * 1), 6 / (3 * 2)]))
    expected = torch.stack([weights[[0, 1]].mean(), weights[[0, 2]].mean(), weights[[0, 2]].mean()])
    assert_close(image_weights(weights, labels), expected)
    assert expected.mean() == pytest.approx(1)

    fewer = torch.tensor([[1, 1, 0], [0, 0, 1]])
    assert torch.equal(balanced_weights(fewer, 3), torch.ones(3))
    expected = torch.stack([weights[[0, 1]].mean(), weights[2]])
    assert_close(image_weights(weights, fewer), expected)


@pytest.mark.parametrize(
    ("model", "settings"),
    [
        (capsnet, {"loss": "margin"}),
        (capsnet, {"loss": "two_margins"}),
        (capsnet, {"loss": "spread"}),
        (capsnet, {"loss": "likelihood", "label_smoothing": 0.1}),
        (cnn, {"loss": "cross_entropy", "label_smoothing": 0.1}),
        (lambda: cnn(multilabel=True), {"loss": "cross_entropy"}),
    ],
)
def test_every_loss_weighs_an_image_by_its_class(model, settings):
    network = model().double()
    images = set_of(LABELS)
    task = task_of(network, images, class_weights="auto", reconstruction=0, **settings).eval()
    plain = task_of(network, images, reconstruction=0, **settings).eval()

    def step(task, rows):
        inputs = images.float_images()[rows].double()
        batch = Batch(inputs, {"label": LABELS[rows]}, torch.arange(len(inputs)))
        return task.training_step(batch, 0.7)["loss"]

    expected = 0
    for index, label in enumerate(LABELS.tolist()):
        expected = expected + WEIGHTS[label] * step(plain, slice(index, index + 1)) / len(LABELS)
    loss = step(task, slice(None))
    # The loss of several classes rounds to float32.
    assert_close(loss, expected, rtol=1e-6, atol=0, check_dtype=False)

    gradients = torch.autograd.grad(loss, [*network.parameters()], allow_unused=True)
    expected_gradients = torch.autograd.grad(expected, [*network.parameters()], allow_unused=True)
    for gradient, expected_gradient in zip(gradients, expected_gradients, strict=True):
        assert_close(gradient, expected_gradient, rtol=1e-4, atol=1e-9)


def test_levels_of_a_label_tree_are_weighted_by_the_finest_class():
    labels = torch.tensor([0, 0, 0, 1, 2, 3])
    images = Dataset(
        torch.rand(6, 1, 20, 20), {"label": labels}, ("a/b", "a/c", "d/e", "d/f"), "tree"
    )
    model = tc.create_model(
        "tree_capsnet", classes=images.classes, num_classes=4, img_size=20, in_chans=1
    ).eval()
    batch = Batch(images.images, {"label": labels}, torch.arange(len(labels)))
    levels = model.levels(images.images)
    weights = balanced_weights(labels, 4)[labels]
    task = task_of(model, images, class_weights="auto", loss="margin").eval()
    outputs = task.training_step(batch, 0.0)
    for activation, level_labels, name in (
        (levels[0].activation, labels // 2, "margin_1"),
        (levels[1].activation, labels, "margin"),
    ):
        losses = [
            tc.functional.margin_loss(activation[[k]], level_labels[[k]])
            for k in range(len(labels))
        ]
        assert_close(outputs[name], (weights * torch.stack(losses)).mean())


def test_the_loss_of_held_out_images_has_no_weights():
    images = set_of(LABELS)
    network = capsnet()
    outputs = {"activation": torch.rand(6, 3), "labels": LABELS}
    weighted = task_of(network, images, class_weights="auto").compute_metrics(outputs)
    assert weighted == task_of(network, images).compute_metrics(outputs)


@pytest.mark.parametrize(
    ("model", "settings", "sentence"),
    [
        (capsnet, {"label_smoothing": 0.1}, "label_smoothing: expected 0 with the loss margin of"),
        (
            lambda: tc.create_model("scae", img_size=24, in_chans=1),
            {"class_weights": "auto"},
            "class_weights: expected none with the loss .* of the task unsupervised, got auto",
        ),
        (
            lambda: tc.create_model("scae", img_size=24, in_chans=1),
            {"balance": True},
            "balance: expected images of one class each, which the task unsupervised does not take",
        ),
    ],
)
def test_a_setting_without_an_effect_is_refused(model, settings, sentence):
    with pytest.raises(ArgumentError, match=sentence):
        task_of(model(), set_of(LABELS), **settings)
