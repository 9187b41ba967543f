"""Gradient descent on the normal equations, step by step, and when it stops."""

from typing import Any, NamedTuple

import numpy as np

from ..backend import memory
from ..backend.array import device_of, namespace
from ..backend.devices import on_gpu
from ..backend.machine import machine_of
from ..backend.threads import n_blas_threads
from ..operators.cached import cached
from ..operators.matrix import check_finite
from ..operators.plan import cache_budget
from .krylov import top_eigenvalue

# The norm of a gradient divided by the previous one, above which it counts as growing.
# Without negative eigenvalues only rounding makes it grow, by at most 1e-6 in 136 fits
# (2000 rows of four data sets, five kernels, four bandwidths, single and double
# precision, 200 iterations each); with one it grows without end.
_GROWS = 1.0001


def factorizing_pays(
    machine,
    n_rows,
    n_centers,
    n_features,
    n_outputs,
    n_iter,
    *,
    itemsize,
    cached,
    n_threads,
):
    """Whether a factorization gives the path of gradient descent faster than iterating.

    Parameters
    ----------
    machine : Machine
    n_rows, n_centers, n_features, n_outputs, n_iter : int
        n_centers None: all rows, the full kernel.
    itemsize : int
        Bytes of a value of the kernel; the linear algebra is in float64.
    cached : bool
        Whether the kernel matrix is cached between iterations.
    n_threads : int
    """
    n, p = n_rows, n_centers or n_rows
    # Eigenvectors twice, on the training rows and on all of them, and half of K'K.
    factorizing = machine.product_seconds(7 * p**3 + n * p**2 / 2, 8, n_threads)
    # Seconds per value of the kernel: two products, and to compute or read it.
    entry = machine.product_seconds(2 * n_outputs, 8, n_threads)
    entry += machine.convert / n_threads
    if cached:
        entry += itemsize / machine.read
    else:
        entry += machine.kernel_seconds(n_features, itemsize, n_threads)
    return factorizing < 2 * n_iter * n * p * entry


def factorises(place, plan, sizes, itemsize, max_iter, cache_size):
    """Whether one factorization is cheaper than iterating, and fits the memory.

    Parameters
    ----------
    place : object with xp and device
        Where the fit is computed.
    plan : NystromPlan
        Of the factorization.
    sizes : tuple of int
        Rows, centers (None: all rows), features and outputs.
    itemsize : int
        Bytes of a value of the kernel.
    max_iter : int or None
        None: no limit.
    cache_size : float or "auto"
        MB for the kernel matrix.
    """
    if plan.bytes > memory.available(place.xp, place.device):
        return False
    if max_iter is None:
        return True
    n, p, *_ = sizes
    return factorizing_pays(
        machine_of(place),
        *sizes,
        max_iter,
        itemsize=itemsize,
        cached=n * (p or n) * itemsize <= cache_budget(cache_size, place),
        n_threads=1 if on_gpu(place.xp, place.device) else n_blas_threads(),
    )


class IndefiniteKernelError(ValueError):
    """A kernel has negative eigenvalues, along which gradient descent diverges."""


class State(NamedTuple):
    """What a closed form, or `EarlyStopping`, yields.

    Attributes
    ----------
    coef : array of shape (p, l) or None
        b; None before the last state.
    counts : dict
        Fitted attributes that were found with it.
    out_of_sample : OutOfSample or None
        Values to calibrate probabilities on.
    """

    coef: Any
    counts: dict
    out_of_sample: Any = None


class Descent:
    """Gradient descent, b_t = b_{t-1} - gamma (B b_{t-1} - q), from zero.

    Parameters
    ----------
    gradient : callable
        ``gradient(b, Y)`` returns B b - q with the q of targets Y; for Y None: B b.
    targets : array of shape (n, l)
        Minus their mean, in float64.
    n_coefs : int
        p.
    noise : float
        A gradient smaller than this fraction of the first one may be rounding.

    Attributes
    ----------
    start : array of shape (p, l)
        Zero.
    top : float
        Largest eigenvalue of B.

    Raises
    ------
    ValueError
        If the kernel has values that are not finite.
    """

    def __init__(self, gradient, targets, n_coefs, noise):
        xp = namespace(targets)
        self._gradient, self._targets, self._noise = gradient, targets, noise
        shape, device = (n_coefs, targets.shape[1]), device_of(targets)
        self.start = xp.zeros(shape, dtype=xp.float64, device=device)
        check_finite(gradient(self.start, targets))
        self.top = top_eigenvalue(lambda V: gradient(V, None), self.start)

    def walked(self, walk, step_size):
        """Return the `Walk` after one more step.

        Parameters
        ----------
        walk : Walk
        step_size : float
            gamma < 2 / e_max.

        Raises
        ------
        IndefiniteKernelError
            If the gradient grows, which it cannot if all eigenvalues are positive.
        """
        g = self._gradient(walk.b, self._targets)
        norm = float(namespace(g).linalg.vector_norm(g))
        first = norm if walk.first is None else walk.first
        grows = walk.previous is not None and norm > _GROWS * walk.previous
        if not np.isfinite(norm) or (grows and norm > self._noise * first):
            raise IndefiniteKernelError
        return Walk(walk.b - step_size * g, walk.t + 1, first, norm)


class Walk(NamedTuple):
    """Gradient descent after some steps.

    Attributes
    ----------
    b : array of shape (p, l)
    t : int
        Number of steps.
    first, previous : float or None
        Norms of the first and of the last gradient.
    """

    b: Any
    t: int = 0
    first: float | None = None
    previous: float | None = None


class EarlyStopping:
    """Gradient descent until held-out rows say when to stop, then on all rows.

    An iterator of one `State` per step; only the last one has coefficients. If the
    problem has validation rows, t is chosen by descending on the training rows: the t
    of the least error, or the first at which the error falls by less than `tol`. Then
    as many steps are made on all rows.

    Parameters
    ----------
    problem : CenterProblem or RowProblem
    step_of : callable
        ``step_of(top)`` returns gamma for a largest eigenvalue.
    tell : callable
        ``tell(errors, t)`` is called when t is chosen.
    finish : callable
        ``finish(self)`` returns the last state, from the attributes.
    factorize : callable
        ``factorize()`` returns the last state if the kernel turns out to have negative
        eigenvalues.
    n_iter : int
        Most steps; as many as are made if nothing is chosen.
    tol : float or None
    cache_size : float or "auto"
        MB for kernel matrices.
    n_stored : int
        How many first models on all rows to keep, in `path`.

    Attributes
    ----------
    walk : Walk or None
        The current descent; None before it starts.
    b : array or None
        The model on all rows; None before it is found.
    errors : list of float or None
        Of 0, 1, ... steps on the validation rows.
    best : array or None
        b of the training rows after the chosen number of steps.
    t : int or None
        The number of steps on the training rows; None before it is chosen.
    step, n_steps : float, int
        gamma, and how many such steps give the model; on all rows both may change.
    path : list of arrays
    is_over : bool
        Whether all steps were made.
    """

    #: What is saved, in addition to the walk.
    _saved = ("b", "errors", "best", "t", "step", "n_steps", "path", "is_over")

    def __init__(
        self,
        problem,
        step_of,
        tell,
        finish,
        factorize,
        *,
        n_iter,
        tol,
        cache_size,
        n_stored,
    ):
        self._problem, self._step_of, self._tell = problem, step_of, tell
        self._finish, self._factorize = finish, factorize
        self._n_iter, self._tol = n_iter, tol
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
        except IndefiniteKernelError:  # free the memory before factorizing
            self.walk = self.best = self.b = None
            self.path = []
        self.is_over = True
        yield self.finished()

    def finished(self):
        """Return the last state."""
        return self._factorize() if self.b is None else self._finish(self)

    def save(self):
        """Return the state between two steps, for `load`."""
        saved = {name: getattr(self, name) for name in self._saved}
        return saved | {"walk": None if self.walk is None else list(self.walk)}

    def load(self, saved):
        """Resume from where another run on the same problem was."""
        for name in self._saved:
            setattr(self, name, saved[name])
        self.walk = None if saved["walk"] is None else Walk(*saved["walk"])

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
                yield State(None, {})

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
        if self.walk is None:
            self.walk, self.best = Walk(descent.start), descent.start
            self.errors = [problem.validation_error(validation, self.best, mean)]
        while self.t is None:
            self.walk = descent.walked(self.walk, self.step)
            error = problem.validation_error(validation, self.walk.b, mean)
            least = np.fmin.reduce(self.errors)
            self.errors.append(error)
            t = self.walk.t
            stops = tol is not None and decrease(self.errors, t) < tol
            if stops or error < least:
                self.best = self.walk.b
            if stops or t == self._n_iter:
                self.t = t if stops else int(np.nanargmin(self.errors))
                self._tell(self.errors, self.t)
                if not problem.refits and not self._n_stored:
                    # The training rows are all rows, and the model is known.
                    self.b, self.n_steps = self.best, self.t
                    return descent
                self.walk = None
            yield State(None, {})
        return None if problem.refits else descent

    def _prepared(self, rows, matrices):
        """Return the descent on some rows, and the matrices, cached if that pays.

        The first one is the matrix of these rows.
        """
        sizes = self._n_iter, self._problem.n_features
        matrices, _ = cached(matrices, self._cache_size, *sizes)
        descent = self._problem.descent(rows, matrices[0])
        if self.walk is not None and self.walk.b.shape != descent.start.shape:
            raise ValueError(
                f"the checkpoint has {self.walk.b.shape[0]} centers and this fit "
                f"{descent.start.shape[0]}: pass their number as n_centers, not "
                "'auto', or another folder"
            )
        if self.step is None:
            self.step = self._step_of(descent.top)
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
