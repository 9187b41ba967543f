"""The training loop, the rules that end it and choose the model, and its display.

A solver is an iterator of states. A `Rule` looks at each state, decides when training
ends, and then which coefficients are the model.
"""

import sys
import time
from contextlib import nullcontext

import numpy as np

from ..arrays.threads import cached_property
from ..methods.state import Saved
from .validation import warn_user


def train(solver, rule, *, callbacks=None, progress=None, keeper=None):
    """Take states from a solver until the rule, or a callback, ends the training.

    A `Keeper` continues from a checkpoint, and writes further ones. Returns whether a
    callback ended the training.
    """
    n_done = 0 if keeper is None else keeper.resume(solver, rule)
    if progress is not None:
        progress.start_iterations()
    interrupted = False
    step = nullcontext if keeper is None else keeper.continuing
    for i in range(n_done, rule.max_iter):
        if callbacks is not None:
            callbacks.begin()
        with step():
            state = next(solver)
            over = rule.update(state)
        if progress is not None:
            progress.update(rule)
        if callbacks is not None:
            interrupted = callbacks.end(state)
        over = over or interrupted or i == rule.max_iter - 1
        if keeper is not None:
            keeper.keep(solver, rule, over)
        if over:
            break
    if progress is not None:
        progress.close()
    return interrupted


class Plateau(Saved):
    """Whether a value that should fall has stalled.

    It has if none of the last `patience` values was lower than the best one by `tol`.
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
    #: Whether the model is solved directly, without iterations to show.
    direct = False
    #: Whether a warning has said that the model is bad.
    has_warned = False
    #: By what fraction the training loss is below that of the mean; None: not known.
    gain = None
    #: Why training ended before the last epoch, as text; None: not known.
    reason = None
    #: Which epoch the model is that of, 0 if of none; None: not known.
    kept = None

    def undo(self):
        """Go back to the last fully recorded state; return whether there was one.

        An interrupt may come at any moment.
        """
        return False

    def out_of_sample(self):
        """Return out-of-sample values to calibrate probabilities on, or None."""
        return None


class SolutionRule(Rule):
    """The last state of a closed-form solver, or of a few epochs, is the model."""

    direct = True

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
    """A line for ``verbose=1``: epochs, loss, score and time, or a direct solution."""

    def __init__(self, name):
        self._name = name
        self._start = time.monotonic()
        # A terminal shows one line that changes; a log or notebook, one per epoch.
        self._ends = ("\r", "\n") if sys.stdout.isatty() else ("\n", "")

    def start_iterations(self):
        """Forget how long epochs take."""
        self._first = None

    def update(self, rule):
        """Show the state after an epoch."""
        losses, scores = rule.losses, rule.scores
        if not losses:  # nothing was learned
            return
        done, of, now = len(losses), rule.max_iter, time.monotonic()
        if rule.direct:
            line = f"{self._name} solved directly: loss {losses[-1]:.4g}"
            line += f"  {now - self._start:.1f} s "
            print(line, end=self._ends[0], flush=True)  # noqa: T201
            return
        # The first epoch may take longer: it computes a kernel matrix that is kept.
        first_done, first_end = self._first = self._first or (done, now)
        to_go = ""
        if first_done < done or done == of:
            seconds = (now - first_end) / max(done - first_done, 1)
            to_go = f", {seconds * (of - done):.1f} s to go"
        filled = 20 * done // of
        score = f"  score {scores[-1]:.4f}" if scores else ""
        line = (
            f"{self._name} [{'#' * filled}{'.' * (20 - filled)}] "
            f"epoch {done}/{of}  loss {losses[-1]:.4g}{score}  "
            f"{now - self._start:.1f} s{to_go} "
        )
        print(line, end=self._ends[0], flush=True)  # noqa: T201

    def close(self):
        """End the line."""
        print(end=self._ends[1], flush=True)  # noqa: T201

    def tell_end(self, rule, interrupted):
        """Say why epochs ended early, and which is the model if not the last one."""
        done, of, parts = len(rule.losses), rule.max_iter, []
        reason = "a callback says" if interrupted else rule.reason
        if reason is not None and done < of:
            parts.append(f"stopped after epoch {done} of {of}, as {reason}")
        if rule.kept not in (None, done):
            epoch = f"of epoch {rule.kept}" if rule.kept else "before epoch 1"
            parts.append(f"keeps the model {epoch}")
        if parts:
            line = f"{self._name} {', and '.join(parts)}"
            print(f"{line}  {time.monotonic() - self._start:.1f} s")  # noqa: T201


# Training rows to predict at the end of a fit, to check that it ended well. They give
# the mean loss to a few percent, (2 / 2000)^1/2 if residuals are normal. If the model
# is worse than the mean on these, all rows are checked.
_N_CHECKED = 2000
# If the last loss is above _HIGH_LOSS times that of predicting the mean, all rows are
# checked, because an epoch's loss is measured while the model changes. If it is above
# _ABOVE_BEST times that of the best epoch, both models are compared.
_HIGH_LOSS, _ABOVE_BEST = 0.9, 1.2
# Epochs end once twice as many lower the log loss of held-out rows by less than this
# part, or by fewer standard errors of the change than that number; an epoch that is
# worse by fewer is as good as the best one. Wrong labels over those with the best of 1,
# 2, 4, 8 and 20 epochs (benchmarks/epochs.py), on ten sets that chose nothing: 1.010 in
# 6.8 epochs; with the squared error in place of the log loss 1.036 in 8.5.
_WORTH_TWICE, _DOUBT = 0.005, 0.5
# Values of classes, whose targets are 1 in size, are cut off here before held-out rows
# judge them: a row with a fill value would decide alone.
_FARTHEST = 30.0


class Judges(Saved):
    """Held-out rows that say which epoch is the model, and when to stop.

    ``losses_of(coef)`` returns the log loss and the squared error of each, (2, m). The
    model is that of the last epoch that is not clearly worse than the best one, never
    the coefficients at the start. Epochs may end once the squared error, which few rows
    do not fit by calibration, is below that of the start, and twice as many, counted
    from the last halving of the step, gain nothing, or no more than chance may.
    """

    _saved = "coef", "losses", "_n_halvings", "_halved"

    def __init__(self, losses_of, start):
        self._losses_of, self.coef = losses_of, start
        self.losses = losses_of(start)[None, :]
        self._n_halvings = self._halved = 0

    def update(self, coef, n_halvings=0):
        """Record an epoch; return whether more of them are worthless."""
        self.losses = np.concatenate([self.losses, self._losses_of(coef)[None, :]])
        means, n = self.losses[:, 0].mean(axis=1), len(self.losses) - 1
        if n_halvings > self._n_halvings:
            self._n_halvings, self._halved = n_halvings, n
        half = self._halved + (n - self._halved) // 2
        best, half = 1 + np.argmin(means[1:]), np.argmin(means[: 1 + half])
        worse, error = self._change(best, n)
        if n == 1 or worse <= _DOUBT * error:
            self.coef = coef
        gain, error = self._change(best, half)
        learned, doubt = self._change(best, 0, 1)
        over = gain < max(_WORTH_TWICE * means[half], _DOUBT * error)
        enough = n > self._halved + 1 and learned > _DOUBT * doubt
        return bool(over and enough)

    def _change(self, first, second, which=0):
        """Return by how much a loss is above another, and its standard error."""
        change = self.losses[second, which] - self.losses[first, which]
        return change.mean(), change.std() / len(change) ** 0.5


class EpochRule(Rule):
    """The model is that of the best epoch, or of the last one if no rows are held out.

    It is never worse than the mean of the targets. Probabilities are calibrated on the
    held-out rows of `data`, which also score the epochs if these are `scored`, and
    otherwise are their `Judges`. An accuracy that is not above that of the constant
    model says little where a class is rare: their loss then ranks the epochs. The
    iteration starts from the coefficients `start`; None: the constant model. Epochs end
    once nothing improves, the loss is 0, or `max_iter` is reached.
    """

    _saved = tuple(
        "losses scores _ranks _coef _state _begin _fallback _plateau _judges".split()
    )

    def __init__(self, model, problem, data, held_out, *, start=None, scored=True):
        self._model, self._problem, self._data = model, problem, data
        self._held_out, self._scored = held_out, scored and held_out is not None
        self._name, self.max_iter = type(model).__name__, model.max_iter
        self._plateau = Plateau(model.tol, model.n_iter_no_change)
        self.losses, self.scores, self._ranks = [], [], []
        self._coef = self._state = self._recorded = None
        # _fallback: where the epoch with the least loss began, as its end may be bad.
        self._start = problem.initial_coef() if start is None else start
        self._begin = self._fallback = self._start
        self._judges = None
        if held_out is not None and not scored and len(held_out):
            self._judges = Judges(self._losses, self._start)

    def load(self, saved):
        """Take the saved state of another rule for the same problem."""
        super().load(saved)
        self._recorded = saved

    def undo(self):
        """Go back to the last fully recorded epoch; return whether there was one."""
        if self._recorded is None:
            return False
        self.load(self._recorded)
        return True

    def update(self, state):
        """Record an epoch; return whether training ends."""
        self.losses.append(state.loss)
        over = state.failed
        if self._judges is not None:
            judged = state.coef if state.rest is None else state.rest
            if self._judges.update(judged, state.n_step_halvings):
                over, self.reason = True, "the held-out rows gain nothing more"
            if self._judges.coef is judged:
                self._keep(state)
        elif not self._scored:
            self._keep(state)
        else:
            score, rank = self._ranked(state.coef)
            if self._coef is None or rank > self._best_rank:
                self._keep(state)
            self.scores.append(score)
            self._ranks.append(rank)
        if state.loss <= min(self.losses):
            self._fallback = self._begin
        self._begin, self._state = state.coef, state
        over = self._is_over() or over
        self._recorded = self.save()
        return over

    def _keep(self, state):
        self._coef, self.kept = state.coef, len(self.losses)

    def _is_over(self):
        """Whether nothing improves, or is left to improve."""
        losses, scores = self.losses, self.scores
        value, unit = (-self._ranks[-1], 1.0) if scores else (losses[-1], losses[0])
        stalled, nothing_left = self._plateau.update(value, unit), value == 0.0
        if not scores and nothing_left:
            self.reason = "the loss is 0"
        elif stalled:
            what = "score improves" if scores else "loss falls"
            self.reason = f"the {what} by less than tol"
        return stalled or (not scores and nothing_left)

    def _ranked(self, coef):
        """Return the score of coefficients on the held-out rows, and its rank.

        That is the score, or by how much an accuracy is above that of the constant
        model; if it is not, minus the loss in units of that model's. With costs of
        classes, of which few rows would decide, it is minus the log loss without them.
        """
        values = self._problem.validation_values(coef)
        score = self._score(values)
        if not self._model._score_is_accuracy:
            return score, score
        if self._data.of_class is not None:
            return score, -float(self._losses_of(values)[0].mean())
        of_constant, unit = self._of_constant
        gain = score - of_constant
        return score, gain if gain > 0 else -self._loss(values) / unit

    @cached_property
    def _of_constant(self):
        """The score and the loss, or 1 if it has none, of the constant model."""
        values = self._problem.validation_values(self._problem.initial_coef())
        return self._score(values), self._loss(values) or 1.0

    def _score(self, values):
        """Return the score of values of the held-out rows."""
        data, rows = self._data, self._held_out
        return self._model._score_values(
            values, data.labels[rows], data.weights_of(rows)
        )

    def _loss(self, values):
        """Return the weighted mean loss of values of the held-out rows."""
        data, rows = self._data, self._held_out
        losses = self._problem.losses_of(data.targets[rows], values)
        return np.average(losses, weights=data.weights_of(rows))

    def _losses(self, coef):
        """Return the log loss and squared error of each held-out row, with weights."""
        return self._losses_of(self._problem.validation_values(coef))

    def _losses_of(self, values):
        values = np.clip(values, -_FARTHEST, _FARTHEST)
        found = self._data.out_of_sample(self._held_out, values)
        residual, w = found.values - found.targets, found.weights
        squares = np.mean(residual**2, axis=1) * w / w.mean()
        # Costs of classes say nothing about noise: a few costly rows would judge alone.
        equal = found._replace(weights=self._data.own_weights_of(self._held_out))
        return np.stack([self._model._calibrated_losses(equal), squares])

    @property
    def _best_rank(self):
        return np.fmax.reduce(self._ranks, initial=-np.inf)  # NaN aside

    def out_of_sample(self):
        """Return the values of the model on the held-out rows, or None."""
        if self._held_out is None:
            return None
        coef = self._coef if self._judges is None else self._judges.coef
        values = self._problem.validation_values(coef)
        return self._data.out_of_sample(self._held_out, values)

    def fitted_attributes(self, interrupted=False):
        """Return the attributes of the model and of the epochs."""
        state = self._state
        if state.failed:
            self.has_warned = True
            warn_user(
                f"{self._name} found no step size that keeps the iteration "
                f"bounded: halved {state.n_step_halvings} times; the best coefficients "
                f"before that are kept. {self._model._failure_hint}"
            )
        self._coef = self._best_coef()
        model = self._problem.fitted_attributes(self._coef) | state.counts
        within = self._problem.within
        return model | {
            "n_iter_": len(self.losses),
            "loss_curve_": [loss + within for loss in self.losses],
            "validation_scores_": self.scores or None,
            "n_step_halvings_": state.n_step_halvings,
        }

    def _best_coef(self):
        """Return the coefficients of the model: with the best score, or the last."""
        if not self._scored:
            return self._last_good()
        best, coef = self._best_rank, self._coef
        of_best = dict(zip(self._ranks, self.scores, strict=True))
        least = of_best.get(best, -np.inf)  # no epoch has a rank if all are NaN
        for other in (self._start, self._problem.initial_coef()):
            score, rank = self._ranked(other)
            # The log loss of few rows of a class does not outweigh their accuracy.
            if rank > best and not score < least:
                best, coef, self.kept = rank, other, 0
        return coef

    def _last_good(self):
        """Return the last coefficients; if these are bad, earlier ones or zero."""
        problem, coef = self._problem, self._coef
        if self.losses[-1] > _ABOVE_BEST * min(self.losses) and not self._state.failed:
            # The last epoch may be noisy, or the iteration may diverge slowly.
            coef = min((coef, self._fallback), key=problem.loss)
            if coef is not self._coef:
                self.kept = None
        if self._is_no_worse_than_mean(coef):
            return coef
        zero = problem.initial_coef()
        other = min((self._fallback, self._start), key=problem.model_loss)
        better = problem.model_loss(other) < problem.model_loss(zero)
        self.has_warned, self.kept = True, None
        warn_user(
            f"{self._name} stopped after {len(self.losses)} epochs with a training "
            "loss above that of predicting the mean; "
            + ("an earlier epoch's model is kept" if better else "it predicts the mean")
            + "; pass a smaller step_size, or more epochs (max_iter)"
        )
        return other if better else zero

    def _is_no_worse_than_mean(self, coef):
        """Whether the loss of coefficients is at most that of predicting the mean.

        If that of the last epoch is far below it, not all rows are checked.
        """
        problem = self._problem
        zero = problem.initial_coef()
        # If all rows are equal, the best model is the mean, found up to rounding.
        limit = problem.up_to_rounding(problem.model_loss(zero))
        if self.losses[-1] <= _HIGH_LOSS * limit:
            of_some = [problem.model_loss(one, _N_CHECKED) for one in (coef, zero)]
            if of_some[0] <= of_some[1]:
                of_mean = of_some[1] + problem.within
                self.gain = (of_some[1] - of_some[0]) / (of_mean or 1.0)
                return True
        loss = problem.model_loss(coef)
        self.gain = (limit - loss) / (limit + problem.within or 1.0)
        return loss <= limit


class EarlyStoppingRule(SolutionRule):
    """The last state of an `EarlyStopping` is the model."""

    direct = False

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


class Callbacks:
    """Reports a fit to the callbacks of its estimator.

    X, y and sample_weight are as the user gave them; `task` is the name of an
    iteration, None in a fit without iterations. The problem, once it is known, tells
    the fitted attributes of a state.
    """

    def __init__(self, estimator, X, y, sample_weight, task, max_iter):
        self._given = {
            "estimator": estimator,
            "X": X,
            "y": y,
            "metadata": {"sample_weight": sample_weight},
        }
        self._task, self.problem = task, None
        n_tasks = 0 if task is None else max_iter
        self._fit = estimator._init_callback_context(max_subtasks=n_tasks)
        self._fit.call_on_fit_task_begin(**self._given)

    def begin(self):
        """Report that an iteration begins."""
        if self._task is not None:
            self._iteration = self._fit.subcontext(task_name=self._task)
            self._iteration.call_on_fit_task_begin(**self._given)

    def end(self, state):
        """Report that an iteration ended; return whether a callback wants to stop."""
        if self._task is None:
            return False

        def attributes():
            return self.problem.fitted_attributes(state.coef) | state.counts

        return self._iteration.call_on_fit_task_end(
            reconstruction_attributes=attributes, **self._given
        )

    def close(self, attributes):
        """Report that the fit ended, with its fitted attributes."""
        self._fit.call_on_fit_task_end(
            reconstruction_attributes=attributes, **self._given
        )
