"""Parameter counts of SR-CapsNet and the other heads, as in "Self-Routing Capsule Networks"."""

import pytest

import torchcaps as tc
from torchcaps.models.notebook import parameter_count

UNUSED = (
    1024  # of a batch norm that the authors' network has for dynamic routing, and never applies
)


@pytest.mark.parametrize(
    ("options", "count"),
    [
        ({}, 931_664),
        ({"depth": 2}, 3_187_536),
        ({"head": "dynamic"}, 5_807_888),
        ({"head": "dynamic", "depth": 2}, 4_236_048 - UNUSED),
        ({"head": "em"}, 911_204),
        ({"head": "em", "depth": 2}, 813_988),
        ({"head": "average"}, 269_722),
        ({"head": "linear"}, 892_698),
        ({"backbone": "convnet", "in_chans": 1, "num_classes": 5}, 814_960),
    ],
)
def test_parameter_counts(options, count):
    assert parameter_count(tc.create_model("sr_capsnet", **options)) == count


def test_backbone():
    assert parameter_count(tc.create_model("sr_capsnet").trunk) == 269_072
