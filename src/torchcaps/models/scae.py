"""Stacked capsule auto-encoders.

Adam Kosiorek, Sara Sabour, Yee Whye Teh, Geoffrey Hinton, "Stacked Capsule Autoencoders", NeurIPS
2019, arXiv 1906.06818. Part capsules draw an image by templates that are turned, sized and placed;
object capsules explain the poses of the parts. Differs from the paper's code in: attention adds the
log of a part's presence to its logits, in place of a mask that soft presences make all or nothing;
no noise without training; likelihoods in float32; templates start around 1/2 and learn ten times as
fast.

Letters: b batch, m parts, k objects, c channels, h height, w width, t side of a template.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from numbers import Real
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchcaps.errors import ArgumentError, check_known, check_positive, check_range
from torchcaps.functional.affine import affine_pose, composed, inverse
from torchcaps.functional.bounds import without_autocast
from torchcaps.functional.squash import full_precision
from torchcaps.models._base import ImageModel, Images, ImageSize, side_after, side_before
from torchcaps.models._registry import ModelInfo, register_model
from torchcaps.types import Capsules, ModelSpec

POSE = 6  # numbers of a pose
FEATURES = 16  # numbers of a part beside its pose and its presence
TEMPLATE = 11  # side of a template in pixels
GAIN = 10.0  # of templates: their pixels learn as fast as other weights
START = 0.2  # largest logit of a template's pixels at the start, divided by the gain
NOISE = 4.0  # range of the noise on logits of presence in training
COLOR_UNITS = 32
KERNEL = 3
STRIDES = (2, 2, 1, 1)
NUM_BLOCKS = 3
CAPSULE_UNITS = (128, 32, 128)  # of the hidden layers of an object capsule
VOTE_SCALE = 0.5
SMALLEST_SPREAD = 0.01
NO_OBJECT = -4 * math.log(10)  # log weight and log likelihood of a part that no object explains
HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)
# Weights of the parts of the loss, as with MNIST; see `tasks.unsupervised.losses`. The paper has no
# `views`; see `tasks.unsupervised.agreement`.
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


class Noise(NamedTuple):
    """Noise on logits of presence in training, uniform in [-2, 2].

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
        logit: of the presence d_m, `[batch, parts]`.
        feature: `[batch, parts, 16]`.
    """

    pose: Tensor
    logit: Tensor
    feature: Tensor


class Objects(NamedTuple):
    """Object capsules, and their votes for the parts.

    Attributes:
        pose: OV_k, of the object as the viewer sees it, `[batch, objects, 6]`.
        vote: OV_k OP_km, the pose that a part should have, `[batch, objects, parts, 6]`.
        spread: s_km, standard deviation of a vote, `[batch, objects, parts]`.
        log_weight: log a_km, presence of the object times that of the part in it, `[batch, objects,
            parts]`.
        dynamic: difference of the part's place in the object from the learned one, `[batch,
            objects, parts, 6]`.
    """

    pose: Tensor
    vote: Tensor
    spread: Tensor
    log_weight: Tensor
    dynamic: Tensor

    @property
    def presence(self) -> Tensor:
        """a_k = max over m of a_km, in [0, 1], `[batch, objects]`."""
        return self.log_weight.amax(dim=-1).exp()


class Explained(NamedTuple):
    """Parts and objects of an image, its drawing, and the likelihood of both.

    Attributes:
        parts: part capsules.
        objects: object capsules.
        drawn: the drawing of each part at each pixel, in [0, 1], `[batch, parts + 1, channels,
            height, width]`; the last one is the background.
        share: logits of the mixture of drawings at each pixel, `[batch, parts + 1, 1, height,
            width]`.
        log_likelihood: of the pixels, `[batch]`.
        part_log_likelihood: of the poses of the parts, weighted by their presence, `[batch]`.
        posterior: r_km, which object explains a part, `[batch, parts, objects + 1]`; the last
            one is none.
    """

    parts: Parts
    objects: Objects
    drawn: Tensor
    share: Tensor
    log_likelihood: Tensor
    part_log_likelihood: Tensor
    posterior: Tensor


class PartCapsules(nn.Module):
    """Parts of an image by attention over a convolutional map, and the image by their templates.

    Args:
        in_chans: channels of the images.
        img_size: height and width of the images.
        parts: number of part capsules.
        channels: of each 3x3 convolution.
        strides: of the convolutions.
        pixel_scale: standard deviation of a pixel, at least 0.001.
    """

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
        layers = [(KERNEL, stride) for stride in strides]
        rows, columns = (side_after(side, layers) for side in img_size)
        self.place = nn.Parameter(torch.zeros(channels, rows, columns))
        self.head = nn.Conv2d(channels, parts * (POSE + FEATURES + 2), 1)

        # Rows of an orthogonal matrix, brought to [-START, START].
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

    def templates(self) -> Tensor:
        """The learned templates, in (0, 1), `[parts, channels, side, side]`."""
        return (GAIN * full_precision(self.template)).sigmoid()

    def forward(self, images: Tensor, noise: Tensor | None = None) -> Parts:
        """Parts of images.

        Args:
            images: `[batch, channels, height, width]`.
            noise: on the logits of presence, `[batch, parts]`.
        """
        features = self.head(self.encoder(images) + self.place).flatten(2)
        features = full_precision(features.unflatten(1, (len(self.template), -1)))
        attention = features[:, :, -1:].softmax(dim=-1)  # [b, m, 1, places]
        numbers = (features[:, :, :-1] * attention).sum(dim=-1)  # [b, m, 6 + 16 + 1]

        logit = numbers[..., -1]
        if noise is not None:
            logit = logit + noise
        return Parts(affine_pose(numbers[..., :POSE]), logit, numbers[..., POSE:-1])

    def draw(self, parts: Parts) -> tuple[Tensor, Tensor]:
        """Draw the parts and the background.

        Returns:
            Drawings `[batch, parts + 1, channels, height, width]` in [0, 1], and the logits of
            their mixture `[batch, parts + 1, 1, height, width]`; see `Explained`.
        """
        pose, logit, feature = parts
        b, m = logit.shape
        c, h, w = self.sizes
        color = full_precision(self.color(feature.to(self.template))).sigmoid()
        templates = torch.cat([self.templates(), full_precision(self.alpha)], dim=1)

        # Warp by the inverse of the pose. One sampling a part, with the images of the batch beside
        # each other: a template is not copied for each image.
        theta = inverse(pose).transpose(0, 1).reshape(-1, 2, 3)
        grid = F.affine_grid(theta, [m * b, 1, h, w], align_corners=True)
        grid = grid.view(m, b * h, w, 2)
        warped = F.grid_sample(
            templates, grid, mode="bilinear", padding_mode="zeros", align_corners=True
        )
        warped = warped.unflatten(2, (b, h)).permute(2, 0, 1, 3, 4)  # [b, m, c + 1, h, w]

        drawings = warped[:, :, :c] * color[..., None, None]
        share = warped[:, :, c:] + F.logsigmoid(logit)[..., None, None, None]
        background = self.background.sigmoid().expand(b, 1, c, h, w)
        background_share = F.softplus(self.background_logit).expand(b, 1, 1, h, w)
        drawings = torch.cat([drawings, background], dim=1)
        return drawings, torch.cat([share, background_share], dim=1)

    def log_likelihood(self, images: Tensor, drawings: Tensor, share: Tensor) -> Tensor:
        """`sum over pixels of log sum_m share_m N(x; drawing_m, scale)`, `[batch]`."""
        error = full_precision(images).unsqueeze(1) - drawings
        # One pass over the largest tensor.
        log_joint = torch.addcmul(share, error, error, value=-0.5 / self.pixel_scale**2)
        pixels = log_joint.logsumexp(dim=1) - share.logsumexp(dim=1)
        pixels = pixels - math.log(self.pixel_scale) - HALF_LOG_2PI
        return pixels.flatten(1).sum(dim=1)


class SetBlock(nn.Module):
    """Self-attention of a set, whose members may be absent, and a small network for each member."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)
        self.first = nn.LayerNorm(dim)
        self.second = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.ReLU(), nn.Linear(2 * dim, dim))

    def forward(self, x: Tensor, logit: Tensor) -> Tensor:
        """Members `[batch, members, dim]` with logits of presence `[batch, members]`."""
        query, key, value = self.qkv(x).chunk(3, dim=-1)
        x = x + self.out(attend(query, key, value, logit))
        x = self.first(x * logit.sigmoid().unsqueeze(-1).to(x))
        return self.second(x + self.mlp(x))


def attend(query: Tensor, key: Tensor, value: Tensor, logit: Tensor) -> Tensor:
    """One head of attention over a set, which adds the log of a member's presence to its logits.

    Args:
        query: `[batch, queries, dim]`.
        key: `[batch, members, dim]`.
        value: `[batch, members, dim]`.
        logit: of the presence of the members, `[batch, members]`.

    Returns:
        `[batch, queries, dim]`, in the type of `value`.
    """
    query = full_precision(query)
    key = full_precision(key)
    scores = query @ key.mT / math.sqrt(key.shape[-1]) + F.logsigmoid(logit).unsqueeze(-2)
    with without_autocast(scores):
        return (scores.softmax(dim=-1) @ full_precision(value)).to(value.dtype)


class ObjectCapsules(nn.Module):
    """Objects by a set transformer over parts; each votes for the pose of every part.

    Args:
        numbers: that describe a part.
        parts: number of part capsules.
        objects: number of object capsules.
        units: of the learned seeds that look for objects.
        set_units: of the set transformer.
    """

    def __init__(
        self, numbers: int, parts: int, objects: int, units: int, set_units: int = 16
    ) -> None:
        super().__init__()
        self.parts = parts
        self.embed = nn.Linear(numbers, set_units)
        self.blocks = nn.ModuleList(SetBlock(set_units) for _ in range(NUM_BLOCKS))
        self.widen = nn.Linear(set_units, units)
        self.key = nn.Linear(units, units, bias=False)
        self.value = nn.Linear(units, units)
        self.seeds = nn.Parameter(torch.randn(objects, units) / math.sqrt(units))

        # The outputs of a capsule: dynamic relations, and the rest, which has a bias.
        rest = POSE + 1 + 2 * parts
        widths = (units, *CAPSULE_UNITS, parts * POSE + rest)
        self.weight = nn.ParameterList(
            torch.randn(objects, *shape) * math.sqrt(2 / sum(shape)) for shape in pairwise(widths)
        )
        self.bias = nn.ParameterList(torch.zeros(objects, width) for width in CAPSULE_UNITS)
        self.rest = nn.Parameter(torch.zeros(objects, rest))
        self.static = nn.Parameter(torch.randn(objects, parts, POSE) * math.sqrt(1 / POSE))

    def forward(self, members: Tensor, logit: Tensor, noise: Noise | None = None) -> Objects:
        """Objects of parts.

        Args:
            members: descriptions of the parts, `[batch, parts, numbers]`.
            logit: of their presence, `[batch, parts]`.
            noise: on the logits of presence of objects and votes.
        """
        x = self.embed(members.to(self.embed.weight.dtype))
        for block in self.blocks:
            x = block(x, logit)
        x = self.widen(x)
        seeds = self.seeds.expand(len(x), -1, -1)
        return self.decode(attend(seeds, self.key(x), self.value(x), logit), noise)

    def decode(self, x: Tensor, noise: Noise | None) -> Objects:
        """Objects of what their seeds collected, `[batch, objects, units]`."""
        m = self.parts
        with without_autocast(x):  # likelihoods are of small differences
            x = full_precision(x)
            for layer, weight in enumerate(self.weight):
                x = torch.einsum("bki,kio->bko", x, full_precision(weight))
                if layer < len(self.bias):
                    x = x + full_precision(self.bias[layer])
                if layer in (0, 2):
                    x = x.relu()

            dynamic = x[..., : m * POSE].unflatten(-1, (m, POSE))
            rest = x[..., m * POSE :] + full_precision(self.rest)
            raw_pose, present, part_present, raw_spread = rest.split([POSE, 1, m, m], dim=-1)
            if noise is not None:
                present = present + noise.objects.unsqueeze(-1)
                part_present = part_present + noise.votes

            pose = affine_pose(raw_pose)  # OV_k
            relation = affine_pose(dynamic + full_precision(self.static))  # OP_km
            vote = composed(pose.unsqueeze(2), relation)
            spread = F.softplus(raw_spread + VOTE_SCALE) + SMALLEST_SPREAD  # s_km
            log_weight = F.logsigmoid(present) + F.logsigmoid(part_present)  # log a_km
        return Objects(pose, vote, spread, log_weight, dynamic)


def pose_likelihood(pose: Tensor, objects: Objects) -> tuple[Tensor, Tensor]:
    """Likelihood of the parts' poses as a mixture of the votes of all objects.

    Args:
        pose: of the parts, `[batch, parts, 6]`.
        objects: the object capsules.

    Returns:
        `log p(part)` `[batch, parts]`, and the posterior of the objects `[batch, parts, objects +
        1]`, the last of which is "none".
    """
    spread = objects.spread.unsqueeze(-1)
    error = (pose.unsqueeze(1) - objects.vote) / spread
    log_density = (-0.5 * error.square() - spread.log() - HALF_LOG_2PI).sum(dim=-1)  # [b, k, m]
    logits = F.pad((objects.log_weight + log_density).mT, (0, 1), value=NO_OBJECT)
    return logits.logsumexp(dim=-1), logits.softmax(dim=-1)


def check_weights(weights: Mapping[str, float]) -> None:
    """Raise ValueError unless these are numbers of at least 0 by names of `WEIGHTS`."""
    are_numbers = isinstance(weights, Mapping) and all(
        isinstance(weight, Real) for weight in weights.values()
    )
    if not are_numbers:
        raise ArgumentError("weights", f"expected numbers by name, got {weights!r}")
    for name, weight in weights.items():
        check_known("weight", name, WEIGHTS)
        check_range(name, weight, low=0)


class SCAE(ImageModel):
    """Part capsules that draw an image, and object capsules that explain where the parts are.

    Its outputs are presences of objects, `[batch, objects]` in [0, 1].

    Args:
        in_chans: channels of the images.
        img_size: height and width of the images, or one number for both.
        parts: part capsules; 40 in the paper's experiment with MNIST.
        objects: object capsules; 32 there.
        clusters: that images are divided into by their objects, after the training; as many as
            there are classes.
        units: of the learned seeds that look for objects; 256 there.
        set_units: of the set transformer that looks at parts; 16 there.
        weights: of parts of the loss, those that differ from `WEIGHTS`. With `views` above 0 parts
            and objects learn one after the other; see `tasks.unsupervised.Unsupervised`.
        part_options: of `PartCapsules`: `channels`, 128 there; `strides`; and `pixel_scale`, 1
            there, with which a training takes many times longer.

    Raises:
        ValueError: for weights that are none, see `check_weights`; see also `ImageModel`.
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
        self.num_parts = parts
        self.num_objects = objects
        self.num_clusters = clusters
        self.part_capsules = PartCapsules(in_chans, self.img_size, parts, **part_options)
        numbers = POSE + 1 + FEATURES + in_chans * TEMPLATE**2
        self.object_capsules = ObjectCapsules(numbers, parts, objects, units, set_units)
        self.weights = dict(WEIGHTS)
        if weights is not None:
            check_weights(weights)
            self.weights.update(weights)
        self.register_buffer("centers", torch.zeros(2, clusters, objects))
        self.register_buffer("names", torch.zeros(2, clusters, dtype=torch.int64))

    def explain(self, images: Images, noise: Noise | None = None) -> Explained:
        """Parts and objects of images, the drawings, and the likelihoods."""
        parts, drawings, share, pixels = self.depict(images, noise and noise.parts)
        objects, poses, posterior = self._explain_parts(parts, noise)
        return Explained(parts, objects, drawings, share, pixels, poses, posterior)

    def depict(
        self, images: Images, noise: Tensor | None = None
    ) -> tuple[Parts, Tensor, Tensor, Tensor]:
        """Parts of images, and the fields `drawn`, `share` and `log_likelihood` of `Explained`."""
        images = self._prepare(images)
        parts = self.part_capsules(images, noise)
        with without_autocast(images):
            drawings, share = self.part_capsules.draw(parts)
            log_likelihood = self.part_capsules.log_likelihood(images, drawings, share)
        return parts, drawings, share, log_likelihood

    def recognize(self, images: Images) -> tuple[Objects, Tensor]:
        """Objects of images, and `part_log_likelihood`; no gradient flows to the part capsules."""
        images = self._prepare(images)
        with torch.no_grad():
            parts = self.part_capsules(images)
        objects, log_likelihood, _ = self._explain_parts(parts)
        return objects, log_likelihood

    def capsules(self, images: Images) -> Capsules:
        """Object capsules: pose `[batch, objects, 6]`, presence `[batch, objects]` in [0, 1]."""
        images = self._prepare(images)
        objects = self._recognize_objects(self.part_capsules(images))
        return Capsules(objects.pose, objects.presence)

    def templates(self) -> Tensor:
        """The learned templates, in (0, 1), `[parts, channels, side, side]`."""
        return self.part_capsules.templates().detach()

    def covers(self) -> Tensor:
        """Share of a template's pixel beside a gray part of the same presence, in (0, 1).

        Returns:
            `[parts, 1, side, side]`.
        """
        return self.part_capsules.alpha.detach().sigmoid()

    def _explain_parts(
        self, parts: Parts, noise: Noise | None = None
    ) -> tuple[Objects, Tensor, Tensor]:
        """Objects, and the fields `part_log_likelihood` and `posterior` of `Explained`."""
        objects = self._recognize_objects(parts, noise)
        with without_autocast(parts.pose):
            log_density, posterior = pose_likelihood(parts.pose.detach(), objects)
            log_likelihood = (parts.logit.detach().sigmoid() * log_density).sum(dim=1)
        return objects, log_likelihood, posterior

    def _recognize_objects(self, parts: Parts, noise: Noise | None = None) -> Objects:
        """Objects that explain the parts; the gradient flows back through features alone."""
        pose, logit, feature = parts
        logit = logit.detach()
        templates = self.templates().flatten(1).expand(len(pose), -1, -1)
        absent = (-logit).sigmoid().unsqueeze(-1)
        members = torch.cat([pose.detach(), absent, feature, templates], -1)
        return self.object_capsules(members, logit, noise)


# The auto-encoder of 2019 at a size that a CPU trains; the paper's has 40 parts, 32 objects and 128
# channels.
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
