"""The rule of a fit by epochs: when it ends, and which coefficients are the model."""

import math
from functools import partial

from ..solvers.state import Saved
from .training import Plateau, Rule
from .validation import warn_user

# Training rows to predict at the end of a fit, to check that it ended well. They give
# the mean loss to a few percent, (2 / 2000)^1/2 if residuals are normal. If the model
# is worse than the mean on these, all rows are checked.
_N_CHECKED = 2000
# If the last loss is above _HIGH_LOSS times that of predicting the mean, all rows are
# checked, because an epoch's loss is measured while the model changes. If it is above
# _ABOVE_BEST times that of the best epoch, both models are compared.
_HIGH_LOSS, _ABOVE_BEST = 0.9, 1.2
# Losses that differ by this many rounding errors count as equal: if all rows are equal,
# the best model is the mean, which is found up to rounding.
_SAME_LOSS_EPS = 10
# The last max_iter / _LAST_PART epochs also visit the spared rows. With 5 of 20 epochs,
# and with all 20, on all of 10000 rows, the errors are 3.06 and 3.06 % on MNIST, 1.61
# and 1.57 % on ijcnn1, 16.4 and 16.2 % on covtype (benchmarks/noise.py).
_LAST_PART = 4


class Stopping(Saved):
    """Ends the epochs once nothing improves, the loss is 0, or `max_iter` is reached.

    If rows are spared, these conditions end only the epochs without them. Epochs on all
    rows follow: a quarter of `max_iter`, or fewer if they do not improve.

    Parameters
    ----------
    max_iter : int
    tol : float
        Relative to the loss of the first epoch, or in units of the score.
    n_iter_no_change : int
    spares : bool
        Whether rows are spared at first.

    Attributes
    ----------
    on_all_rows : bool
        Whether the next epochs also visit the spared rows.
    """

    _saved = ("_plateau", "_last", "on_all_rows")

    def __init__(self, max_iter, tol, n_iter_no_change, spares):
        self._make_plateau = partial(Plateau, tol, n_iter_no_change)
        self._max_iter, self._plateau = max_iter, self._make_plateau()
        self._spares, self._last, self.on_all_rows = spares, max_iter, False

    def update(self, losses, scores, failed):
        """Record an epoch; return whether it is the last one.

        Parameters
        ----------
        losses, scores : list of float
            Of all epochs so far. If there are scores, they count instead of the losses.
        failed : bool
            Whether the solver cannot continue.
        """
        value, unit = (-scores[-1], 1.0) if scores else (losses[-1], losses[0])
        over = self._plateau.update(value, unit) or (not scores and value == 0.0)
        n, n_last = len(losses), max(self._max_iter // _LAST_PART, 1)
        nearly = over or failed or n >= self._max_iter - n_last
        if self._spares and nearly and not self.on_all_rows:
            self.on_all_rows, over = True, False
            self._plateau, self._last = self._make_plateau(), n + n_last
        return over or failed or n >= self._last


class EpochRule(Rule):
    """The model is that of the best epoch, or of the last one if none is scored.

    It is never worse than the mean of the targets. `Stopping` decides when epochs end.

    Parameters
    ----------
    name, hint : str
        For warnings: name of the estimator, and what to do if no step is stable.
    problem : Problem
    max_iter, tol, n_iter_no_change
        Of `Stopping`.
    score : callable, default=None
        ``score(F)`` of values on the held-out rows.
    start : object, default=None
        Coefficients that the iteration starts from. None: the constant model.
    out_of_sample : callable, default=None
        ``out_of_sample(values)`` returns an `OutOfSample` from the values of the
        held-out or spared rows.
    spares : bool, default=False
        Whether rows are spared; then no epoch is scored.

    Attributes
    ----------
    losses, scores : list of float
        One per epoch.
    """

    _saved = tuple(
        "losses scores _coef _state _values _begin _fallback _stopping".split()
    )

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
        out_of_sample=None,
        spares=False,
    ):
        self._name, self._hint, self.max_iter = name, hint, max_iter
        self._problem, self._score = problem, score
        self._out_of_sample, self._spares = out_of_sample, spares
        self._stopping = Stopping(max_iter, tol, n_iter_no_change, self._spares)
        self.losses, self.scores = [], []
        self._coef = self._state = self._values = None
        # _fallback: where the epoch with the least loss began, as its end may be bad.
        self._start = problem.initial_coef() if start is None else start
        self._begin = self._fallback = self._start
        self._recorded = None

    @property
    def on_all_rows(self):
        """As in `Stopping`."""
        return self._stopping.on_all_rows

    def load(self, saved):
        """Take the saved state of another rule for the same problem."""
        super().load(saved)
        self._recorded = saved

    def undo(self):
        """Go back to the last fully recorded epoch; return whether there was one."""
        if self._recorded is None:
            return False
        self.load(self._recorded)
        self._note_values(self._spares)
        return True

    def update(self, state):
        """Record an epoch; return whether training ends."""
        self.losses.append(state.loss)
        if self._score is None:
            self._coef = state.coef
        else:
            self._note_score(state.coef)
        if state.loss <= min(self.losses):
            self._fallback = self._begin
        self._begin, self._state = state.coef, state
        over = self._stopping.update(self.losses, self.scores, state.failed)
        self._note_values(self.on_all_rows)
        self._recorded = self.save()
        return over

    def _note_score(self, coef):
        """Record the score of coefficients, and keep them if it is the best one."""
        score, values = self._score_of(coef)
        if self._coef is None or score > self._best_score():
            self._coef, self._values = coef, values
        self.scores.append(score)

    def _best_score(self):
        """Return the best score so far, NaN aside."""
        numbers = [score for score in self.scores if not math.isnan(score)]
        return max(numbers, default=-math.inf)

    def _note_values(self, now):
        """If it is time, record the values on spared rows, not yet learned."""
        if now and self._values is None:
            self._values = self._problem.validation_values(self._coef)

    def _score_of(self, coef):
        values = self._problem.validation_values(coef)
        return self._score(values), values

    def out_of_sample(self):
        """Return the values of the model on held-out or spared rows, or None."""
        if self._values is None:
            return None
        return self._out_of_sample(self._values)

    def fitted_attributes(self, interrupted=False):
        """Return the attributes of the model and of the epochs."""
        state = self._state
        if state.failed:
            self.has_warned = True
            warn_user(
                f"{self._name} found no step size that keeps the iteration "
                f"bounded: halved {state.n_step_halvings} times; the best coefficients "
                f"before that are kept. {self._hint}"
            )
        model = self._problem.fitted_attributes(self._best_coef())
        within = self._problem.within
        return (
            model
            | state.counts
            | {
                "n_iter_": len(self.losses),
                "loss_curve_": [loss + within for loss in self.losses],
                "validation_scores_": self.scores if self.scores else None,
                "n_step_halvings_": state.n_step_halvings,
            }
        )

    def _best_coef(self):
        """Return the coefficients that become the model."""
        return self._last_good() if self._score is None else self._best_scored()

    def _best_scored(self):
        """Return the coefficients with the best score: of an epoch, the start, or 0."""
        best, coef = self._best_score(), self._coef
        for other in (self._start, self._problem.initial_coef()):
            score, values = self._score_of(other)
            if score > best:
                best, coef, self._values = score, other, values
        return coef

    def _last_good(self):
        """Return the last coefficients; if these are bad, earlier ones or zero."""
        problem, coef = self._problem, self._coef
        if self.losses[-1] > _ABOVE_BEST * min(self.losses) and not self._state.failed:
            # The last epoch may be noisy, or the iteration may diverge slowly.
            coef = min((coef, self._fallback), key=problem.loss)
        if self._is_no_worse_than_mean(coef):
            return coef
        zero = problem.initial_coef()
        other = min((self._fallback, self._start), key=problem.model_loss)
        better = problem.model_loss(other) < problem.model_loss(zero)
        self.has_warned = True
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
        zero, eps = problem.initial_coef(), float(problem.xp.finfo(problem.dtype).eps)
        limit = problem.model_loss(zero) * (1 + _SAME_LOSS_EPS * eps)
        if self.losses[-1] <= _HIGH_LOSS * limit:
            of_some = [problem.model_loss(one, _N_CHECKED) for one in (coef, zero)]
            if of_some[0] <= of_some[1]:
                of_mean = of_some[1] + problem.within
                self.gain = (of_some[1] - of_some[0]) / (of_mean or 1.0)
                return True
        loss = problem.model_loss(coef)
        self.gain = (limit - loss) / (limit + problem.within or 1.0)
        return loss <= limit
