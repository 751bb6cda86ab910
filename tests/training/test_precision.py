"""bfloat16 autocast learns as well as float32."""

import pytest

from torchcaps.data import load_dataset
from torchcaps.reporting import evaluate
from torchcaps.training import TrainConfig, load, train

# Of 1,000 test images at 97 %, two independent networks differ by 0.8 points in one standard
# deviation.
NOISE = 0.02


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_half_precision_is_as_accurate_on_the_digits(tmp_path):
    accuracy = {}
    for precision in ("fp32", "bf16"):
        config = TrainConfig.of(
            data="digits",
            epochs=5,
            batch_size=32,
            lr=0.002,
            precision=precision,
            device="cpu",
            model_options={"channels": 64, "primary_types": 8},
        )
        train(config, tmp_path / precision)
        accuracy[precision] = evaluate(
            load(tmp_path / precision), load_dataset("digits", "test")
        ).accuracy
    assert min(accuracy.values()) > 0.95
    assert abs(accuracy["fp32"] - accuracy["bf16"]) < NOISE, accuracy
