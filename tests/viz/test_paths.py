import numpy as np
import pytest

from torchcaps.errors import ArgumentError
from torchcaps.viz import ranked_accuracies, vote_film, vote_paths
from torchcaps.viz.routing import vote_chains

from .drawing import assert_nothing_cut, words

OPPOSITE = np.array([[1.0, 2.0, 0.0], [-1.0, -2.0, 0.0]])
EQUAL = np.array([[3.0, 0.0, 4.0]] * 2)
RIGHT_ANGLE = np.array([[3.0, 0.0, 0.0], [0.0, 4.0, 0.0]])


@pytest.mark.parametrize(
    ("votes", "straightness", "end"),
    [
        (EQUAL, 1, [10, 0]),
        (OPPOSITE, 0, [0, 0]),
        (RIGHT_ANGLE, 5 / 7, [5, 0]),
    ],
)
def test_a_chain_ends_at_the_sum_of_its_votes(votes, straightness, end):
    chains, straight = vote_chains(np.ones((2, 1)), votes[:, None])
    assert straight == pytest.approx([straightness])
    assert chains[0, 0].tolist() == [0, 0]
    assert chains[0, -1] == pytest.approx(np.array(end), abs=1e-12)
    steps = np.diff(chains[0], axis=0)
    assert np.linalg.norm(steps, axis=1) == pytest.approx(
        sorted(np.linalg.norm(votes, axis=1), reverse=True)
    )


def test_a_vote_of_coupling_zero_has_no_part_in_it():
    votes = np.stack([EQUAL[0], OPPOSITE[0]])[:, None]
    chains, straight = vote_chains([[0.5], [0.0]], votes)
    assert straight == pytest.approx([1])
    assert chains[0, -1] == pytest.approx([2.5, 0])


def rosette(**options):
    generator = np.random.default_rng(0)
    coupling = generator.random((3, 7, 4))
    votes = generator.standard_normal((7, 4, 5))
    activation = np.array([[0.1, 0.2, 0.3, 0.4], [0.1, 0.1, 0.6, 0.1], [0.0, 0.1, 0.9, 0.1]])
    return vote_paths(coupling, votes, activation, classes=tuple("abcd"), **options)


def test_a_line_reaches_as_far_as_its_class_is_active():
    figure = rosette(image=np.zeros((1, 6, 5)))
    assert len(figure.axes) == 4
    last = figure.axes[-1]
    # Of four classes from the top, clockwise, the third is at the bottom.
    ends = [line.get_xydata() for line in last.lines if line.get_marker() == "o"]
    assert ends[2][0] == pytest.approx([0, -0.9])
    assert ends[1][0] == pytest.approx([0.1, 0])
    [title] = [text for text in words(last.texts) if "active" in text]
    assert title.startswith("after 3 iterations\nc: active 0.90, straight 0.")
    assert_nothing_cut(figure)


def test_a_title_names_the_most_active_class_of_its_iteration():
    votes = np.stack([EQUAL, RIGHT_ANGLE], axis=1)
    figure = vote_paths(np.ones((2, 2, 2)), votes, [[0.2, 0.6], [0.9, 0.1]], classes=("a", "b"))
    titles = [text for axes in figure.axes for text in words(axes.texts) if "active" in text]
    assert titles == [
        "after 1 iteration\nb: active 0.60, straight 0.71",
        "after 2 iterations\na: active 0.90, straight 1.00",
    ]


def test_a_gaussian_shrinks_as_its_votes_agree():
    votes = np.array([[[1.0, 0.1]], [[1.0, -0.1]], [[1.0, 0.9]], [[1.0, -0.9]]])
    coupling = np.ones((2, 4, 1))
    coupling[1, 2:] = 0
    figure = vote_paths(coupling, votes, [[0.5], [1.0]], classes=("a",), gaussian=True)
    first, second = (axes.patches[-1] for axes in figure.axes)
    assert first.get_width() == second.get_width() == 0
    assert first.get_height() == pytest.approx(0.8)  # the widest of all
    assert second.get_height() == pytest.approx(0.8 * 0.1 / np.sqrt((0.01 + 0.81) / 2))
    assert second.get_center() == pytest.approx((0, 1))


def test_a_film_holds_each_iteration_and_passes_between_them():
    generator = np.random.default_rng(0)
    film = list(
        vote_film(
            generator.random((3, 7, 2)),
            generator.standard_normal((7, 2, 5)),
            [[0.2, 0.1], [0.4, 0.1], [0.8, 0.1]],
            between=2,
            classes=("a", "b"),
        )
    )
    assert [is_held for _, is_held in film] == [True, False, True, False, True]
    texts = [" ".join(words(figure.axes[0].texts)) for figure, _ in film]
    for text, activation in zip(texts, (0.2, 0.3, 0.4, 0.6, 0.8), strict=True):
        assert f"active {activation:.2f}" in text


def test_votes_that_do_not_fit_are_refused():
    with pytest.raises(ArgumentError, match="votes: expected"):
        vote_chains(np.ones((2, 1)), np.ones((3, 1, 4)))


def test_systems_are_ranked_by_their_mean_accuracy():
    systems = {"slow": (4.0, [0.9]), "one": (1.0, [0.97, 0.99]), "two": (1.0, [0.97])}
    figure = ranked_accuracies({"digits": systems})
    [axes] = figure.axes
    assert words(axes.texts) == ["one, 1 min", "two, 1 min", "slow, 4 min"]
    dots = [line.get_xydata()[0] for line in axes.lines if line.get_marker() == "o"]
    assert np.array(dots) == pytest.approx(np.array([[2, 0], [3, 1], [10, 2]]))
    assert_nothing_cut(figure)
