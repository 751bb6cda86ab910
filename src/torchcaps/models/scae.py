"""Stacked capsule auto-encoders: images are explained by parts, and parts by objects.

Adam Kosiorek, Sara Sabour, Yee Whye Teh, Geoffrey Hinton, "Stacked Capsule Autoencoders", NeurIPS
2019, arXiv 1906.06818.

In: images `[batch, channels, height, width]` in [0, 1]. Out: presences of objects
`[batch, objects]` in [0, 1]; `SCAE.explain` gives everything else. There are no labels. The loss
is made of the two likelihoods (4) and (8) below, by the task `torchcaps.tasks.unsupervised`.
The equations are numbered for this file; the comments beside the code refer to these numbers.

Part capsules (section 2.2 of the paper). An encoder gives each part m a pose x_m, a presence d_m
and a feature vector z_m, and each part draws a small image. `models/_part_capsules.py` has these,
with the equations (1) to (4); (4) is log p(image).

Object capsules (section 2.3). A set transformer looks at all parts. It gives each object k a pose
OV_k ("object-viewer"), and for each part m the pose of this part within the object, OP_km
("object-part"), a presence a_km and a standard deviation s_km:

    (5)  vote_km = OV_k OP_km                              the pose that the part should have
    (6)  a_km = sigmoid(logit of object k) sigmoid(logit of part m in object k)
    (7)  p(x_m) = 10^-4 + sum_k a_km N(x_m; vote_km, s_km)
    (8)  log p(parts) = sum_m d_m log p(x_m)
    (9)  a_k = max over m of a_km                          presence of an object
    (10) r_km = a_km N(x_m; vote_km, s_km) / p(x_m)        posterior: object k explains part m

N(y; mean, standard deviation) is the normal density. The 10^-4 is for parts that no object
explains. As in the authors' code the weights of (7) do not sum to 1. A pose is an affine map, six
numbers: the upper two rows of a 3x3 matrix, row by row. It acts on coordinates in which a template
and an image each reach from -1 to 1. The density of a pose is the product of the densities of its
six numbers, all with the same s_km. `affine_pose` makes a pose of six raw numbers, which are
unbounded. `full_precision` turns half precision into float32.

In (8) the parts are targets: x_m and d_m get no gradient. Objects see poses, presences and
templates without gradient as well; (8) teaches the encoder through the features z_m alone.

Differs from the authors' code in: attention adds log d_m to its logits (`attend` computes it from
the logit of d_m), in place of a mask that soft presences make all or nothing; noise in training
alone; likelihoods in float32.

Letters in comments: b batch, m parts, k objects.
"""

import math
from collections.abc import Mapping
from itertools import pairwise
from numbers import Real
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchcaps.errors import ArgumentError, check_known, check_positive, check_range
from torchcaps.functional.affine import affine_pose, composed
from torchcaps.functional.bounds import full_precision, without_autocast
from torchcaps.models._base import ImageModel, Images, ImageSize, side_before
from torchcaps.models._part_capsules import (
    FEATURE_DIM,
    HALF_LOG_2PI,
    KERNEL,
    POSE_DIM,
    STRIDES,
    TEMPLATE_SIDE,
    PartCapsules,
    Parts,
)
from torchcaps.models._registry import ModelInfo, register_model
from torchcaps.nn.set_transformer import SetBlock, attend
from torchcaps.types import Capsules, ModelSpec

NUM_BLOCKS = 3  # of the set transformer
CAPSULE_UNITS = (128, 32, 128)  # hidden layers of an object capsule
SPREAD_SHIFT = 0.5  # added before the softplus of s_km
MIN_SPREAD = 0.01  # added after it
LOG_NO_OBJECT = -4 * math.log(10)  # log of the 10^-4 of (7)
NOISE_RANGE = 4.0  # width of the uniform noise on logits of presence in training
# Weights of the terms of the loss, for MNIST. `tasks.unsupervised.loss_terms` defines them, and
# `tasks.unsupervised.contrastive_loss` the term `views`, which the paper does not have.
WEIGHTS = {
    "pixels": 1.0,  # minus (4)
    "poses": 1.0,  # minus (8)
    "dynamic": 10.0,  # deformation of objects
    "within": 0.7,  # few objects explain an image
    "between": 0.2,  # all objects are used
    "objects": 2.0,  # number of objects present in an image
    "examples": 0.35,  # number of images in which an object is present
    "views": 0.0,  # presences agree in two views of an image
}


class Noise(NamedTuple):
    """Noise that a training adds to logits of presence, uniform in [-2, 2].

    Attributes:
        parts: on the logits of d_m, `[batch, parts]`.
        objects: on the first logits of (6), `[batch, objects]`.
        votes: on the second logits of (6), `[batch, objects, parts]`.
    """

    parts: Tensor
    objects: Tensor
    votes: Tensor


class Objects(NamedTuple):
    """Object capsules, and their votes for the poses of the parts.

    Attributes:
        pose: OV_k, `[batch, objects, 6]`.
        vote: vote_km of (5), `[batch, objects, parts, 6]`.
        spread: s_km, standard deviation of a vote, `[batch, objects, parts]`.
        log_vote_presence: log a_km of (6), `[batch, objects, parts]`.
        dynamic: what this image adds to the learned numbers that OP_km is made from,
            `[batch, objects, parts, 6]`; zero for a rigid object.
    """

    pose: Tensor
    vote: Tensor
    spread: Tensor
    log_vote_presence: Tensor
    dynamic: Tensor

    @property
    def presence(self) -> Tensor:
        """a_k of (9), in [0, 1], `[batch, objects]`."""
        return self.log_vote_presence.amax(dim=-1).exp()


class Explanation(NamedTuple):
    """Parts and objects of images, what the parts draw, and the likelihoods of both.

    Attributes:
        parts: part capsules.
        objects: object capsules.
        drawings: c_m T'_m of (4), what each part draws at each pixel, in [0, 1],
            `[batch, parts + 1, channels, height, width]`; the last one is the gray background.
        mixing_logits: of each part at each pixel, before the softmax (3), and of the background:
            the part's opacity there, A'_m, plus log d_m; `[batch, parts + 1, 1, height, width]`.
        pixel_log_likelihood: (4), `[batch]`.
        pose_log_likelihood: (8), `[batch]`.
        posterior: r_km of (10), `[batch, parts, objects + 1]`; the last one is "no object".
    """

    parts: Parts
    objects: Objects
    drawings: Tensor
    mixing_logits: Tensor
    pixel_log_likelihood: Tensor
    pose_log_likelihood: Tensor
    posterior: Tensor


class ObjectCapsules(nn.Module):
    """Objects by a set transformer over parts; each object votes for the pose of every part.

    Blocks of self-attention (`SetBlock`) let the parts see each other. Learned query vectors
    ("seeds"), one for each object, collect what the parts say, by one more attention (`attend`). In
    both a part counts by its presence. A small network for each object, with weights of its own,
    makes an object capsule of what its seed collected.

    Args:
        part_dim: numbers that describe a part.
        parts: number of part capsules.
        objects: number of object capsules.
        units: width of the seeds.
        set_units: width of the blocks of the set transformer.

    Attributes:
        embed: linear, from the description of a part to `set_units` numbers.
        blocks: the blocks of self-attention.
        widen: linear, from `set_units` to `units` numbers of each part.
        key, value: linear, of the attention of the seeds.
        seeds: `[objects, units]`.
        weight: of each layer of the small networks, `[objects, inputs, outputs]`.
        bias: of each hidden layer, `[objects, outputs]`.
        output_bias: bias of the last layer, for all outputs but the first ones (`dynamic`).
        static: learned numbers that OP_km is made from, `[objects, parts, 6]`.
    """

    def __init__(
        self,
        part_dim: int,
        parts: int,
        objects: int,
        units: int,
        set_units: int = 16,
    ) -> None:
        super().__init__()
        self.parts = parts
        self.embed = nn.Linear(part_dim, set_units)
        self.blocks = nn.ModuleList(SetBlock(set_units) for _ in range(NUM_BLOCKS))
        self.widen = nn.Linear(set_units, units)
        self.key = nn.Linear(units, units, bias=False)
        self.value = nn.Linear(units, units)
        self.seeds = nn.Parameter(torch.randn(objects, units) / math.sqrt(units))

        # Outputs with a bias: OV_k, the logit of the object, and for each part the logit of the
        # part in the object and the spread.
        num_biased = POSE_DIM + 1 + 2 * parts
        widths = (units, *CAPSULE_UNITS, parts * POSE_DIM + num_biased)
        self.weight = nn.ParameterList(
            torch.randn(objects, below, above) * math.sqrt(2 / (below + above))
            for below, above in pairwise(widths)
        )
        self.bias = nn.ParameterList(torch.zeros(objects, width) for width in CAPSULE_UNITS)
        self.output_bias = nn.Parameter(torch.zeros(objects, num_biased))
        self.static = nn.Parameter(torch.randn(objects, parts, POSE_DIM) * math.sqrt(1 / POSE_DIM))

    def forward(
        self, descriptions: Tensor, presence_logit: Tensor, noise: Noise | None = None
    ) -> Objects:
        """Objects of parts.

        Args:
            descriptions: of the parts, `[batch, parts, part_dim]`.
            presence_logit: of the parts, `[batch, parts]`.
            noise: on the two logits of (6); None adds none.
        """
        x = self.embed(descriptions.to(self.embed.weight.dtype))
        for block in self.blocks:
            x = block(x, presence_logit)
        x = self.widen(x)
        seeds = self.seeds.expand(x.shape[0], -1, -1)
        x = attend(seeds, self.key(x), self.value(x), presence_logit)  # [b, k, units]
        return self.decode(x, noise)

    def decode(self, x: Tensor, noise: Noise | None) -> Objects:
        """Objects of what their seeds collected, `[batch, objects, units]`: (5) and (6)."""
        m = self.parts
        with without_autocast(x):  # the likelihood is of small differences of poses
            outputs = self._capsule_outputs(full_precision(x))
            dynamic = outputs[..., : m * POSE_DIM].unflatten(-1, (m, POSE_DIM))
            biased = outputs[..., m * POSE_DIM :] + full_precision(self.output_bias)
            raw_pose, object_logit, part_logit, raw_spread = biased.split(
                [POSE_DIM, 1, m, m], dim=-1
            )
            if noise is not None:
                object_logit = object_logit + noise.objects.unsqueeze(-1)
                part_logit = part_logit + noise.votes

            object_viewer = affine_pose(raw_pose)  # OV_k
            object_part = affine_pose(dynamic + full_precision(self.static))  # OP_km
            vote = composed(object_viewer.unsqueeze(2), object_part)  # (5)
            log_vote_presence = F.logsigmoid(object_logit) + F.logsigmoid(part_logit)  # (6)
            spread = F.softplus(raw_spread + SPREAD_SHIFT) + MIN_SPREAD  # s_km
        return Objects(object_viewer, vote, spread, log_vote_presence, dynamic)

    def _capsule_outputs(self, x: Tensor) -> Tensor:
        """The small network of each object, with ReLU after its first and third layer."""
        for layer, weight in enumerate(self.weight):
            x = torch.einsum("bki,kio->bko", x, full_precision(weight))
            if layer < len(self.bias):
                x = x + full_precision(self.bias[layer])
            if layer in (0, 2):
                x = x.relu()
        return x


def pose_likelihood(pose: Tensor, objects: Objects) -> tuple[Tensor, Tensor]:
    """Likelihood of each part's pose as a mixture of the votes of all objects.

    Args:
        pose: x_m, `[batch, parts, 6]`.
        objects: the object capsules.

    Returns:
        log p(x_m) of (7), `[batch, parts]`, and the posterior r_km of (10),
        `[batch, parts, objects + 1]`, whose last column is "no object".
    """
    spread = objects.spread.unsqueeze(-1)
    error = (pose.unsqueeze(1) - objects.vote) / spread  # [b, k, m, 6]
    log_density = (-0.5 * error.square() - spread.log() - HALF_LOG_2PI).sum(dim=-1)  # [b, k, m]
    log_joint = (objects.log_vote_presence + log_density).mT
    log_joint = F.pad(log_joint, (0, 1), value=LOG_NO_OBJECT)  # [b, m, k + 1]
    return log_joint.logsumexp(dim=-1), log_joint.softmax(dim=-1)


def check_weights(weights: Mapping[str, float]) -> None:
    """Raise ValueError unless these are numbers of at least 0 by names of `WEIGHTS`."""
    if not isinstance(weights, Mapping):
        raise ArgumentError("weights", f"expected numbers by name, got {weights!r}")
    for name, weight in weights.items():
        check_known("weight", name, WEIGHTS)
        if not isinstance(weight, Real):
            raise ArgumentError(name, f"expected a number, got {weight!r}")
        check_range(name, weight, low=0)


# The auto-encoder of 2019 at a size that a CPU trains; the paper's has 40 parts, 32 objects and 128
# channels.
@register_model(
    ModelInfo(
        title="Stacked Capsule Autoencoders",
        year=2019,
        arxiv="1906.06818",
        num_classes=0,
        parameters=746_671,
        published="98.7 % unsupervised accuracy on MNIST",
        purpose="parts and objects of images, learned without labels",
    ),
    name="scae",
    parts=16,
    objects=20,
    channels=32,
    units=64,
    pixel_scale=0.2,
)
class SCAE(ImageModel):
    """Part capsules that draw an image, and object capsules that explain where the parts are.

    Its outputs are presences of objects, `[batch, objects]` in [0, 1]: `forward` of the base class
    returns the activations of `capsules`.

    Args:
        in_chans: channels of the images.
        img_size: height and width of the images, or one number for both.
        parts: number of part capsules; 40 in the paper for MNIST, as are the numbers below.
        objects: number of object capsules; 32 in the paper.
        clusters: number of clusters that images are divided into after the training, by their
            objects; as many as there are classes.
        units: width of the learned seeds that collect what parts say; 256 in the paper.
        set_units: width of the set transformer that looks at parts; 16 in the paper.
        weights: of terms of the loss, those that differ from `WEIGHTS`. With `views` above 0 parts
            and objects learn one after the other; see `tasks.unsupervised.Unsupervised`.
        part_options: of `PartCapsules`: `channels`, 128 in the paper; `strides`; `pixel_scale`,
            the standard deviation of a pixel in (4), 1 in the paper, with which a training takes
            many times longer.

    Raises:
        ValueError: for weights that are not numbers of at least 0 under names of `WEIGHTS`, for
            strides, `channels` or other sizes below 1, for images that are too small, and for a
            `pixel_scale` below 0.001.

    Attributes:
        spec: what the library may ask of this model (poses, presences as probabilities, images
            from `smallest` pixels a side), and its task and loss.
        centers: `[2, clusters, objects]`, of clusters of images by posteriors and by presences;
            zeros until `tasks.unsupervised` has found them.
        cluster_classes: number of the class that each of these clusters stands for,
            `[2, clusters]`.
    """

    spec = ModelSpec(pose=True, activation="probability", task="unsupervised", loss="likelihood")

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
            check_positive(strides=stride)
        # Side of the smallest image of which the encoder leaves a map of one position.
        smallest = side_before(1, [(KERNEL, stride) for stride in strides])
        super().__init__(
            None,  # there are no classes
            in_chans,
            img_size,
            smallest=smallest,
            parts=parts,
            objects=objects,
            clusters=clusters,
            units=units,
            set_units=set_units,
        )
        self.num_parts = parts
        self.num_objects = objects
        self.num_clusters = clusters
        self.part_capsules = PartCapsules(self.image_shape, parts, **part_options)
        part_dim = POSE_DIM + 1 + FEATURE_DIM + in_chans * TEMPLATE_SIDE**2
        self.object_capsules = ObjectCapsules(part_dim, parts, objects, units, set_units)
        self.weights = dict(WEIGHTS)
        if weights is not None:
            check_weights(weights)
            self.weights.update(weights)
        self.register_buffer("centers", torch.zeros(2, clusters, objects))
        self.register_buffer("cluster_classes", torch.zeros(2, clusters, dtype=torch.int64))

    def explain(self, images: Images, noise: Noise | None = None) -> Explanation:
        """Parts and objects of images, what the parts draw, and the likelihoods.

        Args:
            images: `[batch, channels, height, width]` in [0, 1].
            noise: added to logits of presence in training; None adds none.

        Returns:
            Parts, objects, drawings and likelihoods; see `Explanation`.
        """
        parts, drawings, logits, log_likelihood = self.explain_pixels(
            images, None if noise is None else noise.parts
        )
        objects, pose_log_likelihood, posterior = self._explain_poses(parts, noise)
        return Explanation(
            parts, objects, drawings, logits, log_likelihood, pose_log_likelihood, posterior
        )

    def explain_pixels(
        self, images: Images, noise: Tensor | None = None
    ) -> tuple[Parts, Tensor, Tensor, Tensor]:
        """The first half of `explain`, without objects; the noise is on the parts.

        Args:
            images: `[batch, channels, height, width]` in [0, 1].
            noise: added to the logits of the parts' presence, `[batch, parts]`; None adds none.

        Returns:
            Fields of `Explanation`: `parts`, `drawings`, `mixing_logits`, `pixel_log_likelihood`.
        """
        images = self._prepare(images)  # checks their size and type
        parts = self.part_capsules(images, noise)
        with without_autocast(images):
            drawings, mixing_logits = self.part_capsules.draw(parts)
            log_likelihood = self.part_capsules.log_likelihood(images, drawings, mixing_logits)
        return parts, drawings, mixing_logits, log_likelihood

    def explain_poses(self, images: Images) -> tuple[Objects, Tensor]:
        """The second half of `explain`, with part capsules that do not learn.

        Args:
            images: `[batch, channels, height, width]` in [0, 1].

        Returns:
            Fields of `Explanation`: `objects`, `pose_log_likelihood`.
        """
        images = self._prepare(images)
        with torch.no_grad():
            parts = self.part_capsules(images)
        objects, log_likelihood, _ = self._explain_poses(parts)
        return objects, log_likelihood

    def capsules(self, images: Images) -> Capsules:
        """Object capsules of images.

        Args:
            images: `[batch, channels, height, width]` in [0, 1].

        Returns:
            Pose `[batch, objects, 6]`; as activation the presence a_k in [0, 1],
            `[batch, objects]`.
        """
        images = self._prepare(images)
        objects = self._encode_objects(self.part_capsules(images))
        return Capsules(objects.pose, objects.presence)

    def templates(self) -> Tensor:
        """T_m, the learned templates, without gradient, in (0, 1), `[parts, channels, 11, 11]`."""
        return self.part_capsules.templates().detach()

    def opacities(self) -> Tensor:
        """How much each pixel of a template covers other parts: sigmoid(A_m).

        Returns:
            `[parts, 1, 11, 11]` in (0, 1); two parts of opacity 0.5 show equally where they meet.
        """
        return self.part_capsules.alpha.detach().sigmoid()

    def _explain_poses(
        self, parts: Parts, noise: Noise | None = None
    ) -> tuple[Objects, Tensor, Tensor]:
        """Fields of `Explanation`: `objects`, `pose_log_likelihood`, `posterior`.

        Poses and presences of the parts are targets: they get no gradient.
        """
        objects = self._encode_objects(parts, noise)
        with without_autocast(parts.pose):
            part_log_density, posterior = pose_likelihood(parts.pose.detach(), objects)  # (7), (10)
            presence = parts.presence_logit.detach().sigmoid()
            log_likelihood = (presence * part_log_density).sum(dim=1)  # (8)
        return objects, log_likelihood, posterior

    def _encode_objects(self, parts: Parts, noise: Noise | None = None) -> Objects:
        """Objects of parts; the gradient flows back through the features of the parts alone."""
        presence_logit = parts.presence_logit.detach()
        absence = (-presence_logit).sigmoid().unsqueeze(-1)  # 1 - d_m, as in the authors' code
        templates = self.templates().flatten(1).expand(absence.shape[0], -1, -1)
        descriptions = torch.cat([parts.pose.detach(), absence, parts.feature, templates], dim=-1)
        return self.object_capsules(descriptions, presence_logit, noise)
