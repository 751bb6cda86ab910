"""Looking at a figure without a screen."""

from __future__ import annotations

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text


def texts(figure: Figure) -> list[Text]:
    """Every piece of text in the figure that says something."""
    return [text for text in figure.findobj(Text) if text.get_visible() and text.get_text()]


def assert_nothing_cut(figure: Figure) -> None:
    """Draw the figure, and fail for text that does not lie inside it."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    renderer = canvas.get_renderer()
    width, height = figure.bbox.size
    for text in texts(figure):
        box = text.get_window_extent(renderer)
        inside = box.x0 > -2 and box.y0 > -2 and box.x1 < width + 2 and box.y1 < height + 2
        assert inside or _is_hidden_tick(text, figure), f"{text.get_text()!r} is cut: {box}"


def _is_hidden_tick(text: Text, figure: Figure) -> bool:
    """Whether `text` labels a tick outside the limits of its axis, which is not drawn."""
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            for tick in [*axis.get_major_ticks(), *axis.get_minor_ticks()]:
                if text in (tick.label1, tick.label2):
                    return not (
                        low <= tick.get_loc() <= high and axis.get_visible() and axes.axison
                    )
    return False


def long_names(count: int) -> list[str]:
    """Names that are long and begin and end alike."""
    return [f"traffic sign number {i}: speed limit {10 * i} km/h ahead" for i in range(count)]
