"""Work of a step that makes its fixed cost negligible: `filling_work` of a machine.

It is the rate of large matrix products times the seconds of a tiny product, divided by
the 5 % of a step that these may take. Run ::

    python benchmarks/filling_work.py

and with CuPy on a GPU. Put what it prints into ``eigenkern/arrays/machine.py``.
"""

import time

import numpy as np

from eigenkern.arrays.linalg import large_product
from eigenkern.kernels import Gaussian
from eigenkern.operators.tiled import TiledKernel

FIXED_COST = 0.05


def best_seconds(function, n_times):
    seconds = []
    for _ in range(n_times):
        start = time.perf_counter()
        float(function()[0, 0])  # waits for a GPU
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def filling_work(xp, dtype, size):
    """Return the multiply-adds; `size` is large enough for the full rate."""
    A = xp.ones((size, size), dtype=dtype)
    rate = size**3 / best_seconds(lambda: large_product(A, A), 5)
    tiny = TiledKernel(Gaussian(), A[:64, :2])
    with tiny.exclusive_threads():
        fixed = best_seconds(lambda: tiny @ A[:64, :1], 100)
    return rate * fixed / FIXED_COST


if __name__ == "__main__":
    libraries = [("CPU", np, 1024)]
    try:
        import cupy

        libraries.append(("GPU", cupy, 8192))
    except ImportError:
        pass
    for name, xp, size in libraries:
        for dtype in (xp.float32, xp.float64):
            work = filling_work(xp, dtype, size)
            print(f"{name} {np.dtype(dtype).name}: {work:.2g} multiply-adds")
