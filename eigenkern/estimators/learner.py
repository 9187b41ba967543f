"""What EigenPro 3 and 4 learn with, on rows at hand or in a stream."""

from dataclasses import dataclass, replace
from typing import Any

from ..problems.general import GeneralProblem
from ..solvers.projected import Iterate, projected
from ..solvers.projection import (
    factor_if_cheaper,
    make_projection,
    projection_interval,
)
from ..tuning.sizes import MIN_ROWS, check_at_most, max_batch_size
from ..tuning.step import Tuning, tune_on_centers
from .training import EpochRule
from .tuned import tuned_attributes
from .validation import warn_user

# Rows per center assumed for a stream of unknown length: more change no decision.
_LONG = 100
# Relative residual of a projection that is worth a warning: less than half is solved.
_LARGEST_RESIDUAL = 0.5
# Parameters that it depends on.
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


@dataclass
class Learner:
    """Projection, preconditioner and step of a model on centers, and where it is.

    Attributes
    ----------
    problem : GeneralProblem
        Of all rows, or of the first ones.
    tuning : Tuning
    project : ExactProjection or InexactProjection
    interval : int
        T, batches between projections.
    iterate : Iterate
    parameters : list
        Of the estimator, that it was made with.
    alpha : float
        The penalty.
    n_halvings : int
        How often the step was halved.
    """

    problem: GeneralProblem
    tuning: Tuning
    project: Any
    interval: int
    iterate: Iterate
    parameters: list
    alpha: float = 0.0
    n_halvings: int = 0

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
    ):
        """Return the learner for a problem, with what the estimator leaves to choose.

        Parameters
        ----------
        estimator : EigenProRegressor or EigenProClassifier
        problem : GeneralProblem
        alpha : float
        coef : array of shape (p, l), default=None
            Where to start. None: at zero.
        n_rows : float, default=inf
            Rows of an epoch; infinite for a stream.
        n_epochs : int, default=1
        """
        centers, d = problem.center_matrix, problem.n_features
        p, n_outputs = centers.shape[0], problem.targets.shape[1]
        n_learned, cache_size = min(n_rows * n_epochs, _LONG * p), estimator.cache_size
        factor = factor_if_cheaper(centers, d, n_outputs, n_learned, cache_size)
        largest = problem.n_machines * max_batch_size(
            centers, d, n_outputs, n_rows=min(n_rows, 1e9)
        )
        largest = int(min(largest, n_rows))
        m = estimator.batch_size
        if m == "auto":
            # Fewer centers than rows leave a residual, whose noise larger batches
            # lower. Of a stream as many as of the rows that come first.
            m = min(largest, max(problem.n_rows // 8, min(problem.n_rows, MIN_ROWS)))
        else:
            check_at_most("batch_size", m, n_rows, "training rows")
        interval = 1
        if estimator.algorithm != "eigenpro3":
            interval = projection_interval(centers, factor, m, d, n_outputs)
        # What is projected at once may take longer steps.
        at_once = factor is not None and interval == 1 and p <= problem.n_rows
        sample, weights = problem.sample(factor.whiten if at_once else None)
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
        """Whether the parameters are those that this was made with."""
        return self.parameters == [getattr(estimator, name) for name in _PARAMETERS]

    def solver(self, next_epoch, **options):
        """Return `projected` on batches, from the iterate on."""
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
        """Return the solver of further epochs from a state on, with its step."""
        learner = replace(self, n_halvings=state.n_step_halvings)
        return learner.solver(next_epoch, try_half_steps=False)

    def chosen_attributes(self):
        """Return the fitted attributes that tell what was chosen."""
        return tuned_attributes(self.tuning, self.problem) | {
            "alpha_": self.alpha,
            "projection_interval_": self.interval,
        }

    def learned_attributes(self):
        """Return those of the model, where the iteration is."""
        return self.problem.fitted_attributes(self.iterate.mean) | {
            "t_": self.iterate.n_projections,
            "projection_residual_": self.project.residual,
        }


class ProjectedRule(EpochRule):
    """The rule of epochs, which warns if the projections were none."""

    def fitted_attributes(self, interrupted=False):
        """Return those of the model, and of the epochs."""
        attributes = super().fitted_attributes(interrupted)
        warn_of_projections(self._name, attributes)
        return attributes


def warn_of_projections(name, attributes):
    """Warn if the projections of a fit were no projections."""
    residual = attributes["projection_residual_"]
    if residual > _LARGEST_RESIDUAL:
        warn_user(
            f"{name} did not solve the system of the centers: a "
            f"relative residual of {residual:.2g} was left, on average; pass a "
            "larger cache_size, for a Cholesky factor, or fewer centers"
        )
