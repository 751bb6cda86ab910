import pytest
import torch

from torchcaps.functional import margin_loss
from torchcaps.models import create_model
from torchcaps.settings import TrainConfig
from torchcaps.tasks import create_task
from torchcaps.tasks.collapse import collapse_state, collapse_warnings, plateau
from torchcaps.testing import seeded


def spread(count, classes):
    return torch.arange(count) % classes


def healthy(labels, classes, right=0.8, seed=0):
    """Lengths of a network that has begun to learn: `right` of the images are recognized."""
    random = seeded(seed)
    lengths = torch.rand(len(labels), classes, generator=random) * 0.3
    is_right = torch.rand(len(labels), generator=random) < right
    lengths[is_right, labels[is_right]] += 0.5
    return lengths


def sentences(activation, labels):
    return collapse_warnings(activation, labels, margin_loss(activation, labels).item())


@pytest.mark.parametrize(
    ("length", "words"), [(0.01, ("dead", "bias=true")), (0.99, ("saturated", "lower"))]
)
def test_dead_and_saturated_capsules_are_told_with_what_to_change(length, words):
    [sentence] = sentences(torch.full((30, 10), length), spread(30, 10))
    for word in words:
        assert word in sentence


def test_a_network_without_capsules_is_told_nothing_of_them():
    outputs = {"activation": torch.full((86, 43), 1 / 43), "labels": spread(86, 43)}
    sizes = {"num_classes": 43, "img_size": 20}
    for name, number in (("capsnet_small", 1), ("cnn_matched", 0)):
        task = create_task(create_model(name, **sizes), TrainConfig())
        assert len(task.warnings(outputs, 0.1)) == number


@pytest.mark.parametrize("classes", [2, 10])
def test_the_plateau_is_told_by_its_loss_and_chance_accuracy(classes):
    labels = spread(20 * classes, classes)
    best = (0.9 + 0.05 * (classes - 1)) / (1 + 0.5 * (classes - 1))
    noise = 0.02 * torch.rand(len(labels), classes, generator=seeded(0))
    [sentence] = sentences(best + noise - 0.01, labels)
    assert "no class information" in sentence
    assert f"{plateau(classes):.3f}" in sentence


def test_a_loss_near_the_plateau_with_knowledge_of_the_classes_is_no_collapse():
    labels = spread(300, 10)
    activation = healthy(labels, 10, right=0.5)
    assert collapse_warnings(activation, labels, plateau(10)) == []


def test_silent_classes_are_named_if_they_occur():
    labels = spread(90, 9)  # of ten classes the last never occurs
    activation = healthy(labels, 10)
    activation[:, [3, 9]] = 0.05
    [sentence] = sentences(activation, labels)
    assert "class capsules 3 never change" in sentence


@pytest.mark.parametrize(("classes", "right"), [(2, 0.6), (10, 0.3), (43, 0.99)])
def test_a_healthy_network_has_no_warning(classes, right):
    labels = spread(50 * classes, classes)
    assert sentences(healthy(labels, classes, max(right, 1.5 / classes)), labels) == []


def test_of_images_that_show_two_classes_a_silent_capsule_is_told():
    labels = torch.tensor([[1, 1, 0], [0, 1, 1], [1, 0, 1]] * 5)
    lengths = torch.rand(15, 3, generator=seeded(0))
    assert collapse_warnings(lengths, labels, 0.5) == []
    lengths[:, 1] = 0.5
    [sentence] = collapse_warnings(lengths, labels, 0.5)
    assert "class capsules 1 never change" in sentence


def test_a_network_whose_capsules_are_nearly_all_one_is_saturated():
    activation = torch.full((6, 4), 0.95)
    activation[0, 0] = 0.2
    assert collapse_state(activation) == "saturated"
    assert collapse_state(activation - 0.1) is None
    assert collapse_state(torch.full((6, 4), 0.04)) == "dead"
