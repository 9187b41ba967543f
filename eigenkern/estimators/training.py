"""The training loop, the rules that end it, and its display.

A solver is an iterator of states. A `Rule` looks at each state, says whether training
is over, and at the end which coefficients are the model.
"""

import sys
import time
from functools import partial

import numpy as np

from ..problems.data import OutOfSample
from .validation import warn_user

# Training rows to predict at the end of a fit, to check that it ended well: enough to
# tell a mean loss to a few percent.
_N_CHECKED = 10_000
# If the last loss is above the first times that of predicting the mean, all rows are
# checked, as an epoch's loss is measured while the model changes. If it is above the
# second times that of the best epoch, the models of both are compared.
_HIGH, _ABOVE_BEST = 0.9, 1.2
# Losses that differ by this many rounding errors count as equal: if all rows are equal,
# the best model is the mean, found up to rounding.
_SAME_LOSS_EPS = 10
# The last 1 / _LAST_PART of the epochs also visit the spared rows. With 5 of 20 the
# errors of 10000 rows, and those of 20 epochs on all rows, are 3.06 and 3.06 % on
# MNIST, 1.61 and 1.57 % on ijcnn1, 16.4 and 16.2 % on covtype (benchmarks/noise.py).
_LAST_PART = 4


def train(solver, rule, report, keeper=None):
    """Take states from a solver until the rule, or a callback, ends the training.

    Parameters
    ----------
    solver : iterator
        Yields a state per iteration.
    rule : Rule
    report : Report
        It is told of every iteration.
    keeper : Keeper, default=None
        Continues from a checkpoint, and writes others.

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
        if keeper is not None:
            keeper.keep(solver, rule, over)
        if over:
            break
    report.close()
    return interrupted


class Report:
    """Tells callbacks, and a line of progress, of the iterations.

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
        """Training begins, after `n_done` iterations of an earlier run."""
        if self._progress is not None:
            self._progress.start_iterations(n_done)

    def begin(self):
        """An iteration begins."""
        if self._callbacks is not None:
            self._callbacks.begin()

    def end(self, state, rule):
        """An iteration is over; return whether a callback wants to stop."""
        if self._progress is not None:
            self._progress.update(rule)
        if self._callbacks is None:
            return False
        return self._callbacks.end(partial(self._attributes, state))

    def _attributes(self, state):
        return self._problem.fitted_attributes(state.coef) | state.counts

    def close(self):
        """Training is over."""
        if self._progress is not None:
            self._progress.close()


class Plateau:
    """Whether a value that should fall has stalled.

    Parameters
    ----------
    tol : float
        Least decrease that counts.
    patience : int
        Number of values to wait for a decrease.

    Attributes
    ----------
    best : float
        The least value.
    waited : int
        Number of values since the last decrease.
    """

    def __init__(self, tol, patience):
        self._tol, self._patience = tol, patience
        self.best, self.waited = np.inf, 0

    def update(self, value, unit):
        """Record a value; return whether it has stalled. `tol` is in this unit."""
        fell = value < self.best - self._tol * unit
        self.waited = 0 if fell else self.waited + 1
        self.best = min(self.best, value)
        return self.waited >= self._patience


class Rule:
    """When training is over, and which model it leaves.

    A subclass has

    - ``max_iter`` and ``update(state)``, which returns whether training is over;
    - ``fitted_attributes(interrupted)``, for the rule of a fit;
    - ``losses``, and ``scores`` if there are any, for a `ProgressLine` to show;
    - ``save()`` and ``load(saved)``, like the solver, for checkpoints.
    """

    losses = scores = ()

    def undo(self):
        """Go back to the last fully recorded state; return whether there was one.

        An interrupt may come at any moment.
        """
        return False

    def out_of_sample(self):
        """Return values to calibrate probabilities on, or None."""
        return None


class EpochRule(Rule):
    """Stop when loss or validation score stalls; never be worse than the mean.

    Parameters
    ----------
    name, hint : str
        Name of the estimator, and what to do if no step is stable, for warnings.
    problem : Problem
    max_iter : int
    tol : float
        In units of the loss of the first epoch, or of the score.
    n_iter_no_change : int
    score : callable, default=None
        ``score(F)`` of values on the held-out rows; the best epoch becomes the model.
    start : object, default=None
        Coefficients that the iteration starts from. None: the constant model.
    scored : tuple of ndarray, default=None
        Targets and weights of the held-out rows.
    spared : Spared, default=None
        Held-out rows that are not scored: the last epochs train with them.

    Attributes
    ----------
    losses, scores : list of float
        One per epoch.
    """

    #: What is saved of the epochs, besides their losses and scores.
    _saved = ("_coef", "_state", "_values", "_begin", "_fallback", "_last")

    def __init__(
        self,
        name,
        hint,
        problem,
        max_iter,
        tol,
        n_iter_no_change,
        score=None,
        start=None,
        scored=None,
        spared=None,
    ):
        self._name, self._hint = name, hint
        self._problem, self._score, self._scored = problem, score, scored
        self._make_plateau = partial(Plateau, tol, n_iter_no_change)
        self.max_iter, self._plateau = max_iter, self._make_plateau()
        self._spared, self._last = spared, max_iter
        self.losses, self.scores = [], []
        self._coef = self._state = self._values = None
        # _fallback: where the epoch of least loss began; its end may be bad.
        self._start = problem.initial_coef() if start is None else start
        self._begin = self._fallback = self._start
        self._whole = None

    def save(self):
        """Return the state after the epochs so far, for `load`."""
        plateau = self._plateau.best, self._plateau.waited
        saved = {name: getattr(self, name) for name in self._saved} | {
            "plateau": plateau
        }
        return saved | {"losses": list(self.losses), "scores": list(self.scores)}

    def load(self, saved):
        """Take the saved state of another rule for the same problem."""
        for name in ("losses", "scores", *self._saved):
            setattr(self, name, saved[name])
        self._plateau.best, self._plateau.waited = saved["plateau"]
        self._whole = saved

    def undo(self):
        """Go back to the last fully recorded epoch; return whether there was one."""
        if self._whole is None:
            return False
        self.load(self._whole)
        if self._spared is not None and self._values is None:
            self._values = self._problem.validation_values(self._coef)
        return True

    def update(self, state):
        """Record an epoch; return whether training is over."""
        self.losses.append(state.loss)
        values = None
        if self._score is not None:
            score, values = self._score_of(state.coef)
            self.scores.append(score)
        value = -self.scores[-1] if self.scores else state.loss
        if not self.scores or self._coef is None or value < self._plateau.best:
            self._coef = state.coef
            self._values = self._values if values is None else values
        over = self._is_over(state, value)
        if state.loss <= min(self.losses):
            self._fallback = self._begin
        self._begin, self._state = state.coef, state
        if self._spared is not None:
            over = self._goes_on(over)
        self._whole = self.save()
        return over

    def _is_over(self, state, value):
        """Whether an epoch ends training: it failed, was exact, or nothing improves.

        `value` decides: the loss, or less the validation score.
        """
        stalled = self._plateau.update(value, 1.0 if self.scores else self.losses[0])
        return state.failed or stalled or (not self.scores and value == 0.0)

    def _goes_on(self, over):
        """Return whether training is over; go on with all rows the first time."""
        n, n_last = len(self.losses), max(self.max_iter // _LAST_PART, 1)
        if self._values is None and (over or n >= self.max_iter - n_last):
            self._values = self._problem.validation_values(self._coef)
            self._spared.over = True
            self._plateau, self._last = self._make_plateau(), n + n_last
            over = self._state.failed
        return over or n >= self._last

    def _score_of(self, coef):
        values = self._problem.validation_values(coef)
        return self._score(values), values

    def out_of_sample(self):
        """Return the values of the model on the held-out rows, or None."""
        if self._values is None:
            return None
        targets, weights = self._scored
        return OutOfSample(self._values, targets, weights)

    def fitted_attributes(self, interrupted=False):
        """Return the attributes of the model and of the epochs."""
        state = self._state
        if state.failed:
            warn_user(
                f"{self._name} found no step size that keeps the iteration "
                f"bounded: halved {state.n_step_halvings} times; the best coefficients "
                f"before that are kept. {self._hint}"
            )
        model = self._problem.fitted_attributes(self._best_coef())
        return (
            model
            | state.counts
            | {
                "n_iter_": len(self.losses),
                "loss_curve_": self.losses,
                "validation_scores_": self.scores if self.scores else None,
                "n_step_halvings_": state.n_step_halvings,
            }
        )

    def _best_coef(self):
        problem, coef = self._problem, self._coef
        if self._score is not None:
            best, others = -self._plateau.best, (self._start, problem.initial_coef())
            for other in others:
                score, values = self._score_of(other)
                if score > best:
                    best, coef, self._values = score, other, values
            return coef
        if self.losses[-1] > _ABOVE_BEST * min(self.losses) and not self._state.failed:
            # The last epoch may be noisy, or the iteration may diverge slowly.
            coef = min((coef, self._fallback), key=problem.loss)
        return self._no_worse_than_mean(coef)

    def _no_worse_than_mean(self, coef):
        """Return `coef` if no worse than zero, else an earlier iterate or zero."""
        problem, zero = self._problem, self._problem.initial_coef()
        of_mean = problem.model_loss(zero)
        eps = float(problem.xp.finfo(problem.dtype).eps)
        limit = of_mean * (1 + _SAME_LOSS_EPS * eps)
        low = self.losses[-1] <= _HIGH * limit
        if low and problem.model_loss(coef, _N_CHECKED) <= problem.model_loss(
            zero, _N_CHECKED
        ):
            return coef
        if problem.model_loss(coef) <= limit:
            return coef
        other = min((self._fallback, self._start), key=problem.model_loss)
        better = problem.model_loss(other) < of_mean
        warn_user(
            f"{self._name} stopped after {len(self.losses)} epochs with a training "
            "loss above that of predicting the mean; "
            + ("an earlier epoch's model is kept" if better else "it predicts the mean")
            + "; pass a smaller step_size, or more epochs (max_iter)"
        )
        return other if better else zero


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
    state : State or EpochState
        The last one.
    """

    def __init__(self, problem, losses=(), max_iter=1):
        self._problem, self.losses, self.max_iter = problem, losses, max_iter

    def update(self, state):
        """Record a state; return whether it has failed, which no closed form does."""
        self.state = state
        return getattr(state, "failed", False)

    def fitted_attributes(self, interrupted=False):
        """Return the attributes of the model."""
        return self._problem.fitted_attributes(self.state.coef) | self.state.counts

    def out_of_sample(self):
        """Return the out-of-sample values that the solver found, or None."""
        return getattr(self.state, "out_of_sample", None)


class ProgressLine:
    """One line that shows epochs, loss, score and time, for ``verbose=1``."""

    def __init__(self, name):
        self._name = name
        self._start = time.monotonic()
        # A terminal shows one updating line; a log or a notebook one line per epoch.
        self._ends = ("\r", "\n") if sys.stdout.isatty() else ("\n", "")

    def start_iterations(self, n_done=0):
        """Note that the setup, which does not count as epochs' time, is over."""
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
