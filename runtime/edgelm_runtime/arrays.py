"""The array types that the packages exchange."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]


Ids = NDArray[np.int64]


Logits = NDArray[np.floating[Any]]
