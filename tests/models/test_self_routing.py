"""SR-CapsNet, and the heads that it was compared with, on small images."""

import pytest
import torch

import torchcaps as tc
from torchcaps.data import Batch, Dataset
from torchcaps.errors import UnknownNameError
from torchcaps.evaluation import diagnose, routing_ablation
from torchcaps.settings import TrainConfig
from torchcaps.tasks import create_task
from torchcaps.tasks.classify import LOSSES, Scores
from torchcaps.testing import check_module, seeded

SMALL = {"types": 4, "dim": 4}
HEADS = {
    "average": {"head": "average"},
    "linear": {"head": "linear"},
    "self-routing": {"head": "self_routing", **SMALL},
    "self-routing, depth 2": {"head": "self_routing", "depth": 2, **SMALL},
    "dynamic": {"head": "dynamic", **SMALL},
    "dynamic, depth 2": {"head": "dynamic", "depth": 2, **SMALL},
    "em": {"head": "em", **SMALL},
    "em, depth 2": {"head": "em", "depth": 2, **SMALL},
}
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


@pytest.mark.parametrize("options", HEADS.values(), ids=HEADS)
def test_every_head_keeps_the_properties_of_models(options):
    model = make_model(**options)
    with torch.no_grad():  # a step of statistics, for fresh ones do not norm anything
        model.train()(sample_images(16))
    check_module(model.eval(), sample_images())


@pytest.mark.parametrize(
    "options",
    [
        *HEADS.values(),
        {"backbone": "convnet"},
    ],
)
def test_every_head_learns(options):
    model = make_model(**options)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    losses = []
    for _ in range(8):
        optimizer.zero_grad()
        loss = training_step(model)["loss"]
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.9 * losses[0]


@pytest.mark.parametrize("head", ["self_routing", "dynamic", "em"])
def test_the_loss_is_the_negative_logarithm_of_the_labels_share(head):
    model = make_model(head=head).eval()
    activation = model(sample_images())
    shares = activation / activation.sum(dim=1, keepdim=True)
    expected = -shares[torch.arange(3), LABELS].log().mean()
    torch.testing.assert_close(training_step(model)["likelihood"], expected)


def test_activations_of_self_routed_classes_sum_to_one():
    activation = make_model().eval()(sample_images())
    torch.testing.assert_close(activation.sum(dim=1), torch.ones(3))


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
    ("img_size", "positions"),
    [
        (5, 4),
        ((9, 30), 3 * 8),
        (33, 9 * 9),
    ],
)
def test_any_size(img_size, positions):
    model = make_model(7, 2, img_size, types=2, dim=4)
    capsules = model.capsules(torch.rand(1, *model.image_shape))
    assert capsules.pose.shape == (1, 7, 4)
    assert model.class_capsules.votes.sizes.children == positions * 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"img_size": 4}, "img_size: expected images of at least 5x5 pixels, got 4x4"),
        ({"img_size": 8, "depth": 2}, "img_size: expected images of at least 9x9 pixels"),
        ({"img_size": 16, "depth": 2, "backbone": "convnet"}, "img_size: .* at least 17x17 pixels"),
        ({"depth": 3}, "depth: expected between 1 and 2, got 3"),
        ({"head": "em", "dim": 5}, "sizes: expected poses of P x P numbers"),
        ({"uniform": True}, "uniform: expected depth 2, for the couplings of self-routed classes"),
        ({"types": 0}, "types: expected at least 1, got 0"),
    ],
)
def test_wrong_options(options, message):
    with pytest.raises(ValueError, match=message):
        make_model(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"head": "linaer"}, "unknown head 'linaer'; did you mean 'linear'"),
        ({"backbone": "resnet"}, "unknown backbone 'resnet'; did you mean 'resnet20'"),
    ],
)
def test_unknown_names(options, message):
    with pytest.raises(UnknownNameError, match=message):
        make_model(**options)


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
    torch.testing.assert_close(coupling, expected)
    assert activation.std(dim=1).min() > 0  # it still tells classes apart


def test_the_ablation_learns_everything_but_the_choice_that_it_leaves_out():
    model = make_model(uniform=True, depth=2, **SMALL)
    training_step(model)["loss"].backward()
    idle = {name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()}
    assert idle == {"conv_capsules.router.choice", "conv_capsules.router.lean"}


def test_without_its_choice_every_class_is_alike():
    model = make_model(**SMALL)
    model.class_capsules.router = model.class_capsules.router.uniform()
    torch.testing.assert_close(model(sample_images()), torch.full((3, 3), 1 / 3))


def test_it_is_ablated_and_diagnosed():
    model = make_model(**SMALL)
    ablation = routing_ablation(model, sample_images(), LABELS)
    assert 0 <= ablation.uniform <= 1
    images = Dataset(sample_images(), {"label": LABELS}, ("a", "b", "c"), "noise")
    assert diagnose(model, images, count=3).layers


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
    torch.testing.assert_close(model(sample_images()), resnet(sample_images()))
