"""Block conjugate gradients: many right-hand sides, each with its own end."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..backend.array import device_of, namespace, to_numpy


@dataclass(frozen=True)
class Iterate:
    """State after an iteration.

    Attributes
    ----------
    coef : array of shape (p, l)
    residuals : ndarray of shape (l,)
        Norm of the residual of every column over that of its right-hand side.
    converged : bool
        Whether every column is done.
    """

    coef: Any
    residuals: np.ndarray
    converged: bool


def conjugate_gradient(apply, rhs, start, tol):
    """Solve ``H X = rhs`` for a positive definite H; yield an `Iterate` an iteration.

    Every column has its own step, and is left alone once its relative residual is at
    most `tol`: later products are with the others only.

    Hestenes and Stiefel, "Methods of conjugate gradients for solving linear systems",
    1952. With residual R and direction P, for each column ::

        step = |R|^2 / P'HP,  X += step P,  R' = R - step HP,  P' = R' + |R'|^2/|R|^2 P

    Parameters
    ----------
    apply : callable
        ``apply(P)`` returns H P, for any number of columns.
    rhs : array of shape (p, l)
    start : array of shape (p, l)
        Where it starts.
    tol : float
    """
    xp = namespace(rhs)
    n_columns = rhs.shape[1]
    scale = _norms(rhs)
    scale[scale == 0] = 1.0
    active = np.arange(n_columns)
    X = start
    R = rhs - apply(start) if bool(xp.any(start != 0)) else rhs
    P, squares = R, xp.sum(R * R, axis=0)
    residuals = _norms(R) / scale
    done = []  # (columns, their coefficients)
    while True:
        ends = residuals[active] <= tol
        going, ended = np.flatnonzero(~ends), np.flatnonzero(ends)
        if len(ended):
            done.append((active[ended], _columns(X, ended)))
            active = active[going]
            X, R, P = (_columns(V, going) for V in (X, R, P))
            squares = _columns(squares[None, :], going)[0, :]
        if not len(active):
            coef = _assembled(done, X, active)
            while True:
                yield Iterate(coef, residuals, True)
        H_P = apply(P)
        curvature = xp.sum(P * H_P, axis=0)
        # Rounding can leave no curvature along a direction: then nothing is to be won.
        positive = curvature > 0
        safe = xp.where(positive, curvature, xp.ones_like(curvature))
        step = xp.where(positive, squares / safe, xp.zeros_like(squares))
        X, R = X + step * P, R - step * H_P
        previous, squares = squares, xp.sum(R * R, axis=0)
        P = R + squares / previous * P
        residuals = residuals.copy()
        residuals[active] = _norms(R) / scale[active]
        converged = bool((residuals <= tol).all())
        yield Iterate(_assembled(done, X, active), residuals, converged)


def _norms(V):
    xp = namespace(V)
    return to_numpy(xp.linalg.vector_norm(V, axis=0)).astype(np.float64)


def _columns(V, index):
    xp = namespace(V)
    return xp.take(V, xp.asarray(index, device=device_of(V)), axis=1)


def _assembled(done, X, active):
    """Return all columns in their order."""
    if not done:
        return X
    order = np.argsort(np.concatenate([*(columns for columns, _ in done), active]))
    xp = namespace(X)
    return _columns(xp.concat([*(part for _, part in done), X], axis=1), order)
