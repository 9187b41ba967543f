"""Kernel logistic regression: Newton steps by preconditioned conjugate gradients.

With whitened features phi(x) of dimension p (see `eigenkern.methods`), a coefficient
matrix b (p, l) and intercepts c (l,) the objective is ::

    J(b, c) = 1/N sum_i w_i loss(y_i, f(x_i)) + alpha/2 |b|^2,   f = phi' b + c

with the log loss of one column (two classes) or of the softmax of l columns. Arrays of
coefficients are (p + 1, l): the last row is c, which has no penalty.
"""

from typing import Any, NamedTuple

import numpy as np

from ..arrays.array import device_of, namespace
from ..arrays.linalg import first_cholesky, large_gram, large_product, solve_triangular
from ..losses import LogLoss
from ..operators.matrix import check_finite
from .conjugate_gradients import conjugate_gradient, last_state
from .state import State

# Conjugate gradients end when the residual of a Newton step is this fraction of the
# gradient, or less: the fraction shrinks as the objective approaches its minimum. Nine
# fits (a9a, ijcnn1, fashion_mnist; one penalty, a path, Falkon; 1000 centers) took
# 13.6, 14.2 and 15.4 s in total with 0.1, 0.3 and 0.6, and their errors were the same
# within 0.05 points. It is also the residual at which an intermediate penalty is
# replaced by the next smaller one.
_LOOSE = 0.3
# Residuals to reach for the models of a path, and for the final one: their objectives
# are within 1e-3 and 1e-5 of the minimum, relatively. On 2000 rows of Covertype and
# 1500 of Fashion-MNIST the test log loss is the same to 1e-4 with 1e-2 and 1e-5, which
# take twice as many passes over the rows; with 1e-1 and 1e-2 it is 0.4 % larger on the
# first.
_PATH_TOL, KEPT_TOL = 3e-2, 3e-3
# Maximum number of Newton steps for one penalty, and of iterations in each.
MOST_STEPS = 100
_TINY = float(np.finfo(np.float64).tiny)


class Point(NamedTuple):
    """The objective at some coefficients, (p + 1, l); its gradient has their shape.

    `curvature` (n, l) is that of the loss: p (1 - p) for two classes, the probabilities
    for more.
    """

    coef: Any
    value: float
    gradient: Any
    curvature: Any


class Logistic:
    """The objective J on some rows.

    `matrix` is K_nm, `targets` (n, l) as `LogLoss` takes them. ``expand(b)`` returns
    R b, ``reduce(g)`` R' g.
    """

    def __init__(self, matrix, targets, weights, expand, reduce):
        self.matrix, self.targets = matrix, targets
        self.weights = weights / namespace(weights).sum(weights)
        self.loss = LogLoss(targets.shape[1])
        self._expand, self._reduce = expand, reduce

    def at(self, coef, alpha):
        """Return the `Point` at some coefficients, in one pass over the rows."""
        xp, w = namespace(coef), self.weights
        losses, curvature = xp.zeros_like(w), xp.zeros_like(self.targets)

        def gradient(rows, F):
            F = F + coef[-1, :]
            losses[rows], G = self.loss.value_and_gradient(self.targets[rows, :], F)
            curvature[rows, :] = self.loss.curvature_of(F)
            return G

        g = self._adjoint(coef, gradient)
        point = Point(coef, float(xp.sum(w * losses)), g, curvature)
        return _with_penalty(point, alpha)

    def hessian(self, point, alpha):
        """Return the function of V that multiplies it by the Hessian at a point."""
        return lambda V: (
            self._adjoint(
                V,
                lambda rows, U: self.loss.curve(point.curvature[rows, :], U + V[-1, :]),
            )
            + _penalty(V, alpha)
        )

    def _adjoint(self, V, function):
        """Return [Phi, 1]' W G, G = ``function(rows, Phi b)`` with b = V[:-1]."""
        xp = namespace(V)
        sums = xp.zeros_like(self.targets)

        def weighted(rows, F):
            G = function(rows, F) * self.weights[rows, None]
            sums[rows, :] = G
            return G

        g = self._reduce(self.matrix.adjoint_of(self._expand(V[:-1, :]), weighted))
        return xp.concat([g, xp.sum(sums, axis=0)[None, :]])

    def mean_curvature(self, point):
        """Return the weighted mean, over rows, of the curvature of the loss."""
        d = self.loss.mean_curvature(point.curvature)
        return float(namespace(d).sum(self.weights * d))

    def sums(self, point, transform, whiten):
        """Return [Phi, 1]' W D [Phi, 1], D the mean curvature of every row.

        `transform` is R if rows are whitened one by one. If it is None, the sums are
        whitened: ``whiten(C)`` returns R' C.
        """
        xp = namespace(point.coef)
        weights = self.weights * self.loss.mean_curvature(point.curvature)
        ones = xp.ones_like(weights)[:, None]
        gram, cross = self.matrix.gram(ones, weights, transform=transform)
        if transform is None:
            gram, cross = whiten(whiten(gram).T), whiten(cross)
        return _bordered(gram, cross, float(xp.sum(weights)))

    def sums_of_centers(self, point, L, weights):
        """Return the same sums over weighted centers instead of rows, as in Falkon.

        `L` is the Cholesky factor of K_mm, the features of the centers; `weights` (p,)
        are those of the rows that each center represents.
        """
        xp, coef = namespace(L), point.coef
        F = large_product(L, coef[:-1, :]) + coef[-1, :]
        d = self.loss.mean_curvature(self.loss.curvature_of(F))
        d = weights * d / float(xp.sum(weights))
        root = xp.sqrt(d)[:, None]
        gram = large_gram((root * L).T)
        return _bordered(gram, L.T @ d[:, None], float(xp.sum(d)))


def _bordered(gram, cross, total):
    """Return [[gram, cross], [cross', total]]."""
    xp = namespace(gram)
    corner = xp.full_like(cross[:1, :], total)
    top = xp.concat([gram, cross], axis=1)
    return xp.concat([top, xp.concat([cross.T, corner], axis=1)])


def _penalty(V, alpha):
    """Return alpha b, and zero for c."""
    xp = namespace(V)
    return xp.concat([alpha * V[:-1, :], xp.zeros_like(V[-1:, :])])


class Preconditioner:
    """A Cholesky factor A' of an approximate Hessian, the same for every column.

    ``sums(point)`` returns [Phi, 1]' W D [Phi, 1] over rows or centers. It is reused
    until the iterations since then have cost as much: `patience` is their number.
    """

    def __init__(self, objective, sums, patience):
        self._objective, self._sums, self._patience = objective, sums, patience
        self._latest = self._known = None
        self._n_iterations = 0

    def prepare(self, point, alpha):
        """Compute a factor for the Hessian at a point, or keep the last factor."""
        mean = self._objective.mean_curvature(point)
        if self._latest is None or self._n_iterations > self._patience:
            self._latest = self._sums(point), mean
            self._known, self._n_iterations = None, 0
        if self._known is not None:
            known_alpha, known_mean = self._known
            if known_alpha == alpha and 0.5 * known_mean < mean < 2 * known_mean:
                return
        sums, mean_then = self._latest
        A = sums * (mean / mean_then)
        xp, penalty = namespace(A), np.full(A.shape[0], alpha)
        penalty[-1] = 0.0
        # Rounding can make A indefinite if alpha is tiny.
        rounding = float(xp.finfo(A.dtype).eps) * float(xp.linalg.trace(A))
        raised = [0.0, *(rounding * 10.0**k for k in range(1, 13))]
        options = {"dtype": A.dtype, "device": device_of(A)}
        shifts = (xp.asarray(penalty + r, **options) for r in raised)
        self._C, self._known = first_cholesky(A, shifts), (alpha, mean)

    def spent(self, n_iterations):
        """Count the iterations of a Newton step."""
        self._n_iterations += n_iterations

    def inner(self, c):
        """Return A^-1 c, coefficients."""
        return solve_triangular(self._C, c, transposed=True)

    def inner_transposed(self, g):
        """Return A'^-1 g."""
        return solve_triangular(self._C, g)


def newton(objective, preconditioner, start, alphas, tol):
    """Minimize J by Newton steps; yield a `State` after each.

    With the factor A of `Preconditioner`, where A' A approximates the Hessian H, a step
    -H^-1 g is A^-1 c with c from conjugate gradients on ::

        A'^-1 H A^-1 c = -A'^-1 g

    It is shortened until the objective falls. |A'^-1 g|^2 / 2 estimates how far J is
    from its minimum. The penalties go from large to small ones, so that every Newton
    step starts where it converges fast.

    `start` is (p + 1, l); the last of the decreasing `alphas` is the penalty of the
    problem, and `tol` bounds the `residual` of a state.

    References
    ----------
    Marteau-Ferey, Bach, Rudi, "Globally convergent Newton methods for ill-conditioned
    generalized self-concordant losses", NeurIPS 2019 (arXiv:1907.01771).

    Nocedal and Wright, "Numerical optimization", 2006: section 7.1.
    """
    point = objective.at(start, alphas[0])
    check_finite(point.gradient)
    last = len(alphas) - 1
    for i, alpha in enumerate(alphas):
        point = _with_penalty(point, alpha - alphas[max(i - 1, 0)])
        limit = tol if i == last else max(tol, _LOOSE)
        preconditioner.prepare(point, alpha)
        residual, stuck = _norm(preconditioner, point) / _unit(point), False
        while i == last or residual > limit:
            if not (stuck or residual <= limit):
                preconditioner.prepare(point, alpha)
                found, residual = _step(
                    objective, preconditioner, point, alpha, residual
                )
                stuck, point = found is point, found
            # If no step lowers the objective, such a residual is rounding.
            done = residual <= limit or (stuck and residual <= 1e-5)
            done = done and i == last
            yield State(point.coef, residual=residual, converged=done, rest=point)
            if stuck and i < last:
                break


def _with_penalty(point, change):
    """Return the point with an alpha that is larger by `change`."""
    b = point.coef[:-1, :]
    return point._replace(
        value=point.value + 0.5 * change * float(namespace(b).sum(b**2)),
        gradient=point.gradient + _penalty(point.coef, change),
    )


def _norm(preconditioner, point):
    """Return |A'^-1 g|."""
    g = preconditioner.inner_transposed(point.gradient)
    return float(namespace(g).linalg.vector_norm(g))


def _unit(point):
    """Return (2 J)^1/2, the unit of residuals."""
    return (2 * max(point.value, _TINY)) ** 0.5


def _step(objective, preconditioner, point, alpha, residual):
    """Return the point after a Newton step, and its residual.

    It is the same point if only rounding is left. A' A may be larger than H in some
    directions; the norm of the step shows by how much.
    """
    xp, shape = namespace(point.coef), tuple(point.coef.shape)
    hessian = objective.hessian(point, alpha)

    def column(V):
        return xp.reshape(preconditioner.inner_transposed(V), (-1, 1))

    def coefficients(c):
        return preconditioner.inner(xp.reshape(c, shape))

    rhs = column(-point.gradient)
    forcing = min(_LOOSE, residual**0.5)
    solutions = conjugate_gradient(
        lambda c: column(hessian(coefficients(c))), rhs, xp.zeros_like(rhs), forcing
    )
    solution, n_iterations = last_state(solutions, MOST_STEPS)
    preconditioner.spent(n_iterations)
    direction = coefficients(solution.coef)
    slope = float(xp.sum(direction * point.gradient))
    decrement = max(-slope, 0.0) ** 0.5
    rounding, size = 1e-14 * point.value, 1.0
    for _ in range(30):  # 2^-30 = 1e-9 of the step
        found = objective.at(point.coef + size * direction, alpha)
        # Armijo's rule, with the value of Nocedal and Wright, section 3.1.
        if found.value <= point.value + 1e-4 * size * slope + rounding:
            break
        size /= 2
    else:
        return point, decrement / _unit(point)
    norm = _norm(preconditioner, point)
    gap = max(1.0, decrement / max(norm, _TINY)) * _norm(preconditioner, found)
    gap = max(gap, float(solution.residuals[0]) * decrement)
    return found, gap / _unit(found)


def minimized(objective, preconditioner, start, alphas, tol, max_iter):
    """Return the first converged state of `newton`, or the last of `max_iter`."""
    states = newton(objective, preconditioner, start, alphas, tol)
    return last_state(states, max_iter)[0]


def way_down(alpha):
    """Return penalties from 1 down to `alpha`, falling by factors of ten."""
    n = max(int(np.ceil(-np.log10(alpha))), 0) if alpha < 1 else 0
    return [10.0**-k for k in range(n)] + [alpha]


def best_of_path(problem, alphas, one_deviation=False):
    """Return the best alpha, its coefficients, and the errors of all (NaN: not tried).

    The path goes from the largest penalty down; each model starts from those before. It
    ends once smaller penalties gain nothing and need ever more iterations. On digits
    (scikit-learn's) a whole path took ten times as long, and its least loss is 0.6 %
    lower.
    """
    objective = problem.objective(problem.train)
    preconditioner = problem.preconditioner(objective, problem.train)
    errors, coefs, losses = np.full(len(alphas), np.nan), {}, {}
    coef, done = problem.start, []
    constant = problem.validation_loss(problem.validation_losses(coef))
    for k in np.argsort(-alphas, kind="stable"):
        start = _extrapolated(coefs, done, alphas, k) if len(done) > 1 else coef
        state = minimized(
            objective,
            preconditioner,
            start,
            [float(alphas[k])],
            _PATH_TOL,
            MOST_STEPS,
        )
        coef = coefs[k] = state.coef
        done.append(k)
        losses[k] = problem.validation_losses(coef)
        errors[k] = problem.validation_loss(losses[k])
        before = errors[(alphas >= 10 * alphas[k]) & ~np.isnan(errors)]
        flat = len(before) and errors[k] > 0.99 * before.min()
        over = flat or errors[k] > np.nanmin(errors)
        begun = np.nanmin(errors) < 0.95 * constant
        if errors[k] > 1.02 * np.nanmin(errors) or (over and begun):
            break
    if not np.isfinite(errors).any():
        raise ValueError(
            "no model has a finite log loss on the rows held out: scale X or "
            "sample_weight, or choose another kernel or bandwidth"
        )
    best = int(np.nanargmin(errors))
    if one_deviation:
        limit = errors[best] + problem.deviation(losses[best])
        within = [k for k in coefs if errors[k] <= limit]
        best = max(within, key=lambda k: alphas[k])
    return float(alphas[best]), coefs[best], errors


def _extrapolated(coefs, done, alphas, k):
    """Return coefficients for the next alpha, extrapolated linearly in log(alpha).

    This saves a third of the iterations of a path.
    """
    before, last = done[-2:]
    made = np.log(alphas[before] / alphas[last])
    part = np.log(alphas[last] / alphas[k]) / made if made > 0 else 0.0
    return coefs[last] + min(float(part), 1.0) * (coefs[last] - coefs[before])
