"""The Falkon-like baseline: preconditioned conjugate gradients on centres."""

import warnings
from functools import partial
from itertools import islice

from ._base import (
    ClassificationTargets,
    ConvergenceWarning,
    KernelModel,
    RegressionTargets,
    check_number,
)
from ._operator import fill_caches
from .preconditioners import TwoCholesky
from .solvers.conjugate_gradient import conjugate_gradient
from .solvers.nystrom import Whitening, check_finite


class _Falkon(KernelModel):
    def __init__(
        self,
        kernel="laplacian",
        *,
        bandwidth="median",
        n_centers=None,
        centers="uniform",
        alpha=1e-6,
        max_iter=20,
        tol=1e-7,
        warm_start=False,
        cache_size="auto",
        device="auto",
        random_state=None,
        verbose=0,
    ):
        self.kernel = kernel
        self.bandwidth = bandwidth
        self.n_centers = n_centers
        self.centers = centers
        self.alpha = alpha
        self.max_iter = max_iter
        self.tol = tol
        self.warm_start = warm_start
        self.cache_size = cache_size
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    def _check_parameters(self):
        check_number("alpha", self.alpha, 0)
        check_number("max_iter", self.max_iter, 1, integer=True)
        check_number("tol", self.tol, 0)

    def _max_subtasks(self):
        return self.max_iter

    def _solve(self, data, context, given):
        problem = self._make_center_problem(data, one_matrix=False)
        K_mm = problem.center_matrix()
        check_finite(K_mm)
        whitening = Whitening.of(K_mm, problem.dtype)
        kept, rows, xp = whitening.kept, problem.train, problem.xp
        del K_mm
        preconditioner = TwoCholesky.of(
            whitening.L, self.alpha, problem.weights_of_centers(kept)
        )
        operator = problem.operator(rows, kept)
        cached = fill_caches(
            [operator], self.cache_size, 2 * self.max_iter, problem.n_features
        )
        weight = float(xp.sum(rows.weights))
        mean = rows.weights @ rows.targets / weight

        def gradient(b, targets):
            """Return R' K_nm' W (K_nm R b - targets) / N."""
            coef = preconditioner.expand(b)
            g = operator.normal_product(coef, targets, rows.weights)
            return preconditioner.reduce(g) / weight

        def apply(c):
            b = preconditioner.inner(c)
            return preconditioner.inner_transposed(gradient(b, None) + self.alpha * b)

        shape = (len(kept), rows.targets.shape[1])
        start = zero = xp.zeros(shape, dtype=xp.float64, device=problem.device)
        if self.warm_start and hasattr(self, "dual_coef_"):
            previous = self._previous_coef(problem, rows.targets.shape[1])
            start = preconditioner.preimage(problem.center_coef(previous, kept))
        rhs = preconditioner.inner_transposed(-gradient(zero, rows.targets - mean))
        states = conjugate_gradient(apply, rhs, start, self.tol)

        def model(c):
            coef = preconditioner.expand(preconditioner.inner(c))
            return problem.center_model(coef, mean, kept)

        state, residuals = self._iterate(states, model, context, given)
        return model(state.coef) | {
            "n_iter_": len(residuals),
            "residuals_": residuals,
            "n_centers_": len(kept),
            "cache_size_": cached,
        }

    def _previous_coef(self, problem, n_outputs):
        """Return the coefficients that ``warm_start=True`` goes on from."""
        same = problem.has_centers(self.centers_, self.center_indices_)
        if not same or self.dual_coef_.shape[1] != n_outputs:
            raise ValueError(
                "warm_start=True goes on with the coefficients of the previous fit and "
                f"needs the same centers and {n_outputs} output(s): pass centers as an "
                "array, or an int as random_state and the same X"
            )
        return self.dual_coef_

    def _iterate(self, states, model, context, given):
        """Run the iteration; return its last state and the largest residuals."""
        residuals = []
        for state in islice(states, self.max_iter):
            iteration = context.subcontext(task_name="iteration")
            iteration.call_on_fit_task_begin(estimator=self, **given)
            residuals.append(float(state.residuals.max()))
            self._say(f"iteration {len(residuals)}: residual {residuals[-1]:.2e}")
            stop = iteration.call_on_fit_task_end(
                estimator=self,
                reconstruction_attributes=partial(model, state.coef),
                **given,
            )
            if stop or state.converged:
                break
        if not state.converged and not stop:
            warnings.warn(
                f"{type(self).__name__} stopped after {len(residuals)} iterations with "
                f"a relative residual of {residuals[-1]:.1e}, above tol={self.tol}; "
                "raise max_iter, alpha or n_centers",
                ConvergenceWarning,
                stacklevel=6,
            )
        return state, residuals


class FalkonLikeRegressor(RegressionTargets, _Falkon):
    """TODO"""


class FalkonLikeClassifier(ClassificationTargets, _Falkon):
    """TODO"""

    def __init__(
        self,
        kernel="laplacian",
        *,
        bandwidth="median",
        n_centers=None,
        centers="uniform",
        alpha=1e-6,
        max_iter=20,
        tol=1e-7,
        warm_start=False,
        class_weight=None,
        cache_size="auto",
        device="auto",
        random_state=None,
        verbose=0,
    ):
        super().__init__(
            kernel,
            bandwidth=bandwidth,
            n_centers=n_centers,
            centers=centers,
            alpha=alpha,
            max_iter=max_iter,
            tol=tol,
            warm_start=warm_start,
            cache_size=cache_size,
            device=device,
            random_state=random_state,
            verbose=verbose,
        )
        self.class_weight = class_weight
