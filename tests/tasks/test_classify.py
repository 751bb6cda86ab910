import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from tasks.makers import cnn
from torchcaps import create_model
from torchcaps.data import Batch, Dataset
from torchcaps.errors import ArgumentError
from torchcaps.functional import margin_loss, reconstruction_loss, spread_loss
from torchcaps.settings import TrainConfig
from torchcaps.tasks import create_task, eval_outputs
from torchcaps.tasks.classify import Scores, is_correct, two_margins
from torchcaps.testing import seeded
from torchcaps.types import ModelSpec

TINY = {"channels": 8, "primary_types": 2}

LABELS = torch.tensor([2, 0, 1, 2])


def model_of(size=20, channels=1, **options):
    torch.manual_seed(0)
    return create_model(
        "capsnet", num_classes=3, in_chans=channels, img_size=size, **TINY, **options
    )


def images_of(size=20, channels=1):
    return torch.rand(4, channels, size, size, generator=seeded(1))


def targets_of(labels, **targets):
    """Classes `[n]`, or the two classes `[n, 2]` of each image, as targets."""
    if labels.dim() == 1:
        return {"label": labels}
    hot = torch.zeros(len(labels), 3, dtype=torch.uint8).scatter_(1, labels, 1)
    return {"labels": hot, "single_label": labels, **targets}


def set_of(labels):
    pixels = torch.zeros(len(labels), 1, 20, 20, dtype=torch.uint8)
    return Dataset(pixels, targets_of(labels), ("a", "b", "c"), "some")


def task_of(model, labels=LABELS, **settings):
    return create_task(model, TrainConfig.of(**settings), set_of(labels)).train()


def losses(model, images, labels, singles=None, share=0.0, **settings):
    targets = targets_of(labels) if singles is None else targets_of(labels, singles=singles)
    batch = Batch(images, targets, torch.arange(len(images)))
    return task_of(model, labels, **settings).training_step(batch, share)


def test_the_total_is_the_margin_plus_the_weighted_error_of_the_labeled_capsules_picture():
    model = model_of(28)
    images = images_of(28)
    outputs = losses(model, images, LABELS, reconstruction=0.0005)
    capsules = model.capsules(images)
    error = reconstruction_loss(model.reconstruct(capsules, LABELS), images)
    assert_close(outputs["margin"], margin_loss(capsules.activation, LABELS))
    assert_close(outputs["reconstruction"], error)
    assert_close(outputs["loss"], outputs["margin"] + 0.0005 * error)  # 28 x 28 is the paper's size
    assert_close(outputs["activation"], capsules.activation)


def test_a_drawing_of_less_than_the_images_is_compared_at_its_size():
    model = model_of(72)
    assert model.draw_size == (28, 28)
    images = images_of(72)
    outputs = losses(model, images, LABELS, reconstruction=0.0005)
    capsules = model.capsules(images)
    targets = F.interpolate(images, (28, 28), mode="bilinear", antialias=True)
    error = reconstruction_loss(model.draw(capsules, LABELS), targets)
    assert_close(outputs["reconstruction"], error)
    assert_close(outputs["loss"], outputs["margin"] + 0.0005 * error)


@pytest.mark.parametrize(("size", "channels"), [(20, 1), (28, 3), (32, 3)])
def test_the_weight_is_per_784_values_so_that_a_pixel_counts_the_same_at_every_size(size, channels):
    outputs = losses(
        model_of(size, channels), images_of(size, channels), LABELS, reconstruction=0.5
    )
    weight = 0.5 * 784 / (channels * size * size)
    assert_close(outputs["loss"], outputs["margin"] + weight * outputs["reconstruction"])


def test_a_weight_of_zero_leaves_the_decoder_without_gradient():
    model = model_of()
    outputs = losses(model, images_of(), LABELS, reconstruction=0)
    outputs["loss"].backward()
    assert "reconstruction" not in outputs
    assert outputs["loss"] == outputs["margin"]
    for weight in model.decoder.parameters():
        assert weight.grad is None
    for weight in model.class_capsules.parameters():
        assert weight.grad.abs().sum() > 0


def test_the_weight_without_a_decoder_is_zero():
    model = model_of(decoder=False)
    assert task_of(model).reconstruction_weight == 0
    assert task_of(model, reconstruction=0).reconstruction_weight == 0
    assert task_of(model_of()).reconstruction_weight == 0.0005
    assert task_of(model_of(), loss="spread").reconstruction_weight == 0
    with pytest.raises(
        ArgumentError, match="reconstruction: expected 0 for a model without a decoder, got 0.0005"
    ):
        task_of(model, reconstruction=0.0005)


def matrix_model(**options):
    torch.manual_seed(0)
    return create_model(
        "matrix_caps", num_classes=3, in_chans=1, img_size=20, types=(2, 2), **TINY, **options
    )


@pytest.mark.parametrize(("share", "margin"), [(0.0, 0.2), (0.5, 0.55), (1.0, 0.9), (1.5, 0.9)])
def test_the_margin_of_the_spread_loss_rises_with_the_training(share, margin):
    outputs = losses(matrix_model(), images_of(), LABELS, share=share)
    assert_close(outputs["loss"], spread_loss(outputs["activation"], LABELS, margin))
    assert_close(outputs["spread"], outputs["loss"])


def test_the_default_loss_is_that_of_the_publication():
    assert task_of(matrix_model()).loss == "spread"
    assert task_of(model_of()).loss == "margin"
    assert task_of(cnn()).loss == "cross_entropy"
    assert task_of(matrix_model(), loss="margin").loss == "margin"
    assert task_of(torch.nn.Linear(2, 2)).loss == "cross_entropy"
    with pytest.raises(ArgumentError, match="unknown loss 'spred'; did you mean 'spread'"):
        task_of(model_of(), loss="spred")
    with pytest.raises(ArgumentError, match="cross_entropy needs a model with logits"):
        losses(model_of(), images_of(), LABELS, loss="cross_entropy")


def test_the_gradient_is_clipped_but_for_the_spread_loss():
    assert task_of(matrix_model()).config.optimizer.clip == 0.0
    assert task_of(model_of()).config.optimizer.clip == 1.0


TWO = torch.tensor([[2, 0], [0, 1], [1, 2], [2, 1]])


def test_of_two_labels_each_capsule_draws_its_own_single_image():
    model = model_of()
    images = images_of()
    singles = torch.rand(4, 2, 1, 20, 20, generator=seeded(2))
    outputs = losses(model, images, TWO, singles, reconstruction=0.5)
    capsules = model.capsules(images)
    targets = torch.tensor([[1, 0, 1], [1, 1, 0], [0, 1, 1], [0, 1, 1]])
    assert_close(outputs["margin"], margin_loss(capsules.activation, targets))
    drawings = torch.stack([model.reconstruct(capsules, labels) for labels in TWO.T], dim=1)
    error = reconstruction_loss(drawings[:, 0], singles[:, 0])
    error = error + reconstruction_loss(drawings[:, 1], singles[:, 1])
    assert_close(outputs["reconstruction"], error)
    crossed = losses(model, images, TWO.flip(1), singles, reconstruction=0.5)
    assert abs(crossed["reconstruction"] - outputs["reconstruction"]) > 1e-4


def test_two_labels_without_single_images_are_refused():
    with pytest.raises(
        ArgumentError, match="singles: expected what each labeled class looks like alone, got none"
    ):
        losses(model_of(), images_of(), TWO, reconstruction=0.5)


def test_two_labels_have_a_margin_loss_without_a_decoder_and_no_spread_loss():
    model = model_of(decoder=False)
    assert losses(model, images_of(), TWO, reconstruction=0)["loss"] > 0
    with pytest.raises(ArgumentError, match="several classes; take margin"):
        losses(model, images_of(), TWO, loss="spread")


@pytest.mark.parametrize("labels", [LABELS, TWO])
def test_a_network_for_several_classes_takes_each_by_itself(labels):
    network = cnn(pool=True, multilabel=True, dropout=0.0)
    outputs = losses(network, images_of(), labels)
    p = network.eval()(images_of())
    targets = torch.zeros(4, 3).scatter_(1, labels.view(4, -1), 1.0)
    assert_close(outputs["activation"], p)
    expected = -(targets * p.log() + (1 - targets) * (1 - p).log()).sum(dim=1).mean()
    assert_close(outputs["loss"], expected)


def test_a_network_for_one_class_refuses_two_labels():
    with pytest.raises(ArgumentError, match="multilabel=true"):
        losses(cnn(), images_of(), TWO)
    with pytest.raises(
        ArgumentError,
        match="task: classify takes images of one class each, got .* give 'label' by name, as labels=",
    ):
        task_of(model_of(), TWO, task="classify")


def test_smoothed_labels_give_every_class_its_share():
    network = cnn(dropout=0.0)
    p = network.eval()(images_of())
    target = torch.nn.functional.one_hot(LABELS, 3) * 0.7 + 0.1
    outputs = losses(network, images_of(), LABELS, label_smoothing=0.3)
    assert_close(outputs["loss"], -(target * p.log()).sum(dim=1).mean())


class Flat(torch.nn.Module):
    """A user's own classifier: logits, and nothing declared."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(400, 3)

    def forward(self, images):
        return self.layer(images.flatten(1))


@pytest.mark.parametrize(("labels", "function"), [(LABELS, "softmax"), (TWO, "sigmoid")])
def test_a_module_that_declares_nothing_gives_logits(labels, function):
    torch.manual_seed(0)
    model = Flat()
    outputs = losses(model, images_of(), labels)
    logits = model(images_of())
    expected = logits.softmax(dim=1) if function == "softmax" else logits.sigmoid()
    assert_close(outputs["activation"], expected)
    targets = torch.zeros(4, 3).scatter_(1, labels.view(4, -1), 1.0)
    log_likelihood = targets * expected.log() + (1 - targets) * (1 - expected).log() * (
        function == "sigmoid"
    )
    assert_close(outputs["loss"], -log_likelihood.sum(dim=1).mean())


def test_validation_has_the_loss_of_the_end_of_the_training():
    task = task_of(matrix_model())
    pixels = images_of().mul(255).byte()
    outcomes = eval_outputs(task, Dataset(pixels, {"label": LABELS}, ("a", "b", "c"), "some"))
    figures = task.compute_metrics(outcomes)
    outputs = task.eval().training_step(
        Batch(pixels.float() / 255, {"label": LABELS}, torch.arange(len(LABELS))), 1.0
    )
    assert figures["loss"] == pytest.approx(outputs["loss"].item(), rel=1e-5)
    assert figures["accuracy"] == outputs["accuracy"].item()


def test_only_capsules_are_said_to_be_dead():
    class Constant(Flat):
        spec = ModelSpec(activation="probability", loss="margin")

    still = {"activation": torch.full((4, 3), 0.01)}
    assert task_of(model_of()).detect_collapse(still) == "every class capsule was dead"
    assert task_of(Constant()).detect_collapse(still) is None
    assert task_of(model_of()).detect_collapse({"activation": torch.eye(3)}) is None


def test_margins_are_harder_from_the_middle_of_the_training_on():
    activation = torch.tensor([[0.93, 0.08, 0.4], [0.2, 0.91, 0.06]])
    scores = Scores(activation, None, None)
    targets = torch.tensor([0, 1])
    settings = TrainConfig().task
    early = two_margins(scores, targets, 0.49, settings)
    late = two_margins(scores, targets, 0.5, settings)
    assert_close(early, margin_loss(activation, targets))
    assert late > early
    # A graph passes a tensor, which the host cannot read: neither can it in a vmap.
    losses = torch.func.vmap(lambda share: two_margins(scores, targets, share, settings))
    assert_close(losses(torch.tensor([0.49, 0.5])), torch.stack([early, late]))


def test_a_further_output_has_no_name_of_a_class():
    model = model_of()
    images = Dataset(images_of(), {"label": torch.tensor([0, 1, 0, 1])}, ("1", "2"), "some")
    [row] = create_task(model, TrainConfig(), images).predict(images.inputs[:1])
    assert row["activations"].keys() == {"1", "2", "output 2"}


def test_of_several_labels_all_must_be_among_the_most_active():
    activation = torch.tensor([[0.9, 0.8, 0.1], [0.9, 0.1, 0.8], [0.1, 0.2, 0.9]])
    labels = torch.tensor([[1, 0], [0, 1], [0, 1]])
    assert is_correct(activation, labels).tolist() == [True, False, False]
