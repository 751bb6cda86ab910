"""Contents of a figure, read without a screen."""

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.patches import Rectangle
from matplotlib.text import Text


def texts(figure):
    """Every visible piece of text in the figure."""
    return [text for text in figure.findobj(Text) if text.get_visible() and text.get_text()]


def words(texts):
    """The words of pieces of text."""
    return list(map(Text.get_text, texts))


def titles(figure):
    """The titles of the panels, on the left."""
    return [axes.get_title(loc="left") for axes in panels(figure)]


def panels(figure):
    """The panels that are drawn."""
    return [axes for axes in figure.axes if axes.axison]


def heights(axes):
    """The heights of bars."""
    return list(map(Rectangle.get_height, axes.patches))


def widths(axes):
    """The widths of bars, which are the lengths of horizontal ones."""
    return list(map(Rectangle.get_width, axes.patches))


def assert_nothing_cut(figure):
    """Draw the figure, and fail for text that does not lie inside it, or a figure too large."""
    assert (figure.get_size_inches() <= [16, 20]).all()
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    renderer = canvas.get_renderer()
    hidden = hidden_ticks(figure)
    for text in texts(figure):
        if text not in hidden:
            box = text.get_window_extent(renderer)
            low = np.array([box.x0, box.y0])
            high = np.array([box.x1, box.y1])
            is_inside = (low > -2).all() and (high < figure.bbox.size + 2).all()
            assert is_inside, f"{text.get_text()!r} is cut: {box}"


def hidden_ticks(figure):
    """Labels of ticks that are not drawn: outside the limits of their axis, or of a hidden axis."""
    hidden = set()
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            is_visible = axis.get_visible() and axes.axison
            for tick in [*axis.get_major_ticks(), *axis.get_minor_ticks()]:
                if not is_visible or not low <= tick.get_loc() <= high:
                    hidden |= {tick.label1, tick.label2}
    return hidden


def numbered(count, text="c{}"):
    """Names with numbers from 0."""
    return list(map(text.format, range(count)))


def long_names(count):
    """Names that are long and begin and end with the same letters."""
    return numbered(count, "traffic sign number {0}: speed limit {0}0 km/h ahead")
