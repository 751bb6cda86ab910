"""Parameter counts of "Matrix capsules with EM routing" (ICLR 2018): 310 thousand, and 68 thousand of the small one."""

import pytest

import torchcaps as tc


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
    model = tc.create_model(name, in_chans=channels)
    assert sum(p.numel() for p in model.parameters()) == count


def test_parameter_counts_by_stage():
    model = tc.create_model("matrix_caps")
    counts = {
        name: sum(p.numel() for p in part.parameters()) for name, part in model.named_children()
    }
    first = 5 * 5 * 2 * 32 + 32
    between = 2 * (16 * 9 * 32 * 32 + 2 * 32)
    assert counts == {
        "conv": first,
        "primary": 17 * 32 * 32,
        "conv_capsules": between,
        "class_capsules": 16 * 32 * 5 + 2 * 5,
    }
