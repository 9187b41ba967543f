"""Gradient descent on the normal equations, step by step, and when it stops."""

from functools import partial
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

# The norm of a gradient over that before, above which it grows. Without negative
# eigenvalues only rounding makes it grow, by at most 1e-6 in 136 fits (2000 rows of
# four data sets, five kernels, four bandwidths, single and double precision, 200
# iterations each); with one it grows without end.
_GROWS = 1.0001


def factorising_pays(
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
    """Whether a factorization gives the path of gradient descent sooner than iterating.

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
    factorise = machine.product_seconds(7 * p**3 + n * p**2 / 2, 8, n_threads)
    # Two products with a value of the kernel, once it is there.
    entry = machine.product_seconds(2 * n_outputs, 8, n_threads)
    entry += machine.convert / n_threads
    if cached:
        entry += itemsize / machine.read
    else:
        entry += machine.kernel_seconds(n_features, itemsize, n_threads)
    return factorise < 2 * n_iter * n * p * entry


def factorises(place, plan, sizes, itemsize, max_iter, cache_size):
    """Whether one factorization is cheaper than iterating, and fits the memory.

    Parameters
    ----------
    place : object with xp and device
        Where it is computed.
    plan : NystromPlan
        Of the factorization.
    sizes : tuple of int
        Rows, centers (None: all rows), features and outputs.
    itemsize : int
        Bytes of a value of the kernel.
    max_iter : int or None
        None: as many as it takes.
    cache_size : float or "auto"
        MB for the kernel matrix.
    """
    if plan.bytes > memory.available(place.xp, place.device):
        return False
    if max_iter is None:
        return True
    n, p, *_ = sizes
    return factorising_pays(
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
        b; None: it is not over yet.
    counts : dict
        Fitted attributes that were found with them.
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
        Less their mean, in float64.
    n_coefs : int
        p.
    noise : float
        A gradient that is less than this fraction of the first one may be rounding.

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
            If the gradient grows: with positive eigenvalues it cannot.
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
        Norms of the first gradient, and of the last one.
    """

    b: Any
    t: int = 0
    first: float | None = None
    previous: float | None = None


class EarlyStopping:
    """Gradient descent until held-out rows say when to stop, then on all rows.

    An iterator of `State`, one for each step, without coefficients until the last one.
    If the problem has validation rows, t is chosen by descending on the training rows:
    the t of the least error, or the first where the error falls by less than `tol`.
    Then as many steps are made on all rows.

    Parameters
    ----------
    problem : CenterProblem or RowProblem
    step_of : callable
        ``step_of(top)`` returns gamma for a largest eigenvalue.
    tell : callable
        ``tell(errors, t)`` is called when t is chosen.
    finish : callable
        ``finish(self)`` returns the last state, from the attributes.
    factorise : callable
        ``factorise()`` returns the last state if the kernel turns out to have negative
        eigenvalues.
    n_iter : int
        Most steps; as many as are made where nothing is chosen.
    tol : float or None
    cache_size : float or "auto"
        MB for kernel matrices.
    n_stored : int
        The first models on all rows to keep, in `path`.

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
    t : int
        The chosen number of steps on the training rows.
    step, n_steps : float, int
        gamma, and how many such steps give the model; on all rows both may change.
    path : list of arrays
    is_over : bool
        Whether all steps were made, or it is known that they diverge.
    """

    #: What is saved, besides the walk.
    _saved = (
        *("b", "errors", "best", "t", "step", "n_steps", "path"),
        *("is_over", "_chosen", "_gave_up"),
    )

    def __init__(
        self,
        problem,
        step_of,
        tell,
        finish,
        factorise,
        *,
        n_iter,
        tol,
        cache_size,
        n_stored,
    ):
        self._problem, self._step_of, self._tell = problem, step_of, tell
        self._finish, self._factorise = finish, factorise
        self._n_iter, self._tol = n_iter, tol
        self._cache_size, self._n_stored = cache_size, n_stored
        self.walk = self.b = self.errors = self.best = None
        self.t, self.step, self.n_steps, self.path = n_iter, None, None, []
        self._chosen, self._gave_up = problem.validation is None, False
        self.is_over = False
        self._descent = self._error_of = None

    def __iter__(self):
        return self

    def __next__(self):
        try:
            self._advance()
        except IndefiniteKernelError:
            self.is_over = self._gave_up = True
        if self._gave_up:  # free the memory before the factorization needs it
            self._descent = self._error_of = self.walk = self.best = None
            self.path = []
        return self.finished() if self.is_over else State(None, {})

    def _advance(self):
        """Make a step, if there is one to make."""
        if self._descent is None:
            self._prepare()
        if self.walk is None:
            self._start()
        if not self._chosen:
            self._select()
        elif not self.is_over:
            self.walk = self._descent.walked(self.walk, self.step)
            self._note()

    def finished(self):
        """Return the last state."""
        return self._factorise() if self._gave_up else self._finish(self)

    def save(self):
        """Return the state between two steps, for `load`."""
        saved = {name: getattr(self, name) for name in self._saved}
        return saved | {"walk": None if self.walk is None else list(self.walk)}

    def load(self, saved):
        """Go on from where another run on the same problem was."""
        for name in self._saved:
            setattr(self, name, saved[name])
        self.walk = None if saved["walk"] is None else Walk(*saved["walk"])

    def _prepare(self):
        """Get ready to descend on the training rows, or on all once t is chosen."""
        problem = self._problem
        rows = problem.all if self._chosen and problem.refits else problem.train
        matrices = [problem.matrix_of(rows)]
        if not self._chosen:
            matrices.append(problem.matrix_of_validation(problem.initial_coef()))
        sizes = self._n_iter, problem.n_features
        matrices, _ = cached(matrices, self._cache_size, *sizes)
        self._descent = problem.descent(rows, matrices[0])
        if self.walk is not None and self.walk.b.shape != self._descent.start.shape:
            raise ValueError(
                f"the checkpoint has {self.walk.b.shape[0]} centers and this fit "
                f"{self._descent.start.shape[0]}: pass their number as n_centers, not "
                "'auto', or another folder"
            )
        if not self._chosen:
            mean = problem.mean(rows)
            self._error_of = partial(problem.validation_error, matrices[1], mean=mean)
        if self.step is None:
            self.step = self._step_of(self._descent.top)

    def _start(self):
        """Start from zero."""
        start, top = self._descent.start, self._descent.top
        self.walk = Walk(start)
        if self._chosen:
            self.step, self.n_steps = stable_step(self.step, top, self.t)
            self._note()
        else:
            self.errors, self.best = [self._error_of(start)], start

    def _select(self):
        """Make a step on the training rows; choose t if it is time."""
        self.walk = self._descent.walked(self.walk, self.step)
        error, least = self._error_of(self.walk.b), np.fmin.reduce(self.errors)
        self.errors.append(error)
        t, tol = self.walk.t, self._tol
        stops = tol is not None and decrease(self.errors, t) < tol
        if stops or error < least:
            self.best = self.walk.b
        if stops or t == self._n_iter:
            self.t = t if stops else int(np.nanargmin(self.errors))
            self._tell(self.errors, self.t)
            self._chosen, self.walk, self._error_of = True, None, None
            if self._problem.refits:  # free the memory before all rows need it
                self._descent = None
            elif not self._n_stored:  # the training rows are all
                self.b, self.n_steps, self.is_over = self.best, self.t, True

    def _note(self):
        """Keep a model on all rows if it is the chosen one, or models are stored."""
        if self.walk.t == self.n_steps:
            self.b = self.walk.b
        if self._n_stored and self.walk.t <= self._n_stored:
            self.path.append(self.walk.b)
        self.is_over = self.walk.t >= max(self.n_steps, self._n_stored)


def best_iteration(errors, tol):
    """Return the place of the least error, or of the first small decrease."""
    if tol is not None:
        for t in range(1, len(errors)):
            if decrease(errors, t) < tol:
                return t
    return int(np.nanargmin(errors))


def decrease(errors, t):
    """Return the relative decrease of the error at iteration t."""
    return (errors[t - 1] - errors[t]) / errors[t - 1] if errors[t - 1] > 0 else 0.0


def stable_step(step, top, t):
    """Return a step that is stable on all rows, and how many of it make t steps."""
    if step * top < 2:
        return step, t
    return 1.0 / top, round(t * step * top)
