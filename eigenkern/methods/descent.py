"""NYTRO: gradient descent on the normal equations, step by step, stopped early."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..arrays.array import device_of, namespace
from ..operators.cached import cached
from ..operators.matrix import check_finite
from .krylov import top_eigenvalue
from .state import Saved, State


class IndefiniteKernelError(ValueError):
    """A kernel has negative eigenvalues, along which gradient descent diverges."""


class Descent:
    """Gradient descent, b_t = b_{t-1} - gamma (B b_{t-1} - q), from zero.

    Equation 20 of NYTRO on centers, 12 on the full kernel; b is the paper's beta.

    ``gradient(b, Y)`` returns B b - q with the q of targets Y, minus their mean, or B b
    for Y None. A gradient smaller than the fraction `noise` of the first one may be
    rounding. `start` is zero, (p, l), and `top` the largest eigenvalue of B.
    """

    def __init__(self, gradient, targets, n_coefs, noise):
        xp = namespace(targets)
        self._gradient, self._targets, self._noise = gradient, targets, noise
        shape, device = (n_coefs, targets.shape[1]), device_of(targets)
        self.start = xp.zeros(shape, dtype=xp.float64, device=device)
        check_finite(gradient(self.start, targets))
        self.top = top_eigenvalue(lambda V: gradient(V, None), self.start)

    def walked(self, walk, step_size):
        """Return the `Walk` after one more step gamma < 2 / e_max.

        An `IndefiniteKernelError` is raised if the gradient grows, which it cannot if
        all eigenvalues are positive.
        """
        g = self._gradient(walk.b, self._targets)
        norm = float(namespace(g).linalg.vector_norm(g))
        first = norm if walk.first is None else walk.first
        # Without negative eigenvalues only rounding makes it grow, by at most 1e-6 in
        # 136 fits (2000 rows of four data sets, five kernels, four bandwidths, single
        # and double precision, 200 iterations each); with one it grows without end.
        grows = walk.previous is not None and norm > 1.0001 * walk.previous
        if not np.isfinite(norm) or (grows and norm > self._noise * first):
            raise IndefiniteKernelError
        return Walk(walk.b - step_size * g, walk.t + 1, first, norm)


@dataclass
class Walk:
    """Gradient descent after t steps; norms of the first and of the last gradient."""

    b: Any
    t: int = 0
    first: float | None = None
    previous: float | None = None


class EarlyStopping(Saved):
    """Gradient descent until held-out rows say when to stop, then on all rows.

    An iterator of one `State` per step; only the last one has coefficients. If the
    problem has validation rows, t is chosen by descending on the training rows: the t
    of the least error, or the first at which the error falls by less than `tol`. Then
    as many steps are made on all rows.

    ``finish(self)`` returns the last state, ``say(text)`` reports progress. `n_iter` is
    the largest t, or t itself if nothing is chosen, and `step_size` gamma, or "auto".
    `path` keeps the first `n_stored` models on all rows.

    Attributes: `walk` is the current descent, `b` the model on all rows, `errors` those
    of 0, 1, ... steps on the validation rows, `best` the b of the training rows after
    the chosen number of steps, t; `step` is gamma, and `n_steps` how many such steps
    give the model: on all rows both may change. They are None before they are known;
    `b` stays None if the kernel turns out to have negative eigenvalues.
    """

    _saved = tuple("walk b errors best t step n_steps path is_over".split())

    def __init__(
        self,
        problem,
        finish,
        say,
        *,
        n_iter,
        step_size,
        tol,
        cache_size,
        n_stored,
    ):
        self._problem, self._finish, self._say = problem, finish, say
        self._n_iter, self._step_size, self._tol = n_iter, step_size, tol
        self._cache_size, self._n_stored = cache_size, n_stored
        self.walk = self.b = self.errors = self.best = self.step = self.n_steps = None
        self.t = n_iter if problem.validation is None else None
        self.path, self.is_over = [], False
        self._states = self._iterate()

    def __iter__(self):
        return self

    def __next__(self):
        return next(self._states)

    def _iterate(self):
        try:
            yield from self._steps()
        except IndefiniteKernelError:  # free the memory
            self.walk = self.best = self.b = None
            self.path = []
        self.is_over = True
        yield self.finished()

    def finished(self):
        """Return the last state."""
        return self._finish(self)

    def _steps(self):
        """Choose t, and make the steps on all rows; yield after each but the last."""
        problem, descent = self._problem, None
        if self.t is None:
            descent = yield from self._choose()
        if descent is None:
            rows = problem.all if problem.refits else problem.train
            descent, _ = self._prepared(rows, [problem.matrix_of(rows)])
        if self.walk is None:
            self.walk = Walk(descent.start)
            self.step, self.n_steps = stable_step(self.step, descent.top, self.t)
            self._keep()
        last = max(self.n_steps, self._n_stored)
        while self.walk.t < last:
            self.walk = descent.walked(self.walk, self.step)
            self._keep()
            if self.walk.t < last:
                yield State(None)

    def _choose(self):
        """Descend on the training rows until t is chosen; return the descent.

        Return None if another one follows, on all rows, which needs the memory.
        """
        problem, tol = self._problem, self._tol
        validation = problem.matrix_of_validation(problem.initial_coef())
        descent, (_, validation) = self._prepared(
            problem.train, [problem.matrix_of(problem.train), validation]
        )
        mean = problem.mean(problem.train)

        def error_of(b):
            return problem.validation_loss(
                problem.validation_losses(validation, b, mean)
            )

        if self.walk is None:
            self.walk, self.best = Walk(descent.start), descent.start
            self.errors = [error_of(self.best)]
        while self.t is None:
            self.walk = descent.walked(self.walk, self.step)
            error = error_of(self.walk.b)
            least = np.fmin.reduce(self.errors)
            self.errors.append(error)
            t = self.walk.t
            stops = tol is not None and decrease(self.errors, t) < tol
            if stops or error < least:
                self.best = self.walk.b
            if stops or t == self._n_iter:
                self.t = t if stops else int(np.nanargmin(self.errors))
                self._say(f"path of {t} iterations: t = {self.t}")
                if not problem.refits and not self._n_stored:
                    # The training rows are all rows, and the model is known.
                    self.b, self.n_steps = self.best, self.t
                    return descent
                self.walk = None
            yield State(None)
        return None if problem.refits else descent

    def _prepared(self, rows, matrices):
        """Return the descent on some rows, and the matrices, cached if that pays.

        The first one is the matrix of these rows.
        """
        problem, w = self._problem, rows.weights
        sizes = self._n_iter, problem.n_features
        matrices, _ = cached(matrices, self._cache_size, *sizes)
        weight, eps = float(problem.xp.sum(w)), problem.xp.finfo(matrices[0].dtype).eps

        def gradient(b, Y):
            return problem.gradient(matrices[0], rows, b, Y) / weight

        targets, n_coefs = rows.targets - problem.mean(rows), matrices[0].shape[1]
        # Small gradients may grow by rounding: in 39 of 192 fits (400 iterations, four
        # data sets) they did, all below 0.002 eps^1/2; in one more fit an eigenvalue
        # was negative.
        descent = Descent(gradient, targets, n_coefs, 10 * float(eps) ** 0.5)
        if self.walk is not None and self.walk.b.shape != descent.start.shape:
            raise ValueError(
                f"the checkpoint has {self.walk.b.shape[0]} centers and this fit "
                f"{descent.start.shape[0]}: pass their number as n_centers, not "
                "'auto', or another folder"
            )
        if self.step is None:
            self.step = step_below(self._step_size, descent.top)
            self._say(f"step {self.step:.3g} on {len(rows.index)} rows")
        return descent, matrices

    def _keep(self):
        """Keep the model of a step on all rows if it is the chosen one, or stored."""
        if self.walk.t == self.n_steps:
            self.b = self.walk.b
        if self._n_stored and self.walk.t <= self._n_stored:
            self.path.append(self.walk.b)


def best_iteration(errors, tol):
    """Return the index of the least error, or of the first small decrease."""
    if tol is not None:
        for t in range(1, len(errors)):
            if decrease(errors, t) < tol:
                return t
    return int(np.nanargmin(errors))


def decrease(errors, t):
    """Return the relative decrease of the error at iteration t."""
    return (errors[t - 1] - errors[t]) / errors[t - 1] if errors[t - 1] > 0 else 0.0


def stable_step(step, top, t):
    """Return a step that is stable on all rows, and how many make up t given ones."""
    if step * top < 2:
        return step, t
    return 1.0 / top, round(t * step * top)


def step_below(step_size, top):
    """Return gamma for the largest eigenvalue `top`; "auto" is 1 / top."""
    if isinstance(step_size, str):
        return 1.0 / top if top > 0 else 1.0
    if step_size * top >= 2:
        raise ValueError(
            "step_size must be below 2 over the largest eigenvalue of the "
            f"problem, {2 / top:.6g}, or the iteration diverges; got {step_size!r}"
        )
    return float(step_size)
