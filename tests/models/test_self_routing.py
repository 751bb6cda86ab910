"""SR-CapsNet, and the heads that it was compared with, on small images."""

import pytest
import torch
from torch.testing import assert_close

import torchcaps as tc
from torchcaps.data import Batch, Dataset
from torchcaps.evaluation import diagnose, routing_ablation
from torchcaps.settings import TrainConfig
from torchcaps.tasks import create_task
from torchcaps.tasks.classify import LOSSES, Scores
from torchcaps.testing import check_module, seeded

SMALL = {"types": 4, "dim": 4}
LABELS = torch.tensor([2, 0, 1])


def make_model(num_classes=3, in_chans=1, img_size=12, **options):
    sizes = {
        "num_classes": num_classes,
        "in_chans": in_chans,
        "img_size": img_size,
    }
    return tc.create_model("sr_capsnet", generator=seeded(3), **sizes, **options)


def sample_images(count=3):
    return torch.rand(count, 1, 12, 12, generator=seeded())


def training_step(model):
    task = create_task(model, TrainConfig())
    return task.training_step(
        Batch(sample_images(), {"label": LABELS}, torch.arange(len(LABELS))), 0.0
    )


@pytest.mark.parametrize("head", ["self_routing", "dynamic", "em"])
def test_the_loss_is_the_negative_logarithm_of_the_labels_share(head):
    # Loops of EM routing are compiled for more types, which takes seconds.
    model = make_model(head=head, types=2, dim=4).eval()
    activation = model(sample_images())
    shares = activation / activation.sum(dim=1, keepdim=True)
    expected = -shares[torch.arange(3), LABELS].log().mean()
    assert_close(training_step(model)["likelihood"], expected)


def likelihood(activation, labels):
    return LOSSES["likelihood"](Scores(activation, None, None), labels, 0.0, TrainConfig().task)


def test_the_likelihood_of_absent_classes_is_finite():
    activation = torch.zeros(2, 3, requires_grad=True)
    loss = likelihood(activation, LABELS[:2])
    loss.backward()
    assert loss.isfinite()
    assert activation.grad.isfinite().all()


def test_the_likelihood_is_of_one_class():
    message = "loss: the likelihood has no form for images that show several classes"
    with pytest.raises(ValueError, match=message):
        likelihood(torch.zeros(2, 3), torch.ones(2, 3))


@pytest.mark.parametrize(
    ("head", "depth", "layer"),
    [
        ("self_routing", 2, "conv_capsules"),
        ("dynamic", 1, "class_capsules"),
        ("em", 1, "class_capsules"),
    ],
)
def test_the_ablation_has_equal_couplings_below_the_choice_of_classes(head, depth, layer):
    model = make_model(uniform=True, head=head, depth=depth, **SMALL).eval()
    with tc.record_routing(model) as record:
        activation = model(sample_images())
    coupling = record.last()[layer].coupling
    expected = (coupling > 0) / coupling.shape[-1]
    assert_close(coupling, expected)
    assert activation.std(dim=1).min() > 0  # it still tells classes apart


def test_the_ablation_learns_everything_but_the_choice_that_it_leaves_out():
    model = make_model(uniform=True, depth=2, **SMALL)
    training_step(model)["loss"].backward()
    idle = {name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()}
    assert idle == {"conv_capsules.router.choice", "conv_capsules.router.lean"}


def test_it_is_ablated_and_diagnosed():
    model = make_model(**SMALL)
    ablation = routing_ablation(model, sample_images(), LABELS)
    assert 0 <= ablation.uniform <= 1
    images = Dataset(sample_images(), {"label": LABELS}, ("a", "b", "c"), "noise")
    assert diagnose(model, images, count=3).layers


@pytest.mark.parametrize("head", ["average", "linear"])
def test_heads_without_capsules_keep_every_property(head):
    check_module(make_model(head=head).eval(), sample_images())


def test_the_average_head_is_resnet20():
    sizes = {
        "num_classes": 3,
        "in_chans": 1,
        "img_size": 12,
        "standardized": True,
    }
    model = tc.create_model("sr_capsnet", head="average", **sizes).eval()
    resnet = tc.create_model("resnet20", **sizes).eval()
    resnet.load_state_dict(model.state_dict())
    assert_close(model(sample_images()), resnet(sample_images()))
