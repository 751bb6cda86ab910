"""Audits: equal terms for every head, verdicts on data whose truth is planted, and what they write."""

from __future__ import annotations

import csv
import json
from collections import Counter
from functools import partial

import pytest
import torch

import torchcaps as tc
from torchcaps.errors import ArgumentError, RunError
from torchcaps.models.backbone import head_on_features, plain_units
from torchcaps.nn import CapsuleHead
from torchcaps.reproduction import head_audit
from torchcaps.testing import seeded
from torchcaps.testing.planted import planted_answers
from torchcaps.training.sampling import DatasetBatches

SMALL = {"types": 3, "dim": 4}
EPOCHS = 2
quick_audit = partial(tc.audit, folds=3, epochs=EPOCHS, batch_size=16)


def small_head():
    return CapsuleHead(8, 3, types=3, dim=4)


def make_features(count=90, distance=3.0, classes=3, seed=0):
    """Sequences of vectors; the class is told by one of their features, far or not at all."""
    labels = torch.arange(count) % classes
    features = torch.randn(count, 2, 8, generator=seeded(seed))
    features[torch.arange(count), :, labels] += distance
    return features, labels


def read_rows(file):
    return list(csv.DictReader(file.read_text(encoding="utf-8").splitlines()))


class Recorder:
    """Notes the rows of each step of each training, and the weights of its head."""

    def __init__(self, monkeypatch):
        self.trainings = []
        load = DatasetBatches.load
        fit = tc.training.fit

        def record(batches, item):
            self.trainings[-1]["steps"].append(item.indices.tolist())
            return load(batches, item)

        def note(network, images, **options):
            head = network.head
            count = sum(weight.numel() for weight in head.parameters())
            pixels = {image.numpy().tobytes() for image in images.images}
            self.trainings.append({"steps": [], "weights": count, "pixels": pixels})
            return fit(network, images, **options)

        monkeypatch.setattr(DatasetBatches, "load", record)
        monkeypatch.setattr(head_audit.training, "fit", note)


def test_heads_see_the_same_images_in_the_same_order_for_equally_many_steps(monkeypatch, tmp_path):
    recorder = Recorder(monkeypatch)
    features, labels = make_features()
    file = tmp_path / "all.csv"
    audit = quick_audit(small_head(), features, labels, seeds=2, output=file)
    by_head = [recorder.trainings[start : start + 6] for start in range(0, 24, 6)]
    assert len(recorder.trainings) == 24
    for trainings in zip(*by_head, strict=True):  # of one seed and fold
        assert len(trainings[0]["steps"]) > EPOCHS
        assert len(trainings[0]["pixels"]) == 90 / 3  # without what tests, and what calibrates
        for training in trainings[1:]:
            assert training["steps"] == trainings[0]["steps"]
            assert training["pixels"] == trainings[0]["pixels"]
    orders = {str(training["steps"]) for training in by_head[0]}
    assert len(orders) > 1  # by seed
    assert [row.weights for row in audit.rows] == [group[0]["weights"] for group in by_head]

    maps = features.unsqueeze(1).movedim(-1, 1)
    rows = read_rows(file)
    assert Counter((row["head"], row["seed"]) for row in rows) == {
        (head, seed): 90 for head in head_audit.HEADS for seed in "01"
    }
    for row in rows:
        heads = head_audit.HEADS.index(row["head"])
        training = by_head[heads][3 * int(row["seed"]) + int(row["fold"])]
        assert maps[int(row["image"])].contiguous().numpy().tobytes() not in training["pixels"]


def test_the_file_has_what_the_rows_say(tmp_path):
    features, labels = make_features(distance=1.0)
    shifted = make_features(30, distance=0.5, seed=1)
    file = tmp_path / "new" / "all.csv"
    progress = []
    audit = quick_audit(
        small_head(),
        (features, labels),
        shifted=shifted,
        seeds=1,
        output=file,
        progress=lambda done, total: progress.append((done, total)),
    )
    predictions = read_rows(file)
    assert progress == [(done, 4) for done in range(4)]
    assert len(predictions) == 4 * (90 + 30)
    assert len(audit.rows) == 8
    for row in audit.rows:
        answers = [
            prediction
            for prediction in predictions
            if (prediction["images"], prediction["head"]) == (row.images, row.head)
        ]
        right = [prediction["label"] == prediction["prediction"] for prediction in answers]
        covered = [prediction["label"] in prediction["set"].split("|") for prediction in answers]
        assert row.accuracy == pytest.approx(sum(right) / len(right))
        assert row.coverage == pytest.approx(sum(covered) / len(covered))
        assert row.low <= row.accuracy <= row.high
        of_class = [
            flag for flag, line in zip(covered, answers, strict=True) if line["label"] == "2"
        ]
        assert row.class_coverage["2"] == pytest.approx(sum(of_class) / len(of_class))
    document = json.loads(json.dumps(audit.to_dict(), allow_nan=False))
    assert len(document["verdict"]) == 5
    assert "capsules" in document["verdict"][4]
    assert document["mlp"]["outcome"] == audit.mlp.outcome
    assert [len(line) for line in audit.table().lines] == [10] * 9
    with pytest.raises(RunError, match="exists already"):
        tc.audit(CapsuleHead(8, 3), features, labels, output=file)


def test_where_only_agreement_tells_routing_is_found_to_matter():
    votes, labels = planted_answers("agreement", 2400, children=16, parents=2, dim=4)
    head = CapsuleHead(8, 2, types=4, dim=8, iterations=5)
    features = votes.flatten(2)
    audit = quick_audit(head, features, labels, seeds=1, epochs=12, lr=0.02, batch_size=64)
    assert audit.uniform.outcome == "first", audit.verdict
    assert (
        "first method is better" in audit.verdict[0] or "first model is better" in audit.verdict[0]
    )
    assert audit.linear.outcome == audit.mlp.outcome == "first"


@pytest.mark.parametrize(("distance", "outcomes"), [(6.0, {"equivalent"}), (0.0, {"undecided"})])
def test_where_all_heads_do_as_well_none_is_found_better(distance, outcomes):
    """All answers can be right, or none is better than chance; images seen would be above it."""
    features, labels = make_features(300, distance)
    head = small_head()
    audit = tc.audit(head, features, labels, seeds=1, folds=3, epochs=8, lr=0.01, margin=0.05)
    assert {getattr(audit, name).outcome for name in head_audit.CONTROLS} == outcomes
    for row in audit.rows:
        assert row.accuracy == pytest.approx(1 if distance else 1 / 3, abs=0.09)
        assert row.coverage == pytest.approx(0.9, abs=0.12)
    assert audit.verdict[4] == "Shifted images: none were given."


@pytest.mark.parametrize(
    ("in_features", "classes", "options"),
    [(1280, 10, {}), (8, 3, SMALL), (64, 100, {"routing": "em"}), (5, 2, {"types": 7, "dim": 9})],
)
def test_the_plain_head_has_as_many_weights(in_features, classes, options):
    head = CapsuleHead(in_features, classes, **options)
    units = plain_units(head)
    weights = units * (in_features + 1) + (units + 1) * classes
    assert weights == pytest.approx(sum(w.numel() for w in head.parameters()), rel=0.05)
    plain = head_on_features(head, "mlp", (2, 2)).head
    assert sum(weight.numel() for weight in plain.parameters()) == weights
    again = head_on_features(head, "capsules", (2, 2)).head
    assert [w.shape for w in again.parameters()] == [w.shape for w in head.parameters()]
    is_equal = head_on_features(head, "uniform", (2, 2)).head.class_capsules.router.fixed
    assert is_equal == (0, 0.0)  # random couplings of scale 0


def test_ctrl_c_ends_an_audit_and_leaves_no_file(monkeypatch, tmp_path):
    steps = iter(range(100))
    load = DatasetBatches.load

    def stop(batches, item):
        if next(steps) == 7:
            raise KeyboardInterrupt
        return load(batches, item)

    monkeypatch.setattr(DatasetBatches, "load", stop)
    with pytest.raises(KeyboardInterrupt):
        quick_audit(small_head(), make_features(), output=tmp_path / "all.csv", seeds=1)
    assert next(steps) == 8  # and no further training began
    assert not list(tmp_path.iterdir())


MODEL = tc.create_model("capsnet", img_size=28)


@pytest.mark.parametrize(
    ("source", "change", "sentence"),
    [
        (CapsuleHead(8, 3), {"folds": 2}, "folds: expected at least 3"),
        (CapsuleHead(8, 3), {"seeds": 0}, "seeds: expected at least 1"),
        (CapsuleHead(8, 3), {"level": 1.5}, "level: expected between 0 and 1"),
        (CapsuleHead(8, 3), {"patience": 2}, "equally many steps"),
        (CapsuleHead(8, 3), {"shift": 2}, "shift: expected 0 for features"),
        (CapsuleHead(9, 3), {}, "features=9"),
        (CapsuleHead(8, 5), {}, "data: expected 5 classes, got 3"),
        (CapsuleHead(8, 3), {"output": "all.txt"}, "ending in .csv"),
        (CapsuleHead(8, 3, types=1, dim=1), {}, "types: expected more than 1"),
        (MODEL, {}, "expected a capsule head on a frozen backbone"),
    ],
)
def test_what_cannot_be_audited_is_refused(source, change, sentence, monkeypatch):
    monkeypatch.setattr(head_audit.training, "fit", None)  # it comes before any training
    features, labels = make_features(30)
    data = features if isinstance(source, CapsuleHead) else torch.rand(30, 1, 28, 28)
    with pytest.raises(ArgumentError, match=sentence):
        tc.audit(source, data, labels, **change)
