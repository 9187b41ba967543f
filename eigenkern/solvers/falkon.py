"""Falkon: conjugate gradients on the preconditioned normal equations."""

from ..backend.array import device_of, namespace
from ..operators.matrix import check_finite
from .conjugate_gradient import conjugate_gradient
from .state import State


class Falkon:
    """The iterations of `falkon`, which can resume from a checkpoint.

    Parameters
    ----------
    *args
        The arguments of `falkon`, without `state`.
    """

    def __init__(self, *args):
        self._args, self._states, self._state = args, falkon(*args), None

    def __iter__(self):
        return self

    def __next__(self):
        """Return the `State` after the next iteration."""
        state = next(self._states)
        self._state = state.rest
        return state

    def save(self):
        """Return the state of the conjugate gradients."""
        return self._state

    def load(self, saved):
        """Resume from where another run of the same problem was."""
        self._states, self._state = falkon(*self._args, state=saved), saved


def falkon(
    matrix, targets, weights, preconditioner, alpha, tol, start=None, *, state=None
):
    """Solve kernel ridge regression on centers; yield a `State` per iteration.

    With R and A of `TwoCholesky`, and the features Phi = K_nm R, b = A^-1 c solves ::

        A'^-1 (Phi' W Phi / N + lambda I) A^-1 c = A'^-1 Phi' W y / N

    Parameters
    ----------
    matrix : Matrix
        K_nm.
    targets : array of shape (n, l)
        With their mean subtracted, in float64.
    weights : array of shape (n,)
        In float64, with sum N.
    preconditioner : TwoCholesky
    alpha : float
        lambda.
    tol : float
        Bound on the relative residual of every output.
    start : array of shape (p, l), default=None
        Coefficients R b of the centers; None: zero.
    state : dict, default=None
        The `rest` of a `State` of the same problem to resume from.

    References
    ----------
    Rudi, Carratino, Rosasco, "FALKON: an optimal large scale kernel method", NIPS
    2017: algorithm 1.
    """
    xp, P = namespace(targets), preconditioner
    N = float(xp.sum(weights))

    def gradient(b, Y):
        """Return Phi' W (Phi b - Y) / N."""
        return P.reduce(matrix.normal_product(P.expand(b), Y, weights)) / N

    def apply(c):
        b = P.inner(c)
        return P.inner_transposed(gradient(b, None) + alpha * b)

    shape = matrix.shape[1], targets.shape[1]
    zero = xp.zeros(shape, dtype=xp.float64, device=device_of(targets))
    rhs = P.inner_transposed(-gradient(zero, targets))
    check_finite(rhs)
    start = zero if start is None else P.preimage(start)
    for solution in conjugate_gradient(apply, rhs, start, tol, state=state):
        coef, residual = P.inner(solution.coef), float(solution.residuals.max())
        converged, state = solution.converged, solution.state
        yield State(coef, residual=residual, converged=converged, rest=state)
