"""Part capsules of stacked capsule auto-encoders: an image is explained by parts that draw it.

Adam Kosiorek, Sara Sabour, Yee Whye Teh, Geoffrey Hinton, "Stacked Capsule Autoencoders", NeurIPS
2019, arXiv 1906.06818, section 2.2. `models/scae.py` has the rest, with the equations from (5) on.

In: images `[batch, channels, height, width]` in [0, 1]. Out: parts, what they draw, and the
likelihood of the images.

An encoder gives each part m a pose x_m, a presence d_m and a feature vector z_m. A part has a
learned small image, its template T_m, and a learned map of logits A_m (the paper's alpha channel),
which says where the template covers other parts:

    (1)  c_m = sigmoid(MLP(z_m))                           color, a factor of the template
    (2)  T'_m, A'_m = T_m, A_m placed on the image by x_m
    (3)  p(m) = softmax over m of (A'_m + log d_m)         at each pixel
    (4)  log p(image) = sum over pixels, channels of log sum_m p(m) N(y; c_m T'_m, pixel_scale)

In (3) and (4) the background is one more layer beside the parts: a learned gray value in place of
c_m T'_m, and a learned logit in place of A'_m + log d_m, both the same at each pixel.

N(y; mean, standard deviation) is the normal density; y is one channel of a pixel. A pose is an
affine map, six numbers: the upper two rows of a 3x3 matrix, row by row. It acts on coordinates in
which a template and an image each reach from -1 to 1. `affine_pose` makes a pose of six raw
numbers, which are unbounded. `full_precision` turns half precision into float32.

Differs from the authors' code in: noise in training alone; likelihoods in float32; templates start
around 1/2, and a gain makes them learn faster.

Letters in comments: b batch, m parts, c channels, h height, w width.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchcaps.errors import check_positive, check_range
from torchcaps.functional.affine import affine_pose, inverse
from torchcaps.functional.squash import full_precision
from torchcaps.models._base import ImageShape, side_after

POSE_DIM = 6
FEATURE_DIM = 16
TEMPLATE_SIDE = 11  # pixels
TEMPLATE_GAIN = 10.0  # factor of the templates' parameters, so that a step moves a template more
TEMPLATE_RANGE = 0.2  # these parameters start in [-0.2, 0.2], pixels in sigmoid of [-2, 2]
COLOR_UNITS = 32  # hidden units of the MLP (1)
KERNEL = 3  # side of the encoder's convolutions
STRIDES = (2, 2, 1, 1)  # of the encoder's convolutions
HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)


class Parts(NamedTuple):
    """Part capsules.

    Attributes:
        pose: x_m, from template to image, `[batch, parts, 6]`.
        presence_logit: logit of d_m, `[batch, parts]`.
        feature: z_m, `[batch, parts, 16]`.
    """

    pose: Tensor
    presence_logit: Tensor
    feature: Tensor


class PartCapsules(nn.Module):
    """Encoder of images into parts, and decoder of parts into images: equations (1) to (4).

    Args:
        in_chans: channels of the images.
        img_size: height and width of the images.
        parts: number of part capsules.
        channels: of each 3x3 convolution of the encoder.
        strides: of these convolutions.
        pixel_scale: standard deviation of a pixel in (4), at least 0.001.

    Attributes:
        position_bias: learned bias of the encoder's map, `[channels, rows, columns]`.
        head: for each part and position 6 numbers of the pose, 16 of the feature, a logit of
            presence, and a logit of attention.
        template: T_m before gain and sigmoid, `[parts, channels, 11, 11]`; see `templates`.
        alpha: A_m, `[parts, 1, 11, 11]`.
        color: the MLP (1).
        background: gray value of the background, before a sigmoid.
        background_logit: mixing logit of the background in (3), before a softplus.
    """

    def __init__(
        self,
        image_shape: ImageShape,
        parts: int,
        *,
        channels: int = 128,
        strides: Sequence[int] = STRIDES,
        pixel_scale: float = 1.0,
    ) -> None:
        super().__init__()
        check_positive(channels=channels)
        check_range("pixel_scale", pixel_scale, low=1e-3)
        in_chans, height, width = image_shape
        self.image_shape = image_shape
        self.pixel_scale = pixel_scale

        self.encoder = nn.Sequential()
        in_channels = in_chans
        for stride in strides:
            self.encoder.extend([nn.Conv2d(in_channels, channels, KERNEL, stride), nn.ReLU()])
            in_channels = channels
        layers = [(KERNEL, stride) for stride in strides]
        rows = side_after(height, layers)
        columns = side_after(width, layers)
        self.position_bias = nn.Parameter(torch.zeros(channels, rows, columns))
        self.head = nn.Conv2d(channels, parts * (POSE_DIM + FEATURE_DIM + 2), 1)

        self.template = nn.Parameter(initial_templates(parts, in_chans))
        self.alpha = nn.Parameter(torch.zeros(parts, 1, TEMPLATE_SIDE, TEMPLATE_SIDE))
        self.color = nn.Sequential(
            nn.Linear(FEATURE_DIM, COLOR_UNITS), nn.ReLU(), nn.Linear(COLOR_UNITS, in_chans)
        )
        self.background = nn.Parameter(torch.zeros(()))
        self.background_logit = nn.Parameter(torch.zeros(()))

    def templates(self) -> Tensor:
        """T_m, the learned templates, in (0, 1), `[parts, channels, 11, 11]`."""
        return (TEMPLATE_GAIN * full_precision(self.template)).sigmoid()

    def forward(self, images: Tensor, noise: Tensor | None = None) -> Parts:
        """Encode images: each part looks at all positions of a map by attention.

        Args:
            images: `[batch, channels, height, width]`.
            noise: on the logits of presence, `[batch, parts]`; None adds none.
        """
        outputs = self.head(self.encoder(images) + self.position_bias).flatten(2)
        # [b, m, 6 + 16 + 1 + 1, positions]
        outputs = full_precision(outputs.unflatten(1, (len(self.template), -1)))
        attention = outputs[:, :, -1:].softmax(dim=-1)
        outputs = (outputs[:, :, :-1] * attention).sum(dim=-1)  # [b, m, 6 + 16 + 1]

        raw_pose, feature, presence_logit = outputs.split([POSE_DIM, FEATURE_DIM, 1], dim=-1)
        presence_logit = presence_logit.squeeze(-1)
        if noise is not None:
            presence_logit = presence_logit + noise
        return Parts(affine_pose(raw_pose), presence_logit, feature)

    def draw(self, parts: Parts) -> tuple[Tensor, Tensor]:
        """Draw each part, and the background, on a canvas of its own: (1), (2), logits of (3).

        Returns:
            What each part draws, `[batch, parts + 1, channels, height, width]`, the background last;
            and the logits of (3), `[batch, parts + 1, 1, height, width]`.
        """
        pose, presence_logit, feature = parts
        b, m = presence_logit.shape
        c, h, w = self.image_shape
        color = full_precision(self.color(feature.to(self.template))).sigmoid()  # (1)

        # (2) The inverse of a pose says where a pixel lies on the template. Each template is
        # sampled once, with the images of the batch below each other, so that it is not copied
        # for each image.
        layers = torch.cat([self.templates(), full_precision(self.alpha)], dim=1)
        theta = inverse(pose).transpose(0, 1).reshape(-1, 2, 3)  # [m * b, 2, 3]
        grid = F.affine_grid(theta, [m * b, 1, h, w], align_corners=True)
        grid = grid.view(m, b * h, w, 2)
        placed = F.grid_sample(layers, grid, align_corners=True)
        placed = placed.unflatten(2, (b, h)).permute(2, 0, 1, 3, 4)  # [b, m, c + 1, h, w]

        drawings = placed[:, :, :c] * color[..., None, None]
        mixing_logits = placed[:, :, c:] + F.logsigmoid(presence_logit)[..., None, None, None]
        background = self.background.sigmoid().expand(b, 1, c, h, w)
        background_logit = F.softplus(self.background_logit).expand(b, 1, 1, h, w)
        drawings = torch.cat([drawings, background], dim=1)
        return drawings, torch.cat([mixing_logits, background_logit], dim=1)

    def log_likelihood(self, images: Tensor, drawings: Tensor, mixing_logits: Tensor) -> Tensor:
        """The likelihood (4) of images by what `draw` returned, `[batch]`."""
        error = full_precision(images).unsqueeze(1) - drawings  # [b, m + 1, c, h, w]
        # Logits plus -error^2 / (2 scale^2), in one pass over the largest tensor.
        log_joint = torch.addcmul(mixing_logits, error, error, value=-0.5 / self.pixel_scale**2)
        pixels = log_joint.logsumexp(dim=1) - mixing_logits.logsumexp(dim=1)  # [b, c, h, w]
        pixels = pixels - math.log(self.pixel_scale) - HALF_LOG_2PI
        return pixels.flatten(1).sum(dim=1)


def initial_templates(parts: int, in_chans: int) -> Tensor:
    """Rows of an orthogonal matrix, each scaled to [-0.2, 0.2], as `[parts, channels, 11, 11]`."""
    rows = nn.init.orthogonal_(torch.empty(parts, in_chans * TEMPLATE_SIDE**2))
    low, high = rows.aminmax(dim=1, keepdim=True)
    rows = TEMPLATE_RANGE * (2 * (rows - low) / (high - low) - 1)
    return rows.unflatten(1, (in_chans, TEMPLATE_SIDE, TEMPLATE_SIDE))
