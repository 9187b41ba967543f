"""Conjugate gradients for many right-hand sides, and Falkon, which uses them."""

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ..arrays.array import device_of, namespace, take, to_numpy
from ..arrays.linalg import first_cholesky, large_product, solve_triangular
from ..operators.matrix import check_finite
from .state import State


@dataclass(frozen=True)
class TwoCholesky:
    """Falkon's preconditioner of kernel ridge regression on centers.

    With T' T = K_mm the features R' K(Z, x), R = T^-1, have the second moment ::

        B = R' K_nm' W K_nm R / N, about T W_m T' / sum(W_m) = A' A - lambda I

    because the centers are a sample of the rows. A'^-1 (B + lambda I) A^-1 is therefore
    close to I, at the cost of two Cholesky factors.
    L = T' and C = A' are lower triangular.

    References
    ----------
    Rudi, Carratino, Rosasco, "FALKON: an optimal large scale kernel method", NIPS
    2017: section 3.
    """

    L: Any
    C: Any

    @classmethod
    def of(cls, L, alpha, weights):
        """Return the preconditioner, by the factor L of K_mm in float64, and lambda.

        The weights W_m (p,) are those of the rows that each center stands for.
        """
        xp = namespace(L)
        A = large_product(L.T, weights[:, None] * L) / float(xp.sum(weights))
        rounding = float(xp.finfo(L.dtype).eps) * float(xp.linalg.trace(A))
        # Rounding can make A + alpha I indefinite if alpha is tiny.
        raised = [max(alpha, rounding) * 10**k for k in range(12)]
        return cls(L, first_cholesky(A, [alpha, *raised]))

    def inner(self, c):
        """Return A^-1 c, coefficients b of the features."""
        return solve_triangular(self.C, c, transposed=True)

    def inner_transposed(self, g):
        """Return A'^-1 g."""
        return solve_triangular(self.C, g)

    def expand(self, b):
        """Return R b, coefficients of the centers."""
        return solve_triangular(self.L, b, transposed=True)

    def reduce(self, g):
        """Return R' g."""
        return solve_triangular(self.L, g)

    def preimage(self, coef):
        """Return c with R A^-1 c = coef."""
        return self.C.T @ (self.L.T @ coef)


class Solution(NamedTuple):
    """An approximate solution, (p, l), after an iteration.

    `residuals` (l,) are norms over those of the right-hand sides; `converged`: every
    column is done. `rest` is the residual itself, (p, l), if all columns end together.
    Another run resumes from `state`.
    """

    coef: Any
    residuals: np.ndarray
    converged: bool
    rest: Any = None
    state: Any = None


def conjugate_gradient(
    apply, rhs, start, tol, *, precondition=None, together=False, state=None
):
    """Solve ``H X = rhs``, H positive definite; yield a `Solution` per iteration.

    Every column has its own step. A column whose relative residual is at most `tol`
    changes no more: later products involve only the other columns.

    Hestenes and Stiefel, "Methods of conjugate gradients for solving linear systems",
    1952. With residual R, Z = M R and direction P, for each column ::

        step = R'Z / P'HP,  X += step P,  R' = R - step HP,  P' = Z' + R'Z' / R'Z P

    ``apply(P)`` returns H P for any number of columns, ``precondition(R)`` M R, with M
    close to the inverse of H; None: M = I. `together`: all columns continue until the
    last of them is done. `state` is that of a `Solution` of the same problem.
    """
    xp = namespace(rhs)
    scale = _norms(rhs)
    scale[scale == 0] = 1.0
    if state is None:
        X, active = start, np.arange(rhs.shape[1])
        R = rhs - apply(start) if bool(xp.any(start != 0)) else rhs
        Z = P = R if precondition is None else precondition(R)
        R_Z = xp.sum(R * Z, axis=0)
        residuals = _norms(R) / scale
        done = []  # (columns, their coefficients)
    else:
        X, R, P, R_Z, residuals, active, done = state
    while True:
        ends = residuals[active] <= tol
        if together:
            ends[:] = ends.all()
        going, ended = np.flatnonzero(~ends), np.flatnonzero(ends)
        if len(ended):
            done.append((active[ended], take(X, ended, axis=1)))
            rest, active = R, active[going]
            X, R, P = (take(V, going, axis=1) for V in (X, R, P))
            R_Z = take(R_Z[None, :], going, axis=1)[0, :]
        if not len(active):
            coef = _assembled(done, X, active)
            while True:
                yield Solution(coef, residuals, True, rest if together else None)
        H_P = apply(P)
        # Rounding can leave no curvature along a direction: then its step is zero.
        step = _quotient(R_Z, xp.sum(P * H_P, axis=0))
        X, R = X + step * P, R - step * H_P
        Z = R if precondition is None else precondition(R)
        previous, R_Z = R_Z, xp.sum(R * Z, axis=0)
        P = Z + _quotient(R_Z, previous) * P
        residuals = residuals.copy()
        residuals[active] = _norms(R) / scale[active]
        converged = bool((residuals <= tol).all())
        rest = R if together else None
        state = X, R, P, R_Z, residuals, active, list(done)
        yield Solution(_assembled(done, X, active), residuals, converged, rest, state)


def last_state(states, most):
    """Return the first converged state, or the last of `most`, and its number."""
    for n, state in enumerate(states, 1):
        if state.converged or n == most:
            return state, n


def _norms(V):
    xp = namespace(V)
    return to_numpy(xp.linalg.vector_norm(V, axis=0)).astype(np.float64)


def _quotient(a, b):
    """Return a / b, or 0 where b is not positive."""
    xp, positive = namespace(a), b > 0
    return xp.where(positive, a / xp.where(positive, b, xp.ones_like(b)), 0.0 * b)


def _assembled(done, X, active):
    """Return all columns in their original order."""
    if not done:
        return X
    order = np.argsort(np.concatenate([*(columns for columns, _ in done), active]))
    xp = namespace(X)
    return take(xp.concat([*(part for _, part in done), X], axis=1), order, axis=1)


class Falkon:
    """Solve kernel ridge regression on centers: an iterator of `State`.

    With R and A of `TwoCholesky`, and the features Phi = K_nm R, b = A^-1 c solves ::

        A'^-1 (Phi' W Phi / N + lambda I) A^-1 c = A'^-1 Phi' W y / N

    Another one, of the same problem, can resume from what it saves.

    Parameters
    ----------
    matrix : Matrix
        K_nm.
    targets, weights : arrays of shape (n, l) and (n,)
        In float64, with their mean subtracted; with sum N.
    preconditioner : TwoCholesky
    alpha, tol : float
        lambda; bound on the relative residual of every output.
    start : array of shape (p, l), default=None
        Coefficients R b of the centers; None: zero.

    References
    ----------
    Rudi, Carratino, Rosasco, "FALKON: an optimal large scale kernel method", NIPS
    2017: algorithm 1.
    """

    def __init__(
        self, matrix, targets, weights, preconditioner, alpha, tol, start=None
    ):
        xp, P = namespace(targets), preconditioner
        N = float(xp.sum(weights))

        def gradient(b, Y):
            """Return Phi' W (Phi b - Y) / N."""
            return P.reduce(matrix.normal_product(P.expand(b), Y, weights)) / N

        def apply(c):
            b = P.inner(c)
            return P.inner_transposed(gradient(b, None) + alpha * b)

        self._shape = matrix.shape[1], targets.shape[1]
        zero = xp.zeros(self._shape, dtype=xp.float64, device=device_of(targets))
        rhs = P.inner_transposed(-gradient(zero, targets))
        check_finite(rhs)
        start = zero if start is None else P.preimage(start)
        self._inner = P.inner
        self._solve = partial(conjugate_gradient, apply, rhs, start, tol)
        self.load(None)

    def __iter__(self):
        return self

    def __next__(self):
        solution = next(self._solutions)
        self._state, residual = solution.state, float(solution.residuals.max())
        coef, converged = self._inner(solution.coef), solution.converged
        return State(coef, residual=residual, converged=converged)

    def save(self):
        return self._state

    def load(self, saved):
        """Continue from what another one saved; None: begin."""
        if saved is not None:
            X, R, P, R_Z, residuals, active, _ = saved
            shape = self._shape[0], len(active)
            if not X.shape == R.shape == P.shape == shape == (shape[0], *R_Z.shape):
                raise ValueError("not the state of these outputs")
            if residuals.shape != self._shape[1:]:
                raise ValueError("not the residuals of these outputs")
        self._solutions, self._state = self._solve(state=saved), saved
