"""What compiled loops are written in."""

import numpy as np
import pytest

numba = pytest.importorskip("numba")


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_scratch_begins_where_a_cache_line_does(kind):
    from torchcaps.kernels.simd import _vectors as vectors

    @numba.njit
    def made(like, counts):
        """Place in a cache line and size of an array of each count; all of them live at once."""
        arrays = [vectors.scratch(count, like.dtype) for count in counts]
        for n in range(len(counts)):
            array = arrays[n]
            array[:] = n
        return [(array.ctypes.data % 64, array.size, array.min(), array.max()) for array in arrays]

    counts = [1, 3, 16, 17, 40, 1000, 100_003]
    found = made(np.empty(0, kind), np.array(counts))
    assert found == [(0, count, n, n) for n, count in enumerate(counts)]
