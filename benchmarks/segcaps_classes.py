"""Why SegCaps is slow to learn kinds of shapes: lengths of its layers and right kinds, by steps.

    python -m benchmarks.segcaps_classes                      SegCaps, three iterations
    python -m benchmarks.segcaps_classes --contrasts both     shapes also darker than the background
    python -m benchmarks.segcaps_classes --contrasts both --keep-lengths
    python -m benchmarks.segcaps_classes --model unet_matched --lr 0.002

A disc or a triangle in an image of 16 x 16 pixels. `--keep-lengths` divides the sums of each inner
layer by their mean norm in the batch. No paper does so. It shows what short capsules cost.
"""

import argparse
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import torchcaps as tc
from torchcaps.functional.squash import squash_with_length
from torchcaps.nn.map_routing import KernelCaps
from torchcaps.tasks.segment import PixelPrediction, cross_entropy
from torchcaps.types import Capsules

SIZE = 16
FINE = 3  # rays of a pixel along each axis
BATCH = 16
WARMUP = 20  # steps in which the rate rises
CORNERS = 3
REACH = 0.778  # share of a triangle's radius from its center to a side
OPTIONS: dict[str, dict[str, Any]] = {
    "segcaps": {"dim": 4, "decoder": False},
    "unet_matched": {"channels": 14, "levels": 3},
}


def render_scene(random: np.random.RandomState, both_contrasts: bool) -> tuple[np.ndarray, ...]:
    """An image in [0, 1], and its mask with 1 for a disc and 2 for a triangle."""
    along = (np.arange(SIZE * FINE) + 0.5) / (SIZE * FINE)
    y, x = np.meshgrid(along, along, indexing="ij")
    kind = random.randint(1, 3)
    center = random.uniform(0.4, 0.6, 2)
    radius = random.uniform(0.28, 0.36)
    turn = random.uniform(0, 2 * np.pi)
    x = x - center[0]
    y = y - center[1]
    is_inside = x * x + y * y < radius * radius
    if kind == 2:
        is_inside = np.ones(x.shape, dtype=bool)
        for angle in turn + 2 * np.pi * np.arange(CORNERS) / CORNERS:
            is_inside &= x * np.cos(angle) + y * np.sin(angle) < REACH * radius
    ground = 0.8 if both_contrasts and random.rand() >= 0.5 else 0.2
    light = ground + (1 - 2 * ground) * is_inside
    pixels = light.reshape(SIZE, FINE, SIZE, FINE).mean(axis=(1, 3))
    pixels = pixels + random.normal(0, 0.03, pixels.shape)
    middle = slice(FINE // 2, None, FINE)
    return pixels.clip(0, 1).astype(np.float32), (is_inside * kind)[middle, middle]


def render_scenes(count: int, seed: int, both_contrasts: bool) -> tuple[Tensor, Tensor]:
    """Images `[count, 1, 16, 16]` and masks `[count, 16, 16]`."""
    scenes = (render_scene(np.random.RandomState([seed, k]), both_contrasts) for k in range(count))
    images, masks = zip(*scenes, strict=True)
    return torch.from_numpy(np.stack(images)).unsqueeze(1), torch.from_numpy(np.stack(masks))


def rescale_sums(_layer: nn.Module, _inputs: tuple[Capsules], parents: Capsules) -> Capsules:
    """Parents whose sums of votes are divided by the mean norm of all sums."""
    pose, length = parents
    norm = (length / (1 - length)).sqrt()  # squash makes of it the length
    scaled = pose * (norm / length / norm.mean().detach()).unsqueeze(-1)
    return squash_with_length(scaled)


def predict(model: nn.Module, images: Tensor) -> PixelPrediction:
    """Probabilities of both kinds, of lengths or of logits."""
    if isinstance(model, tc.models.unet.UNet):
        logits = model.logits(images)
        return PixelPrediction(model.probabilities(logits), logits)
    return PixelPrediction(model(images))


def describe(model: nn.Module, images: Tensor, masks: Tensor) -> str:
    """Share of the pixels of shapes with the right kind, and the mean length of each layer."""
    lengths: list[str] = []

    def note(_layer: nn.Module, _inputs: tuple[Capsules], parents: Capsules) -> None:
        lengths.append(f"{parents.activation.mean():.2f}")

    layers = [layer for layer in model.modules() if isinstance(layer, KernelCaps)]
    handles = [layer.register_forward_hook(note) for layer in layers]
    with torch.no_grad():
        kinds = 1 + predict(model, images).probabilities.argmax(dim=1)
    for handle in handles:
        handle.remove()
    is_shape = masks > 0
    share = (kinds == masks)[is_shape].float().mean()
    return f"right kinds {share:.1%}  lengths {' '.join(lengths)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", choices=OPTIONS, default="segcaps")
    parser.add_argument("--iterations", type=int, help="of routing, default 3")
    parser.add_argument("--contrasts", choices=("one", "both"), default="one")
    parser.add_argument("--keep-lengths", action="store_true")
    parser.add_argument("--lr", type=float, default=0.004)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    options = OPTIONS[args.model]
    if args.iterations:
        options["iterations"] = args.iterations

    images, masks = render_scenes(4000, 0, args.contrasts == "both")
    others = render_scenes(200, 1, args.contrasts == "both")
    sizes = masks.flatten().bincount()[1:]
    weights = ((masks.numel() - sizes) / sizes).view(-1, 1, 1)
    torch.manual_seed(args.seed)
    model = tc.create_model(args.model, num_classes=3, in_chans=1, img_size=SIZE, **options)
    if args.keep_lengths:
        for name, layer in model.named_children():
            if isinstance(layer, KernelCaps) and name != "seg_caps":
                layer.register_forward_hook(rescale_sums)
    optimizer = torch.optim.Adam(model.parameters())
    generator = torch.Generator().manual_seed(args.seed + 100)
    order: list[int] = []
    print(f"step 0: {describe(model, *others)}", flush=True)
    for step in range(1, args.steps + 1):
        if len(order) < BATCH:
            order = torch.randperm(len(images), generator=generator).tolist()
        chosen = [order.pop() for _ in range(BATCH)]
        targets = F.one_hot(masks[chosen], 3)[..., 1:].movedim(-1, 1).float()
        optimizer.param_groups[0]["lr"] = args.lr * min(1, step / WARMUP)
        loss = cross_entropy(predict(model, images[chosen]), targets, weights)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            print(f"step {step}: {describe(model, *others)}", flush=True)


if __name__ == "__main__":
    main()
