"""The training loop, the rules that end it, and its display.

A solver is an iterator of states. A `Rule` looks at each state, decides when training
ends, and then which coefficients are the model.
"""

import sys
import time
from functools import partial

import numpy as np

from ..solvers.state import Saved


def train(solver, rule, report, keeper=None):
    """Take states from a solver until the rule, or a callback, ends the training.

    Parameters
    ----------
    solver : iterator
        Yields a state per iteration.
    rule : Rule
    report : Report
        Notified of every iteration.
    keeper : Keeper, default=None
        Continues from a checkpoint, and writes further ones.

    Returns
    -------
    bool
        Whether a callback ended the training.
    """
    interrupted, n_done = False, 0
    if keeper is not None:
        n_done = keeper.resume(solver, rule)
    report.start(n_done)
    for i in range(n_done, rule.max_iter):
        report.begin()
        state = next(solver)
        over = rule.update(state)
        interrupted = report.end(state, rule)
        over = over or interrupted or i == rule.max_iter - 1
        if rule.on_all_rows and not over:
            solver.take_all_rows()
        if keeper is not None:
            keeper.keep(solver, rule, over)
        if over:
            break
    report.close()
    return interrupted


class Report:
    """Reports the iterations to callbacks and to the progress display.

    Parameters
    ----------
    problem : Problem, default=None
        Callbacks may ask for its `fitted_attributes`.
    callbacks : Callbacks, default=None
    progress : ProgressLine, default=None
    """

    def __init__(self, problem=None, callbacks=None, progress=None):
        self._problem, self._callbacks = problem, callbacks
        self._progress = progress

    def start(self, n_done):
        """Report that training begins, after `n_done` iterations of an earlier run."""
        if self._progress is not None:
            self._progress.start_iterations(n_done)

    def begin(self):
        """Report that an iteration begins."""
        if self._callbacks is not None:
            self._callbacks.begin()

    def end(self, state, rule):
        """Report that an iteration ended; return whether a callback wants to stop."""
        if self._progress is not None:
            self._progress.update(rule)
        if self._callbacks is None:
            return False
        return self._callbacks.end(partial(self._attributes, state))

    def _attributes(self, state):
        return self._problem.fitted_attributes(state.coef) | state.counts

    def close(self):
        """Report that training ended."""
        if self._progress is not None:
            self._progress.close()


class Plateau(Saved):
    """Whether a value that should fall has stalled.

    Parameters
    ----------
    tol : float
        Smallest decrease that counts.
    patience : int
        Number of values to wait for a decrease.

    Attributes
    ----------
    best : float
        The smallest value.
    waited : int
        Number of values since the last decrease.
    """

    _saved = ("best", "waited")

    def __init__(self, tol, patience):
        self._tol, self._patience = tol, patience
        self.best, self.waited = np.inf, 0

    def update(self, value, unit):
        """Record a value; return whether it has stalled. `tol` is in this unit."""
        fell = value < self.best - self._tol * unit
        self.waited = 0 if fell else self.waited + 1
        self.best = min(self.best, value)
        return self.waited >= self._patience


class Rule(Saved):
    """Decides when training ends, and which model it leaves.

    A subclass has

    - ``max_iter`` and ``update(state)``, which returns whether training ends;
    - ``fitted_attributes(interrupted)``, for the rule of a fit;
    - ``losses``, and ``scores`` if there are any, for a `ProgressLine` to show.
    """

    losses = scores = ()
    #: Whether a warning has said that the model is bad.
    has_warned = False
    #: By what fraction the training loss is below that of the mean; None: not known.
    gain = None
    #: Whether the next epochs also visit the spared rows.
    on_all_rows = False

    def undo(self):
        """Go back to the last fully recorded state; return whether there was one.

        An interrupt may come at any moment.
        """
        return False

    def out_of_sample(self):
        """Return out-of-sample values to calibrate probabilities on, or None."""
        return None


class SolutionRule(Rule):
    """The last state of a closed-form solver, or of a few epochs, is the model.

    Parameters
    ----------
    problem : Problem
    losses : list of float, default=()
        What a `ProgressLine` shows.
    max_iter : int, default=1

    Attributes
    ----------
    state : State
        The last one.
    """

    def __init__(self, problem, losses=(), max_iter=1):
        self._problem, self.losses, self.max_iter = problem, losses, max_iter

    def update(self, state):
        """Record a state; return whether it has failed (a closed form never does)."""
        self.state = state
        return state.failed

    @property
    def gain(self):
        """As in `Rule`: a closed form may know its loss."""
        if not self.losses or self.max_iter > 1:
            return None
        problem = self._problem
        of_mean = problem.model_loss(problem.initial_coef()) + problem.within
        return 1.0 - self.losses[-1] / of_mean if of_mean > 0 else None

    def fitted_attributes(self, interrupted=False):
        """Return the attributes of the model."""
        return self._problem.fitted_attributes(self.state.coef) | self.state.counts

    def out_of_sample(self):
        """Return the out-of-sample values that the solver found, or None."""
        return self.state.out_of_sample


class ProgressLine:
    """One line that shows epochs, loss, score and time, for ``verbose=1``."""

    def __init__(self, name):
        self._name = name
        self._start = time.monotonic()
        # A terminal shows one line that changes; a log or notebook, one per epoch.
        self._ends = ("\r", "\n") if sys.stdout.isatty() else ("\n", "")

    def start_iterations(self, n_done=0):
        """Start the clock of the epochs, which excludes the setup."""
        self._first_epoch, self._n_before = time.monotonic(), n_done

    def update(self, rule):
        """Show the state after an epoch."""
        losses, scores = rule.losses, rule.scores
        done, of, now = len(losses), rule.max_iter, time.monotonic()
        seconds = (now - self._first_epoch) / (done - self._n_before)
        remaining = seconds * (of - done)
        filled = 20 * done // of
        score = f"  score {scores[-1]:.4f}" if scores else ""
        line = (
            f"{self._name} [{'#' * filled}{'.' * (20 - filled)}] "
            f"epoch {done}/{of}  loss {losses[-1]:.4g}{score}  "
            f"{now - self._start:.1f} s, {remaining:.1f} s to go "
        )
        print(line, end=self._ends[0], flush=True)  # noqa: T201

    def close(self):
        """End the line."""
        print(end=self._ends[1], flush=True)  # noqa: T201
