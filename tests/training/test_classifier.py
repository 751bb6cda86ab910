"""`CapsuleClassifier` beside what scikit-learn asks of an estimator."""

import pickle

import numpy as np
import pytest
from sklearn.datasets import make_blobs
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import estimator_checks_generator

import torchcaps as tc

EXCEPTIONS = {
    "check_sample_weight_equivalence_on_dense_data": "repeated rows come in other batches",
}
# Checks that train little; the others are slow tests.
QUICK = (
    "check_classifiers_one_label",
    "check_classifiers_regression_target",
    "check_estimators_pickle",
    "check_estimators_unfitted",
    "check_fit2d_1sample",
    "check_methods_subset_invariance",
    "check_no_attributes_set_in_init",
    "check_sample_weights_shape",
)


def name_of(check):
    """The name of a check, which may be a part of a function."""
    return getattr(check, "func", check).__name__


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(
    ("estimator", "check"),
    [
        pytest.param(
            *case, id=name_of(case[1]), marks=() if name_of(case[1]) in QUICK else pytest.mark.slow
        )
        for case in estimator_checks_generator(tc.CapsuleClassifier())
    ],
)
def test_the_checks_of_scikit_learn(estimator, check):
    if name_of(check) not in EXCEPTIONS:
        check(estimator)
        return
    with pytest.raises(AssertionError, match="is not equivalent"):
        check(estimator)


@pytest.fixture
def rows():
    """Three groups of points, and their numbers."""
    return make_blobs(90, centers=3, cluster_std=0.5, random_state=0)


@pytest.fixture(scope="module")
def digits():
    """Bytes `[n, 28, 28]` and labels of the digits 0 to 2."""
    images = tc.data.load_dataset("digits", "train")
    images = images.subset((images.labels < 3).nonzero().flatten()[:60])
    return images.images[:, 0].numpy(), images.labels.numpy()


def test_rows_of_a_table_train_in_a_pipeline_and_a_search(rows):
    X, y = rows
    names = np.array(["ash", "birch", "cedar"])[y]
    pipeline = make_pipeline(StandardScaler(), tc.CapsuleClassifier(random_state=0))
    search = GridSearchCV(pipeline, {"capsuleclassifier__lr": [1e-9, 0.003]}, cv=2)
    search.fit(X, names)
    assert search.best_params_ == {"capsuleclassifier__lr": 0.003}
    assert search.score(X, names) > 0.95
    assert list(search.classes_) == ["ash", "birch", "cedar"]


def test_one_seed_gives_one_network_that_can_be_pickled(rows):
    X, y = rows
    first = tc.CapsuleClassifier(epochs=3, random_state=1).fit(X, y)
    second = tc.CapsuleClassifier(epochs=3, random_state=1).fit(X, y)
    other = tc.CapsuleClassifier(epochs=3, random_state=2).fit(X, y)
    shares = first.predict_proba(X)
    assert np.array_equal(shares, second.predict_proba(X))
    assert not np.array_equal(shares, other.predict_proba(X))
    assert np.array_equal(shares, pickle.loads(pickle.dumps(first)).predict_proba(X))
    np.testing.assert_allclose(shares.sum(axis=1), 1)


def test_weights_decide_between_equal_rows_of_two_classes(rows):
    X, _ = rows
    X = np.concatenate([X, X])
    y = np.repeat([0, 1], len(X) // 2)
    for heavy in (0, 1):
        weights = np.where(y == heavy, 1.0, 0.05)
        model = tc.CapsuleClassifier(epochs=5, random_state=0).fit(X, y, sample_weight=weights)
        assert (model.predict(X) == heavy).all()


def test_images_of_any_layout_are_brought_to_one_range(digits):
    X, y = digits
    options = {
        "model_options": {"decoder": False},
        "epochs": 8,
        "batch_size": 10,
        "random_state": 0,
    }
    by_bytes = tc.CapsuleClassifier(**options).fit(X, y)
    shares = by_bytes.predict_proba(X)
    assert by_bytes.score(X, y) > 0.9
    layouts = {"floats": (X / 255, None), "flat": (X.reshape(len(X), -1) / 85.0 - 1, (28, 28))}
    for images, img_shape in layouts.values():
        model = tc.CapsuleClassifier(img_shape=img_shape, **options).fit(images, y)
        np.testing.assert_allclose(model.predict_proba(images), shares, atol=1e-3)


def test_an_answer_does_not_depend_on_the_other_images(digits):
    X, y = digits
    images = X / 85.0 - 1
    options = {"model_options": {"decoder": False}, "epochs": 1, "random_state": 0}
    model = tc.CapsuleClassifier(**options).fit(images, y)
    images[0] = 0.3 * images[0] + 0.2  # within the range of the training images
    shares = model.predict_proba(images)
    np.testing.assert_allclose(model.predict_proba(images[:1]), shares[:1], atol=1e-5)


def test_the_last_epoch_stays_or_the_best_of_what_is_held_out(rows):
    X, y = rows
    last = tc.CapsuleClassifier(epochs=4, random_state=0).fit(X, y)
    held_out = tc.CapsuleClassifier(epochs=4, random_state=0, validation_fraction=0.2).fit(X, y)
    assert len(last.history_) == len(held_out.history_) == 4
    accuracy = last.score(X, y)
    assert accuracy == pytest.approx(last.history_[-1]["val_accuracy"], abs=0.02)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": "capsnet"}, "model: expected None for a table without img_shape"),
        ({"img_shape": (3, 3)}, "img_shape: expected a shape of 2 numbers"),
        ({"settings": {"epoch": 3}}, "epoch"),
    ],
)
def test_what_cannot_be_used_is_refused(rows, options, message):
    X, y = rows
    with pytest.raises((ValueError, TypeError), match=message):
        tc.CapsuleClassifier(**options).fit(X, y)
