"""Predicted and measured memory."""

import pytest

from torchcaps.bench import Workload, benchmark_memory, timing


@pytest.mark.slow
@pytest.mark.skipif(not timing.can_measure_memory(), reason="no /proc here")
@pytest.mark.parametrize("options", [{}, {"in_chans": 3, "num_classes": 20}])
def test_predictions_are_within_15_percent_of_what_is_measured(options):
    for row in benchmark_memory(Workload("capsnet", options), (32, 128), ("fp32", "bf16")):
        assert row["predicted / measured"] == pytest.approx(1, abs=0.15), row
