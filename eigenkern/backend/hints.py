"""Types of what users pass, for the signatures of public functions."""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

# An array of NumPy, CuPy, PyTorch or Dask, a DataFrame, a sparse matrix, a list.
ArrayLike: TypeAlias = Any
# A kernel's name, a function of two blocks of rows, or an `eigenkern.kernels` object.
KernelLike: TypeAlias = str | Callable[[Any, Any], Any]
RandomState: TypeAlias = int | np.random.RandomState | None
AnyGenerator: TypeAlias = RandomState | np.random.Generator
# "auto", "cpu", "cuda:0", or a list of these.
Device: TypeAlias = str | Sequence[str]
