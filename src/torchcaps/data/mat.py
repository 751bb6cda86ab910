"""MATLAB's level-5 files (`save -v6` and `-v7`), read by scipy in a process of its own.

scipy trusts lengths and sizes in a file, and deep nesting ends its process.
"""

from pathlib import Path
from typing import Any

import numpy as np

from torchcaps.data.reading import check_memory, memory_limit, open_file
from torchcaps.errors import DataError
from torchcaps.isolated import IsolatedError, call_isolated

BASE = 512 << 20  # bytes that Python with scipy takes by itself
TIMEOUT = 300.0  # seconds

MatValue = Any
"""An array; text; a list for a cell array; a dictionary for a struct, a list of them for several."""


def read_mat(path: str | Path) -> dict[str, MatValue]:
    """The variables of a MATLAB level-5 file, compressed or not, of either byte order, by name.

    Arrays keep MATLAB's axes, so that an image is `[height, width]`. A struct is a dictionary of
    its fields, text is str, a cell array is a list in column-major order.

    Args:
        path: of the file.

    Returns:
        Name of each variable -> its contents.

    Raises:
        DataError: absent, truncated, damaged, of another version, too large, or with what is not
            read here (sparse arrays, objects, functions).
    """
    path = Path(path)
    with open_file(path, "damaged or truncated MATLAB file") as file:
        header = file.read(128)
        if header[:10] == b"MATLAB 7.3" or header[124:128] == b"\0\2IM":
            raise DataError(f"{path}: a MATLAB 7.3 file, which is HDF5; save it again with -v7")
        if header[124:128] not in (b"\0\1IM", b"\1\0MI"):
            raise DataError(f"{path}: not a MATLAB level-5 file by its header")
        try:
            arrays = call_isolated(
                "scipy.io:loadmat",
                str(path),
                max_bytes=BASE + 3 * memory_limit(path),
                timeout=TIMEOUT,
                mat_dtype=True,
            )
        except IsolatedError as error:
            raise ValueError(str(error)) from error
        return {
            name: _to_plain(path, array)
            for name, array in arrays.items()
            if not name.startswith("__")
        }


def _to_plain(path: Path, array: Any) -> MatValue:
    """Structs, cells and text as plain Python; numbers as arrays."""
    if not isinstance(array, np.ndarray) or type(array).__name__ == "MatlabFunction":
        raise DataError(f"{path}: holds a {type(array).__name__}, which is not read here")
    fields = array.dtype.names
    if fields is not None:
        records = []
        for record in array.ravel("F"):
            records.append({name: _to_plain(path, record[name]) for name in fields})
        return records[0] if len(records) == 1 else records
    if array.dtype == object:
        return [_to_plain(path, cell) for cell in array.ravel("F")]
    check_memory(path, array.nbytes)
    if array.dtype.kind == "U":
        return "\n".join(array.ravel())
    return array.astype(array.dtype.newbyteorder("="), copy=False)
