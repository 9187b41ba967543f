"""EigenPro estimators: preconditioned stochastic gradient descent on kernel machines."""

from ._base import (
    ClassificationTargets,
    KernelModel,
    RegressionTargets,
    check_number,
    is_auto,
)
from ._tuning import tune
from .solvers.eigenpro import eigenpro2


class _EigenPro(KernelModel):
    def __init__(
        self,
        kernel="laplacian",
        *,
        bandwidth="median",
        algorithm="auto",
        n_components="auto",
        subsample_size="auto",
        batch_size="auto",
        step_size="auto",
        damping=1.0,
        max_iter=20,
        tol=1e-4,
        early_stopping=False,
        validation_fraction=0.1,
        n_iter_no_change=3,
        warm_start=False,
        cache_size="auto",
        device="auto",
        random_state=None,
        verbose=0,
    ):
        self.kernel = kernel
        self.bandwidth = bandwidth
        self.algorithm = algorithm
        self.n_components = n_components
        self.subsample_size = subsample_size
        self.batch_size = batch_size
        self.step_size = step_size
        self.damping = damping
        self.max_iter = max_iter
        self.tol = tol
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.warm_start = warm_start
        self.cache_size = cache_size
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    def _check_parameters(self):
        if self.algorithm not in ("auto", "eigenpro2"):
            raise ValueError(
                f"algorithm must be 'auto' or 'eigenpro2'; got {self.algorithm!r}"
            )
        smallest = {"n_components": 0, "subsample_size": 2, "batch_size": 1}
        for name, low in smallest.items():
            if not is_auto(getattr(self, name)):
                check_number(name, getattr(self, name), low, integer=True)
        if not is_auto(self.step_size):
            check_number("step_size", self.step_size, 0, open_ends=True)
        check_number("damping", self.damping, 0, 1)
        check_number("max_iter", self.max_iter, 1, integer=True)
        check_number("tol", self.tol, 0)
        check_number("n_iter_no_change", self.n_iter_no_change, 1, integer=True)
        check_number(
            "validation_fraction", self.validation_fraction, 0, 1, open_ends=True
        )

    def _make_solver(self, problem):
        tuning = tune(
            problem.operator,
            problem.n_features,
            problem.targets.shape[1],
            weights=problem.weights,
            subsample_size=self.subsample_size,
            n_components=self.n_components,
            batch_size=self.batch_size,
            step_size=self.step_size,
            damping=self.damping,
        )
        problem.fill_caches(self.cache_size, self.max_iter)
        solver = eigenpro2(
            problem.operator,
            problem.targets,
            tuning.preconditioner,
            coef=problem.initial_coef(self._previous_coef(problem)),
            weights=problem.weights,
            batch_size=tuning.batch_size,
            step_size=tuning.step_size,
            rng=problem.rng,
        )
        return solver, {
            "batch_size_": tuning.batch_size,
            "step_size_": tuning.step_size,
            "n_components_": tuning.preconditioner.n_components,
            "subsample_size_": tuning.preconditioner.subsample_size,
            "max_batch_size_": tuning.max_batch_size,
            "critical_batch_size_": tuning.plain.critical_batch_size,
            "adapted_critical_batch_size_": tuning.adapted.critical_batch_size,
            "beta_": tuning.adapted.beta,
            "top_eigenvalue_": tuning.adapted.top_eigenvalue,
            "eigenvalues_": problem.at_home(tuning.preconditioner.eigenvalues),
            "acceleration_": tuning.acceleration,
        }


class EigenProRegressor(RegressionTargets, _EigenPro):
    """TODO"""


class EigenProClassifier(ClassificationTargets, _EigenPro):
    """TODO"""

    def __init__(
        self,
        kernel="laplacian",
        *,
        bandwidth="median",
        algorithm="auto",
        n_components="auto",
        subsample_size="auto",
        batch_size="auto",
        step_size="auto",
        damping=1.0,
        max_iter=20,
        tol=1e-4,
        early_stopping=False,
        validation_fraction=0.1,
        n_iter_no_change=3,
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
            algorithm=algorithm,
            n_components=n_components,
            subsample_size=subsample_size,
            batch_size=batch_size,
            step_size=step_size,
            damping=damping,
            max_iter=max_iter,
            tol=tol,
            early_stopping=early_stopping,
            validation_fraction=validation_fraction,
            n_iter_no_change=n_iter_no_change,
            warm_start=warm_start,
            cache_size=cache_size,
            device=device,
            random_state=random_state,
            verbose=verbose,
        )
        self.class_weight = class_weight
