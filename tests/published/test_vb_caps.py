"""Parameter counts of "Capsule Routing via Variational Bayes" (AAAI 2020) and of its code.

Those count two costs for each parent, which a batch norm after them cancels; here they are left
out.
"""

import pytest

import torchcaps as tc
from torchcaps.models.notebook import parameter_count


@pytest.mark.parametrize(
    ("primary_types", "types", "convolutions", "channels", "classes", "count"),
    [
        (8, (16, 16), 1, 2, 5, 68_714),  # the authors' code
        (8, (16, 16), 3, 2, 5, 142_698),
        (16, (16, 16), 3, 2, 5, 169_866),
        (16, (32, 32), 3, 2, 5, 318_666),
        # 145, 172 and 323 thousand on CIFAR-10
        (8, (16, 16), 3, 3, 10, 145_588),
        (16, (16, 16), 3, 3, 10, 172_756),
        (16, (32, 32), 3, 3, 10, 322_836),
    ],
)
def test_parameter_counts(primary_types, types, convolutions, channels, classes, count):
    model = tc.create_model(
        "vb_caps",
        primary_types=primary_types,
        types=types,
        convolutions=convolutions,
        in_chans=channels,
        num_classes=classes,
    )
    costs = 2 * (sum(types) + classes)
    assert parameter_count(model) == count - costs
