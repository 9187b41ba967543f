"""Preconditioned gradient descent on a model with its own centers: EigenPro 3, 4."""

from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from ..arrays.array import device_of, namespace, slices, to_numpy
from ..arrays.linalg import (
    cholesky_solve,
    first_cholesky,
    large_product,
    solve_triangular,
)
from ..operators.tiled import TiledKernel
from ..rows.lazy_rows import in_memory
from .conjugate_gradients import conjugate_gradient
from .guard import Epoch, EpochWatch, Guard, Guarded
from .state import Saved
from .step_search import StepSearch


class Batch(NamedTuple):
    """The rows of one step: K(X_b, Z), X_b (m, d), targets (m, l) and weights (m,)."""

    operator: Any
    rows: Any
    targets: Any
    weights: Any


@dataclass
class Iterate:
    """The state of the iteration: arrays of shape (p, l), and the iterates so far.

    `coef` is a, the last iterate; `mean` the model, in which later iterates have more
    weight; `rest` the residual of the last projection, which is added to the next h.
    """

    coef: Any
    mean: Any
    rest: Any
    n_projections: int = 0

    @classmethod
    def of(cls, coef):
        """Return the initial state with some coefficients."""
        return cls(coef, coef, namespace(coef).zeros_like(coef)).copy()

    def copy(self):
        parts = self.coef, self.mean, self.rest
        copies = (namespace(part).asarray(part, copy=True) for part in parts)
        return Iterate(*copies, self.n_projections)

    def go_to(self, other):
        self.coef[...], self.mean[...] = other.coef, other.mean
        self.rest[...], self.n_projections = other.rest, other.n_projections

    def add(self, theta, rest):
        """Add the theta of a projection, and keep its residual."""
        self.coef += theta
        self.rest = rest
        self.n_projections += 1
        # This makes the weights grow as t^3; squared errors on new rows are up to 1.16
        # times as large with equal weights, 0.98 to 1.01 times with t, t^6 and t^12.
        self.mean += 4 / (self.n_projections + 3) * (self.coef - self.mean)


def projected(
    next_epoch,
    centers,
    P,
    project,
    *,
    iterate,
    batch_size,
    interval,
    step_size,
    zero_loss,
    alpha=0.0,
    n_halvings=0,
    n_slack_rows=0,
    may_restart=True,
    try_half_steps=True,
):
    """Minimize mean_i w_i (f(x_i) - y_i)^2 + alpha |f|^2 over f = K(., Z) a.

    In the kernel's space of functions, a step on a batch b of m rows is ::

        g = (eta / m) W (f(X_b) - y_b)
        f <- f - K(., X_b) g + K(., Z_c) V s_b,   s_b = D V' K(Z_c, X_b) g

    and after every T batches f is projected onto the span of K(., Z) ::

        h = rest - sum of K(Z, X_b) g,   S = sum of s_b
        theta = K(Z, Z)^-1 (h + K(Z, Z_c) V S)
        f <- K(., Z) (a + theta)

    where the sums are over the T batches, a are the coefficients after the last
    projection, and rest is its residual (zero if projections are exact). Between
    projections the rows X_b stay as temporary centers with coefficients -g.

    T = 1 is algorithm 2 of EigenPro 3, which has these symbols:

    - alpha for a, and g_m for the error f(X_b) - y_b: our g is (n / m) eta g_m;
    - eta for our eta / n, because it minimizes a sum over the n rows, not a mean;
    - h for K(Z, X_b) g_m minus the correction C K(X_s, X_b) g_m. Our h has no
      correction, which stands in S, and has the step and the minus sign in it. So our
      h + K(Z, Z_c) V S is -(n / m) eta h, and our theta -(n / m) eta theta.

    The penalty's part of the step is implicit: the new f solves ``(I + kappa P) f = u``
    for the projected function u, with kappa = eta alpha times the rows of the T batches
    over m. However large alpha is, no shorter step is needed.

    A batch costs m p (d + 2 l) multiply-adds (2 m p l if K(X, Z) is cached), m^2 T (d +
    l) / 2 more on average for temporary centers, and its share of a projection.
    EigenPro 4 chooses T so that the projections cost little.

    Algorithm 2 returns the last iterate; here the model is a mean of the iterates
    (`Iterate.add`), and the residual of a projection is added to the next h. In
    algorithm 2 the eigenvectors are those of a subsample of the rows, and a run of
    EigenPro 2 projects; `CenterSpectral` and `InexactProjection` explain why this
    package does neither.

    Parameters
    ----------
    next_epoch : callable
        ``next_epoch()`` returns an iterable of `Batch`.
    centers : Matrix
        K(Z, Z).
    P : CenterSpectral
    project : callable
        ``project(h, S)`` returns theta, perhaps approximately, and its residual.
    iterate : Iterate
        Changed in place.
    batch_size, interval, step_size : int, int, float
        m (batches may be smaller, with shorter steps), T and eta.
    zero_loss : float
        Mean loss of f = 0, summed over the outputs.
    alpha : float, default=0.0
    n_halvings : int, default=0
        How often the guard has halved the step before.
    n_slack_rows : int, default=0
        As for `EpochWatch`.
    may_restart : bool, default=True
        Whether to start from zero if the given coefficients trip the guard.
    try_half_steps : bool, default=True
        Whether to try half the step for an output whose residual stalls.

    References
    ----------
    Abedsoltan, Belkin, Pandit, "Toward large kernel models", ICML 2023: algorithm 2.
    Abedsoltan, Ma, Pandit, Belkin, "Fast training of large kernel models with delayed
    projections", NeurIPS 2025 (arXiv:2411.16658).
    """
    xp, c, shape = (
        namespace(iterate.coef),
        P.vectors.shape[0],
        (1, iterate.coef.shape[1]),
    )
    guard = Guard(zero_loss, n_halvings)
    search = StepSearch(shape[1], tries=try_half_steps)

    def run_epoch():
        rates = guard.factor * step_size / batch_size * search.factors[0, :]
        watch = EpochWatch(guard, zero_loss, shape, n_slack_rows=n_slack_rows)
        with centers.exclusive_threads():
            projected_steps(iter(next_epoch()), rates, watch)
        if watch.n_rows == 0:
            return None
        losses = watch.losses[0, :] / watch.n_rows
        mean = xp.asarray(iterate.mean, copy=True)
        return Epoch(mean, losses, losses.sum(), watch.has_stepped)

    def projected_steps(batches, rates, watch):
        """Step on every batch, unless the losses diverge; `rates` (l,) is eta / m.

        Numbers are the lines of algorithm 2 of EigenPro 3, "Fetch subsample" being line
        1. `CenterSpectral.of` stands for lines 1 and 2; the C of line 3 is not formed.
        """
        like = {"dtype": iterate.coef.dtype, "device": device_of(iterate.coef)}
        rates = xp.asarray(rates, **like)
        while True:  # 4
            # The iterate changes only in projections, so it is always a model. `a` is a
            # copy to which the corrections V s_b are added between projections.
            a, h, S = xp.asarray(iterate.coef, copy=True), iterate.rest, 0.0
            rows, steps, n_rows = [], [], 0
            for batch in islice(batches, interval):  # 5
                targets = batch.targets
                if rows:
                    # The temporary centers contribute -K(X_b, rows) steps to f(X_b).
                    temporary = TiledKernel(centers.kernel, xp.concat(rows))
                    targets = targets + temporary.rows(batch.rows) @ xp.concat(steps)
                # 6: f(X_b) - y_b; and K(Z, X_b) g, the first term of line 7
                error, image = batch.operator.gradient(a, targets, batch.weights, rates)
                weighted = batch.weights[:, None] * error
                zero_losses = batch.weights * xp.sum(batch.targets**2, axis=1)
                losses, m = xp.sum(weighted * error, axis=0), error.shape[0]
                if watch.add(losses, float(xp.sum(zero_losses)), m):
                    return
                s_b = P.coordinates(image[:c, :])  # the second term of line 7
                P.add_to(a, s_b)
                h, S, n_rows = h - image, S + s_b, n_rows + m  # 7, summed over batches
                if interval > 1:
                    rows.append(in_memory(batch.rows))
                    steps.append(rates * weighted)  # g
            if n_rows == 0:
                return
            theta, rest = project(h, S)  # 8
            if alpha > 0:
                moved = iterate.coef + theta
                values = centers.product(moved, 0, c) if c else moved[:0, :]
                theta = P.shrunk(moved, values, alpha * n_rows * rates) - iterate.coef
            iterate.add(theta, rest)  # 9

    return Guarded(
        run_epoch,
        guard,
        snapshot=iterate.copy,
        restore=iterate.go_to,
        step_size=step_size,
        model_of=lambda iterate: iterate.mean,
        origin=Iterate.of(xp.zeros_like(iterate.coef)) if may_restart else None,
        search=search,
        counts=lambda: _counts(iterate, project),
        save_rest=project.save,
        load_rest=project.load,
    )


def projected_exactly(K, y, weights, P, project, *, iterate, step_size):
    """Take full-batch steps, each projected: EigenPro 3, algorithm 1.

    The preconditioner lives on all n rows, and a step is ::

        g = (eta / n) W (K(X, Z) a - y)
        h = K(Z, X) (I - Q) g,   Q = V D V' K(X, X)
        a <- a - K(Z, Z)^-1 h

    The paper's eta is our eta / n, which here is part of g. If q > 0 the fixed point is
    that of lemma 6 in the paper, not least squares. The lemma's bound of the step lacks
    a factor: the matrix whose largest eigenvalue limits eta is K(Z, Z)^-1 K(Z, X)
    (I - Q) K(X, Z). A step costs 2 n p l + 2 n q l multiply-adds, and K(X, Z) is held
    in memory.

    `project`, `iterate` and `step_size` are as in `projected`; the mean and rest of the
    iterate stay as they are. P is a `GlobalSpectral`, K is K(X, Z), (n, p).
    """
    xp, (n, _), rows = namespace(K), K.shape, slice(0, K.shape[0])
    guard = Guard(float(xp.sum(weights[:, None] * y**2)) / n)

    def run_epoch():  # lines 4 to 7 of algorithm 1; 1 and 2 are in `GlobalSpectral`
        error = large_product(K, iterate.coef) - y  # 4
        weighted = weights[:, None] * error
        losses = to_numpy(xp.sum(weighted * error, axis=0)) / n
        if np.isfinite(losses).all():
            g = guard.factor * step_size / n * weighted
            if P.n_components:
                g = g - P.correction(rows, g)  # (I - Q) g
            h = large_product(g.T, K).T  # 5
            theta, _ = project(h)  # 6
            iterate.coef -= theta  # 7
            iterate.n_projections += 1
        coef = xp.asarray(iterate.coef, copy=True)
        return Epoch(coef, losses, losses.sum(), True)

    return Guarded(
        run_epoch,
        guard,
        snapshot=iterate.copy,
        restore=iterate.go_to,
        step_size=step_size,
        model_of=lambda iterate: iterate.coef,
        counts=lambda: _counts(iterate, project),
    )


def _counts(iterate, project):
    return {"t_": iterate.n_projections, "projection_residual_": project.residual}


# Relative residual at which conjugate gradients stop. The residual is projected the
# next time: with 0.05 fits took two to three times the products and as many epochs.
_TOLERANCE = 0.2
# Most products; three usually reach 0.2.
_MAX_PRODUCTS = 10


class CenterFactor:
    """The Cholesky factor of K(Z, Z), `centers`, in float64.

    The rounding error of a kernel matrix, p eps k(x, x), is added to its diagonal, and
    more if there is no factor. The fixed point of the iteration, where h = 0, does not
    depend on it.
    """

    def __init__(self, centers):
        xp, p = centers.xp, centers.shape[0]
        self._xp, self._dtype = xp, centers.dtype
        eps, K = float(xp.finfo(centers.dtype).eps), centers.block(dtype=xp.float64)
        shift = p * eps * (float(xp.max(xp.abs(xp.linalg.diagonal(K)))) or 1.0)
        self._L = first_cholesky(K, (shift * 10.0**k for k in range(10)))

    def solve(self, h):
        """Return K(Z, Z)^-1 h."""
        solution = cholesky_solve(self._L, self._xp.astype(h, self._xp.float64))
        return self._xp.astype(solution, self._dtype)

    def whiten(self, C):
        """Return C L^-T for rows C of K(X, Z): features of the projected kernel."""
        C = self._xp.astype(C, self._xp.float64)
        return self._xp.astype(solve_triangular(self._L, C.T).T, self._dtype)


class ExactProjection(Saved):
    """Projection by a `CenterFactor`, also of the corrections K V S of P."""

    _saved = ()
    residual = 0.0

    def __init__(self, factor, P=None):
        self._factor, self._P = factor, P

    def __call__(self, h, S=None):
        """Return theta = K(Z, Z)^-1 h + V S, and its residual, zero."""
        coef = self._factor.solve(h)
        if S is not None:  # K(., Z_c) V S lies in the span
            self._P.add_to(coef, S)
        return coef, namespace(h).zeros_like(h)


class InexactProjection(Saved):
    """Projection by a few steps of conjugate gradients, in O(p) memory.

    EigenPro 3 projects by a run of EigenPro 2, whose result may have a larger norm in
    the kernel's space than the function that it projects. Conjugate gradients minimize
    the error in this norm: their result is an orthogonal projection onto a part of the
    span, and its norm is never larger. The residual is returned too, for the next
    projection. Their preconditioner has the eigenvectors U of the Nystrom approximation
    G G' of K(Z, Z), `centers` in random order, G = K(Z, Z_c) V. The corrections K V S
    of P are projected too. `residual` is the mean relative residual so far.
    """

    _saved = ("residual", "_n_projections")

    def __init__(self, centers, P):
        xp, (c, q) = centers.xp, P.vectors.shape
        self._centers, self.residual, self._n_projections = centers, 0.0, 0
        blocks = (
            centers.block(rows.start, rows.stop, 0, c)
            for rows in slices(centers.shape[0])
        )
        self._images = xp.concat([large_product(K, P.vectors) for K in blocks])
        self._vectors, self._scales = self._images, 1.0
        if q:
            # More would cost as much as a product.
            U, R = xp.linalg.qr(self._images[:, :200])
            W, values, _ = xp.linalg.svd(R)
            self._vectors = large_product(U, W)
            self._scales = 1.0 - (values[-1] / values[:, None]) ** 2

    def __call__(self, h, S=None):
        """Return theta = K(Z, Z)^-1 (h + K V S), approximately, and its residual.

        The two terms are projected together. Both are large along the top eigenvectors,
        where they cancel; the errors of two separate projections would not.
        """
        h, U = h if S is None else h + large_product(self._images, S), self._vectors
        solver = conjugate_gradient(
            lambda P: self._centers @ P,
            h,
            self._centers.xp.zeros_like(h),
            _TOLERANCE,
            precondition=lambda R: R - large_product(U, self._scales * (U.T @ R)),
            together=True,
        )
        solution = next(islice(solver, _MAX_PRODUCTS - 1, None))
        self._n_projections += 1
        change = float(solution.residuals.max()) - self.residual
        self.residual += change / self._n_projections
        return solution.coef, solution.rest
