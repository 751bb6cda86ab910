"""The routing of a network at a glance: couplings, activations, idle capsules, ablations."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from math import nan
from typing import Any

import numpy as np
from matplotlib.patches import Circle, Ellipse
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike

from torchcaps.errors import check_range, check_shape, counted
from torchcaps.evaluation import Diagnosis
from torchcaps.viz.canvas import (
    BLUE,
    GRAY,
    GREEN,
    GRID_COLOR,
    ORANGE,
    PINK,
    RED,
    SKY,
    SMALL,
    STYLES,
    TEXT,
    Axes,
    Figure,
    Floats,
    Names,
    line,
    new_figure,
    panels,
    pictures,
    plain,
    short,
    short_names,
    sized_array,
)

MAX_LEVEL_NAMES = 4  # more names along an axis are written aslant
BAR_STEP = 0.27
BAR_TEXT: dict[str, Any] = {"fontsize": SMALL, "padding": 1}
COLORS = {"as trained": BLUE, "baseline": ORANGE}
TINY = 1e-30
UNIFORM = 0.98  # entropy of couplings that differ too little to be drawn
# Colors of parents on a rim, neighbors far from each other.
RIM_COLORS = (BLUE, ORANGE, GREEN, PINK, SKY, RED, "#7A5CC7", "#8A6D00", "#00857A", "#A01313")
MAX_NAMED = 24  # parents on a rim; of more, the most active are named
NUM_NAMED = 5
SPREAD = 0.4  # radius of the widest Gaussian, of the rim's


def diagnosis(figures: Diagnosis) -> Figure:
    """Draw accuracy without routing, straightness, coupling entropy, activations, idle capsules.

    Idle capsules are never active, or the same for every image, or get next to no gradient. The
    gradient is known for children only, and so not for the class capsules. A panel in which nothing
    happens is left out, and named below the others.

    Args:
        figures: the figures that `evaluation.diagnose` returns.

    Returns:
        A matplotlib figure.
    """
    draws = [_draw_accuracy]
    absent = []
    if len(figures.iterations.iterations) > 1 and figures.iterations.straightness:
        draws.append(_draw_straightness)
    entropies = list(chain.from_iterable(figures.iterations.entropy.values()))
    if entropies and min(entropies) > UNIFORM:
        absent.append(f"couplings are uniform throughout (entropy {min(entropies):.2f} or more)")
    elif entropies:
        draws.append(_draw_entropy)
    draws.append(_draw_activations)
    if any(share > 0 for _, _, shares in _idle_shares(figures) for share in shares):
        draws.append(_draw_idle)
    else:
        absent.append("no capsule is out of use")
    figure, grid = panels(len(draws), 2 if len(draws) == 4 else 3, 4.2, 3.2)
    for draw, axes in zip(draws, grid, strict=True):
        draw(axes, figures)
    if absent:
        figure.supxlabel(f"Not drawn: {'; '.join(absent)}.", fontsize=SMALL)
    return figure


def _draw_straightness(axes: Axes, figures: Diagnosis) -> None:
    course = figures.iterations
    lines = {short(name, 18): values for name, values in course.straightness.items()}
    if course.true_class_straightness:
        lines["for the true class"] = course.true_class_straightness
    _draw_courses(axes, lines, "straightness of votes; 1: all agree")


def _draw_courses(axes: Axes, courses: Mapping[str, Sequence[float]], title: str) -> None:
    """A line a layer over the iterations."""
    for index, (name, course) in enumerate(courses.items()):
        line(axes, range(1, len(course) + 1), course, STYLES[index % len(STYLES)], name)
    _style_shares(axes, title)
    axes.set_xlabel("routing iterations", fontsize=SMALL)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.legend(fontsize=SMALL, frameon=False, ncols=2)


def _draw_entropy(axes: Axes, figures: Diagnosis) -> None:
    entropies = {short(name, 18): row for name, row in figures.iterations.entropy.items()}
    axes.axhline(1, color=GRAY, ls="--", lw=1.2, zorder=0)
    _draw_courses(axes, entropies, "coupling entropy; 1: uniform, 0: a tree")


def _draw_activations(axes: Axes, figures: Diagnosis) -> None:
    names = [short(name, 18) for name in figures.decay.layers]
    places = range(len(names))
    line(axes, places, figures.decay.strongest, (BLUE, "o"), "largest of an image, mean")
    line(axes, places, figures.decay.median, (ORANGE, "s"), "median")
    _style_shares(axes, "activation, from input to output", names)
    axes.legend(fontsize=SMALL, frameon=False)


def _idle_shares(figures: Diagnosis) -> tuple[tuple[str, str, list[float]], ...]:
    """Name, color and share of each kind of idle capsules, from input to output."""
    capsules = [figures.children, *(layer.parents for layer in figures.layers)]
    return (
        ("never active", BLUE, [group.dead if group else nan for group in capsules]),
        ("constant", SKY, [group.constant if group else nan for group in capsules]),
        ("starved of gradient", ORANGE, [layer.starvation.starved for layer in figures.layers]),
    )


def _draw_idle(axes: Axes, figures: Diagnosis) -> None:
    names = ["children", *(short(layer.name, 18) for layer in figures.layers)]
    for index, (label, color, heights) in enumerate(_idle_shares(figures)):
        places = np.arange(len(heights)) + BAR_STEP * (index - 1)
        bars = axes.bar(places, heights, width=0.25, color=color, label=label)
        if len(names) <= MAX_LEVEL_NAMES:
            axes.bar_label(bars, fmt=lambda share: f"{100 * share:.0f} %", **BAR_TEXT)
    _style_shares(axes, "share of capsules out of use", names)
    axes.legend(fontsize=SMALL, frameon=False)


def _draw_accuracy(axes: Axes, figures: Diagnosis) -> None:
    accuracies = {"as trained": figures.accuracy}
    count = figures.num_samples
    if figures.ablation is not None:
        ablation = figures.ablation
        count = ablation.comparison.num_samples
        accuracies = {"as trained": ablation.routed, "uniform": ablation.uniform}
        if count == figures.num_samples:  # otherwise it is of fewer images than the others
            accuracies["random"] = ablation.random
    if figures.baseline is not None:
        accuracies["baseline"] = figures.baseline.second
    colors = [COLORS.get(name, SKY) for name in accuracies]
    bars = axes.bar(range(len(colors)), list(accuracies.values()), width=0.5, color=colors)
    axes.bar_label(bars, fmt=lambda share: f"{100 * share:.1f} %", **BAR_TEXT)
    _style_shares(axes, f"accuracy with these couplings, {count:,} images", list(accuracies))


def _style_shares(axes: Axes, title: str, names: Names = ()) -> None:
    """Style a panel of shares, with names along it."""
    plain(axes, title, grid=True)
    axes.grid(False, axis="x")
    axes.set_ylim(-0.03, 1.1)
    axes.set_axisbelow(True)
    if names:
        rotation = 30 if len(names) > MAX_LEVEL_NAMES else 0
        axes.set_xticks(range(len(names)), names, rotation=rotation)
        axes.set_xlim(-0.6, max(len(names), 3) - 0.4)


def vote_chains(coupling: ArrayLike, votes: ArrayLike) -> tuple[Floats, Floats]:
    """Lay all votes for a parent, each times its coupling, tip to tail, the longest first.

    The first of two axes is the direction of their sum, the second the one at right angles to it
    in which they spread most.

    Args:
        coupling: `[children, parents]`.
        votes: `[children, parents, dim]`.

    Returns:
        `[parents, children + 1, 2]`, the ends of the votes, in units of the votes; each starts at
        zero. And `[parents]`, the straightness: length of the sum over the sum of lengths.

    Raises:
        ArgumentError: for shapes that do not fit.
    """
    weight = np.asarray(coupling, dtype=float)
    u = np.asarray(votes, dtype=float)
    check_shape("coupling", weight, ("children", "parents"))
    children, parents = weight.shape
    check_shape("votes", u, ("children", "parents", "dim"), children=children, parents=parents)
    weighted = (weight[..., None] * u).swapaxes(0, 1)  # [parents, children, dim]
    total = weighted.sum(axis=1)
    length = np.linalg.norm(total, axis=-1)
    first = total / np.maximum(length, TINY)[:, None]
    along = np.einsum("jih,jh->ji", weighted, first)
    rest = weighted - along[..., None] * first[:, None]
    second = np.linalg.eigh(rest.swapaxes(1, 2) @ rest)[1][..., -1]
    # Of both signs, that of the axis in which unweighted votes spread, so that films do not jump.
    spread = u.swapaxes(0, 1) - u.mean(axis=0)[:, None]
    axis = np.linalg.eigh(spread.swapaxes(1, 2) @ spread)[1][..., -1]
    second *= np.where((second * axis).sum(axis=-1, keepdims=True) < 0, -1, 1)
    steps = np.stack([along, np.einsum("jih,jh->ji", rest, second)], axis=-1)
    lengths = np.linalg.norm(weighted, axis=-1)
    order = np.argsort(-lengths, axis=1, kind="stable")[..., None]
    ends = np.take_along_axis(steps, order, axis=1).cumsum(axis=1)
    chains = np.concatenate([np.zeros((parents, 1, 2)), ends], axis=1)
    return chains, length / np.maximum(lengths.sum(axis=1), TINY)


def vote_paths(
    coupling: ArrayLike,
    votes: ArrayLike,
    activation: ArrayLike,
    *,
    classes: Names,
    image: ArrayLike | None = None,
    gaussian: bool = False,
    titles: Names = (),
) -> Figure:
    """Draw the votes for each class tip to tail, as a rosette after each iteration.

    A line begins in the middle and lies along the class's place on the rim. It reaches as far as
    the class is active: the rim is 1. Votes that agree make a straight line, votes that contradict
    each other a knot. Above stands the most active class, its activation, and how straight its
    line is, from 0 to 1.

    Args:
        coupling: `[iterations, children, parents]`, such as that of `evaluation.vote_paths`.
        votes: `[children, parents, dim]`.
        activation: `[iterations, parents]` in [0, 1].
        classes: names of the parents.
        image: `[channels, height, width]` in [0, 1], drawn on the left.
        gaussian: draw an ellipse for each class in place of a line: its center lies as far out as
            the class is active, and its radii are the standard deviations of its votes, along their
            mean and across it. For EM routing.
        titles: of the rosettes; by default the numbers of iterations.

    Returns:
        A matplotlib figure.

    Raises:
        ArgumentError: for shapes that do not fit.
    """
    weights = np.asarray(coupling, dtype=float)
    u = np.asarray(votes, dtype=float)
    check_shape("coupling", weights, ("iterations", "children", "parents"))
    count, _, parents = weights.shape
    reach = sized_array("activation", activation, iterations=count, parents=parents)
    sized_array("classes", classes, parents=parents)
    names = short_names(classes, 10)
    columns = count + (image is not None)
    figure = new_figure(2.8 * columns, 3.3)
    ratios = [0.75] * (columns - count) + [1] * count
    grid = list(figure.subplots(1, columns, squeeze=False, width_ratios=ratios)[0])
    if image is not None:
        axes = grid.pop(0)
        axes.imshow(pictures("image", np.asarray(image)[None])[0], interpolation="antialiased")
        axes.set_axis_off()
    unit = 1.0
    if gaussian:  # the widest of all with equal couplings
        unit = max(np.sqrt(_spread(np.ones_like(weights[0]), u)).max(), TINY) / SPREAD
    for index, axes in enumerate(grid):
        chains, straight = vote_chains(weights[index], u)
        winner = int(reach[index].argmax())
        title = f"after {counted(index + 1, 'iteration')}" if not titles else titles[index]
        figures = f"active {reach[index, winner]:.2f}"
        if not gaussian:
            figures += f", straight {straight[winner]:.2f}"
        text = f"{title}\n{names[winner]}: {figures}"
        axes.text(0, 1.35, text, ha="center", va="bottom", fontsize=TEXT)
        turns = _draw_rim(axes, reach[index], names)
        if gaussian:
            chains = chains[:, [0, -1]]
            diameters = 2 * np.sqrt(_spread(weights[index], u)) / unit
        for parent, ends in enumerate(chains):
            scale = reach[index, parent] / max(ends[-1, 0], TINY)
            x, y = (scale * ends @ turns[parent]).T
            end = (x[-1], y[-1])
            color = RIM_COLORS[parent % len(RIM_COLORS)]
            order = 3 if parent == winner else 2
            axes.plot(x, y, color=color, lw=1.6, solid_joinstyle="round", zorder=order)
            axes.plot(*end, color=color, marker="o", ms=4, zorder=order)
            if gaussian:
                cosine, sine = turns[parent, 0]
                angle = np.degrees(np.arctan2(sine, cosine))
                width, height = diameters[parent]
                axes.add_patch(Ellipse(end, width, height, angle=angle, color=color, alpha=0.35))
    return figure


def vote_film(
    coupling: ArrayLike,
    votes: ArrayLike,
    activation: ArrayLike,
    *,
    between: int = 8,
    **options: Any,
) -> Iterator[tuple[Figure, bool]]:
    """Draw one rosette that moves from iteration to iteration.

    Args:
        coupling: as `vote_paths` takes it.
        votes: as `vote_paths` takes them.
        activation: as `vote_paths` takes it.
        between: number of pictures from one iteration to the next, at least 1; couplings and
            activations between two iterations are means of both.
        options: further arguments of `vote_paths`.

    Yields:
        A matplotlib figure, and whether it shows an iteration and nothing in between.

    Raises:
        ArgumentError: for shapes that do not fit.
    """
    check_range("between", between, low=1)
    weights = np.asarray(coupling, dtype=float)
    reach = np.asarray(activation, dtype=float)
    last = len(weights) - 1
    for frame in range(last * between + 1):
        index, step = divmod(frame, between)
        share = step / between
        after = min(index + 1, last)
        title = f"iteration {index + (step > 0) + 1} of {last + 1}"
        yield (
            vote_paths(
                ((1 - share) * weights[index] + share * weights[after])[None],
                votes,
                ((1 - share) * reach[index] + share * reach[after])[None],
                titles=[title],
                **options,
            ),
            step == 0,
        )


def _draw_rim(axes: Axes, reach: Floats, names: Names) -> Floats:
    """Two circles, and the names around them. Returns `[parents, 2, 2]`, the turn of each."""
    parents = len(names)
    named = range(parents) if parents <= MAX_NAMED else np.argsort(-reach)[:NUM_NAMED]
    for radius in (0.5, 1):
        axes.add_patch(Circle((0, 0), radius, fill=False, ec=GRAY, lw=0.8, zorder=1))
    angle = np.pi / 2 - 2 * np.pi * np.arange(parents) / parents
    x, y = np.cos(angle), np.sin(angle)
    for index in named:
        axes.plot([0, x[index]], [0, y[index]], color=GRID_COLOR, lw=0.6, zorder=0)
        axes.text(
            1.13 * x[index],
            1.13 * y[index],
            names[index],
            color=RIM_COLORS[index % len(RIM_COLORS)],
            fontsize=TEXT,
            fontweight="bold" if index == reach.argmax() else "normal",
            ha="center",
            va="center",
        )
    axes.set(xlim=(-1.3, 1.3), ylim=(-1.25, 1.75), aspect="equal")
    axes.set_axis_off()
    return np.array([[x, y], [-y, x]]).transpose(2, 0, 1)


def _spread(weight: Floats, u: Floats) -> Floats:
    """Variances `[parents, 2]` of votes, weighted: along their mean, and the largest across it."""
    weight = weight / np.maximum(weight.sum(axis=0), TINY)
    mean = np.einsum("ij,ijh->jh", weight, u)
    first = mean / np.maximum(np.linalg.norm(mean, axis=-1, keepdims=True), TINY)
    from_mean = u - mean
    along = np.einsum("ijh,jh->ij", from_mean, first)
    across = from_mean - along[..., None] * first
    scatter = np.einsum("ij,ijh,ijk->jhk", weight, across, across)
    largest = np.linalg.eigvalsh(scatter)[:, -1].clip(min=0)
    return np.stack([(weight * along**2).sum(axis=0), largest], axis=-1)
