"""Rendered objects of four parts: what is out of place in each kind, and nothing else."""

from collections import Counter
from itertools import combinations

import numpy as np
import pytest
import torch

from claims.sets import faces
from claims.sets.faces import (
    BITMAPS,
    CLASSES,
    CLUTTER,
    KINDS,
    OBJECTS,
    PART,
    SIDE,
    render_faces,
)
from torchcaps.data import load_dataset
from torchcaps.errors import UnknownNameError

WINDOW = 17  # pixels along the window of a primary capsule of CapsNet


def arranged(kind, count=40):
    """(name of the object, parts as they should be, parts as they are)."""
    random = np.random.RandomState(0)
    for k in range(count):
        name = CLASSES[k % len(CLASSES)]
        yield name, KINDS["whole"](name, random), KINDS[kind](name, random)


def test_no_window_sees_two_parts_of_a_whole_object():
    for parts in OBJECTS.values():
        for (_, *first), (_, *second) in combinations(parts, 2):
            # From the first pixel of a part to the last of the other, at the least.
            distance = np.abs(np.subtract(first, second)).max() - 2 * faces.JITTER
            assert distance - PART + 2 > WINDOW


def test_every_turn_of_a_part_changes_it():
    for bitmap in BITMAPS.values():
        assert bitmap.shape == (PART, PART)
        for turns in (1, 2, 3):
            assert not np.array_equal(np.rot90(bitmap, turns), bitmap)


@pytest.mark.parametrize(
    ("kind", "num_changed"),
    [("swapped", {2}), ("turned", {2}), ("foreign", {1, 2}), ("moved", {1})],
)
def test_a_misplaced_object_has_so_many_parts_changed(kind, num_changed):
    for _, face, parts in arranged(kind):
        assert sum(part != new for part, new in zip(face, parts, strict=True)) in num_changed


def test_swapped_scrambled_and_permuted_objects_have_the_parts_of_the_whole():
    for kind in ("swapped", "scrambled", "permuted", "moved", "turned"):
        for _, face, parts in arranged(kind):
            assert Counter(part.glyph for part in parts) == Counter(part.glyph for part in face)


def test_training_sets_never_show_a_full_set_of_misplaced_parts():
    for kind in ("clutter", "rearranged"):
        for _, _, parts in arranged(kind, 100):
            glyphs = Counter(part.glyph for part in parts)
            for name in CLASSES:
                needed = Counter(glyph for glyph, *_ in OBJECTS[name])
                assert sum((needed & glyphs).values()) < len(OBJECTS[name])
            if kind == "clutter":
                assert sum(part.glyph not in CLUTTER for part in parts) <= 1


def test_an_upside_down_object_is_the_whole_one_turned(monkeypatch):
    for name, value in {"NOISE": 0.0, "JITTER": 0, "CONTRAST": (0.5, 0.5)}.items():
        monkeypatch.setattr(faces, name, value)
    drawings = []
    for kind in ("whole", "upside-down"):
        parts = KINDS[kind]("face", np.random.RandomState(0))
        drawing = np.zeros((SIDE, SIDE))
        for part in parts:
            rows = slice(part.row, part.row + PART)
            columns = slice(part.column, part.column + PART)
            drawing[rows, columns] += np.rot90(BITMAPS[part.glyph], part.turns)
        drawings.append(drawing)
    assert np.array_equal(np.rot90(drawings[0], 2), drawings[1])


def test_all_parts_lie_in_the_image_and_moved_ones_clear_of_others():
    for kind in KINDS:
        images = render_faces(kind, 12, seed=3)
        assert images.images.shape == (12, 1, SIDE, SIDE)
        assert images.labels.bincount().tolist() == [3] * 4
        is_moved = images.targets["distance"] > 0
        assert is_moved.all() if kind == "moved" else not is_moved.any()


def test_sets_of_a_seed_are_the_same_and_splits_differ(monkeypatch):
    monkeypatch.setattr(faces, "COUNTS", {"train": 16, "test": 16})
    train = load_dataset("faces-misplaced", "train")
    assert torch.equal(train.images, load_dataset("faces-misplaced", "train").images)
    assert not torch.equal(train.images, load_dataset("faces-misplaced", "test").images)
    assert train.classes[-1] == "other"
    assert train.labels.bincount().tolist() == [16, 16, 16, 16, 64]
    with pytest.raises(UnknownNameError, match="unknown kind 'swaped'; did you mean"):
        render_faces("swaped", 4)
