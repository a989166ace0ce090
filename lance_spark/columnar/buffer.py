"""Buffers of any kind seen as arrays of bytes, without a copy.

Only views live here; what the bytes mean is `scan` and `layout`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lance_spark.model import Buffer


def as_bytes(data: Buffer) -> NDArray[np.uint8]:
    """View contiguous memory as an array of bytes."""
    if isinstance(data, np.ndarray) and data.dtype == np.uint8 and data.ndim == 1:
        # NumPy's own arrays may be empty or strided, which a buffer may not.
        return np.ascontiguousarray(data)
    return np.frombuffer(data, np.uint8)
