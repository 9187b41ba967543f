"""Gradients of fitted models, and the average of their outer products."""

from typing import Any

import numpy as np

from ..arrays.array import ArrayLike, RandomState, device_of, location_of, move, slices
from ..arrays.linalg import large_product
from ..arrays.machine import GRADIENT_BYTES
from ..fitting.model import Model
from ..fitting.outcome import check_values
from ..fitting.validation import (
    check_choice,
    check_number,
    check_rows,
    check_weights,
    computing,
    random_generator,
)
from ..problems.problem import take

# Maximum number of outputs to differentiate; more are replaced by random combinations.
_MAX_OUTPUTS = 10


def gradient(model: Any, X: ArrayLike) -> Any:
    """Return the gradients of a fitted model's outputs at the rows of X.

    The outputs are ``predict`` of a regressor or ``decision_function`` of a classifier.

    Parameters
    ----------
    model : estimator
        A fitted kernel model of this package: EigenPro, Nystrom, NYTRO, Falkon, doubly
        stochastic gradients or a recursive feature machine.
    X : array of shape (n_samples, n_features)

    Returns
    -------
    G : array of shape (n_samples, n_features, n_outputs)
        Where X lives. At a kink of the kernel, such as that of the laplacian at a
        center, that center is left out.

    Raises
    ------
    ValueError
        If the model is of another kind, or its kernel has no gradient.

    See Also
    --------
    average_gradient_outer_product : Which features, together, change the model most.

    Notes
    -----
    Takes n p (d + l (d + 1)) multiply-adds for p centers, d features and l outputs.

    Examples
    --------
    >>> import numpy as np
    >>> from eigenkern import EigenProRegressor
    >>> from eigenkern.inspection import gradient
    >>> X = np.random.default_rng(0).uniform(-1, 1, (500, 2))
    >>> model = EigenProRegressor("gaussian", random_state=0).fit(X, 3 * X[:, 0])
    >>> gradient(model, np.zeros((1, 2)))[0, :, 0].round(1) + 0.0
    array([3., 0.])
    """
    X = _checked_rows(model, X, "gradient")
    with computing(model, "gradient", X):
        with np.errstate(over="ignore", invalid="ignore"):
            G = model._gradients(X).block(0, X.shape[0])
        check_values(G, X)
        return move(G, *location_of(X))


def average_gradient_outer_product(
    model: Any,
    X: ArrayLike,
    *,
    kind: str = "full",
    max_rows: int | None = None,
    sample_weight: ArrayLike | None = None,
    random_state: RandomState = None,
) -> Any:
    """Return the mean over rows of the outer products of a model's gradients.

    ::

        M = 1/n sum_i sum_l grad f_l(x_i) grad f_l(x_i)'

    Its diagonal shows how much each feature matters to the model, in units of the
    features; its leading eigenvectors are the directions in which the model changes
    most.

    Parameters
    ----------
    model : estimator
        As for `gradient`.
    X : array of shape (n_samples, n_features)
    kind : {"full", "diagonal"}, default="full"
        "diagonal": compute only the diagonal of M.
    max_rows : int, default=None
        Number of rows to draw from X; a few thousand suffice. None: all of them.
    sample_weight : array of shape (n_samples,), default=None
        Weights of the rows in the mean.
    random_state : int, RandomState instance or None, default=None
        Controls which rows are drawn, and the combinations of more than 10 outputs.

    Returns
    -------
    M : array of shape (n_features, n_features), or (n_features,)
        In float64, where X lives.

    Raises
    ------
    ValueError
        If the model is of another kind, or its kernel has no gradient.

    See Also
    --------
    eigenkern.RFMRegressor : Learns its metric from M.

    Notes
    -----
    Takes n p (d + l (d + 1)) multiply-adds for p centers, d features and l outputs, and
    n l d^2 for the outer products. More than 10 outputs are replaced by 10 combinations
    of them with random signs, new for each block of rows: M is the same on average.

    References
    ----------
    Radhakrishnan, Beaglehole, Pandit and Belkin, "Mechanism for feature learning in
    neural networks and backpropagation-free machine learning models", Science 2024.

    Examples
    --------
    >>> import numpy as np
    >>> from eigenkern import EigenProRegressor
    >>> from eigenkern.inspection import average_gradient_outer_product
    >>> X = np.random.default_rng(0).uniform(-1, 1, (500, 2))
    >>> model = EigenProRegressor("gaussian", random_state=0).fit(X, 3 * X[:, 0])
    >>> M = average_gradient_outer_product(model, X, kind="diagonal")
    >>> bool(M[0] > 100 * M[1])
    True
    """
    check_choice("kind", kind, ("full", "diagonal"))
    if max_rows is not None:
        check_number("max_rows", max_rows, 1, integer=True)
    X = _checked_rows(model, X, "average_gradient_outer_product")
    weights = check_weights(sample_weight, X.shape[0])
    rng = random_generator(random_state)
    if max_rows is not None and max_rows < X.shape[0]:
        rows = np.sort(rng.choice(X.shape[0], max_rows, replace=False))
        X = take(X, rows)
        weights = None if weights is None else weights[rows]
        if weights is not None and not weights.any():
            raise ValueError(
                f"max_rows={max_rows} draws no row with a positive sample_weight"
            )
    with computing(model, "average_gradient_outer_product", X):
        M = mean_outer_product(model._gradients(X), kind, weights, rng)
        return move(M, *location_of(X))


def mean_outer_product(gradients, kind, weights, rng, units=None):
    """Return the mean of G G' over rows, summed over outputs, or its diagonal.

    G is in these units of the outputs, (l,), if they are given.
    """
    xp, (n, d, n_outputs) = gradients.xp, gradients.shape
    n_mixed = min(n_outputs, _MAX_OUTPUTS)
    total, size = 0.0, max(int(GRADIENT_BYTES // (8 * d * n_mixed)), 1)
    if n_mixed < n_outputs:  # small blocks, for many different combinations
        size = min(size, max(-(-n // 16), 1))
    for rows in slices(n, size):
        mix = None
        if n_mixed < n_outputs:
            mix = rng.choice([-1.0, 1.0], (n_outputs, n_mixed)) / n_mixed**0.5
        if units is not None:
            mix = (np.eye(n_outputs) if mix is None else mix) / units[:, None]
        G = gradients.block(rows.start, rows.stop, mix)
        if weights is not None:
            w = xp.asarray(weights[rows] / weights.mean(), device=device_of(G))
            G = G * xp.astype(w**0.5, G.dtype)[:, None, None]
        # In units of the largest entry, so that no square overflows or underflows.
        unit = float(xp.max(xp.abs(G))) or 1.0
        G = G / unit
        if kind == "diagonal":
            products = xp.sum(xp.sum(G * G, axis=2), axis=0)
        else:
            G = xp.reshape(xp.permute_dims(G, (1, 0, 2)), (d, -1))
            products = large_product(G, G.T)
        total = total + xp.astype(products, xp.float64) * (unit * unit)
    return total / n


def is_on_kernels(model):
    """Whether `model` is a kernel model, fitted or not: only these have gradients."""
    return isinstance(model, Model) and model._gradients is not None


def check_on_kernels(model):
    """Raise a ValueError unless `model` is a kernel model."""
    if not is_on_kernels(model):
        raise ValueError(
            f"model must be a model on kernels of eigenkern, such as EigenProRegressor;"
            f" got {model!r}"
        )


def _checked_rows(model, X, function):
    """Return validated rows for a fitted kernel model."""
    check_on_kernels(model)
    return check_rows(model, X, function)
