"""The two networks of the page: trained once, and kept with weights of eight bits."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int8
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from claims.measures.misplaced import misplaced_figures
from claims.protocol import load_claim
from claims.sets.faces import CLASSES, SIDE
from torchcaps import load
from torchcaps.exporting.page import SMALL
from torchcaps.models import create_model
from torchcaps.reproduction.run import train_or_resume
from torchcaps.training import Run
from torchcaps.training.files import atomic

CLAIM = "misplaced-face"
ARMS = ("C", "N")  # of the claim
NUM_IMAGES = 2000  # of each kind that the figures are measured on
SEED = 0
STORED = Path(__file__).with_name("networks.safetensors")
SCALE = " scale"  # ends the name of the scales of a tensor
HIGHEST = 127  # of the whole numbers; the lowest is its negative


class FaceNetwork(NamedTuple):
    """A network of the page.

    Attributes:
        model: with the weights that are stored, in eval mode.
        facts: ready for JSON: `arm`, its `row` of the recipe, `epochs` and `images` of each,
            `accuracy` on held-out whole objects, `seconds` of the training, and `figures` of
            so many `measured` images a kind, see `misplaced_figures`.
    """

    model: nn.Module
    facts: dict[str, Any]


def quantize(weight: Float[Tensor, "rows ..."]) -> tuple[Int8[Tensor, "rows ..."], Tensor]:
    """Weights as whole numbers of eight bits, with one scale for each row.

    Args:
        weight: of one dimension and more.

    Returns:
        The whole numbers, from -127 to 127; and the scale `[rows]` that they are multiplied by.
    """
    largest = weight.flatten(1).abs().amax(dim=1).clamp(min=torch.finfo(torch.float32).tiny)
    scale = largest / HIGHEST
    steps = (weight / _as_rows(scale, weight)).round().clamp(-HIGHEST, HIGHEST)
    return steps.to(torch.int8), scale


def _as_rows(scale: Tensor, weight: Tensor) -> Tensor:
    """Scales `[rows, 1, ...]` that are multiplied with rows of a weight."""
    return scale.view(-1, *[1] * (weight.dim() - 1))


def train_networks(work: Path, log: Callable[[str], object] = print) -> None:
    """Train both networks with one seed, and store them with their figures.

    Args:
        work: folder of the runs; a training that was stopped is continued.
        log: told of each step.
    """
    claim = load_claim(CLAIM)
    tensors: dict[str, Tensor] = {}
    all_facts = []
    for arm in ARMS:
        log(f"{CLAIM}, {arm}: {claim.arms[arm]}")
        config = claim.config(arm, SEED, "full")
        run = Run(work / arm)
        train_or_resume(run, config)
        facts = {
            "arm": arm,
            "row": claim.arms[arm],
            "epochs": len(run.epochs),
            "images": run.epochs[-1]["images"],
            "accuracy": run.epochs[-1]["val_accuracy"],
            "seconds": round(run.seconds or 0.0),
            "measured": NUM_IMAGES,
        }
        weights = load(run.path).state_dict()
        stored = {f"{arm} {name}": tensor for name, tensor in _stored(weights).items()}
        figures = misplaced_figures(_build(arm, stored), NUM_IMAGES)
        log(f"{arm}: {facts['seconds']} s, auroc_misplaced {figures['auroc_misplaced']:.3f}")
        tensors |= stored
        all_facts.append(facts | {"figures": figures})
    with atomic(STORED) as partial:
        save_file(tensors, partial, {"networks": json.dumps(all_facts)})


def _stored(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Tensors as they are stored: the large ones as whole numbers and scales."""
    stored = {}
    for name, weight in weights.items():
        if weight.numel() <= SMALL:
            stored[name] = weight
            continue
        stored[name], stored[name + SCALE] = quantize(weight)
    return stored


def _build(arm: str, stored: dict[str, Tensor]) -> nn.Module:
    """The network of an arm with stored weights; their names begin with the arm."""
    settings = load_claim(CLAIM).config(arm, SEED, "full").model
    model = create_model(
        settings.name, num_classes=len(CLASSES), in_chans=1, img_size=SIDE, **settings.options
    )
    weights = {}
    for name in model.state_dict():
        weight = stored[f"{arm} {name}"]
        if weight.dtype == torch.int8:
            weight = weight * _as_rows(stored[f"{arm} {name}{SCALE}"], weight)
        weights[name] = weight
    model.load_state_dict(weights)
    return model.eval()


def read_networks() -> list[FaceNetwork]:
    """The stored networks, the capsule network first."""
    with safe_open(STORED, framework="pt") as file:
        stored = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        all_facts = json.loads(file.metadata()["networks"])
    return [FaceNetwork(_build(facts["arm"], stored), facts) for facts in all_facts]
