"""Parameter counts of "Matrix capsules with EM routing" (ICLR 2018): 310 and 68 thousand."""

import pytest

import torchcaps as tc
from torchcaps.models.notebook import parameter_count


@pytest.mark.parametrize(
    ("name", "channels", "count"),
    [
        ("matrix_caps", 2, 316_650),
        ("matrix_caps", 1, 315_850),
        ("matrix_caps_small", 2, 68_618),
        ("matrix_caps_small", 1, 67_018),
    ],
)
def test_parameter_counts(name, channels, count):
    """With the stereo pair as two channels, and with one eye."""
    assert parameter_count(tc.create_model(name, in_chans=channels)) == count


def test_parameter_counts_by_stage():
    model = tc.create_model("matrix_caps")
    assert parameter_count(model.conv) == 5 * 5 * 2 * 32 + 32
    assert parameter_count(model.primary) == 17 * 32 * 32
    assert parameter_count(model.conv_capsules) == 2 * (16 * 9 * 32 * 32 + 2 * 32)
    assert parameter_count(model.class_capsules) == 16 * 32 * 5 + 2 * 5
