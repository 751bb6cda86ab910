"""Capsule networks as an estimator of scikit-learn."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from torchcaps import models
from torchcaps.data.dataset import Dataset
from torchcaps.data.preprocess import ArrayPreprocess
from torchcaps.errors import ArgumentError
from torchcaps.evaluation.base import image_activations
from torchcaps.models._pretrained import DEFAULT_MODEL
from torchcaps.training.callbacks import Callback, Row, copy_state
from torchcaps.training.fitting import fit
from torchcaps.training.inputs import image_tensor
from torchcaps.training.loop import Trainer
from torchcaps.types import Json, Tensors

try:
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.utils import check_random_state
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
except ImportError as error:
    raise ImportError(
        "CapsuleClassifier needs scikit-learn: pip install 'torchcaps[sklearn]'"
    ) from error

HIDDEN = 64  # features that the primary capsules of a table's rows are made of
HEAD = {"types": 8, "dim": 8}


class LastWeights(Callback):
    """Keeps the weights of the last epoch, for a training that has nothing to choose an epoch by."""

    is_late = True
    weights: Tensors | None = None

    def on_epoch(self, trainer: Trainer, row: Row) -> None:
        self.weights = copy_state(trainer.model)


class CapsuleClassifier(ClassifierMixin, BaseEstimator):
    """A capsule network that is trained and asked as any classifier of scikit-learn.

    Rows of a table, `X` `[n, features]`, are standardized by the training data; a layer and the
    `CapsuleHead` make capsules of them. Images are `[n, height, width]`,
    `[n, channels, height, width]`, `[n, height, width, channels]`, or flat rows with `img_shape`.
    Bytes are divided by 255; floats outside [0, 1] are scaled by the range of the training images.

    Args:
        model: name of a network, see `list_models()`; by default a small CapsNet for images, and
            the head for a table, which takes no other.
        model_options: of the network or the head, such as {"routing": "em"}.
        img_shape: of images in flat rows, (height, width) or (channels, height, width).
        epochs: of the training.
        batch_size: rows or images of a step.
        lr: learning rate.
        validation_fraction: of the training data, held out to choose the epoch by; 0 takes the last
            epoch.
        device: "auto", "cpu", "cuda", ...
        random_state: seed of the first weights, of the order and of what is held out.
        settings: further ones of `fit`, by name, such as {"shift": 2}.

    Attributes:
        model_: the trained network, in evaluation mode.
        classes_: labels of the classes, `[classes]`.
        history_: a row of figures for each epoch.
        n_features_in_: of a row.

    Raises:
        ArgumentError: when it is fitted, an argument or settings that cannot be used.
        ValueError: data of other shapes, or with numbers that are not finite.

    Example:
        >>> CapsuleClassifier(img_shape=(8, 8), epochs=10).fit(X, y).predict_proba(X)
    """

    model_: nn.Module

    def __init__(
        self,
        model: str | None = None,
        *,
        model_options: Mapping[str, Any] | None = None,
        img_shape: Sequence[int] | None = None,
        epochs: int = 30,
        batch_size: int = 32,
        lr: float = 0.003,
        validation_fraction: float = 0.0,
        device: str = "auto",
        random_state: Any = None,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.model = model
        self.model_options = model_options
        self.img_shape = img_shape
        self.epochs = epochs
        self.batch_size = batch_size
        self.lr = lr
        self.validation_fraction = validation_fraction
        self.device = device
        self.random_state = random_state
        self.settings = settings

    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Train a new network.

        Args:
            X: rows `[n, features]`, or images.
            y: labels `[n]`, numbers or names.
            sample_weight: `[n]`, 0 or more, of each row in the loss of the classes.

        Returns:
            The estimator.

        Raises:
            ValueError: data that cannot be used, or of one class.
        """
        rows, labels = validate_data(self, X, y, allow_nd=True)
        check_classification_targets(labels)
        weights = None
        if sample_weight is not None:
            weights = _check_sample_weight(sample_weight, rows, ensure_non_negative=True)
            is_used = weights > 0
            rows, labels, weights = rows[is_used], labels[is_used], weights[is_used]
        self.classes_, indices = np.unique(labels, return_inverse=True)
        num_classes = len(self.classes_)
        if num_classes < 2:
            raise ValueError(f"expected labels of 2 or more classes, got {num_classes} class")
        targets = {"label": torch.from_numpy(indices).long()}
        if weights is not None:
            targets["weight"] = torch.from_numpy(weights / weights.mean()).float()

        self.is_table_ = self.img_shape is None and rows.ndim == 2
        self.scale_ = _pixel_scale(rows)
        images = self._images(rows)
        seed = check_random_state(self.random_state).randint(2**31)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = self._create(images, num_classes)
        names = tuple(map(str, self.classes_.tolist()))
        data = Dataset(images.float(), targets, names, "X", preprocess=ArrayPreprocess)
        last = LastWeights()
        part: Json = {"validation": data, "callbacks": [last]}
        if self.validation_fraction > 0:
            part = {"holdout": self.validation_fraction}
        self.model_, self.history_ = fit(
            model,
            data,
            **part,
            epochs=self.epochs,
            batch_size=self.batch_size,
            lr=self.lr,
            device=self.device,
            seed=seed,
            verbose=False,
            **(self.settings or {}),
        )
        if last.weights:
            self.model_.load_state_dict(last.weights)
        if self.is_table_:
            self.model_.double()  # as precise as the rows
        return self

    def predict_proba(self, X: ArrayLike) -> Any:
        """Shares of the classes: their activations, divided by the sum. They are not calibrated.

        Args:
            X: rows or images, as those of `fit`.

        Returns:
            `[n, classes]`, in the order of `classes_`; rows sum to 1.
        """
        check_is_fitted(self)
        rows = validate_data(self, X, allow_nd=True, reset=False)
        activation = image_activations(self.model_, self._images(rows)).double()
        activation += torch.finfo(torch.float32).tiny  # where no class is there, all are as likely
        return (activation / activation.sum(dim=1, keepdim=True)).numpy()

    def predict(self, X: ArrayLike) -> Any:
        """Labels of the most active classes.

        Args:
            X: rows or images, as those of `fit`.

        Returns:
            `[n]` of `classes_`.
        """
        shares = self.predict_proba(X)  # first, as it refuses what is not fitted
        return self.classes_[shares.argmax(axis=1)]

    def _images(self, rows: Any) -> Tensor:
        """Rows as images of one pixel, `[n, features, 1, 1]`; images `[n, channels, h, w]`."""
        if self.is_table_:
            return torch.from_numpy(rows).double()[:, :, None, None]
        if self.img_shape is not None and rows.ndim == 2:
            if rows.shape[1] != math.prod(self.img_shape):
                raise ArgumentError(
                    "img_shape",
                    f"expected a shape of {rows.shape[1]} numbers, got {self.img_shape}",
                )
            rows = rows.reshape(len(rows), *self.img_shape)
        low, high = self.scale_
        return image_tensor((rows - low) / (high - low))

    def _create(self, images: Tensor, num_classes: int) -> nn.Module:
        """A new network for such images."""
        options = dict(self.model_options or {})
        in_chans, *img_size = images.shape[1:]
        if not self.is_table_:
            options |= {"num_classes": num_classes, "in_chans": in_chans, "img_size": img_size}
            return models.create_model(self.model or DEFAULT_MODEL, **options)
        if self.model is not None:
            raise ArgumentError(
                "model", f"expected None for a table without img_shape, got {self.model!r}"
            )
        std, mean = torch.std_mean(images, dim=(0, 2, 3), correction=0)
        std = std.where(std > 0, 1.0)
        layers = nn.Sequential(nn.Flatten(), nn.Linear(in_chans, HIDDEN), nn.ReLU())
        return models.with_backbone(
            layers,
            num_classes,
            in_chans=in_chans,
            img_size=1,
            pretrained=False,
            mean=tuple(mean.tolist()),
            std=tuple(std.tolist()),
            **(HEAD | options),
        )


def _pixel_scale(rows: Any) -> tuple[float, float]:
    """The numbers that become 0 and 1 as pixels."""
    if rows.dtype == np.uint8:
        return 0.0, 255.0
    low, high = float(rows.min()), float(rows.max())
    if low >= 0 and high <= 1:
        return 0.0, 1.0
    return low, max(high, low + 1)
