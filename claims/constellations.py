"""Networks that recognize constellations by the poses of their parts; see `sets.constellations`.

Three that take sets of poses, none of which depends on the order of the members:

- `constellation_capsules`: a matrix for each type of part and each parent predicts the pose of the
  object (Hinton, Krizhevsky, Wang, "Transforming auto-encoders", ICANN 2011; Sabour, Frosst,
  Hinton 2017, arXiv 1710.09829), and a routing finds out whether predictions agree;
- `constellation_transformer`: a Set Transformer (Lee et al. 2019, arXiv 1810.00825);
- `constellation_points`: one network for every member and the maximum over members (Qi, Su, Mo,
  Guibas, "PointNet", CVPR 2017, arXiv 1612.00593).

With the whole constellation turned, each vote is turned alike: R V. Lengths of sums of votes stay,
and with them what uniform coupling and dynamic routing decide. EM routing measures the variance of
each number of a vote by itself, which a turn mixes: it is not equivariant.
"""

from abc import abstractmethod
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from claims.sets.constellations import NUM_TYPES, POSE
from torchcaps.errors import check_range
from torchcaps.functional.fields import Field
from torchcaps.functional.votes import DenseVotes
from torchcaps.models import ModelInfo, register_model
from torchcaps.nn import RoutedLayer
from torchcaps.nn.set_transformer import SetBlock
from torchcaps.types import Capsules, LayerSizes, ModelSpec

ROWS = 2  # of a pose [A | t], with 3 columns
COLUMNS = 3
EPSILON = 1e-6  # least distance of an activation from 0 and 1
PRESENT = 30.0  # presence logit of a member that is there
Sets = Float[Tensor, "batch 7 members 1"]
Classes = Float[Tensor, "batch classes"]


class ConstellationNetwork(nn.Module):
    """Base: a classifier of sets of poses.

    Args:
        num_classes: number of classes.
        in_chans: numbers of each member, 7.
        img_size: members and 1.
    """

    spec = ModelSpec(activation="probability", logits=True)

    def __init__(self, num_classes: int, in_chans: int, img_size: tuple[int, int]) -> None:
        super().__init__()
        check_range("in_chans", in_chans, low=POSE + 1, high=POSE + 1)
        self.num_classes = num_classes
        self.in_chans = in_chans
        self.img_size = tuple(img_size)

    @abstractmethod
    def logits(self, images: Sets) -> Classes:
        """Logits of the classes of sets of poses."""

    def probabilities(self, logits: Classes) -> Classes:
        """Softmax over classes."""
        return logits.softmax(dim=1)

    def forward(self, images: Sets) -> Classes:
        """Probabilities of the classes."""
        return self.probabilities(self.logits(images))


class TypedVotes(nn.Module):
    """`V_ij = M_i W_tj` with the pose M_i `[2, 3]` and the type t of child i; `weight` `[t, j, 3, 3]`.

    Args:
        members: number of children.
        parents: number of parents.
    """

    bias = None

    def __init__(self, members: int, parents: int) -> None:
        super().__init__()
        dim = ROWS * COLUMNS
        self.sizes = LayerSizes(members, POSE + 1, parents, dim)
        self.weight = nn.Parameter(torch.empty(NUM_TYPES, parents, COLUMNS, COLUMNS))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weights anew."""
        nn.init.normal_(self.weight, std=COLUMNS**-0.5)

    def forward(self, children: Capsules, field: Field) -> DenseVotes:
        """The votes of children.

        Args:
            children: pose `[batch, members, 7]`, the type being the last number.
            field: of the layer.
        """
        poses = children.pose[..., :POSE].unflatten(2, (ROWS, COLUMNS))
        weight = self.weight[children.pose[..., POSE].long()]
        votes = torch.einsum("bipr,bijrq->bijpq", poses, weight).flatten(3)
        return DenseVotes(votes, children.activation, children.pose, field=field)


@register_model(
    ModelInfo(
        title="Dynamic Routing Between Capsules",
        year=2017,
        arxiv="1710.09829",
        img_size=(12, 1),
        in_chans=POSE + 1,
        num_classes=5,
        parameters=271,
        published="none",
    ),
    name="constellation_capsules",
)
class ConstellationCapsules(ConstellationNetwork):
    """Votes of the members -> routing -> the classes.

        logit_c = scale · log-sum-exp over the parents of class c of logit(activation)

    Args:
        num_classes: number of classes.
        in_chans: numbers of each member, 7.
        img_size: members and 1.
        copies: parents of each class.
        routing: name of a router.
        routing_options: of it.
    """

    def __init__(
        self,
        num_classes: int = 5,
        in_chans: int = POSE + 1,
        img_size: tuple[int, int] = (12, 1),
        *,
        copies: int = 1,
        routing: str = "uniform",
        routing_options: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(num_classes, in_chans, img_size)
        check_range("copies", copies, low=1)
        votes = TypedVotes(self.img_size[0], num_classes * copies)
        self.class_capsules = RoutedLayer(votes, routing, **(routing_options or {}))
        self.scale = nn.Parameter(torch.ones(()))

    def logits(self, images: Sets) -> Classes:
        pose = images.squeeze(3).mT
        parents = self.class_capsules(Capsules(pose, torch.ones_like(pose[..., 0])))
        logits = parents.activation.logit(EPSILON).unflatten(1, (self.num_classes, -1))
        return self.scale * logits.logsumexp(dim=2)


@register_model(
    ModelInfo(
        title="Set Transformer",
        year=2019,
        arxiv="1810.00825",
        img_size=(12, 1),
        in_chans=POSE + 1,
        num_classes=5,
        parameters=68_101,
        published="none",
    ),
    name="constellation_transformer",
)
class ConstellationTransformer(ConstellationNetwork):
    """Blocks of attention among the members, their mean, and the classes.

    Args:
        num_classes: number of classes.
        in_chans: numbers of each member, 7.
        img_size: members and 1.
        width: of a member.
        blocks: their number.
    """

    def __init__(
        self,
        num_classes: int = 5,
        in_chans: int = POSE + 1,
        img_size: tuple[int, int] = (12, 1),
        *,
        width: int = 64,
        blocks: int = 2,
    ) -> None:
        super().__init__(num_classes, in_chans, img_size)
        self.members = nn.Linear(POSE + NUM_TYPES, width)
        self.blocks = nn.ModuleList(SetBlock(width) for _ in range(blocks))
        self.classes_layer = nn.Linear(width, num_classes)

    def logits(self, images: Sets) -> Classes:
        x = self.members(member_features(images))
        presence = torch.full_like(x[..., 0], PRESENT)
        for block in self.blocks:
            x = block(x, presence)
        return self.classes_layer(x.mean(dim=1))


@register_model(
    ModelInfo(
        title="PointNet: Deep Learning on Point Sets for 3D Classification and Segmentation",
        year=2017,
        arxiv="1612.00593",
        img_size=(12, 1),
        in_chans=POSE + 1,
        num_classes=5,
        parameters=9_477,
        published="none",
    ),
    name="constellation_points",
)
class ConstellationPoints(ConstellationNetwork):
    """Two layers for every member, the maximum over members, and two layers.

    Args:
        num_classes: number of classes.
        in_chans: numbers of each member, 7.
        img_size: members and 1.
        width: of the layers.
    """

    def __init__(
        self,
        num_classes: int = 5,
        in_chans: int = POSE + 1,
        img_size: tuple[int, int] = (12, 1),
        *,
        width: int = 64,
    ) -> None:
        super().__init__(num_classes, in_chans, img_size)
        self.members = nn.Sequential(
            nn.Linear(POSE + NUM_TYPES, width),
            nn.ReLU(),
            nn.Linear(width, width),
        )
        self.classes_layers = nn.Sequential(
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, num_classes),
        )

    def logits(self, images: Sets) -> Classes:
        return self.classes_layers(self.members(member_features(images)).amax(dim=1))


def member_features(images: Sets) -> Float[Tensor, "batch members features"]:
    """The pose of each member, and its type as one of six."""
    numbers = images.squeeze(3).mT
    types = nn.functional.one_hot(numbers[..., POSE].long(), NUM_TYPES).to(numbers)
    return torch.cat([numbers[..., :POSE], types], dim=2)
