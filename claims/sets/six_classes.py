"""Six of ten digits, to be told from the four that a model was not shown: open-set recognition."""

from dataclasses import replace
from functools import partial

import torch

from torchcaps.data import Dataset, dataset_info, register_derived

NUM_CLASSES = 6
# Which six, and where they begin.
STARTS = {"first": 0, "last": 4}
# Images of the first and of the last six digits, train and test.
COUNTS = {
    "mnist": {"first": (36_017, 6_031), "last": (35_246, 5_843)},
    "digits": {"first": (3_600, 600), "last": (3_600, 600)},
}


def _select(images: Dataset, _split: str, start: int) -> Dataset:
    """The images of six classes, labeled from 0."""
    is_known = (images.labels >= start) & (images.labels < start + NUM_CLASSES)
    known = images.subset(torch.nonzero(is_known).flatten())
    classes = images.classes[start : start + NUM_CLASSES]
    return replace(known, targets={"label": known.labels - start}, classes=classes)


for _base, _counts in COUNTS.items():
    for _which, _start in STARTS.items():
        _train, _test = _counts[_which]
        register_derived(
            dataset_info(_base),
            partial(_select, start=_start),
            name=f"{_base}-{_which}-six",
            title=f"the {_which} six of the ten classes of {_base}",
            classes=dataset_info(_base).classes[_start : _start + NUM_CLASSES],
            train=_train,
            test=_test,
        )
