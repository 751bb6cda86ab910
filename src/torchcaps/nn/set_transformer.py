"""A set transformer whose members may be absent: attention among the members of a set.

Juho Lee and others, "Set Transformer", ICML 2019, arXiv 1810.00825, with one head, as in the
authors' code of stacked capsule auto-encoders (arXiv 1906.06818), where the members are parts of an
image. That code hides absent members by a mask. Here attention adds the log of a member's presence
to its logits, so that soft presences count softly. A presence is sigmoid(presence logit).
"""

import math

from torch import Tensor, nn

from torchcaps.functional.bounds import full_precision, without_autocast


def attend(query: Tensor, key: Tensor, value: Tensor, presence_logit: Tensor) -> Tensor:
    """One head of attention over a set, whose members count by their presence.

        softmax over members of (query key / sqrt(dim) + log presence), times value

    Products and softmax are in float32, whatever the types of the arguments and of the autocast.

    Args:
        query: `[batch, queries, dim]`.
        key: `[batch, members, dim]`.
        value: `[batch, members, dim]`.
        presence_logit: of the members, `[batch, members]`.

    Returns:
        `[batch, queries, dim]`, in the type of `value`.
    """
    log_presence = nn.functional.logsigmoid(presence_logit).unsqueeze(-2)  # [batch, 1, members]
    with without_autocast(query):
        scores = full_precision(query) @ full_precision(key).mT
        logits = scores / math.sqrt(key.shape[-1]) + log_presence  # [batch, queries, members]
        outputs = logits.softmax(dim=-1) @ full_precision(value)
    return outputs.to(value.dtype)


class SetBlock(nn.Module):
    """A block of the set transformer: self-attention of a set, then an MLP of each member.

        y = norm1(presence (x + attention(x))),  output = norm2(y + MLP(y))

    Args:
        dim: width of a member.

    Attributes:
        qkv: makes a query, a key and a value of each member.
        out: linear map of what the attention collected.
        norm1: layer norm after the attention.
        norm2: layer norm after the MLP.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)
        self.norm1 = nn.LayerNorm(dim)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(
            nn.Linear(dim, 2 * dim),
            nn.ReLU(),
            nn.Linear(2 * dim, dim),
        )

    def forward(self, x: Tensor, presence_logit: Tensor) -> Tensor:
        """New members of the same shape.

        Args:
            x: members of the set, `[batch, members, dim]`.
            presence_logit: of the members, `[batch, members]`.
        """
        query, key, value = self.qkv(x).chunk(3, dim=-1)
        attention = self.out(attend(query, key, value, presence_logit))
        x = self.norm1((x + attention) * presence_logit.sigmoid().unsqueeze(-1).to(x))
        return self.norm2(x + self.mlp(x))
