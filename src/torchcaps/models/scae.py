"""Stacked capsule auto-encoders.

Adam Kosiorek, Sara Sabour, Yee Whye Teh, Geoffrey Hinton, NeurIPS 2019, arXiv 1906.06818. Part capsules draw an image
by templates that are turned, sized and placed; object capsules explain the poses of the parts. Differs from the paper's
code in: attention adds the log of a part's presence to its logits, in place of a mask that soft presences make all or
nothing; no noise without training; likelihoods in float32; templates start around 1/2 and learn ten times as fast.

Letters: b batch, m parts, k objects, c channels, h height, w width, t side of a template.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from torchcaps.errors import check_known, check_positive, check_range
from torchcaps.functional.affine import affine_pose, composed, inverse
from torchcaps.functional.bounds import without_autocast
from torchcaps.functional.squash import full_precision
from torchcaps.models._base import ImageModel, Images, ImageSize, side_after, side_before
from torchcaps.models._registry import ModelInfo, register_model
from torchcaps.types import Capsules, ModelSpec

POSE, FEATURES, TEMPLATE = (
    6,
    16,
    11,
)  # numbers of a pose, and beside it; side of a template in pixels
GAIN, START = (
    10.0,
    0.2,
)  # of templates: what makes their pixels learn as fast as other weights; where they start
NOISE = 4.0  # the range of what is added to logits of presence in training
HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)
VOTE_SCALE, SMALLEST_SPREAD = 0.5, 0.01
NOBODY = -4 * math.log(
    10
)  # log likelihood, with its mixing weight, of a part that no object explains
# Of the parts of the loss, with MNIST; see `tasks.unsupervised.losses`, and for `views`, not of the paper, `agreement`.
WEIGHTS = {
    "pixels": 1.0,
    "poses": 1.0,
    "dynamic": 10.0,
    "within": 0.7,
    "between": 0.2,
    "objects": 2.0,
    "examples": 0.35,
    "views": 0.0,
}
COLOR_UNITS, BLOCKS = 32, 3
CAPSULE_UNITS = (128, 32, 128)  # of the hidden layers of an object capsule
KERNEL, STRIDES = 3, (2, 2, 1, 1)


class Noise(NamedTuple):
    """What is added to logits of presence in training, each uniform in [-2, 2].

    Attributes:
        parts: `[batch, parts]`.
        objects: `[batch, objects]`.
        votes: `[batch, objects, parts]`.
    """

    parts: Tensor
    objects: Tensor
    votes: Tensor


class Parts(NamedTuple):
    """Part capsules.

    Attributes:
        pose: `[batch, parts, 6]`.
        logit: of presence, `[batch, parts]`.
        feature: `[batch, parts, 16]`.
    """

    pose: Tensor
    logit: Tensor
    feature: Tensor


class Objects(NamedTuple):
    """Object capsules, and what each of them says of each part.

    Attributes:
        pose: of the object as the viewer sees it, `[batch, objects, 6]`.
        vote: the pose that the part should have, `[batch, objects, parts, 6]`.
        spread: standard deviation of the vote, `[batch, objects, parts]`.
        log_weight: log a_km: presence of the object, times the part's in it, `[batch, objects, parts]`.
        dynamic: by how much the part's place differs from the learned one, `[batch, objects, parts, 6]`.
    """

    pose: Tensor
    vote: Tensor
    spread: Tensor
    log_weight: Tensor
    dynamic: Tensor

    @property
    def presence(self) -> Float[Tensor, "batch objects"]:
        """a_k = max over m of a_km, in [0, 1]."""
        return self.log_weight.amax(dim=-1).exp()


class Explained(NamedTuple):
    """An image, taken apart. Of the m + 1 parts that draw, the last is the background; of the k + 1 objects that
    explain a part, the last is none.

    Attributes:
        parts, objects: its capsules.
        drawn: what each part draws at each pixel, in [0, 1], `[batch, m + 1, channels, height, width]`.
        share: logits: how much each of them has to say there, `[batch, m + 1, 1, height, width]`.
        log_likelihood: of the pixels, `[batch]`.
        part_log_likelihood: of the poses of the parts, weighted by their presence, `[batch]`.
        posterior: which object explains a part, `[batch, m, k + 1]`.
    """

    parts: Parts
    objects: Objects
    drawn: Tensor
    share: Tensor
    log_likelihood: Tensor
    part_log_likelihood: Tensor
    posterior: Tensor


class PartCapsules(nn.Module):
    """Parts of an image by attention over a convolutional map, and the image by their templates."""

    def __init__(
        self,
        in_chans: int,
        img_size: tuple[int, int],
        parts: int,
        *,
        channels: int = 128,
        strides: Sequence[int] = STRIDES,
        pixel_scale: float = 1.0,
    ) -> None:
        super().__init__()
        check_positive(channels=channels)
        check_range("pixel_scale", pixel_scale, low=1e-3)
        self.sizes = (in_chans, *img_size)
        self.pixel_scale = pixel_scale
        self.encoder = nn.Sequential()
        below = in_chans
        for stride in strides:
            self.encoder.extend([nn.Conv2d(below, channels, KERNEL, stride), nn.ReLU()])
            below = channels
        sides = [side_after(side, [(KERNEL, stride) for stride in strides]) for side in img_size]
        self.place = nn.Parameter(torch.zeros(channels, *sides))
        self.head = nn.Conv2d(channels, parts * (POSE + FEATURES + 2), 1)

        start = nn.init.orthogonal_(torch.empty(parts, in_chans * TEMPLATE**2))
        low, high = start.aminmax(dim=1, keepdim=True)
        start = START * (2 * (start - low) / (high - low) - 1)
        self.template = nn.Parameter(start.unflatten(1, (in_chans, TEMPLATE, TEMPLATE)))
        self.alpha = nn.Parameter(torch.zeros(parts, 1, TEMPLATE, TEMPLATE))
        self.color = nn.Sequential(
            nn.Linear(FEATURES, COLOR_UNITS), nn.ReLU(), nn.Linear(COLOR_UNITS, in_chans)
        )
        self.background = nn.Parameter(torch.zeros(()))
        self.background_logit = nn.Parameter(torch.zeros(()))

    def templates(self) -> Float[Tensor, "parts channels side side"]:
        """The learned templates, in (0, 1)."""
        return (GAIN * full_precision(self.template)).sigmoid()

    def forward(self, images: Tensor, noise: Tensor | None = None) -> Parts:
        features = self.head(self.encoder(images) + self.place).flatten(2)
        features = full_precision(features.unflatten(1, (len(self.template), -1)))
        attention = features[:, :, -1:].softmax(dim=-1)  # over places; [b, m, 1, places]
        numbers = (features[:, :, :-1] * attention).sum(dim=-1)
        logit = numbers[..., -1] if noise is None else numbers[..., -1] + noise
        return Parts(affine_pose(numbers[..., :POSE]), logit, numbers[..., POSE:-1])

    def draw(self, parts: Parts) -> tuple[Tensor, Tensor]:
        """What each part and the background draw at each pixel, and the logits of their shares there."""
        pose, logit, feature = parts
        (b, m), (c, h, w) = pose.shape[:2], self.sizes
        color = full_precision(self.color(feature.to(self.template))).sigmoid()[..., None, None]
        both = torch.cat([self.templates(), full_precision(self.alpha)], dim=1)
        # One sampling a part, of the batch beside each other: a template is not copied for each image.
        theta = inverse(pose).transpose(0, 1).reshape(-1, 2, 3)
        grid = F.affine_grid(theta, [m * b, 1, h, w], align_corners=True).view(m, b * h, w, 2)
        warped = F.grid_sample(
            both, grid, mode="bilinear", padding_mode="zeros", align_corners=True
        )
        warped = warped.unflatten(2, (b, h)).permute(2, 0, 1, 3, 4)  # [b, m, c + 1, h, w]
        shares = warped[:, :, c:] + F.logsigmoid(logit)[..., None, None, None]
        background = self.background.sigmoid().expand(b, 1, c, h, w)
        background_share = F.softplus(self.background_logit).expand(b, 1, 1, h, w)
        drawn = torch.cat([warped[:, :, :c] * color, background], dim=1)
        return drawn, torch.cat([shares, background_share], dim=1)

    def log_likelihood(
        self, images: Tensor, drawn: Tensor, share: Tensor
    ) -> Float[Tensor, " batch"]:
        """`sum over pixels of log sum_m share_m N(x; drawn_m, scale)`."""
        off = full_precision(images).unsqueeze(1) - drawn
        both = torch.addcmul(
            share, off, off, value=-0.5 / self.pixel_scale**2
        )  # one pass over the largest tensor
        pixels = both.logsumexp(dim=1) - share.logsumexp(dim=1)
        pixels = pixels - math.log(self.pixel_scale) - HALF_LOG_2PI
        return pixels.flatten(1).sum(dim=1)


class _Block(nn.Module):
    """Self-attention of a set, whose members may be absent, and a small network for each member."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)
        self.first = nn.LayerNorm(dim)
        self.second = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.ReLU(), nn.Linear(2 * dim, dim))

    def forward(self, x: Tensor, logit: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        x = x + self.out(attend(q, k, v, logit))
        x = self.first(x * logit.sigmoid().unsqueeze(-1).to(x))
        return self.second(x + self.mlp(x))


def attend(query: Tensor, key: Tensor, value: Tensor, logit: Tensor) -> Tensor:
    """One head of attention over a set whose members have logits of presence: logs of presence on its logits."""
    query, key = full_precision(query), full_precision(key)
    scores = query @ key.mT / math.sqrt(key.shape[-1]) + F.logsigmoid(logit).unsqueeze(-2)
    with without_autocast(scores):
        return (scores.softmax(dim=-1) @ full_precision(value)).to(value.dtype)


class ObjectCapsules(nn.Module):
    """Objects by a set transformer over parts; each votes for the pose of every part."""

    def __init__(
        self, numbers: int, parts: int, objects: int, units: int, set_units: int = 16
    ) -> None:
        super().__init__()
        self.parts = parts
        self.embed = nn.Linear(numbers, set_units)
        self.blocks = nn.ModuleList(_Block(set_units) for _ in range(BLOCKS))
        self.widen = nn.Linear(set_units, units)
        self.key = nn.Linear(units, units, bias=False)
        self.value = nn.Linear(units, units)
        self.seeds = nn.Parameter(torch.randn(objects, units) / math.sqrt(units))
        rest = POSE + 1 + 2 * parts  # of all that a capsule says but the dynamic relations
        widths = (units, *CAPSULE_UNITS, parts * POSE + rest)
        self.weight = nn.ParameterList(
            torch.randn(objects, *shape) * math.sqrt(2 / sum(shape)) for shape in pairwise(widths)
        )
        self.bias = nn.ParameterList(torch.zeros(objects, width) for width in CAPSULE_UNITS)
        self.rest = nn.Parameter(torch.zeros(objects, rest))
        self.static = nn.Parameter(torch.randn(objects, parts, POSE) * math.sqrt(1 / POSE))

    def forward(self, members: Tensor, logit: Tensor, noise: Noise | None = None) -> Objects:
        x = self.embed(members.to(self.embed.weight.dtype))
        for block in self.blocks:
            x = block(x, logit)
        x = self.widen(x)
        seeds = self.seeds.expand(len(x), -1, -1)
        return self.decode(attend(seeds, self.key(x), self.value(x), logit), noise)

    def decode(self, x: Tensor, noise: Noise | None) -> Objects:
        """What capsules `[b, k, 256]` say."""
        with without_autocast(x):  # likelihoods are of small differences
            x = full_precision(x)
            for layer, weight in enumerate(self.weight):
                x = torch.einsum("bki,kio->bko", x, full_precision(weight))
                if layer < len(self.bias):
                    x = x + full_precision(self.bias[layer])
                if layer in (0, 2):
                    x = x.relu()
            m = self.parts
            dynamic = x[..., : m * POSE].unflatten(-1, (m, POSE))
            rest = x[..., m * POSE :] + full_precision(self.rest)
            pose, present, part, spread = rest.split([POSE, 1, m, m], dim=-1)
            if noise is not None:
                present, part = present + noise.objects.unsqueeze(-1), part + noise.votes
            pose = affine_pose(pose)
            vote = composed(pose.unsqueeze(2), affine_pose(dynamic + full_precision(self.static)))
            spread = F.softplus(spread + VOTE_SCALE) + SMALLEST_SPREAD
            return Objects(pose, vote, spread, F.logsigmoid(present) + F.logsigmoid(part), dynamic)


def pose_likelihood(
    pose: Float[Tensor, "batch parts 6"], objects: Objects
) -> tuple[Float[Tensor, "batch parts"], Float[Tensor, "batch parts objects"]]:
    """`log p(part)` by the votes of all objects, and the posterior of the objects, the last of which is "none"."""
    spread = objects.spread.unsqueeze(-1)
    off = (pose.unsqueeze(1) - objects.vote) / spread
    each = (-0.5 * off.square() - spread.log() - HALF_LOG_2PI).sum(dim=-1)
    logits = F.pad((objects.log_weight + each).mT, (0, 1), value=NOBODY)  # [b, m, k + 1]
    return logits.logsumexp(dim=-1), logits.softmax(dim=-1)


class SCAE(ImageModel):
    """Part capsules that draw an image, and object capsules that explain where the parts are.

    Its outputs are presences of objects, `[batch, objects]` in [0, 1].

    Args:
        parts: part capsules; 40 in the paper's experiment with MNIST.
        objects: object capsules; 32 there.
        clusters: that images are divided into by their objects, after the training; as many as there are classes.
        units: of the learned seeds that look for objects; 256 there.
        set_units: of the set transformer that looks at parts; 16 there.
        weights: of parts of the loss, those that differ from `WEIGHTS`. With `views` above 0 parts and objects learn
            one after the other; see `tasks.unsupervised.Unsupervised`. ValueError for unknown names,
            and for numbers below 0.
        channels: of the 3x3 convolutions; 128 there.
        strides: of the convolutions, one each.
        pixel_scale: standard deviation of a pixel; 1 there, with which a training takes many times longer.
    """

    def __init__(
        self,
        in_chans: int = 1,
        img_size: ImageSize = 40,
        *,
        parts: int = 40,
        objects: int = 32,
        clusters: int = 10,
        units: int = 256,
        set_units: int = 16,
        weights: Mapping[str, float] | None = None,
        **part_options: Any,
    ) -> None:
        strides = part_options.get("strides", STRIDES)
        for stride in strides:
            check_range("strides", stride, low=1)
        smallest = side_before(1, [(KERNEL, stride) for stride in strides])
        super().__init__(
            None,
            in_chans,
            img_size,
            smallest,
            parts=parts,
            objects=objects,
            clusters=clusters,
            units=units,
            set_units=set_units,
        )
        self.spec = ModelSpec(
            pose=True,
            activation="probability",
            smallest=smallest,
            task="unsupervised",
            loss="likelihood",
        )
        self.num_parts, self.num_objects, self.num_clusters = parts, objects, clusters
        self.part_capsules = PartCapsules(in_chans, self.img_size, parts, **part_options)
        numbers = POSE + 1 + FEATURES + in_chans * TEMPLATE**2
        self.object_capsules = ObjectCapsules(numbers, parts, objects, units, set_units)
        self.weights = WEIGHTS | dict(weights or {})
        for name, weight in self.weights.items():
            check_known("weight", name, WEIGHTS)
            check_range(name, weight, low=0)
        self.register_buffer("centers", torch.zeros(2, clusters, objects))
        self.register_buffer("names", torch.zeros(2, clusters, dtype=torch.int64))

    def explain(self, images: Images, noise: Noise | None = None) -> Explained:
        """Parts and objects of the images, what they draw, and how likely that makes what is seen."""
        parts, drawn, share, seen = self.depict(images, noise and noise.parts)
        objects, told, posterior = self._told(parts, noise)
        return Explained(parts, objects, drawn, share, seen, told, posterior)

    def depict(
        self, images: Images, noise: Tensor | None = None
    ) -> tuple[Parts, Tensor, Tensor, Tensor]:
        """Parts of the images, and of them what `Explained` has as `drawn`, `share` and `log_likelihood`."""
        images = self._prepare(images)
        parts = self.part_capsules(images, noise)
        with without_autocast(images):
            drawn, share = self.part_capsules.draw(parts)
            return parts, drawn, share, self.part_capsules.log_likelihood(images, drawn, share)

    def recognize(self, images: Images) -> tuple[Objects, Float[Tensor, " batch"]]:
        """Objects of the images, and the log likelihood of the poses of their parts, from which nothing flows back."""
        images = self._prepare(images)
        with torch.no_grad():
            parts = self.part_capsules(images)
        return self._told(parts)[:2]

    def capsules(self, images: Images) -> Capsules:
        images = self._prepare(images)
        objects = self._objects(self.part_capsules(images))
        return Capsules(objects.pose, objects.presence)

    def templates(self) -> Float[Tensor, "parts channels side side"]:
        """The learned templates, in (0, 1)."""
        return self.part_capsules.templates().detach()

    def covers(self) -> Float[Tensor, "parts 1 side side"]:
        """How much each pixel of a template has to say, in (0, 1), beside a part of the same presence that is gray."""
        return self.part_capsules.alpha.detach().sigmoid()

    def _told(self, parts: Parts, noise: Noise | None = None) -> tuple[Objects, Tensor, Tensor]:
        """Objects, and of their votes what `Explained` has as `part_log_likelihood` and `posterior`."""
        objects = self._objects(parts, noise)
        with without_autocast(parts.pose):
            each, posterior = pose_likelihood(parts.pose.detach(), objects)
            return objects, (parts.logit.detach().sigmoid() * each).sum(dim=1), posterior

    def _objects(self, parts: Parts, noise: Noise | None = None) -> Objects:
        """The objects that explain the parts, from which nothing flows back but through features."""
        pose, logit, feature = parts
        logit = logit.detach()
        templates = self.templates().flatten(1).expand(len(pose), -1, -1)
        absent = (-logit).sigmoid().unsqueeze(-1)
        members = torch.cat([pose.detach(), absent, feature, templates], -1)
        return self.object_capsules(members, logit, noise)


# The auto-encoder of 2019 at a size that a CPU trains; the paper's has 40 parts, 32 objects, 128 channels.
register_model(
    name="scae",
    builder=SCAE,
    info=ModelInfo(
        title="Stacked Capsule Autoencoders",
        year=2019,
        arxiv="1906.06818",
        num_classes=0,
        parameters=746_671,
        published="98.7 % unsupervised accuracy on MNIST",
    ),
    parts=16,
    objects=20,
    channels=32,
    units=64,
    pixel_scale=0.2,
)
