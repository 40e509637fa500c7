"""Types of NumPy arrays."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Mask: TypeAlias = npt.NDArray[np.bool_]
"""For each row, whether a condition is true."""
Indices: TypeAlias = npt.NDArray[np.intp]
"""Places of rows or of other elements, such as an index into another array."""
Integers: TypeAlias = npt.NDArray[np.int64]
Times: TypeAlias = Integers
"""Event times or stream times, in epoch ms."""
