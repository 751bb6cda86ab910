"""What models of images share: their sizes, the check of what they get, and the table that a notebook shows."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from torchcaps.errors import check_range, check_shape
from torchcaps.models.notebook import Stage, card, facts, facts_of, measured_stages, table, times


class ImageModel(nn.Module):
    """Base of models that take images `[batch, in_chans, height, width]` of one size.

    Args:
        in_chans: channels of the images.
        img_size: (height, width) or one number for both.
        smallest: side of the smallest image in pixels, and what needs it, in the plural.
        sizes: other numbers by name.

    Raises:
        ValueError: for images that are too small, and for channels or another number below one.
    """

    def __init__(
        self, in_chans: int, img_size: int | tuple[int, int], smallest: tuple[int, str] = (1, "models"), **sizes: int
    ) -> None:
        super().__init__()
        height, width = (img_size, img_size) if isinstance(img_size, int) else tuple(img_size)
        for name, value in {"in_chans": in_chans, **sizes}.items():
            check_range(name, value, low=1)
        least, what = smallest
        if min(height, width) < least:
            raise ValueError(f"img_size: {what} need images of at least {least}x{least} pixels, got {height}x{width}")
        self.in_chans, self.img_size = in_chans, (height, width)

    def reconstruct(self, capsules: Any, labels: Tensor | None = None) -> Tensor:
        """Images drawn from capsules; here there is no decoder.

        Raises:
            ValueError: always.
        """
        del capsules, labels
        raise ValueError(f"reconstruct: {type(self).__name__} has no decoder")

    def notebook_stages(self) -> list[Stage]:
        """The stages in their order, with shapes measured on a copy of the model without weights."""
        return measured_stages(self)

    def _check(self, images: Tensor) -> None:
        axes, (height, width) = ("batch", "channels", "height", "width"), self.img_size
        check_shape("images", images, axes, channels=self.in_chans, height=height, width=width)

    def _repr_html_(self) -> str:
        total = Stage("total", "", "", sum(p.numel() for p in self.parameters()))
        stages = [Stage("images", "", times(self.in_chans, *self.img_size), 0), *self.notebook_stages(), total]
        rows = [(*stage[:3], f"{stage.parameters:,}" if stage.parameters else "") for stage in stages]
        what = (type(self).__doc__ or "").strip().split("\n")[0]
        return card(
            type(self).__name__, what, facts(facts_of(self)), table(("stage", "", "output", "parameters"), rows)
        )
