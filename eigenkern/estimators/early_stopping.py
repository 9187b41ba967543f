"""Gradient descent whose number of steps is chosen on held-out rows: NYTRO's loop."""

import sys

import numpy as np

from ..nystrom.descent import IndefiniteKernelError, Walk, decrease, stable_step
from ..operators.cached import cached
from ..solvers.state import Saved, State
from .training import SolutionRule


class EarlyStopping(Saved):
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

    _saved = tuple("walk b errors best t step n_steps path is_over".split())

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
            yield State(None)
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


class EarlyStoppingRule(SolutionRule):
    """The last state of an `EarlyStopping` is the model.

    Parameters
    ----------
    problem : CenterProblem or RowProblem
    solver : EarlyStopping
    """

    def __init__(self, problem, solver):
        super().__init__(problem, losses=range(0), max_iter=sys.maxsize)
        self._solver = solver

    def update(self, state):
        """Record a state; return whether it is the last one."""
        self.state, self.losses = state, range(len(self.losses) + 1)
        return state.coef is not None

    def save(self):
        """Return what `load` needs: the number of steps, and a finished solver."""
        over = self._solver.save() if self._solver.is_over else None
        return {"n_done": len(self.losses), "over": over}

    def load(self, saved):
        """Take the saved state of another rule for the same problem."""
        self.losses = range(saved["n_done"])
        if saved["over"] is not None:
            self._solver.load(saved["over"])
            self.state = self._solver.finished()
