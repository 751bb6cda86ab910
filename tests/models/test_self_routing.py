"""SR-CapsNet, and the heads that it was compared with, on small images."""

import pytest
import torch

import torchcaps as tc
from torchcaps.data import ImageBatch, ImageSet
from torchcaps.errors import UnknownNameError
from torchcaps.evaluation import diagnose, routing_ablation
from torchcaps.settings import TrainConfig
from torchcaps.tasks import create_task
from torchcaps.testing import check_module, seeded

PLAIN = [{"head": "average"}, {"head": "linear"}]
CAPSULES = [
    {"head": head, "depth": depth, "types": 4, "dim": 4}
    for head in ("self_routing", "dynamic", "em")
    for depth in (1, 2)
]
LABELS = torch.tensor([2, 0, 1])


def tiny(num_classes=3, in_chans=1, img_size=12, **options):
    with tc.nn.use_generator(seeded(3)):
        return tc.create_model(
            "sr_capsnet", num_classes=num_classes, in_chans=in_chans, img_size=img_size, **options
        )


def images(*shape):
    return torch.rand(*(shape or (3, 1, 12, 12)), generator=seeded())


def named(options):
    return ",".join(str(value) for value in options.values())


@pytest.mark.parametrize("options", [*PLAIN, *CAPSULES], ids=named)
def test_every_head_keeps_the_properties_of_models(options):
    model = tiny(**options)
    with torch.no_grad():  # a step of statistics, for fresh ones do not norm anything
        model.train()(images(16, 1, 12, 12))
    check_module(model.eval(), images())


@pytest.mark.parametrize("options", [*PLAIN, *CAPSULES, {"backbone": "convnet"}], ids=named)
def test_every_head_learns(options):
    model = tiny(**options)
    task = create_task(model, TrainConfig()).train()
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    losses = []
    for _ in range(12):
        optimizer.zero_grad()
        losses.append(task(ImageBatch(images(), LABELS), 0.0)["loss"])
        losses[-1].backward()
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None and parameter.grad.isfinite().all(), name
            assert parameter.grad.any(), name
        optimizer.step()
    assert losses[-1] < 0.9 * losses[0]


@pytest.mark.parametrize("head", ["self_routing", "dynamic", "em"])
def test_the_loss_is_the_negative_logarithm_of_the_labels_share(head):
    model = tiny(head=head).eval()
    found = create_task(model, TrainConfig())(ImageBatch(images(), LABELS), 0.0)
    activation = model(images())
    shares = activation / activation.sum(dim=1, keepdim=True)
    torch.testing.assert_close(found["likelihood"], -shares[torch.arange(3), LABELS].log().mean())
    if head == "self_routing":
        torch.testing.assert_close(activation, shares)


def test_the_likelihood_is_finite_and_of_one_class():
    from torchcaps.tasks.classify import LOSSES, Scores

    settings = TrainConfig().task
    none = torch.zeros(2, 3, requires_grad=True)
    loss = LOSSES["likelihood"](Scores(none, None, None), LABELS[:2], 0.0, settings)
    loss.backward()
    assert loss.isfinite()
    assert none.grad.isfinite().all()
    with pytest.raises(
        ValueError, match="loss: the likelihood has no form for images that show several classes"
    ):
        LOSSES["likelihood"](Scores(none, None, None), torch.ones(2, 3), 0.0, settings)


@pytest.mark.parametrize(("img_size", "places"), [(5, 4), ((9, 30), 3 * 8), (33, 9 * 9)])
def test_any_size(img_size, places):
    model = tiny(7, 2, img_size, types=2, dim=4)
    height, width = model.img_size
    capsules = model.train().capsules(images(1, 2, height, width))
    assert capsules.pose.shape == (1, 7, 4)
    assert model.class_capsules.votes.sizes.children == places * 2


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"img_size": 4}, "img_size: expected images of at least 5x5 pixels, got 4x4"),
        ({"img_size": 8, "depth": 2}, "img_size: expected images of at least 9x9 pixels"),
        ({"img_size": 16, "depth": 2, "backbone": "convnet"}, "img_size: .* at least 17x17 pixels"),
        ({"depth": 3}, "depth: expected between 1 and 2, got 3"),
        ({"head": "em", "dim": 5}, "sizes: expected poses of P x P numbers"),
        (
            {"uniform": True},
            "uniform: expected depth 2, for the couplings of self-routed classes are the answer",
        ),
        ({"types": 0}, "types: expected at least 1, got 0"),
    ],
)
def test_wrong_options(options, complaint):
    with pytest.raises(ValueError, match=complaint):
        tiny(**options)


def test_unknown_names():
    with pytest.raises(UnknownNameError, match="unknown head 'linaer'; did you mean 'linear'"):
        tiny(head="linaer")
    with pytest.raises(
        UnknownNameError, match="unknown backbone 'resnet'; did you mean 'resnet20'"
    ):
        tiny(backbone="resnet")


@pytest.mark.parametrize(
    "options", [{"head": "self_routing", "depth": 2}, {"head": "dynamic"}, {"head": "em"}]
)
def test_the_ablation_has_equal_couplings_below_the_choice_of_classes(options):
    model = tiny(uniform=True, types=4, dim=4, **options).eval()
    with tc.record_routing(model) as record:
        activation = model(images())
    layer = "conv_capsules" if options["head"] == "self_routing" else "class_capsules"
    coupling = record.last()[layer].coupling
    torch.testing.assert_close(
        coupling, torch.full_like(coupling, 1 / coupling.shape[-1]) * (coupling > 0)
    )
    assert activation.std(dim=1).min() > 0  # it still tells classes apart


def test_the_uniform_row_learns():
    model = tiny(uniform=True, depth=2, types=4, dim=4)
    task = create_task(model, TrainConfig()).train()
    task(ImageBatch(images(), LABELS), 0.0)["loss"].backward()
    idle = {name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()}
    assert idle == {"conv_capsules.router.choice", "conv_capsules.router.lean"}


def test_without_its_choice_every_class_is_alike():
    """What uniform couplings at test time mean for self-routed classes."""
    model = tiny(types=4, dim=4)
    found = routing_ablation(model, images(), LABELS)
    model.class_capsules.router = model.class_capsules.router.uniform()
    torch.testing.assert_close(model(images()), torch.full((3, 3), 1 / 3))
    assert 0 <= found.uniform <= 1
    whole = diagnose(model, ImageSet(images(), LABELS, ("a", "b", "c"), "noise"), count=3)
    assert whole.layers


def test_the_average_head_is_resnet20():
    model, other = (
        tiny(head="average", standardized=True),
        tc.create_model("resnet20", num_classes=3, in_chans=1, img_size=12, standardized=True),
    )
    other.load_state_dict(model.state_dict())
    torch.testing.assert_close(model.eval()(images()), other.eval()(images()))
