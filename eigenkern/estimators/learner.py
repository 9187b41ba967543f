"""What EigenPro 3 and 4 learn with, on given rows or from a stream."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..problems.data import Data
from ..problems.general import GeneralProblem
from ..problems.problem import weighted_mean_square
from ..solvers.projected import Iterate, projected
from ..solvers.projection import CenterFactor, ExactProjection
from ..tuning.projection import (
    factor_if_cheaper,
    make_projection,
    projection_interval,
)
from ..tuning.sizes import MIN_ROWS, auto_batch_size, check_at_most, max_batch_size
from ..tuning.step import Tuning, tune_on_centers
from .epochs import EpochRule
from .streaming import WORSE, are_unlike
from .tuned import tuned_attributes
from .validation import warn_user

# Rows per center assumed for a stream of unknown length: more would change no decision.
# A Cholesky factor, p^3 / 6 multiply-adds, then pays up to at least p = 1800 (d + l)
# centers (`factor_pays`): 18 000 if d + l = 10, where it takes 5 GB.
_STREAM_ROWS_PER_CENTER = 100
# Relative residual of projections above which to warn: less than half is solved.
_LARGEST_RESIDUAL = 0.5
# Estimator parameters that a learner depends on.
_PARAMETERS = (
    "algorithm",
    "alpha",
    "n_components",
    "subsample_size",
    "batch_size",
    "step_size",
    "damping",
    "cache_size",
    "device",
)


def n_learned_rows(centers, n_rows=float("inf"), n_epochs=1):
    """Return the number of rows to be learned, up to where more change no decision."""
    return min(n_rows * n_epochs, _STREAM_ROWS_PER_CENTER * centers.shape[0])


def chosen_interval(estimator, centers, factor, batch_size, n_features, n_outputs):
    """Return T, the number of batches between projections; `factor` may be None."""
    if estimator.algorithm == "eigenpro3":
        return 1
    return projection_interval(centers, factor, batch_size, n_features, n_outputs)


@dataclass
class Learner:
    """Projection, preconditioner, step and iterate of a model on centers.

    Attributes
    ----------
    problem : GeneralProblem or None
        The problem of all rows, or of the first ones of a stream; None after
        unpickling, see `revived`.
    tuning : Tuning
    project : ExactProjection, InexactProjection or None
    interval : int
        T, the number of batches between projections.
    iterate : Iterate
    parameters : list
        Estimator parameters that it was made with.
    alpha : float
        The penalty.
    n_halvings : int
        How often the step was halved.
    pickled : dict or None
        The pickled parts of problem and projection.
    """

    problem: GeneralProblem
    tuning: Tuning
    project: Any
    interval: int
    iterate: Iterate
    parameters: list
    alpha: float = 0.0
    n_halvings: int = 0
    pickled: dict | None = None

    def __getstate__(self):
        # Problem and projection are large, and are made again when needed.
        if self.problem is None:
            return vars(self)
        names = "intercept", "weight_scale", "zero_loss"
        pickled = {
            "problem": {name: getattr(self.problem, name) for name in names},
            "exact": isinstance(self.project, ExactProjection),
            "residuals": self.project.save(),
        }
        return vars(self) | {"problem": None, "project": None, "pickled": pickled}

    def revived(self, estimator, data):
        """Return the learner, restored from its pickle, to learn more rows."""
        pickled, P = self.pickled, self.tuning.preconditioner
        problem = GeneralProblem(
            data,
            np.arange(0),
            None,
            kernel=estimator.kernel_,
            centers=estimator.centers_,
            device=estimator.device,
            **pickled["problem"],
        )
        centers, d = problem.center_matrix, problem.n_features
        factor = CenterFactor(centers) if pickled["exact"] else None
        n_learned, cache_size = n_learned_rows(centers), estimator.cache_size
        project = make_projection(centers, factor, P, d, n_learned, cache_size)
        project.load(pickled["residuals"])
        return replace(self, problem=problem, project=project)

    @classmethod
    def make(
        cls,
        estimator,
        problem,
        alpha,
        coef=None,
        *,
        n_rows=float("inf"),
        n_epochs=1,
        batch_size=None,
    ):
        """Return the learner for a problem, choosing what the estimator leaves open.

        Parameters
        ----------
        estimator : EigenProRegressor or EigenProClassifier
        problem : GeneralProblem
        alpha : float
        coef : array of shape (p, l), default=None
            Coefficients to start from. None: zero.
        n_rows : float, default=inf
            Rows of an epoch; infinite for a stream.
        n_epochs : int, default=1
        batch_size : int, default=None
            None: that of the estimator, or chosen if that is "auto".
        """
        centers, d = problem.center_matrix, problem.n_features
        p, n_outputs = centers.shape[0], problem.targets.shape[1]
        n_learned = n_learned_rows(centers, n_rows, n_epochs)
        cache_size = estimator.cache_size
        factor = factor_if_cheaper(centers, d, n_outputs, n_learned, cache_size)
        largest = max_batch_size(
            centers,
            d,
            n_outputs,
            n_rows=min(n_rows, 1e9),
            n_machines=problem.n_machines,
            message_seconds=problem.message_seconds,
        )
        m = estimator.batch_size if batch_size is None else batch_size
        if m == "auto":
            # With fewer centers than rows a residual remains, and larger batches reduce
            # its noise. For a stream, the first rows determine the size.
            m = auto_batch_size(largest, problem.n_rows, MIN_ROWS)
        else:
            check_at_most("batch_size", m, n_rows, "training rows")
        interval = chosen_interval(estimator, centers, factor, m, d, n_outputs)
        # Steps may be longer if each is projected.
        every_step = factor is not None and interval == 1 and p <= problem.n_rows
        sample, weights = problem.sample(factor.whiten if every_step else None)
        tuning = tune_on_centers(
            centers,
            sample,
            n_rows,
            weights=weights,
            subsample_size=estimator.subsample_size,
            n_components=estimator.n_components,
            batch_size=m,
            max_batch_size=largest,
            step_size=estimator.step_size,
            damping=estimator.damping,
        )
        P = tuning.preconditioner
        project = make_projection(centers, factor, P, d, n_learned, cache_size)
        iterate = Iterate.of(problem.initial_coef() if coef is None else coef)
        parameters = [getattr(estimator, name) for name in _PARAMETERS]
        return cls(problem, tuning, project, interval, iterate, parameters, alpha)

    def suits(self, estimator):
        """Whether the learner was made with the parameters of this estimator."""
        return self.parameters == [getattr(estimator, name) for name in _PARAMETERS]

    def solver(self, next_epoch, **options):
        """Return `projected` on batches, starting from the iterate."""
        return projected(
            next_epoch,
            self.problem.center_matrix,
            self.tuning.preconditioner,
            self.project,
            iterate=self.iterate,
            batch_size=self.tuning.batch_size,
            interval=self.interval,
            step_size=self.tuning.step_size,
            zero_loss=self.problem.zero_loss,
            alpha=self.alpha,
            n_halvings=self.n_halvings,
            **options,
        )

    def gone_on(self, next_epoch, state):
        """Return the solver that continues from a state, with its step."""
        learner = replace(self, n_halvings=state.n_step_halvings)
        return learner.solver(next_epoch, try_half_steps=False)

    def chosen_attributes(self):
        """Return the fitted attributes of what was chosen."""
        return tuned_attributes(self.tuning, self.problem) | {
            "alpha_": self.alpha,
            "projection_interval_": self.interval,
        }

    def learned_attributes(self):
        """Return the fitted attributes of the current model."""
        return self.problem.fitted_attributes(self.iterate.mean) | {
            "t_": self.iterate.n_projections,
            "projection_residual_": self.project.residual,
        }


class WatchedRounds:
    """Rounds of batches from a stream, each judged on retained rows.

    If the targets of a batch are unlike those so far, as many retained rows are learned
    instead. If a round has made the model worse, the model goes back to the best one.

    Parameters
    ----------
    stream : Stream
    learner : Learner
    retained : Retained
        Made from the first rows of the stream.
    n_batches : int
        Batches in a round.
    """

    def __init__(self, stream, learner, retained, n_batches):
        self._stream, self._learner, self._retained = stream, learner, retained
        self._n_batches, self._best = n_batches, learner.iterate.copy()

    def next_round(self):
        """Return the batches of a round, after judging the last one."""
        self.end()
        return self._batches()

    def end(self):
        """Go back to the best iterate, unless the last one is nearly as good."""
        iterate = self._learner.iterate
        loss, least = self._loss(iterate), self._loss(self._best)
        if loss <= least:
            self._best = iterate.copy()
        elif not loss <= WORSE * least:
            iterate.go_to(self._best)

    def _batches(self):
        m = self._learner.tuning.batch_size
        for X, Y, weights in self._stream.batches(m, self._n_batches):
            self._retained = self._retained.plus(Data(X, Y, Y, weights, None))
            judges = self._retained.judges
            pairs = (Y, judges.targets), (weights, judges.weights)
            if len(Y) > 1 and weights.any() and are_unlike(*pairs):
                drawn = self._retained.draw(len(Y))
                X, Y, weights = drawn.X, drawn.targets, drawn.weights
            yield self._learner.problem.batch(X, Y, weights)

    def _loss(self, iterate):
        judges, problem = self._retained.judges, self._learner.problem
        batch = problem.batch(judges.X, judges.targets, judges.weights)
        residual = batch.operator @ iterate.mean - batch.targets
        return weighted_mean_square(residual, batch.weights)


class ProjectedRule(EpochRule):
    """The rule of epochs that also warns if projections were inaccurate."""

    def fitted_attributes(self, interrupted=False):
        """Return the attributes of the model and of the epochs."""
        attributes = super().fitted_attributes(interrupted)
        warn_of_projections(self._name, attributes)
        return attributes


def warn_of_projections(name, attributes):
    """Warn if the projections of a fit were too inaccurate."""
    residual = attributes["projection_residual_"]
    if residual > _LARGEST_RESIDUAL:
        warn_user(
            f"{name} did not solve the system of the centers: a "
            f"relative residual of {residual:.2g} was left, on average; pass a "
            "larger cache_size, for a Cholesky factor, or fewer centers"
        )
