"""Recursive feature machines: kernel machines that learn their metric, in rounds."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from os import PathLike
from typing import Any, Self

import numpy as np
from scipy.linalg import eigh
from scipy.optimize import minimize_scalar
from scipy.special import softmax
from sklearn.base import (
    ClassNamePrefixFeaturesOutMixin,
    MetaEstimatorMixin,
    TransformerMixin,
    clone,
    is_classifier,
)
from sklearn.utils.metaestimators import available_if

from ..arrays import memory
from ..arrays.array import (
    ArrayLike,
    RandomState,
    device_of,
    location_of,
    move,
    namespace,
    to_numpy,
)
from ..arrays.linalg import large_product
from ..fitting.checkpoint import Checkpoint
from ..fitting.conveniences import keep_parameters
from ..fitting.error_bars import measured, of_equal_rows
from ..fitting.model import Model
from ..fitting.outcome import check_values
from ..fitting.planning import plan_of, shape_of
from ..fitting.rules import Plateau, Rule
from ..fitting.targets import ClassificationTargets, RegressionTargets
from ..fitting.validation import (
    check_choice,
    check_number,
    check_one_of,
    check_rows,
    column_name,
    on_its_device,
    replaced_parameters,
    warn_user,
)
from ..kernels import Kernel
from ..losses import mean_of_targets
from ..methods.state import Saved, State
from ..operators.gradient import MappedGradient
from ..plan.of_rounds import ERROR_BAR_ROWS, SCALINGS, plan_of_rounds
from ..plan.parameters import is_precomputed
from ..plan.penalty import units_of
from ..problems.data import LeftOut, draw, hold_out
from ..problems.kernel_parameters import make_kernel
from ..problems.problem import take
from ..rows.dask_rows import Here
from ..rows.frames import FrameRows
from ..rows.lazy_rows import MappedRows, by_rows, in_memory, is_lazy
from ..rows.robust import cast, frame_of_distances, sampled, without_far_values
from .eigenpro import EigenProClassifier, EigenProRegressor
from .gradients import is_on_kernels, mean_outer_product
from .local_machines import LocalClassifier, LocalRegressor
from .tables import Columns, Preparation, prepared

# Share of the plain metric in the learned one, so that features that matter little to
# one model are not lost to the next ones. Errors with 0 and 0.02: bike_hour 0.256,
# 0.249; california_housing 0.439, 0.441, and with 0.02 and 0.05, width 4, 0.440, 0.445.
_FLOOR = 0.02
# If the best error of the first kind of metric is above this, a second start is tried:
# with a product of two among 32 features it is 1.0, and then 0.24 (1200 rows).
_SEES_LITTLE = 0.5
# Maximum ratio of the Manhattan distance's error to the best kernel's, on part of the
# rows, up to which both are compared on all rows. On california_housing the ratio was
# 1.003, and 0.95 on all rows.
_NEARLY = 1.03
# Fewest held-out rows whose errors say how large those of new rows are.
_FEWEST_HELD_OUT = 4
# Errors if no model with a metric can be fitted or evaluated.
_FAILURES = (ValueError, ArithmeticError, MemoryError)


class _NothingLearned(Exception):
    """A model has no gradients."""


@dataclass(frozen=True)
class Round:
    """A metric and the model that was fitted with it.

    The kind is None for the plain kernel; `number` counts how often the metric was
    learned. `kernel` is a name and a width, the bandwidth over the median distance;
    None: that of the estimator. `error` is that on the held-out rows, over that of a
    constant. `second` tells metrics that come from the second start.
    """

    kind: str | None
    number: int
    root: Any
    kernel: tuple | None
    model: Any
    error: float
    second: bool = False


def learned_metrics(problem, max_rounds):
    """Learn metrics from models, and models with these metrics, in turn.

    One round, for a model f fitted to X R::

        M = (1 / n) sum_i grad f(x_i) grad f(x_i)'   (of "diagonal" the diagonal)
        R <- M^1/2

    The second kind of metric starts from the best one of the first, and each is given
    up after two rounds without improvement. If the models of the first kind see little,
    it is learned again, from the second start of the problem. Yields a `State` of each
    `Round` as it is made; at the end the chosen one, converged.

    Radhakrishnan, Beaglehole, Pandit and Belkin, "Mechanism for feature learning in
    neural networks and backpropagation-free machine learning models", Science 2024.
    """
    best = diagonal = problem.first_round()
    yield State(best)
    starts = [(kind, False) for kind in problem.kinds]
    starts[1:1] = [(kind, True) for kind in problem.kinds[:1]]
    for kind, second in starts:
        now = problem.second_start(best, kind) if second else best
        if now is None:
            continue
        # With 1, 3 and no limit the same metric was found on nine of ten data sets.
        plateau = Plateau(0.0, 2)
        plateau.update(best.error, 1.0)
        for _ in range(max_rounds):
            now = problem.next_round(now, kind)
            if now is None:
                break
            yield State(now)
            best = min(best, now, key=lambda one: one.error)
            if plateau.update(now.error, 1.0):
                break
        if kind == "diagonal":
            diagonal = best
    yield State(problem.refined(best, diagonal), converged=True)


class SavedRounds(Saved):
    """The states of `learned_metrics`; those of a checkpoint are not computed again."""

    _saved = ()

    def __init__(self, problem, rule, max_rounds):
        self._problem, self._rule = problem, rule
        self._states = learned_metrics(problem, max_rounds)

    def __next__(self):
        return next(self._states)

    def load(self, saved):
        """Take the rounds that the rule has loaded."""
        self._problem.known = list(self._rule.rounds)
        for _ in self._rule.rounds:
            next(self._states)


class MetricProblem:
    """Models on X R: fitted to some rows, scored on others, and differentiated.

    Parameters
    ----------
    model : RFMRegressor or RFMClassifier
    estimator : estimator
        To clone and fit.
    data : Data
        The estimator is fitted to its labels.
    class_weight : dict or None
        That of the model of all rows. What classes cost says nothing about which
        features matter: rounds do without it.

    Attributes
    ----------
    plan : Plan
        Of all fits (`plan_of_rounds`).
    kinds : tuple
        Kinds of metric to learn, in turn; none if no rows tell which is better.
    known : list of Round
        The next rounds, if they are known from a checkpoint, without models.
    xp, device
        Where X lives.
    """

    def __init__(self, model, estimator, data, class_weight=None):
        self._estimator, self._class_weight = estimator, class_weight
        self._model = model
        self.known, self.xp, self.device = [], namespace(data.X), device_of(data.X)
        labels = data.groups is not None
        self._errors_of = _brier_scores_of_best_scale if labels else _squared_errors
        cells = None
        if not data.constant:
            rows = _trained_rows(data)
            cells = data.take(rows) if data.are_cells(rows) else None
            data, rows = data.without_copies(rows)
            data = data.take(np.sort(rows))
        self._preparation, self._distinct = model._preparation, data
        self._everything = data if cells is None else cells
        self._train = draw(data, model.max_metric_rows)
        self._units = None
        if not labels and data.targets.shape[1] > 1:  # all outputs matter alike
            Y = self._train.targets
            w = self._train.weights_of(np.arange(len(Y)))
            units = self._units = units_of(Y - mean_of_targets(Y, w), w)
            scaled = {"targets": Y / units, "labels": self._train.labels / units}
            self._train = replace(self._train, **scaled)
            if data.validation is not None:
                X, Y, *others = data.validation
                data = replace(data, validation=(X, Y / units, *others))
        # Whether rows tell which metric is better; else all rows give some error.
        self._compares = not data.constant
        if self._compares and data.validation is None:
            self._compares = self._hold_out(model.validation_fraction)
        elif self._compares:
            X, targets, _, w = data.validation
            if w is not None:  # an infinite error times 0 is not a number
                some = np.flatnonzero(w)
                X, targets, w = take(X, some), targets[some], w[some]
            self._validation = cast(X, data.X.dtype), targets, w
        if not self._compares:
            self._validation = data.X, data.targets, data.weights
        n, judged = len(self._train.targets), self._validation[1]
        self.plan = model._plan(shape_of(model, self._everything, n, judged))
        self.kinds = self.plan.kinds if self._compares else ()
        if cells is not None and model.metric == "auto":
            self.kinds = self.kinds[:1]  # X R with a full one would hide the cells
        self._graded = draw(self._train, self.plan.n_graded)
        self._seed = data.rng.randint(2**31 - 1)
        self._compared = draw(self._train, self.plan.n_compared)
        self._scale()

    def _scale(self):
        """Scale all rows in the way that suits those held out.

        Another than the first must be clearly better. For columns with long tails that
        is "robust": errors at a few far rows can favor others by chance.
        """
        (X, *others), scalings = self._validation, list(self.plan.scalings)
        if "robust" in scalings and self._preparation.has_long_tails:
            scalings.sort(key=lambda name: name != "robust")
        best = scalings[0]
        if not self._preparation.n_numbers:
            best = None
        elif len(scalings) > 1 and self._compares:
            errors = []
            self._model._say("comparing ways to scale the columns")
            for scaling in scalings:
                scale, _ = self._scaling_of(scaling)
                rows = replace(self._compared, X=scale(self._compared.X))
                self._validation = scale(X), *others
                plain = np.ones(rows.X.shape[1])
                root, kernel = self._as_features(plain), self.plan.kernels[0]
                errors.append(self._errors_of_part(root, kernel, rows))
            best = scalings[_clearly_least(errors, others[-1])]
        self.scaling, (scale, self._frame) = best, self._scaling_of(best)
        self._validation = scale(X), *others
        scaled = {}  # some of these may be the same rows
        for name in ("_everything", "_distinct", "_train", "_graded", "_compared"):
            rows = getattr(self, name)
            if id(rows) not in scaled:
                scaled[id(rows)] = rows, replace(rows, X=scale(rows.X))
            setattr(self, name, scaled[id(rows)][1])

    def _scaling_of(self, name):
        """Return a function that scales rows, and the frame that it keeps them in."""
        scaled = partial(self._preparation.scaled, scaling=name)
        # A metric adds columns up: a fill value would cost all of them their digits.
        frame = frame_of_distances(scaled(sampled(self._distinct.X)))
        return lambda X: without_far_values(scaled(X), *frame), frame

    def _hold_out(self, fraction):
        """Hold out rows, unless there are too few; return whether there are enough."""
        n = len(self._train.targets)
        try:
            train, held_out = hold_out(self._train, np.arange(n), fraction)
            if len(train) < 2:
                raise ValueError(
                    f"validation_fraction={fraction} leaves {len(train)} of {n} rows "
                    "to train with, where 2 are needed: pass a smaller one, or X_val "
                    "and y_val"
                )
        except ValueError:
            groups = self._train.groups
            if n >= 20 and (groups is None or len(np.unique(groups)) < n):
                raise
            return False  # a metric need not be learned from so few, or single ones
        scored, self._train = self._train.take(held_out), self._train.take(train)
        self._validation = scored.X, scored.targets, scored.weights
        return True

    def _fit(
        self,
        root,
        kernel,
        data,
        *,
        distinct=None,
        local=None,
        n_left_out=0,
        keep=None,
        **parameters,
    ):
        """Return a model, with other parameters, fitted to the rows of X R.

        It is a clone of the estimator, or of `local`, a model of parts, with the
        arguments `keep` of a checkpoint. The median distance is that of `distinct` rows
        if some are repeated. For `n_left_out` see `_EigenPro`.
        """
        model, X = clone(local or self._estimator), mapped(data.X, root)
        if kernel is not None:
            name, width = kernel
            rng = np.random.RandomState(model.random_state)
            of = X if distinct is None else mapped(distinct.X, root)
            median = make_kernel(name, "median", of, rng).bandwidth
            parameters |= {"kernel": name, "bandwidth": width * median}
        model.set_params(**parameters)
        model._tells_outcome = False  # the last fit speaks for all
        if hasattr(model, "_n_left_out"):
            model._n_left_out = n_left_out
        if local is not None:
            model._say_part, model._cluster = self._model._say, self._model._cluster
        model.fit(X, data.labels, data.weights, **(keep or {}))
        for name in ("_tells_outcome", "_n_left_out", "_say_part", "_cluster"):
            vars(model).pop(name, None)
        return model

    def _errors(self, model, root):
        """Return the errors of a model on the held-out rows."""
        X, Y, weights = self._validation
        values = to_numpy(model._values(mapped(X, root), "predict"))
        errors = self._errors_of(values, Y, weights)
        if not np.isfinite(errors).all():
            raise ArithmeticError("an error on the held-out rows is not finite")
        return errors

    def _mean(self, errors):
        return float(np.average(errors, weights=self._validation[2]))

    def _round(self, kind, number, root, second=False):
        """Return the round of a metric, with its model and the error of the model."""
        kernel = self.plan.kernels[0]
        model = self._fit(root, kernel, self._train)
        error = self._mean(self._errors(model, root))
        return Round(kind, number, root, kernel, model, error, second)

    def _known(self, *which):
        """Return this round if it is the next known one; None: it is new, or failed."""
        next_ones = [(one.kind, one.number, one.second) for one in self.known[:1]]
        return self.known.pop(0) if next_ones == [which] else None

    def first_round(self):
        """Return the round of the features as they are."""
        return self._known(None, 0, False) or self._round(None, 0, self._plain())

    def second_start(self, best, kind):
        """Return what `next_round` begins with, or None if the best round sees enough.

        A penalty that suits the plain kernel may leave a model that is constant, or
        depends on some of the features that matter. So this start learns the metric by
        models with no penalty, in several rounds: their gradients are noisy, but a few
        features that matter gain a little in each. Fits with the chosen penalty follow.
        """
        if not self.plan.n_weak or best.error <= _SEES_LITTLE:
            return None
        return Round(kind, self.plan.n_weak - 1, None, None, None, np.inf, True)

    def next_round(self, before, kind):
        """Return the round after this one, or None if it fails or learns nothing."""
        number, second = before.number + 1, before.second
        known = self._known(kind, number, second)
        if known is not None:
            return known
        try:
            root, model = before.root, before.model
            if root is None:
                root, model = self._without_penalty(kind, before.number)
            elif model is None:  # of a checkpoint
                model = self._fit(root, before.kernel, self._train)
            return self._round(kind, number, self._learned(model, root, kind), second)
        except _NothingLearned:
            return None
        except _FAILURES as error:
            warn_user(
                f"round {number} with metric={kind!r} failed, and the best metric so "
                f"far is kept: {error}"
            )
            return None

    def _learned(self, model, root, kind):
        """Return the R that is learned from a model fitted to X R."""
        M = to_numpy(self._outer_product(model, root, kind))
        trace = M.sum() if kind == "diagonal" else np.trace(M)
        if not 0 < trace < np.inf:
            raise _NothingLearned
        values = _of_eigenvalues(
            M * (len(M) / trace), lambda x: ((1.0 - _FLOOR) * x + _FLOOR) ** 0.5
        )
        return self._as_features(values)

    def _without_penalty(self, kind, number):
        """Return R after some rounds without a penalty, and the model of X R."""
        root, fit = self._plain(), partial(self._fit, data=self._compared, alpha=0.0)
        model = fit(root, self.plan.kernels[0])
        for _ in range(number):
            root = self._learned(model, root, kind)
            model = fit(root, self.plan.kernels[0])
        return root, model

    def _plain(self):
        """Return R of the features as they are."""
        return self._as_features(np.ones(self._train.X.shape[1]))

    def refined(self, best, diagonal):
        """Return the round with the kernel, and then power of R, that suit its metric.

        Kernels are compared by models of part of the rows. If the Manhattan distance,
        with the best diagonal metric, has an error near or below that of the best
        kernel, both are compared again by models of all rows.
        """
        plan = self.plan
        if len(plan.kernels) == 1 or not self._compares:
            return best
        rows = self._compared
        chosen, error = self._softened(*self._suited(best, plan.kernels, rows), rows)
        if not plan.manhattan:
            return chosen
        other, of_other = self._suited(diagonal, plan.manhattan, rows)
        if not of_other < _NEARLY * error:
            return chosen
        its_error = of_other
        if rows is not self._train:
            error = best.error
            if chosen is not best:
                error = self._error_of_part(chosen.root, chosen.kernel, self._train)
            its_error = self._error_of_part(other.root, other.kernel, self._train)
        if its_error < error:
            chosen, _ = self._softened(other, of_other, rows)
        return chosen

    def _suited(self, one, kernels, rows):
        """Return a round with its best kernel, and its error."""
        errors = [
            one.error
            if rows is self._train and kernel == one.kernel
            else self._error_of_part(one.root, kernel, rows)
            for kernel in kernels
        ]
        place = int(np.argmin(errors))
        if one.kernel != kernels[place]:
            one = replace(one, kernel=kernels[place])
        return one, errors[place]

    def _softened(self, one, error, rows):
        """Return a round and its error, with another power of R if that is better."""
        if one.kind is None:
            return one, error
        R = to_numpy(one.root).astype(np.float64)
        softer = _of_eigenvalues(R, lambda values: values**0.7)
        softer = self._as_features(softer * (len(R) / np.sum(softer**2)) ** 0.5)
        of_softer = self._error_of_part(softer, one.kernel, rows)
        if of_softer < error:
            return replace(one, root=softer), of_softer
        return one, error

    def _errors_of_part(self, root, kernel, rows):
        """Return the errors of a model of some rows, infinite if it has none."""
        try:
            return self._errors(self._fit(root, kernel, rows), root)
        except _FAILURES:
            return np.full(len(self._validation[1]), np.inf)

    def _error_of_part(self, *model):
        return self._mean(self._errors_of_part(*model))

    def _as_features(self, values):
        """Return a NumPy array as an array of the library, device and type of X."""
        X = self._train.X
        xp = namespace(X)
        return xp.astype(xp.asarray(values, device=device_of(X)), X.dtype, copy=False)

    def _outer_product(self, model, root, kind, units=None):
        """Return the average gradient outer product of a model, in units of X."""
        gradients = mapped_gradients(model, self._graded.X, root)
        rng = np.random.RandomState(self._seed)
        return mean_outer_product(gradients, kind, self._graded.weights, rng, units)

    def _fit_to_all(self, chosen):
        """Return a model of all rows, in parts if the plan says so."""
        data = self._everything
        n_left_out = ERROR_BAR_ROWS if data.groups is None else 0
        given = {"n_left_out": n_left_out}
        if data is not self._distinct:
            given["distinct"] = self._distinct
        if "n_parts" in self.plan.fits[-1].chosen:
            checkpoint = self._model._checkpoint_of_parts
            given["local"] = self._model._local(**self._estimator.get_params())
            given["keep"] = {"checkpoint": checkpoint, "resume": checkpoint is not None}
        if self._class_weight is not None:
            given["class_weight"] = self._class_weight
        return self._fit(chosen.root, chosen.kernel, data, **given)

    def fitted_attributes(self, chosen):
        """Return the attributes of a round's metric, with a model of all rows."""
        model = self._fit_to_all(chosen)
        left_out = vars(model).pop("_left_out", None)
        root, units = chosen.root, self._units
        importances = to_numpy(self._outer_product(model, root, "diagonal", units))
        # A level or gap that is rare matters little, however steep the model is there.
        k, w = self._preparation.n_numbers, self._graded.weights
        marks = to_numpy(self._graded.X)[:, k:].astype(np.float64)
        if marks.size:
            mean = np.average(marks, axis=0, weights=w)
            importances[k:] *= np.average((marks - mean) ** 2, axis=0, weights=w)
        importances /= importances.sum() or 1.0
        preparation, (offset, limits) = self._preparation, self._frame
        importances = preparation.summed(importances)
        return {
            "preprocessor_": preparation.preprocessor(self.scaling),
            "scaling_": self.scaling,
            "_offset": offset,
            "_limits": limits,
            "metric_root_": chosen.root,
            "estimator_": model,
            "feature_importances_": self._as_features(importances),
            "metric_kind_": chosen.kind,
            "n_rounds_": chosen.number,
            "n_parts_": getattr(model, "n_parts_", 1),
            "_error_bars": self._error_bars(
                chosen.root, chosen.kernel, model, left_out
            ),
        }

    def _error_bars(self, root, kernel, model, left_out):
        """Return the `ErrorBars` of a regressor, or None.

        If it was not solved directly, the residuals are those of the held-out rows, in
        a model of the other rows.
        """
        data, own = self._everything, getattr(model, "_has_variance", False)
        of_quantile = getattr(model, "loss", None) == "pinball"
        if data.groups is not None or own or of_quantile:
            return None
        if data.constant:
            X = mapped(data.X, root)
            return of_equal_rows(model.kernel_, X, data.targets, data.weights)
        X, Y, w = self._validation
        if left_out is None and self._compares and len(Y) >= _FEWEST_HELD_OUT:
            data, units = self._train, 1.0 if self._units is None else self._units
            model = self._fit(root, kernel, data)
            values = to_numpy(model._values(mapped(X, root), "predict"))
            w = np.ones(len(Y)) if w is None else w / w.mean()
            order = np.random.RandomState(self._seed).permutation(len(data.targets))
            # The model may have no penalty, or one that suits its few centers.
            options = {"random_state": self._seed, "device": self._model.device}
            direct = EigenProRegressor(model.kernel_, **options)
            direct._tells_outcome, few = False, data.take(order[:ERROR_BAR_ROWS])
            direct.fit(mapped(few.X, root), few.labels, few.weights)
            ridge = direct.alpha_ * len(few.targets)
            own = data.weights_of(order)
            ridges = ridge * own.mean() / own
            values = mapped(X, root), values * units, Y * units, w
            left_out = LeftOut(*values, None, order, ridges, len(order), ridge)
            data = replace(data, targets=data.targets * units)
        if left_out is None:
            return None
        X = mapped(data.X, root)
        return measured(model.kernel_, X, data.targets, data.weights, left_out)


class RoundRule(Rule):
    """The chosen round is the model, or the best one if a callback ends the training.

    ``say(state, number)`` shows a round, with its number among those of its kind.
    """

    def __init__(self, problem, max_iter, say):
        self._problem, self.max_iter, self._say = problem, max_iter, say
        self.rounds, self._chosen = [], None

    @property
    def losses(self):
        """The errors of the rounds, and of the chosen one."""
        return [one.error for one in (*self.rounds, self._chosen) if one is not None]

    def update(self, state):
        """Record a round; return whether it is the last."""
        now = state.coef
        number = 1 + sum(
            (other.kind, other.second) == (now.kind, now.second)
            and other.number < now.number
            for other in self.rounds
        )
        self._say(state, number)
        one = replace(state.coef, model=None)  # models hold copies of X
        if state.converged:
            self._chosen = one
        else:
            self.rounds.append(one)
        return state.converged

    def save(self):
        """Return what `load` needs: the rounds."""
        rounds = [vars(one) for one in self.rounds]
        chosen = None if self._chosen is None else vars(self._chosen)
        return {"rounds": rounds, "chosen": chosen}

    def load(self, saved):
        """Take the saved rounds of another rule for the same problem."""
        self.rounds = [_as_round(one) for one in saved["rounds"]]
        chosen = saved["chosen"]
        self._chosen = None if chosen is None else _as_round(chosen)

    def fitted_attributes(self, interrupted=False):
        """Return the attributes of the model and of the rounds."""
        rounds = self.rounds
        chosen = self._chosen or min(rounds, key=lambda one: one.error)
        scores = {
            "metric": [one.kind for one in rounds],
            "round": [one.number for one in rounds],
            "score": [1.0 - one.error for one in rounds],
        }
        return self._problem.fitted_attributes(chosen) | {"validation_scores_": scores}


def _as_round(saved):
    """Return a saved round, whose kernel has become a list."""
    kernel = saved["kernel"]
    return Round(**saved | {"kernel": None if kernel is None else tuple(kernel)})


def mapped(X, root):
    """Return X R."""
    xp = namespace(X)
    root = xp.astype(root, X.dtype, copy=False)
    return X * root if root.ndim == 1 else large_product(X, root)


def mapped_gradients(model, X, root):
    """Return the gradients in x of a fitted model of x R, at the rows of X."""
    X_R = MappedRows(X, partial(mapped, root=root)) if is_lazy(X) else mapped(X, root)
    return MappedGradient(model._gradients(X_R), root)


def _of_eigenvalues(matrix, function):
    """Return a function of a positive semi-definite matrix, or of its diagonal."""
    if matrix.ndim == 1:
        return function(matrix)
    values, vectors = eigh(matrix, driver="evd")
    return (vectors * function(np.maximum(values, 0.0))) @ vectors.T


def _clearly_least(errors, weights):
    """Return the place of the least errors; 0 if they aren't clearly below the first.

    A difference is clear above two standard errors, on the rows that both have seen.
    """
    w = np.ones(len(errors[0])) if weights is None else weights / weights.mean()
    means = [np.average(each, weights=w) for each in errors]
    least = int(np.argmin(means))
    if not np.isfinite(means[0]):
        return least
    gain = means[0] - means[least]
    noise = w * (errors[0] - errors[least] - gain)
    return least if gain > 2.0 * np.sum(noise**2) ** 0.5 / len(w) else 0


def _squared_errors(F, Y, weights):
    """Return the squared errors of rows, over the mean of those of their mean."""

    def errors(values):
        return ((Y - values) ** 2).sum(axis=1)

    of_mean = np.average(errors(mean_of_targets(Y, weights)), weights=weights)
    return errors(F) / (of_mean or 1.0)


def _brier_scores_of_best_scale(F, Y, weights):
    """Return Brier scores of softmax(c F) at the best scale c, over a constant's mean.

    Targets Y are -1 and +1 in one column, or one column of 0 and 1 per class. Other
    losses rank models differently than their error rates. On MNIST the squared error of
    the values falls by a quarter with a full metric, while the error rate rises from
    4.3 to 4.7 %; the log loss prefers penalties with more errors (covtype).
    """
    if Y.shape[1] == 1:
        F, Y = np.hstack([-F, F]), np.hstack([Y < 0, Y > 0])

    def scores(log_scale):
        P = softmax(np.exp(log_scale) * F, axis=1)
        return np.sum((P - Y) ** 2, axis=1)

    def score(log_scale):
        return np.average(scores(log_scale), weights=weights)

    best = minimize_scalar(score, bounds=(-5.0, 5.0), method="bounded").x
    frequencies = mean_of_targets(Y, weights)
    return scores(best) / ((1.0 - np.sum(frequencies**2)) or 1.0)


def _trained_rows(data):
    """Return the rows with weight, and one row of each class that has no such row."""
    rows = data.rows_with_weight()
    if data.groups is None or len(rows) == len(data.targets):
        return rows
    codes, first = np.unique(data.groups, return_index=True)
    return np.union1d(rows, first[~np.isin(codes, data.groups[rows])])


def _has_probabilities(model):
    if hasattr(getattr(model, "estimator_", model._inner()), "predict_proba"):
        return True
    raise AttributeError(
        "probabilities need an estimator that has them, such as NystromClassifier(); "
        f"got {model.estimator!r}"
    )


class _RecursiveFeatureMachine(
    ClassNamePrefixFeaturesOutMixin, TransformerMixin, MetaEstimatorMixin, Model
):
    _task = "round"
    _coef_attribute = "metric_root_"
    _takes_constant_targets = False  # its estimator does so
    _takes_tables = True
    _takes_less = ("n_centers", "max_metric_rows", "max_gradient_rows")
    #: Of a fit that goes on: the checkpoint of its parts, and what solves them.
    _checkpoint_of_parts, _cluster = None, Here()

    def __init__(
        self,
        estimator: Any = None,
        *,
        metric: str = "auto",
        max_rounds: int = 5,
        categorical_features: ArrayLike | str | None = "from_dtype",
        scaling: str | None = "auto",
        max_gradient_rows: int = 4000,
        max_metric_rows: int = 10_000,
        validation_fraction: float = 0.2,
        random_state: RandomState = None,
        verbose: int | bool = 0,
    ) -> None:
        keep_parameters(self, locals())

    def _inner(self):
        return self._default() if self.estimator is None else self.estimator

    @property
    def device(self):
        """The estimator's; "auto" if it has none."""
        return getattr(self._inner(), "device", "auto")

    def _check_parameters(self):
        estimator, of_labels = self._inner(), is_classifier(self)
        # A recursive feature machine has no parameter `kernel`.
        on_kernels = is_on_kernels(estimator) and hasattr(estimator, "kernel")
        if not on_kernels or is_classifier(estimator) != of_labels:
            kind = "a classifier" if of_labels else "a regressor"
            raise ValueError(
                f"estimator must be {kind} on kernels of eigenkern, such as "
                f"{self._default.__name__}(); got {estimator!r}"
            )
        if np.ndim(getattr(estimator, "quantile", 0.5)) == 1:
            raise ValueError(
                "estimator must predict one quantile, because one column per target "
                f"judges metrics; got quantile={estimator.quantile!r}: fit one "
                f"{type(self).__name__} for each"
            )
        kernel = estimator.kernel
        if is_precomputed(estimator) or not isinstance(kernel, str | Kernel):
            raise ValueError(
                "estimator must have a kernel by name or from eigenkern.kernels, "
                "because a metric is learned from its gradients; got "
                f"kernel={kernel!r}"
            )
        if isinstance(kernel, Kernel):
            kernel.slope()  # raises an error if there is none
        check_choice("metric", self.metric, ("auto", "diagonal", "full"))
        check_one_of("scaling", self.scaling, ("auto", *SCALINGS))
        check_number("max_rounds", self.max_rounds, 0, integer=True)
        check_number("max_gradient_rows", self.max_gradient_rows, 1, integer=True)
        check_number("max_metric_rows", self.max_metric_rows, 10, integer=True)
        check_number(
            "validation_fraction", self.validation_fraction, 0, 1, open_ends=True
        )

    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        X_val: ArrayLike | None = None,
        y_val: ArrayLike | None = None,
        sample_weight_val: ArrayLike | None = None,
        *,
        checkpoint: Checkpoint | str | PathLike[str] | None = None,
        resume: bool = False,
    ) -> Self:
        """Learn the metric, and fit the estimator to all rows with it.

        Parameters
        ----------
        X : array or DataFrame of shape (n_samples, n_features)
            Training rows; may hold missing values, and a DataFrame categories. Rows
            that are not in memory are read, for the default estimator.
        y : array of shape (n_samples,) or (n_samples, n_outputs)
            Targets; one label per row for a classifier.
        sample_weight : float or array of shape (n_samples,), default=None
            Nonnegative weights of the squared residuals.
        X_val, y_val : arrays, default=None
            Rows to compare the metrics on; None: `validation_fraction` of the rows are
            held out for this.
        sample_weight_val : float or array, default=None
            Weights of the rows of X_val.
        checkpoint : str, path or Checkpoint, default=None
            Folder to write the rounds so far to, once a minute or as often as a
            `Checkpoint` says; epochs are rounds here, and in the end parts of the rows.
        resume : bool, default=False
            Continue bit for bit from what is in that folder; start anew if it is empty.

        Returns
        -------
        self : object

        Raises
        ------
        ValueError
            If the data, a parameter or the folder is wrong; a model fitted before stays
            usable.
        MemoryError
            If memory runs out; the message says what needs less.
        OSError
            If the checkpoint folder cannot be written at the start; later that is a
            RuntimeWarning.

        Warns
        -----
        ConvergenceWarning
            If a round failed; the best metric before it is kept.
        """
        validation = X_val, y_val, sample_weight_val
        options = {"checkpoint": checkpoint, "resume": resume}
        return self._fit(X, y, sample_weight, *validation, **options)

    def __getstate__(self):
        # Copies that callbacks get during a fit have neither.
        inside = "_checkpoint_of_parts", "_cluster"
        return {k: v for k, v in super().__getstate__().items() if k not in inside}

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.categorical = True
        return tags

    def _frame_rows(self, X, reset):
        if reset:
            self._columns = Columns(X, self.categorical_features)
        return self._columns.rows_of(X)

    def _validate(self, X, y, sample_weight, *validation):
        """Return the validated data, with columns of numbers that are not scaled."""
        data = super()._validate(X, y, sample_weight, *validation)
        if is_lazy(data.X):
            data = self._read(data)
            self._columns = Columns(data.X, self.categorical_features)
        scalings = SCALINGS if self.scaling == "auto" else (self.scaling,)
        self._preparation = Preparation()
        X = self._preparation.fit(self._columns, data, scalings)
        if data.validation is not None:
            X_val, *others = data.validation
            if isinstance(X_val, FrameRows):
                self._columns.check(X_val.frame)
            X_val = self._preparation.encoded(X_val)
            data = replace(data, validation=(X_val, *others))
        return data if X is data.X else replace(data, X=X)  # with known ranks

    def _fit_to(self, data, callbacks, keeper):
        inside = {"_cluster": vars(self).pop("_cluster", Here())}
        if keeper is not None:
            inside["_checkpoint_of_parts"] = keeper.within("parts")
        with replaced_parameters(self, inside):
            return super()._fit_to(data, callbacks, keeper)

    def _holds_out(self, n):
        return True

    def _parts(self, n):
        return super()._parts(min(n, self.max_metric_rows))

    @property
    def _in_memory_unless(self):
        return None if self.estimator is None else "a sample of them"

    def _plan(self, shape):
        if is_lazy(shape.X):  # a stand-in, of which nothing is read
            zero = np.zeros((1, 1), shape.X.dtype)
            shape = replace(shape, X=np.broadcast_to(zero, shape.X.shape))

        def plan_of_fit(kernel, m):
            inner = clone(self._inner())
            if kernel is not None:
                inner.set_params(kernel=kernel[0], bandwidth=1.0)
            inner._check_parameters()
            return plan_of(inner, shape.X[:m, :], shape.n_outputs)

        return plan_of_rounds(shape, plan_of_fit)

    def _prepare(self, data):
        self._say("fitting the plain kernel")
        estimator = clone(self._inner())
        if getattr(estimator, "random_state", 0) is None:
            estimator.set_params(random_state=data.rng.randint(2**31 - 1))
        of_class = self._weights_of_classes(data.groups)
        by_class = None
        if of_class is not None:
            by_class = dict(zip(self.classes_.tolist(), of_class.tolist(), strict=True))
        problem = MetricProblem(self, estimator, data, by_class)
        rule = RoundRule(problem, self._n_iterations, self._tell)
        return problem, SavedRounds(problem, rule, problem.plan.n_rounds), {}, rule

    def _read(self, data):
        """Return data whose rows are in memory: all become centers of the model.

        The workers that had them can solve parts of the model.
        """
        self._cluster = getattr(data.X, "cluster", self._cluster)
        n, d = data.X.shape
        needed = 1e6 * plan_of(self, data.X, data.targets.shape[1]).memory["total"]
        needed += n * d * data.X.dtype.itemsize
        needs = f"a model with {n} rows as centers needs {needed / 1e6:.0f} MB"
        memory.check(needed, *location_of(data.X), needs, "pass a sample of the rows")
        return replace(data, X=in_memory(data.X))

    @property
    def _n_iterations(self):
        return 3 * self.max_rounds + 2

    def _progress(self):
        return None  # `_tell` shows the rounds

    def _tell(self, state, number):
        one, name = state.coef, "plain kernel"
        if one.kind is not None:
            start = ", second start" if one.second else ""
            name = f"{one.kind} metric{start}, round {number} of {self.max_rounds}"
        if state.converged:
            if one.kernel is not None:
                name += ", {}, bandwidth {:g} x median".format(*one.kernel)
            self._say(f"{name}: chosen, now fitted to all rows")
        else:
            error = "Brier score" if is_classifier(self) else "squared error"
            self._say(f"{name}: relative {error}, held-out rows, {one.error:.4g}")

    @property
    def metric_(self):
        """M = R R', shape (n_prepared, n_prepared)."""
        root = self.metric_root_
        if root.ndim == 2:
            return root @ root.T
        xp, d = namespace(root), root.shape[0]
        return root * root * xp.eye(d, dtype=root.dtype, device=device_of(root))

    @property
    def _n_features_out(self):
        return self.metric_root_.shape[0]

    def _gradients(self, X):
        """Return the gradients in columns of numbers, in their units."""
        if self._columns.categories:
            j = self._columns.categories[0]
            raise ValueError(
                f"gradients need columns of numbers, and column {column_name(self, j)} "
                "of X is a category: pass model.estimator_ and model.transform(X) for "
                "gradients along the columns of X R"
            )
        of_prepared = mapped_gradients(
            self.estimator_, self._prepared(X), self.metric_root_
        )
        return self._preparation.gradients(of_prepared, X, self.scaling_)

    def _prepared(self, X):
        """Return rows as prepared numbers, near the training rows, where X lives."""
        if is_lazy(X):
            return MappedRows(X, self._prepared, self._n_features_out)
        if isinstance(X, FrameRows):
            self._columns.check(X.frame)
        Z = prepared(self.preprocessor_, X)
        return self._near(move(Z, *location_of(X)))

    def _near(self, X):
        """Return rows with entries cut off that are far from the training rows."""
        frame = (cast(values, X.dtype) for values in (self._offset, self._limits))
        return without_far_values(X, *frame)

    def _warn_of_far_values(self, X):
        self._preparation.warn_of_cutoffs(self, X)

    def _values(self, X, method):
        return self._of_mapped(
            X, method, lambda X_R: self.estimator_._values(X_R, method)
        )

    def _fitted_values(self, X):
        X = self._preparation.scaled(X, self.scaling_)
        return self.estimator_._fitted_values(mapped(X, self.metric_root_))

    def _of_mapped(self, X, method, function=None, *, rows_too=False):
        """Return a method of the estimator, or a function, of the rows of X R.

        If `rows_too`, the second argument of the function is the rows of X.
        """
        X = check_rows(self, X, method)
        function = function or getattr(self.estimator_, method)

        def values(rows):
            given = (rows,) if rows_too else ()
            rows = self._prepared(rows)
            F = function(mapped(rows, self.metric_root_), *given)
            check_values(F, rows)
            return F

        return by_rows(values, X)

    @on_its_device
    def transform(self, X: ArrayLike) -> Any:
        """Return X R: features whose Euclidean distance is that of the metric.

        X is prepared by `preprocessor_` first.

        Parameters
        ----------
        X : array or DataFrame of shape (n_samples, n_features)

        Returns
        -------
        X_R : array of shape (n_samples, n_prepared)
        """
        return self._of_mapped(X, "transform", lambda X_R: X_R)


class RFMRegressor(RegressionTargets, _RecursiveFeatureMachine):
    """Recursive feature machine: kernel regression that learns its metric.

    A kernel of distances weights all features alike. Here the gradients of a fitted
    model show with which features, or along which directions, it changes most, and the
    next model uses distances that weight these most. This helps on tables whose
    features matter unequally; held-out rows decide whether and how often to learn the
    metric.

    Parameters
    ----------
    estimator : estimator, default=None
        A regressor on kernels of this package, to clone and fit; see Notes for None.
        `DSGRegressor` needs a kernel other than its laplacian, whose random features
        have gradients of unbounded variance.
    metric : {"auto", "diagonal", "full"}, default="auto"
        What to learn. "diagonal": a weight for each feature. "full": any linear map of
        the features, for when directions other than the axes matter. "auto": try both,
        but with more than 1000 features only "diagonal".
    max_rounds : int, default=5
        Maximum number of times to learn a metric of each kind, from each start (see
        Notes). A kind is given up after two rounds that do not improve the error on the
        held-out rows. 0: the estimator as it is, on the features as they are prepared.
    categorical_features : "from_dtype", array-like or None, default="from_dtype"
        Columns that are categories. "from_dtype": columns of text and of a categorical
        data type in a DataFrame of pandas or polars, and none in an array. Or names or
        indices of columns, or a boolean mask of them; None: there are none. See Notes.
    scaling : {"auto", "standard", "normal", "robust"} or None, default="auto"
        How to scale the other columns. "standard": to mean 0 and deviation 1. "normal":
        by their ranks, to a normal distribution, for skewed columns. "robust": to
        median 0 and quartiles of a normal distribution, with values smoothly clipped at
        3. None: as they are, for columns that share a unit, such as pixels. "auto": the
        held-out rows choose; "standard", or for columns with long tails "robust",
        unless another is clearly better.
    max_gradient_rows : int, default=4000
        Maximum number of rows to average the gradients over.
    max_metric_rows : int, default=10000
        Maximum number of rows to learn the metric on, including the held-out ones: it
        bounds the cost of learning. Only the last fit uses all rows.
    validation_fraction : float, default=0.2
        Fraction of these rows to hold out. The model is refitted to all rows, so the
        default is more than the 0.1 of `EigenProRegressor`, which is not.
    random_state : int, RandomState instance or None, default=None
        Controls what is drawn at random: rows to learn on, and to hold out; the seed of
        an estimator without one. Pass an int for reproducible results.
    verbose : int, default=0
        1 shows a line for each round: the squared error, or for classes the Brier
        score, on the held-out rows, relative to that of a constant. Then one for each
        part of the rows, if there are several.

    Attributes
    ----------
    preprocessor_ : ColumnTransformer
        Fitted; its ``transform`` prepares the columns of X, and its
        ``get_feature_names_out`` names the prepared ones.
    scaling_ : {"standard", "normal", "robust"} or None
        The chosen scaling; None also if there are no columns of numbers.
    metric_root_ : array of shape (n_prepared,) or (n_prepared, n_prepared)
        R, or its diagonal, for the prepared columns; distances are those of X R, where
        X is prepared. The mean of the eigenvalues of R R' is 1.
    metric_ : array of shape (n_prepared, n_prepared)
        M = R R'.
    feature_importances_ : array of shape (n_features,)
        Share of each column of X, as it was passed, in the squared gradients of the
        model, in units of the prepared columns that come from it; those of levels and
        gaps times their variances. The sum is 1. If they differ much from seed to seed,
        as on tables of some hundred rows, take the mean over several.
    estimator_ : estimator
        Fitted to all rows of X R, where X is prepared; predicts like the default
        estimator if it consists of several parts.
    n_parts_ : int
        Number of parts that the rows were divided into for this fit; see Notes.
    metric_kind_ : {"diagonal", "full"} or None
        Kind of the chosen metric; None: the plain kernel, ``metric_`` is the identity.
    n_rounds_ : int
        Number of rounds that led to the chosen metric, of both kinds; those without a
        penalty count, too.
    validation_scores_ : dict of lists
        For every round: "metric", "round" and "score", R^2 on the held-out rows.
    n_features_in_ : int
        Number of features of X.
    feature_names_in_ : ndarray of shape (n_features,)
        Their names, if X has string names.

    See Also
    --------
    RFMClassifier : The same for labels.
    EigenProRegressor : The kernel machine without a learned metric.
    eigenkern.inspection.average_gradient_outer_product : M of any kernel model.
    MetricDisplay : Plots of the metric.
    NystromRegressor : Another model to learn a metric with.

    Notes
    -----
    A round takes a fit to up to 8000 rows; the gradients, at most 4000 x 8000 x l (d +
    1) multiply-adds for d features and l outputs (at most 10); and for "full" an
    eigendecomposition of a d x d matrix. Memory in addition to that of a fit: a copy of
    X, and three matrices of d^2 numbers for "full".

    The default estimator is ``EigenProRegressor()``, which chooses its penalty. The
    metric is learned with the laplacian and a bandwidth of four times the median
    distance. At the end this is compared, on half of the rows, with `matern32` of one,
    two and four times the median, and R with its power 0.7: a smoother kernel and a
    softer metric often suit each other. With up to 50 features, `manhattan` with the
    best diagonal metric is compared too: it suits tables whose features act one by one.

    A penalty that suits the plain kernel can hide a function of a few among many
    features. So if the first kind of metric leaves more than half of the error of a
    constant, there is a second start: up to five rounds on half of the rows without a
    penalty, which are not scored, and then rounds as before.

    Standard deviations are those of the Gaussian process whose mean is the model, on at
    most 1000 rows, scaled to agree with the residuals of up to 1000 rows left out one
    by one, and larger or smaller where these are; far from all rows they are that of
    the targets. Copies of a row count as one row with their total weight, and a
    `sample_weight` counts as the inverse of the noise's variance. An estimator that is
    not solved directly is measured on the held-out rows, if there are 20 rows or more;
    `NystromRegressor` returns its own standard deviations (with the scalings "normal"
    and "robust" no row is far for it), and quantiles have none. A model keeps 8 MB for
    them.

    The full metric starts from the best diagonal one.

    X may hold NaN, and a DataFrame text, categories, booleans and missing values. A
    category becomes a column of zeros and ones for each of its levels, a missing value
    among them; with more than 30 levels, their mean target, which `TargetEncoder` takes
    from other rows, or for more than ten targets the most frequent levels. Booleans are
    numbers. A gap in a column of numbers becomes its median, and another column marks
    it; a gap that is new in `predict` becomes the median, an unknown level zeros, or
    the mean target. Columns are scaled by the distinct rows of nonzero weight. Dates
    and nested columns are errors, and so is text in an array. All arrays are prepared
    on the host.

    More than some 8000 rows are divided for the last fit of the default estimator: in
    halves along the direction in which the rows of X R vary most, until all are small.
    A tenth of the rows belongs to both halves, between which values are blended. Each
    part is solved directly, with a penalty of its own. A given estimator is fitted to
    all rows.

    References
    ----------
    Radhakrishnan, Beaglehole, Pandit and Belkin, "Mechanism for feature learning in
    neural networks and backpropagation-free machine learning models", Science 2024.
    Beaglehole et al., "xRFM: accurate, scalable, and interpretable feature learning
    models for tabular data", ICLR 2026 (arXiv:2508.10053).

    Examples
    --------
    >>> from sklearn.datasets import make_friedman1
    >>> from eigenkern import RFMRegressor
    >>> X, y = make_friedman1(n_samples=1000, noise=0.1, random_state=0)
    >>> model = RFMRegressor(random_state=0).fit(X[:800], y[:800])
    >>> model.score(X[800:], y[800:]) > 0.98
    True
    >>> sorted(model.feature_importances_.argsort()[-5:].tolist())
    [0, 1, 2, 3, 4]

    Intervals that hold 90 % of such targets, for the last rows:

    >>> y_mean, y_std = model.predict(X[800:], return_std=True)
    >>> inside = abs(y[800:] - y_mean) < 1.645 * y_std
    >>> bool(inside.mean() > 0.85)
    True
    """

    _default, _local = EigenProRegressor, LocalRegressor

    @on_its_device
    def predict(self, X: ArrayLike, return_std: bool = False) -> Any:
        """Predict the targets of the rows of X, and how far they may be off.

        Parameters
        ----------
        X : array of shape (n_samples, n_features)
            Rows.
        return_std : bool, default=False
            Whether to return the standard deviation of a new target, too, its noise
            included: ``y_mean +- 1.645 y_std`` is a 90 % interval for the target, if it
            has the mean weight. Takes at most 500 000 multiply-adds per row.

        Returns
        -------
        y_mean : array of shape (n_samples,) or (n_samples, n_outputs)
        y_std : array of shape (n_samples,) or (n_samples, n_outputs)
            With `return_std`.

        Raises
        ------
        ValueError
            If `return_std` is requested, but the estimator has no standard deviations:
            see Notes.
        """
        y_mean = super().predict(X)
        if not return_std:
            return y_mean
        return y_mean, self._of_mapped(X, "predict", self._deviation, rows_too=True)

    def _deviation(self, X_R, rows):
        """Return the standard deviations of new targets of rows and their X R."""
        model, bars = self.estimator_, self._error_bars
        if getattr(model, "_has_variance", False):
            return model.predict(X_R, return_std=True)[1]
        if bars is None:
            raise ValueError(
                "return_std needs rows that were left out: an estimator that predicts "
                "means, as the default does, and 20 rows or more unless that is solved "
                f"directly; got estimator={self.estimator!r}. DSGRegressor predicts "
                "quantiles by itself"
            )
        F = model._values(X_R, "predict")
        # Scalings that bound the columns move far rows to the edge of the others.
        away = self._preparation.beyond(rows, self.scaling_)
        if away.any():
            away = move(away.astype(to_numpy(X_R[:0, :]).dtype), *location_of(X_R))
            X_R = X_R + mapped(away, self.metric_root_)
        deviation = bars.deviation(X_R, F, self.device)
        return deviation[:, 0] if self._one_dimensional else deviation


class RFMClassifier(ClassificationTargets, _RecursiveFeatureMachine):
    """Recursive feature machine: kernel classification that learns its metric.

    A kernel of distances weights all features alike. Here the gradients of a fitted
    model show with which features, or along which directions, it changes most, and the
    next model uses distances that weight these most. This helps on tables whose
    features matter unequally; held-out rows decide whether and how often to learn the
    metric.

    Parameters
    ----------
    estimator : estimator, default=None
        A classifier on kernels of this package, to clone and fit; see Notes for None.
        `DSGClassifier` needs a kernel other than its laplacian, whose random features
        have gradients of unbounded variance.
    metric : {"auto", "diagonal", "full"}, default="auto"
        What to learn. "diagonal": a weight for each feature. "full": any linear map of
        the features, for when directions other than the axes matter. "auto": try both,
        but with more than 1000 features only "diagonal".
    max_rounds : int, default=5
        Maximum number of times to learn a metric of each kind, from each start (see
        Notes). A kind is given up after two rounds that do not improve the error on the
        held-out rows. 0: the estimator as it is, on the features as they are prepared.
    categorical_features : "from_dtype", array-like or None, default="from_dtype"
        Columns that are categories. "from_dtype": columns of text and of a categorical
        data type in a DataFrame of pandas or polars, and none in an array. Or names or
        indices of columns, or a boolean mask of them; None: there are none. See Notes.
    scaling : {"auto", "standard", "normal", "robust"} or None, default="auto"
        How to scale the other columns. "standard": to mean 0 and deviation 1. "normal":
        by their ranks, to a normal distribution, for skewed columns. "robust": to
        median 0 and quartiles of a normal distribution, with values smoothly clipped at
        3. None: as they are, for columns that share a unit, such as pixels. "auto": the
        held-out rows choose; "standard", or for columns with long tails "robust",
        unless another is clearly better.
    max_gradient_rows : int, default=4000
        Maximum number of rows to average the gradients over.
    max_metric_rows : int, default=10000
        Maximum number of rows to learn the metric on, including the held-out ones: it
        bounds the cost of learning. Only the last fit uses all rows.
    validation_fraction : float, default=0.2
        Fraction of these rows to hold out, the same from every class. The model is
        refitted to all rows, so the default is more than the 0.1 of
        `EigenProClassifier`, which is not.
    class_weight : dict, "balanced" or None, default=None
        Weights of the classes, multiplied by `sample_weight`.
    random_state : int, RandomState instance or None, default=None
        Controls what is drawn at random: rows to learn on, and to hold out; the seed of
        an estimator without one. Pass an int for reproducible results.
    verbose : int, default=0
        1 shows a line for each round: the squared error, or for classes the Brier
        score, on the held-out rows, relative to that of a constant. Then one for each
        part of the rows, if there are several.

    Attributes
    ----------
    preprocessor_ : ColumnTransformer
        Fitted; its ``transform`` prepares the columns of X, and its
        ``get_feature_names_out`` names the prepared ones.
    scaling_ : {"standard", "normal", "robust"} or None
        The chosen scaling; None also if there are no columns of numbers.
    metric_root_ : array of shape (n_prepared,) or (n_prepared, n_prepared)
        R, or its diagonal, for the prepared columns; distances are those of X R, where
        X is prepared. The mean of the eigenvalues of R R' is 1.
    metric_ : array of shape (n_prepared, n_prepared)
        M = R R'.
    feature_importances_ : array of shape (n_features,)
        Share of each column of X, as it was passed, in the squared gradients of the
        model, in units of the prepared columns that come from it; those of levels and
        gaps times their variances. The sum is 1. If they differ much from seed to seed,
        as on tables of some hundred rows, take the mean over several.
    estimator_ : estimator
        Fitted to all rows of X R, where X is prepared; predicts like the default
        estimator if it consists of several parts.
    n_parts_ : int
        Number of parts that the rows were divided into for this fit; see Notes.
    metric_kind_ : {"diagonal", "full"} or None
        Kind of the chosen metric; None: the plain kernel, ``metric_`` is the identity.
    n_rounds_ : int
        Number of rounds that led to the chosen metric, of both kinds; those without a
        penalty count, too.
    validation_scores_ : dict of lists
        For every round: "metric", "round" and "score", 1 minus the Brier score on the
        held-out rows over that of the class frequencies; probabilities are the softmax
        of the values times the best constant.
    classes_ : ndarray of shape (n_classes,)
        Labels; a NumPy array even if X comes from another library.
    n_features_in_ : int
        Number of features of X.
    feature_names_in_ : ndarray of shape (n_features,)
        Their names, if X has string names.

    See Also
    --------
    RFMRegressor : The same for real targets.
    EigenProClassifier : The kernel machine without a learned metric.
    eigenkern.inspection.average_gradient_outer_product : M of any kernel model.
    MetricDisplay : Plots of the metric.
    NystromClassifier : Another model to learn a metric with.

    Notes
    -----
    A round takes a fit to up to 8000 rows; the gradients, at most 4000 x 8000 x l (d +
    1) multiply-adds for d features and l outputs (at most 10); and for "full" an
    eigendecomposition of a d x d matrix. Memory in addition to that of a fit: a copy of
    X, and three matrices of d^2 numbers for "full".

    The default estimator is ``EigenProClassifier()``, which chooses its penalty. The
    metric is learned with the laplacian and a bandwidth of four times the median
    distance. At the end this is compared, on half of the rows, with `matern32` of one,
    two and four times the median, and R with its power 0.7: a smoother kernel and a
    softer metric often suit each other.

    A penalty that suits the plain kernel can hide a function of a few among many
    features. So if the first kind of metric leaves more than half of the error of a
    constant, there is a second start: up to five rounds on half of the rows without a
    penalty, which are not scored, and then rounds as before.

    The full metric starts from the best diagonal one.

    X may hold NaN, and a DataFrame text, categories, booleans and missing values. A
    category becomes a column of zeros and ones for each of its levels, a missing value
    among them; with more than 30 levels, their mean target, which `TargetEncoder` takes
    from other rows, or for more than ten targets the most frequent levels. Booleans are
    numbers. A gap in a column of numbers becomes its median, and another column marks
    it; a gap that is new in `predict` becomes the median, an unknown level zeros, or
    the mean target. Columns are scaled by the distinct rows of nonzero weight. Dates
    and nested columns are errors, and so is text in an array. All arrays are prepared
    on the host.

    More than some 8000 rows are divided for the last fit of the default estimator: in
    halves along the direction in which the rows of X R vary most, until all are small.
    A tenth of the rows belongs to both halves, between which values are blended. Each
    part is solved directly, with a penalty of its own. A given estimator is fitted to
    all rows.

    References
    ----------
    Radhakrishnan, Beaglehole, Pandit and Belkin, "Mechanism for feature learning in
    neural networks and backpropagation-free machine learning models", Science 2024.
    Beaglehole et al., "xRFM: accurate, scalable, and interpretable feature learning
    models for tabular data", ICLR 2026 (arXiv:2508.10053).

    Examples
    --------
    >>> from sklearn.datasets import make_classification
    >>> from eigenkern import RFMClassifier
    >>> X, y = make_classification(
    ...     1000, 10, n_informative=3, n_redundant=0, shuffle=False, random_state=0
    ... )
    >>> model = RFMClassifier(random_state=0).fit(X[:800], y[:800])
    >>> model.score(X[800:], y[800:]) > 0.7  # 0.61 of the plain kernel
    True
    >>> sorted(model.feature_importances_.argsort()[-3:].tolist())
    [0, 1, 2]
    """

    _default, _local = EigenProClassifier, LocalClassifier

    def __init__(
        self,
        estimator: Any = None,
        *,
        metric: str = "auto",
        max_rounds: int = 5,
        categorical_features: ArrayLike | str | None = "from_dtype",
        scaling: str | None = "auto",
        max_gradient_rows: int = 4000,
        max_metric_rows: int = 10_000,
        validation_fraction: float = 0.2,
        class_weight: Mapping[Any, float] | str | None = None,
        random_state: RandomState = None,
        verbose: int | bool = 0,
    ) -> None:
        keep_parameters(self, locals())

    def _prepare(self, data):
        data = data.without_class_weights()  # only the last fit has them
        return super()._prepare(replace(data, labels=self.classes_[data.labels]))

    @available_if(_has_probabilities)
    @on_its_device
    def predict_proba(self, X: ArrayLike) -> Any:
        """Return the probabilities of the classes; the estimator must have them.

        Parameters
        ----------
        X : array of shape (n_samples, n_features)

        Returns
        -------
        P : array of shape (n_samples, n_classes)
            Columns in the order of `classes_`.
        """
        return self._of_mapped(X, "predict_proba")

    @available_if(_has_probabilities)
    @on_its_device
    def predict_log_proba(self, X: ArrayLike) -> Any:
        """Return the logarithms of the probabilities of the classes.

        Parameters
        ----------
        X : array of shape (n_samples, n_features)

        Returns
        -------
        log_P : array of shape (n_samples, n_classes)
            Columns in the order of `classes_`.
        """
        return self._of_mapped(X, "predict_log_proba")
