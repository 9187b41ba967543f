"""The penalty that ``alpha="auto"`` means, from a sample of the rows."""

import numpy as np

from ..operators.given import GivenMatrix
from ..operators.tiled import TiledKernel
from ..tuning.penalty import auto_ridge, n_sampled
from .problem import take, take_entries


def auto_alpha(problem, data, rows, dtype, n_centers=None):
    """Return the lambda with which kernel ridge regression predicts new rows best.

    It is that of ``mean_i (y_i - f(x_i))^2 + lambda |f|^2``, see `tuning.penalty`.

    Parameters
    ----------
    problem : Problem
        With the kernel, or None for a kernel matrix.
    data : Data
    rows : ndarray of int
        The training rows.
    dtype : data type
        Of the kernel values, unless the penalty is below their rounding.
    n_centers : int, default=None
        None: of a model in which all rows are centers.

    Returns
    -------
    float
        0 if there are too few rows to tell.
    """
    xp, merged = problem.xp, data.merged(rows)
    n = len(merged.rows)
    sample = merged.rows[: n_sampled(n, n_centers)]
    Y, w = merged.data.targets[merged.rows], merged.data.weights_of(merged.rows)
    Y, w = Y - np.average(Y, axis=0, weights=w), w / w.mean()
    in_double = None
    if problem.kernel is None:
        K = problem.to_compute(take_entries(data.X, sample, sample))
        K = GivenMatrix(xp.astype(K, dtype, copy=False))
    else:
        X = problem.to_compute(take(data.X, sample))
        X = xp.astype(X, dtype, copy=False)
        K = TiledKernel(problem.kernel, X)

        def in_double(m):
            return TiledKernel(problem.kernel, xp.astype(X[:m, :], xp.float64))

    Y, w = (
        xp.asarray(values[: len(sample)], dtype=dtype, device=problem.device)
        for values in (Y, w)
    )
    labels = data.groups is not None
    options = {"replicates": merged.replicates, "labels": labels}
    return auto_ridge(K, Y, w, in_double=in_double, **options) / n
