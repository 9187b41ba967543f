"""The EigenPro estimators: what they fit, and what must not change it."""

import re
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import accuracy_score, r2_score
from sklearn.utils.class_weight import compute_sample_weight

from eigenkern import (
    EigenProClassifier,
    EigenProRegressor,
    estimate,
)
from eigenkern.arrays import memory
from eigenkern.fitting.planning import planned_seconds
from eigenkern.fitting.rules import ProgressLine
from eigenkern.kernels import Gaussian, Laplacian
from eigenkern.methods.state import State
from eigenkern.operators.cached import CachedTriangle, cached_bytes
from eigenkern.operators.matrix import GivenMatrix

# Epochs until the coefficients no longer change.
CONVERGED = {
    "max_iter": 1000,
    "tol": 0.0,
    "n_iter_no_change": 1000,
    "alpha": 0.0,
}


def exact_coef(kernel, X, y):
    return np.linalg.solve(kernel(X), y - y.mean(axis=0))


# What a fit returns


@pytest.mark.parametrize("kernel", [Laplacian(2.0), Laplacian(0.5)], ids=repr)
def test_regressor_solves_the_kernel_system(kernel, regression):
    X, y, X_test, _ = regression
    model = EigenProRegressor(kernel, algorithm="eigenpro2", **CONVERGED).fit(X, y)
    coef = exact_coef(kernel, X, y)
    assert_allclose(model.dual_coef_[:, 0], coef, rtol=1e-4, atol=1e-5)
    assert_allclose(model.intercept_, [y.mean()])
    assert_allclose(model.predict(X), y, atol=1e-5)
    expected = kernel(X_test, X) @ coef + y.mean()
    assert_allclose(model.predict(X_test), expected, atol=1e-5)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("svd_solver", ["nystrom", "randomized"])
def test_eigenpro_1_solves_the_kernel_system(svd_solver, weighted, regression, rng):
    X, y, X_test, _ = regression
    kernel, weights = Laplacian(0.5), rng.uniform(0.5, 2.0, size=len(y))
    model = EigenProRegressor(
        kernel,
        algorithm="eigenpro1",
        svd_solver=svd_solver,
        subsample_size=60,
        n_components=15,
        random_state=0,
        **CONVERGED,
    ).fit(X, y, sample_weight=weights if weighted else None)
    assert (model.n_components_, model.subsample_size_) == (15, 60)
    # Ritz values lie below the eigenvalues, and near the first.
    r = np.sqrt(weights / weights.mean() if weighted else np.ones(160))[:, None]
    sigma = np.linalg.eigvalsh(r * kernel(X) * r.T)[::-1][:15] / 160
    assert np.all(model.eigenvalues_[:-1] <= sigma * (1 + 1e-10))
    assert_allclose(model.eigenvalues_[0], sigma[0], rtol=0.05)
    mean = np.average(y, weights=weights if weighted else None)
    expected = kernel(X_test, X) @ np.linalg.solve(kernel(X), y - mean) + mean
    assert_allclose(model.predict(X_test), expected, atol=1e-4)


@pytest.mark.parametrize("svd_solver", ["nystrom", "randomized"])
def test_eigenpro_1_classifies_as_eigenpro_2(svd_solver, three_classes):
    X, y = three_classes
    options = {"random_state": 0, "subsample_size": 50, "bandwidth": "median"}
    options |= CONVERGED
    model = EigenProClassifier(algorithm="eigenpro1", svd_solver=svd_solver, **options)
    F = model.fit(X, y).decision_function(X[:50] + 0.1)
    other = EigenProClassifier(**options).fit(X, y)
    assert_allclose(F, other.decision_function(X[:50] + 0.1), atol=0.03)


def test_eigenpro_1_of_a_kernel_matrix(regression):
    X, y, *_ = regression
    kernel = Laplacian(1.0)
    options = {"algorithm": "eigenpro1", "random_state": 0, "subsample_size": 50}
    model = EigenProRegressor(kernel, **options).fit(X, y)
    given = EigenProRegressor("precomputed", **options).fit(kernel(X), y)
    assert_allclose(given.predict(kernel(X)), model.predict(X), atol=1e-6)


@pytest.mark.parametrize("algorithm", ["eigenpro1", "eigenpro2", "sgd"])
def test_the_bound_is_shorter_than_the_measured_step(algorithm, regression):
    X, y, *_ = regression
    options = {"algorithm": algorithm, "batch_size": 20, "random_state": 0}
    model = EigenProRegressor(step_size="bound", **options).fit(X, y)
    measured = EigenProRegressor(**options).fit(X, y)
    assert 0.01 < model.step_size_ / measured.step_size_ < 0.6
    assert model.n_step_halvings_ == 0
    assert model.score(X, y) > (0.2 if algorithm == "sgd" else 0.8)


def test_the_bound_of_the_zero_kernel():
    model = EigenProRegressor("linear", step_size="bound")
    with pytest.warns(ConvergenceWarning, match="all rows of X with weight are equal"):
        model.fit(np.zeros((20, 2)), np.arange(20.0))
    assert model.step_size_ == 1.0


def test_default_regressor_generalises(regression):
    X, y, X_test, y_test = regression
    assert EigenProRegressor(random_state=0).fit(X, y).score(X_test, y_test) > 0.7


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_fitted_attributes(dtype, regression):
    X, y = regression[0].astype(dtype), regression[1].astype(dtype)
    model = EigenProRegressor(algorithm="eigenpro2", random_state=0, max_iter=5).fit(
        X, y
    )
    q = model.n_components_
    assert model.dual_coef_.shape == (160, 1) and model.dual_coef_.dtype == dtype
    assert model.intercept_.shape == (1,) and model.intercept_.dtype == dtype
    assert model.eigenvalues_.shape == (q + 1,) and model.eigenvalues_.dtype == dtype
    assert_array_equal(model.centers_, X)
    assert model.centers_.dtype == dtype
    assert model.predict(X).dtype == dtype and model.predict(X).shape == (160,)
    for name in ("batch_size", "n_components", "subsample_size", "max_batch_size"):
        assert isinstance(getattr(model, name + "_"), int)
    for name in ("step_size", "beta", "top_eigenvalue", "acceleration", "bandwidth"):
        assert isinstance(getattr(model, name + "_"), float)
    assert model.critical_batch_size_ > 0 and model.adapted_critical_batch_size_ > 0
    assert model.n_iter_ == len(model.loss_curve_) == 5
    assert model.validation_scores_ is None
    assert model.n_step_halvings_ == 0
    assert model.n_features_in_ == 3
    assert not hasattr(model, "feature_names_in_")


def test_sgd_is_eigenpro_without_eigenvectors(regression):
    X, y, *_ = regression
    sgd = EigenProRegressor(algorithm="sgd", random_state=0).fit(X, y)
    assert sgd.n_components_ == 0 and sgd.acceleration_ == 1.0
    same = EigenProRegressor(n_components=0, random_state=0).fit(X, y)
    assert_array_equal(sgd.dual_coef_, same.dual_coef_)
    faster = EigenProRegressor(random_state=0).fit(X, y)
    assert faster.loss_curve_[-1] < 0.1 * sgd.loss_curve_[-1]


def test_tuning_results(regression):
    X, y, *_ = regression
    model = EigenProRegressor(random_state=0, subsample_size=100).fit(X, y)
    results = model.tuning_results_
    assert len({len(column) for column in results.values()}) == 1
    assert results["n_components"][:3] == [0, 5, 10]
    i = results["n_components"].index(model.n_components_)
    assert results["in_sample_eigenvalue"][i] == pytest.approx(model.eigenvalues_[-1])
    assert results["top_eigenvalue"][i] == model.top_eigenvalue_
    assert results["beta"][i] == model.beta_
    predicted = results["step_size"][i] / results["step_size"][0]
    assert model.acceleration_ == pytest.approx(predicted)


def test_loss_curve_falls(regression):
    X, y, *_ = regression
    losses = (
        EigenProRegressor(algorithm="eigenpro2", random_state=0).fit(X, y).loss_curve_
    )
    assert losses[-1] < 0.01 * losses[0] <= 0.01 * np.var(y) * 4


def test_parameters_are_not_changed_by_fit(regression):
    model = EigenProRegressor(random_state=0)
    before = model.get_params()
    assert model.fit(*regression[:2]).get_params() == before


# Targets


@pytest.mark.parametrize("dtype, tol", [(np.float32, 2e-3), (np.float64, 1e-9)])
def test_targets_are_centered(dtype, tol, regression):
    X, y = regression[0].astype(dtype), regression[1].astype(dtype)
    model = EigenProRegressor(random_state=0)
    expected = model.fit(X, y).predict(X)
    assert_allclose(model.fit(X, y + dtype(1000)).predict(X) - 1000, expected, atol=tol)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("value", [0.0, -3.7, 1e6])
def test_constant_targets_are_exact(value, dtype, regression):
    X = regression[0].astype(dtype)
    y = np.full(160, value, dtype=dtype)
    model = EigenProRegressor(random_state=0).fit(X, y)
    assert_allclose(model.predict(X), y, rtol=1e-7)
    assert model.n_iter_ == 1


@pytest.mark.parametrize("dtype, power", [(np.float32, 60), (np.float64, 400)])
@pytest.mark.parametrize("sign", [-1, 1])
def test_units_of_the_targets_do_not_matter(dtype, power, sign, regression):
    X, y = regression[0].astype(dtype), regression[1].astype(dtype)
    scale = dtype(2.0) ** (sign * power)
    model = EigenProRegressor(random_state=0)
    expected = model.fit(X, y).predict(X)
    assert_allclose(model.fit(X, scale * y).predict(X) / scale, expected, rtol=1e-5)


@pytest.mark.parametrize("kernel", ["gaussian", "laplacian", "matern32"])
@pytest.mark.parametrize("scale", [1e-15, 1e15])
def test_units_of_the_features_do_not_matter(kernel, scale, regression):
    X, y = regression[0].astype(np.float32), regression[1]
    model = EigenProRegressor(kernel, random_state=0)
    expected = model.fit(X, y).predict(X)
    scaled = X * np.float32(scale)
    assert_allclose(model.fit(scaled, y).predict(scaled), expected, atol=2e-2)


def test_outputs_are_fitted_as_if_alone(regression):
    X, y, X_test, _ = regression
    Y = np.stack([y, np.cos(X[:, 0]), 100 + X[:, 1]], axis=1)
    options = {"batch_size": 40, "n_components": 9, "bandwidth": "median"}
    model = EigenProRegressor(random_state=0, tol=0, **options)
    together = model.fit(X, Y)
    assert together.dual_coef_.shape == (160, 3) and together.intercept_.shape == (3,)
    F = together.predict(X_test)
    for j in range(3):
        assert_allclose(model.fit(X, Y[:, j]).predict(X_test), F[:, j], rtol=1e-8)


def test_a_column_of_targets_stays_a_column(regression):
    X, y, X_test, _ = regression
    assert EigenProRegressor().fit(X, y[:, None]).predict(X_test).shape == (40, 1)


@pytest.mark.parametrize(
    "labels",
    [[0, 1], [3, -2], [1.0, 2.0], [False, True], ["no", "yes"]],
    ids=str,
)
def test_binary_labels(labels, three_classes):
    X, codes = three_classes[0], (three_classes[1] > 0).astype(int)
    y = np.asarray(labels)[codes]
    model = EigenProClassifier(random_state=0).fit(X, y)
    assert_array_equal(model.classes_, np.unique(labels))
    values = model.decision_function(X)
    assert values.shape == (180,) and model.dual_coef_.shape == (180, 1)
    assert_array_equal(model.predict(X), model.classes_[(values > 0).astype(int)])
    assert model.predict(X).dtype == y.dtype
    assert model.score(X, y) > 0.8


@pytest.mark.parametrize("labels", [[0, 1, 2], [7, -1, 3], ["a", "ccc", "bb"]], ids=str)
def test_multiclass_labels(labels, three_classes):
    X, codes = three_classes
    y = np.asarray(labels)[codes]
    model = EigenProClassifier(random_state=0).fit(X, y)
    assert_array_equal(model.classes_, np.unique(labels))
    values = model.decision_function(X)
    assert values.shape == (180, 3) and model.dual_coef_.shape == (180, 3)
    assert_array_equal(model.predict(X), model.classes_[values.argmax(axis=1)])
    assert model.score(X, y) > 0.6
    # Targets of ones and zeros sum to one, and so do the values.
    assert_allclose(values.sum(axis=1), 1.0, atol=1e-8)


def test_binary_values_are_the_regression_on_signs(three_classes):
    X, y = three_classes[0], three_classes[1] > 0
    classifier = EigenProClassifier(random_state=0).fit(X, y)
    regressor = EigenProRegressor(random_state=0).fit(X, np.where(y, 1.0, -1.0))
    assert_allclose(classifier.decision_function(X), regressor.predict(X), rtol=1e-12)


def test_one_class_is_predicted(three_classes):
    X, _ = three_classes
    model = EigenProClassifier().fit(X, np.full(180, "only"))
    assert set(model.predict(X)) == {"only"}


# Weights


def test_rows_without_weight_are_as_if_dropped(regression):
    X, y, X_test, _ = regression
    weights = np.where(np.arange(160) % 3 == 0, 0.0, 1.0)
    used = weights > 0
    y = np.where(used, y, 1e3)
    model = EigenProRegressor("laplacian", bandwidth=1.0, random_state=0, **CONVERGED)
    dropped = model.fit(X[used], y[used]).predict(X_test)
    model.fit(X, y, sample_weight=weights)
    assert_allclose(model.predict(X_test), dropped, atol=1e-5)
    assert_array_equal(model.dual_coef_[~used], 0.0)
    assert model.centers_.shape == (160, 3)


def test_only_ratios_of_weights_matter(regression, rng):
    X, y, X_test, _ = regression
    w = rng.uniform(0.1, 2.0, size=160)
    model = EigenProRegressor(random_state=0)
    expected = model.fit(X, y, sample_weight=w).predict(X_test)
    for scaled in (1e-8 * w, 1e8 * w):
        F = model.fit(X, y, sample_weight=scaled).predict(X_test)
        assert_allclose(F, expected, rtol=1e-8)
    unweighted = model.fit(X, y).predict(X_test)
    ones = model.fit(X, y, sample_weight=np.full(160, 3)).predict(X_test)
    assert_allclose(ones, unweighted, rtol=1e-8)
    assert not np.allclose(expected, unweighted, rtol=1e-3)


def test_weights_enter_the_intercept(regression):
    X, y, *_ = regression
    w = np.linspace(0, 1, 160)
    model = EigenProRegressor(max_iter=1).fit(X, y, sample_weight=w)
    assert_allclose(model.intercept_, [np.average(y, weights=w)])


def test_weights_win_where_rows_contradict():
    X = np.repeat(np.arange(20.0)[:, None], 2, axis=0)
    y, w = X[:, 0] + np.tile([0.0, 1.0], 20), np.tile([1.0, 3.0], 20)
    model = EigenProRegressor("laplacian", bandwidth=1.0, batch_size=40, max_iter=300)
    model.set_params(tol=0.0, alpha=0.0, random_state=0)
    model.fit(X, y, sample_weight=w)
    assert_allclose(model.predict(X), X[:, 0] + 0.75, atol=1e-3)


def test_balanced_classes(rng):
    X = rng.standard_normal((200, 2))
    y = (X[:, 0] + rng.standard_normal(200) > 1.8).astype(int)  # one of ten
    options = {"bandwidth": 5.0, "n_components": 0, "max_iter": 3, "random_state": 0}
    options["alpha"] = 0.01  # costs of classes do not choose it
    plain = EigenProClassifier(**options).fit(X, y)
    balanced = EigenProClassifier(class_weight="balanced", **options).fit(X, y)
    assert balanced.predict(X).sum() > 1.5 * plain.predict(X).sum()
    w = compute_sample_weight("balanced", y)
    weighted = EigenProClassifier(**options).fit(X, y, sample_weight=w)
    expected = balanced.decision_function(X)
    assert_allclose(weighted.decision_function(X), expected, rtol=1e-10)
    given = EigenProClassifier(class_weight=dict(zip(y, w)), **options).fit(X, y)
    assert_allclose(given.decision_function(X), expected, rtol=1e-10)


def test_class_weights_multiply_sample_weights(three_classes, rng):
    X, codes = three_classes
    y, w = np.array(["a", "b", "c"])[codes], rng.uniform(0.5, 2, size=180)
    options = {"alpha": 1e-3, "bandwidth": "median", "random_state": 0}
    model = EigenProClassifier(class_weight={"b": 4.0}, **options)
    weighted = EigenProClassifier(**options)
    expected = weighted.fit(X, y, sample_weight=np.where(y == "b", 4 * w, w))
    assert_allclose(
        model.fit(X, y, sample_weight=w).decision_function(X),
        expected.decision_function(X),
        rtol=1e-10,
    )


# Stopping


@pytest.mark.parametrize("weighted", [False, True])
def test_early_stopping_restores_the_best_epoch(weighted, rng):
    X = rng.standard_normal((240, 3))
    y = 3 * np.sin(X[:, 0]) + rng.standard_normal(240)  # overfits in a few epochs
    w = rng.uniform(0.5, 2, size=240) if weighted else None
    options = {"early_stopping": True, "random_state": 3, "validation_fraction": 0.25}
    options |= {"n_components": 20, "bandwidth": 3.0}
    model = EigenProRegressor(max_iter=60, **options).fit(X, y, sample_weight=w)
    scores = model.validation_scores_
    assert len(scores) == model.n_iter_ == len(model.loss_curve_) < 60
    best = int(np.argmax(scores))
    assert best < len(scores) - 1
    again = EigenProRegressor(max_iter=best + 1, **options).fit(X, y, sample_weight=w)
    assert_array_equal(model.dual_coef_, again.dual_coef_)
    held_out = model.dual_coef_[:, 0] == 0
    assert held_out.sum() == 60
    score = r2_score(
        y[held_out],
        model.predict(X[held_out]),
        sample_weight=None if w is None else w[held_out],
    )
    assert score == pytest.approx(max(scores), rel=1e-8)


def test_early_stopping_of_a_classifier_is_stratified(three_classes):
    X, y = three_classes
    model = EigenProClassifier(early_stopping=True, random_state=0).fit(X, y)
    held_out = np.all(model.dual_coef_ == 0, axis=1)
    assert_array_equal(np.bincount(y[held_out]), [6, 6, 6])
    score = accuracy_score(y[held_out], model.predict(X[held_out]))
    assert score == pytest.approx(max(model.validation_scores_))


def test_stops_when_the_loss_stops_falling(regression):
    X, y, *_ = regression
    model = EigenProRegressor(
        algorithm="eigenpro2", max_iter=500, tol=0.01, n_iter_no_change=2
    )
    losses = np.array(model.set_params(random_state=0).fit(X, y).loss_curve_)
    assert 3 <= len(losses) < 500
    assert np.all(losses[-2:] >= losses[:-2].min() - 0.01 * losses[0])


# Warm starts


def test_warm_start_goes_on(regression):
    X, y, *_ = regression
    options = {
        "algorithm": "eigenpro2",
        "bandwidth": 2.0,
        "max_iter": 3,
        "random_state": 0,
    }
    cold = EigenProRegressor(**options).fit(X, y)
    warm = EigenProRegressor(warm_start=True, **options).fit(X, y)
    assert_array_equal(warm.dual_coef_, cold.dual_coef_)
    warm.fit(X, y)
    assert warm.n_iter_ == 3
    assert max(warm.loss_curve_) < cold.loss_curve_[-1]
    assert np.mean((warm.predict(X) - y) ** 2) < np.mean((cold.predict(X) - y) ** 2)
    # Without warm_start, a second fit starts from zero.
    assert_array_equal(cold.dual_coef_, cold.fit(X, y).dual_coef_)


# The stopping rule sees losses that rise or do not, or scores.
@pytest.mark.parametrize("losses", [(40.0, 50.0, 60.0), (40.0, 40.0, 40.0)])
@pytest.mark.parametrize("early_stopping", [False, True])
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_warm_start_that_only_gets_worse_falls_back_to_its_start(
    early_stopping, losses, regression, monkeypatch
):
    """It falls back to the previous coefficients, not to zero."""
    X, y, *_ = regression
    options = {"random_state": 0, "early_stopping": early_stopping, "alpha": 0.0}
    model = EigenProRegressor(warm_start=True, **options).fit(X, y)
    before, score = model.dual_coef_.copy(), model.score(X, y)

    def solver(operator, targets, preconditioner, *, coef, **ignored):
        for loss in losses:  # all models are worse than the mean
            yield State(loss * coef, loss=loss, step_size=1.0)

    monkeypatch.setattr("eigenkern.estimators.eigenpro_fit.eigenpro", solver)
    model.set_params(max_iter=3).fit(X, y)
    assert model.score(X, y) == pytest.approx(score)
    assert_allclose(model.dual_coef_, before, rtol=1e-12)


def test_warm_start_takes_equal_rows_in_another_array(regression):
    X, y, *_ = regression
    model = EigenProRegressor(warm_start=True, random_state=0, max_iter=3).fit(X, y)
    loss = model.loss_curve_[-1]
    assert model.fit(X.copy(), y).loss_curve_[0] < loss


@pytest.mark.parametrize(
    "change", ["rows", "number", "outputs", "precomputed"], ids=str
)
def test_warm_start_needs_the_same_problem(change, regression):
    X, y, *_ = regression
    model = EigenProRegressor(warm_start=True, random_state=0, max_iter=2).fit(X, y)
    before = model.predict(X)
    other = {
        "rows": (X[::-1], y),
        "number": (X[:-1], y[:-1]),
        "outputs": (X, np.stack([y, y], axis=1)),
        "precomputed": (Laplacian()(X), y),
    }
    if change == "precomputed":
        model.set_params(kernel="precomputed")
    with pytest.raises(ValueError, match=r"warm_start=True .* needs the same X"):
        model.fit(*other[change])
    assert_array_equal(model.predict(X), before)


def test_random_state(regression):
    X, y, *_ = regression

    def coef(seed):
        model = EigenProRegressor(algorithm="eigenpro2", random_state=seed, max_iter=3)
        return model.fit(X, y).dual_coef_

    assert_array_equal(coef(0), coef(0))
    assert_array_equal(coef(0), coef(np.random.RandomState(0)))
    assert not np.allclose(coef(0), coef(1), rtol=1e-3)


def test_coefficients_follow_the_rows(regression, rng):
    X, y, *_ = regression
    order = rng.permutation(160)
    model = EigenProRegressor(bandwidth=1.0, random_state=0, **CONVERGED)
    coef = model.fit(X, y).dual_coef_
    permuted = model.fit(X[order], y[order]).dual_coef_
    assert_allclose(permuted, coef[order], rtol=1e-4, atol=1e-5)


# The same kernel, given differently


@pytest.mark.parametrize(
    "kernel",
    [
        Laplacian(2.0),
        lambda X, Z: Laplacian(2.0)(X, Z),
    ],
    ids=["object", "callable"],
)
@pytest.mark.parametrize("early_stopping", [False, True])
def test_a_kernel_in_other_words(kernel, early_stopping, regression):
    X, y, X_test, _ = regression
    options = {"random_state": 0, "early_stopping": early_stopping, "alpha": 0.0}
    options |= {"batch_size": 50, "n_components": 10}
    named = EigenProRegressor("laplacian", bandwidth=2.0, **options).fit(X, y)
    model = EigenProRegressor(kernel, **options).fit(X, y)
    assert_allclose(model.predict(X_test), named.predict(X_test), atol=1e-9)
    model = EigenProRegressor("precomputed", **options).fit(named.kernel_(X), y)
    K_test = named.kernel_(X_test, X)
    assert_allclose(model.predict(K_test), named.predict(X_test), atol=1e-9)
    assert model.centers_ is None and model.bandwidth_ is None


@pytest.mark.parametrize("kernel", ["gaussian", "cauchy", "matern52", "polynomial"])
def test_names_take_the_bandwidth(kernel, regression):
    X, y, *_ = regression
    model = EigenProRegressor(kernel, bandwidth=2.5, max_iter=2).fit(X, y)
    assert model.bandwidth_ == 2.5 == model.kernel_.bandwidth
    model = EigenProRegressor(kernel, bandwidth="median", max_iter=2)
    median = model.fit(X, y).bandwidth_
    assert 1.5 < median < 3.5


def test_linear_kernel_is_least_squares(regression):
    X, _, X_test, _ = regression
    y = X @ [1.0, -2.0, 0.5] + 3.0
    X, X_test = X - X.mean(axis=0), X_test - X.mean(axis=0)
    model = EigenProRegressor("linear", random_state=0, **CONVERGED).fit(X, y)
    expected = X_test @ [1.0, -2.0, 0.5] + y.mean()
    assert_allclose(model.predict(X_test), expected, atol=1e-4)
    assert model.bandwidth_ is None


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n, d", [(160, 3), (500, 10)])
def test_linear_kernel_needs_no_tuning(n, d, dtype, rng):
    X = rng.standard_normal((n, d)).astype(dtype)
    y = X @ np.arange(1, d + 1)
    assert EigenProRegressor("linear", random_state=0).fit(X, y).score(X, y) > 0.95


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    "kernel, bandwidth",
    [("gaussian", 8.0), ("laplacian", 60.0), ("cauchy", 20.0), ("matern52", 20.0)],
)
def test_wide_kernels_on_few_distinct_rows(kernel, bandwidth, dtype, rng):
    # Beyond the rank of the kernel matrix, eigenvalues are rounding errors.
    X = np.repeat(rng.standard_normal((20, 3)), 10, axis=0).astype(dtype)
    y = np.sin(X[:, 0])
    model = EigenProRegressor(kernel, bandwidth=bandwidth, random_state=0).fit(X, y)
    assert model.score(X, y) > 0.5


@pytest.fixture
def filled(monkeypatch):
    """Return the operators whose matrices were cached."""
    found = []
    fill_triangle, fill_whole = CachedTriangle.__init__, GivenMatrix.__init__

    def triangle(self, source):
        found.append(source)
        fill_triangle(self, source)

    def whole(self, K, source=None):
        found.extend([] if source is None else [source])
        fill_whole(self, K, source)

    monkeypatch.setattr(CachedTriangle, "__init__", triangle)
    monkeypatch.setattr(GivenMatrix, "__init__", whole)
    return found


@pytest.mark.parametrize("early_stopping", [False, True])
def test_the_cache_changes_nothing(early_stopping, regression, filled):
    X, y, X_test, _ = regression
    model = EigenProRegressor(
        alpha=0.0,
        algorithm="eigenpro2",
        random_state=0,
        early_stopping=early_stopping,
    )
    fits = []
    for cache_size in (0, 1000):
        model.set_params(cache_size=cache_size).fit(X, y)
        fits.append(model.predict(X_test))
        assert len(filled) == (0 if cache_size == 0 else 1 + early_stopping)
    assert_allclose(fits[0], fits[1], atol=1e-9)


def test_a_cached_matrix_is_all_that_is_computed(rng):
    X, entries = rng.standard_normal((3000, 3)), []

    def watched(X, Z):
        entries.append(X.shape[0] * Z.shape[0])
        return Laplacian(2.0)(X, Z)

    model = EigenProRegressor(watched, algorithm="eigenpro2", max_iter=1)
    model.set_params(cache_size=1000, alpha=0.0).fit(X, X[:, 0])
    # Two blocks of 1024 rows and the rest, each up to its diagonal; the diagonal.
    triangle = 1024 * 1024 + 1024 * 2048 + 952 * 3000
    # Before, the check of a given kernel: 300 rows, and their diagonal.
    checked = 300**2 + 256**2 + 44**2
    assert sum(entries) == checked + triangle + 11 * 256**2 + 184**2


@pytest.mark.parametrize("early_stopping", [False, True])
@pytest.mark.parametrize("factor", [1.02, 1.5])
def test_the_cache_leaves_memory_to_the_tuning(
    factor, early_stopping, filled, rng, monkeypatch
):
    # Free memory is what the cached matrices have left.
    X, total = rng.standard_normal((1500, 3)), factor * 8 * 1500**2

    def free(xp, device):
        return total - sum(sum(cached_bytes([K], 1000, 1, 1)) for K in filled)

    monkeypatch.setattr(memory, "available", free)
    model = EigenProRegressor(
        alpha=0.0,
        algorithm="eigenpro2",
        bandwidth="median",
        early_stopping=early_stopping,
        max_iter=2,
        random_state=0,
    )
    found = []
    for cache_size in (0, 1000):
        filled.clear()
        model.set_params(cache_size=cache_size).fit(X, X[:, 0])
        found.append((model.subsample_size_, model.n_components_, model.step_size_))
        assert (len(filled) > 0) == (cache_size > 0) == (model.cache_size_ > 0)
    assert found[0] == found[1]


def test_sizes_are_checked_before_anything_is_computed(rng, monkeypatch):
    X = rng.standard_normal((300, 3))
    monkeypatch.setattr(CachedTriangle, "__init__", None)
    for name in ("subsample_size", "batch_size"):
        with pytest.raises(ValueError, match=f"{name} must be at most 300"):
            EigenProRegressor(**{name: 301}).fit(X, X[:, 0])
    with pytest.raises(ValueError, match="n_components must be less than"):
        EigenProRegressor(n_components=300).fit(X, X[:, 0])


# Output, devices, failures


def test_verbose_prints_the_epochs(regression, capsys):
    X, y, *_ = regression
    model = EigenProRegressor(max_iter=3, verbose=1, early_stopping=True).fit(X, y)
    out = capsys.readouterr().out
    for epoch, loss in enumerate(model.loss_curve_, 1):
        assert f"epoch {epoch}/3  loss {loss:.4g}" in out
    assert "score" in out and " s to go" in out
    stages = "setting up the kernel", "choosing preconditioner, batch and step"
    assert [line.split("  ")[0] for line in out.splitlines()[:2]] == [
        f"EigenProRegressor: {stage}" for stage in stages
    ]
    model.set_params(early_stopping=False).fit(X, y)
    *stages, last = capsys.readouterr().out.splitlines()
    assert "choosing the penalty" in stages[1] and "directly" in stages[2]
    assert f"solved directly: loss {model.loss_curve_[0]:.4g}  " in last
    assert "epoch" not in last
    model.set_params(verbose=0).fit(X, y).predict(X)
    captured = capsys.readouterr()
    assert captured.out == captured.err == ""


def test_the_rate_of_epochs_leaves_out_the_first(capsys, monkeypatch):
    """The first epoch computes the kernel matrix: here it takes 100 s, others 2 s."""
    clock = iter([0.0, 100.0, 102.0, 104.0])
    monkeypatch.setattr("eigenkern.fitting.rules.time.monotonic", lambda: next(clock))
    progress, rule = ProgressLine("Model"), SimpleNamespace(direct=False, max_iter=3)
    progress.start_iterations()
    for n_done in (1, 2, 3):
        rule.losses, rule.scores = n_done * [1.0], ()
        progress.update(rule)
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition("loss 1  ")[2] for line in lines] == [
        "100.0 s ",
        "102.0 s, 2.0 s to go ",
        "104.0 s, 0.0 s to go ",
    ]


def test_verbose_tells_why_epochs_end(regression, capsys):
    X, y, *_ = regression
    usual = {"algorithm": "eigenpro2", "verbose": 1, "random_state": 0}

    def last_line(**parameters):
        model = EigenProRegressor(**usual | parameters).fit(X, y)
        return model, capsys.readouterr().out.splitlines()[-1].rpartition("  ")[0]

    model, line = last_line(max_iter=3)
    assert "epoch 3/3" in line
    model, line = last_line(max_iter=50, tol=0.9, n_iter_no_change=2)
    n = model.n_iter_
    assert line == (
        f"EigenProRegressor stopped after epoch {n} of 50, as the loss falls by less "
        "than tol"
    )
    scored = {"early_stopping": True, "tol": 0.9, "n_iter_no_change": 3, "alpha": 0.0}
    model, line = last_line(max_iter=50, **scored)
    n, best = model.n_iter_, 1 + int(np.argmax(model.validation_scores_))
    expected = f"EigenProRegressor stopped after epoch {n} of 50, as the score improves"
    expected += " by less than tol"
    if best < n:
        expected += f", and keeps the model of epoch {best}"
    assert line == expected


def test_verbose_tells_which_epoch_is_kept(capsys, rng):
    """On noise, more epochs are worse; all of them run."""
    X, y = rng.standard_normal((300, 3)), rng.standard_normal(300)
    model = EigenProRegressor("laplacian", bandwidth=0.3, algorithm="eigenpro2")
    model.set_params(max_iter=4, early_stopping=True, verbose=1, random_state=0)
    model.set_params(alpha=0.0, n_iter_no_change=10).fit(X, y + 3.0 * X[:, 0])
    best = 1 + int(np.argmax(model.validation_scores_))
    line = capsys.readouterr().out.splitlines()[-1]
    if best == 4:
        assert "epoch 4/4" in line
    else:
        told = f"EigenProRegressor keeps the model of epoch {best}"
        assert line.rpartition("  ")[0] == told


def test_verbose_tells_the_seconds_to_go(capsys, monkeypatch):
    monkeypatch.setattr("eigenkern.fitting.model.planned_seconds", lambda *_: 1e4)
    X = np.linspace(0.0, 1.0, 40)[:, None]
    EigenProRegressor(verbose=1, algorithm="eigenpro2").fit(X, X[:, 0])
    stages = [one for one in capsys.readouterr().out.splitlines() if ": " in one]
    assert len(stages) >= 3
    times = r"  \d+\.\d s, about \d{4,5} s to go$"
    assert all(re.search(times, one) for one in stages)


def test_the_seconds_to_go_are_those_of_the_plan():
    model, X = EigenProRegressor(algorithm="eigenpro2"), np.zeros((2001, 2))
    expected = estimate(model, 2001, 2).seconds
    assert planned_seconds(model, X, 1) == pytest.approx(expected)
    assert planned_seconds(model, X[1:], 1) is None


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_never_worse_than_the_mean_on_noise(dtype, rng):
    X = rng.standard_normal((300, 4)).astype(dtype)
    y = rng.standard_normal(300) + 50
    for batch_size in ("auto", 1, 270):
        model = EigenProRegressor(
            batch_size=batch_size, random_state=0, max_iter=4, early_stopping=True
        )
        with warnings.catch_warnings(record=True) as record:
            warnings.simplefilter("always")
            model.fit(X, y)
        assert np.all(np.isfinite(model.dual_coef_))
        loss = np.mean((model.predict(X) - y) ** 2)
        assert loss <= 1.001 * np.var(y)
        # A score above 0 by chance keeps an epoch, which knows the training rows.
        nothing = ["learned nothing" in str(one.message) for one in record]
        assert nothing == [True] * bool(loss > 0.999 * np.var(y))


def test_early_stopping_falls_back_to_the_mean(rng):
    X = rng.standard_normal((300, 4))
    y = rng.standard_normal(300)
    model = EigenProRegressor(
        bandwidth=0.5, random_state=0, early_stopping=True, n_iter_no_change=1
    )
    with pytest.warns(ConvergenceWarning, match="learned nothing"):
        model.fit(X, y)
    if max(model.validation_scores_) < 0:
        assert_array_equal(model.dual_coef_, 0.0)
    assert max(model.validation_scores_) < 0


def test_a_hopeless_kernel_predicts_the_mean_and_warns(regression):
    X, y, *_ = regression
    model = EigenProRegressor(lambda A, B: -1e3 * Laplacian()(A, B), random_state=0)
    with pytest.warns(ConvergenceWarning):
        model.fit(X, y)
    assert_allclose(model.predict(X), y.mean())


@pytest.mark.parametrize("good", [True, False])
def test_a_last_epoch_that_ends_badly_is_noticed(good, regression, monkeypatch):
    """The loss of an epoch is measured during it and does not show how it ends."""
    X, y, *_ = regression

    def solver(operator, targets, preconditioner, **ignored):
        exact = np.linalg.solve(operator.block(), targets)
        yield State(0.9 * exact if good else 9 * exact, loss=0.5, step_size=1.0)
        yield State(50 * exact, loss=0.01, step_size=1.0)

    monkeypatch.setattr("eigenkern.estimators.eigenpro_fit.eigenpro", solver)
    model = EigenProRegressor(
        algorithm="eigenpro2", alpha=0.0, max_iter=2, random_state=0
    )
    kept = "an earlier epoch's model is kept" if good else "it predicts the mean"
    with pytest.warns(ConvergenceWarning, match=kept):
        model.fit(X, y)
    expected = 0.1 * y.mean() + 0.9 * y if good else np.full(y.shape, y.mean())
    assert_allclose(model.predict(X), expected, atol=1e-6)


def test_an_absurd_step_recovers_without_a_warning(regression):
    X, y, *_ = regression
    model = EigenProRegressor(algorithm="eigenpro2", random_state=0)
    step_size = model.fit(X, y).step_size_
    model = EigenProRegressor(step_size=1e6 * step_size, random_state=0).fit(X, y)
    assert model.n_step_halvings_ >= 15
    assert model.score(X, y) > 0.9


def test_a_step_beyond_repair_warns(regression):
    X, y, *_ = regression
    model = EigenProRegressor(step_size=1e30, random_state=0)
    with pytest.warns(ConvergenceWarning, match="found no step size"):
        model.fit(X, y)
    assert_allclose(model.predict(X), y.mean())


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_a_failed_fit_leaves_the_earlier_one(error, regression):
    X, y, X_test, _ = regression
    calls = []

    def kernel(A, B):
        calls.append(len(A))
        if len(calls) > limit:
            raise error("in the kernel")
        return Laplacian(2.0)(A, B)

    limit = np.inf
    model = EigenProRegressor(kernel, random_state=0, cache_size=0, max_iter=4).fit(
        X, y
    )
    n_calls = len(calls)
    expected, before = model.predict(X_test), dict(vars(model))
    for limit in (0, 1, n_calls // 2, n_calls - 1):  # noqa: B007
        calls.clear()
        with pytest.raises(error, match="in the kernel"):
            model.fit(X, y + 1)
        assert vars(model).keys() == before.keys()
        assert all(vars(model)[name] is before[name] for name in before)
    limit = np.inf
    assert_array_equal(model.predict(X_test), expected)


def test_a_failed_first_fit_leaves_nothing(regression):
    X, y, *_ = regression
    model = EigenProRegressor(subsample_size=1000)
    before = dict(vars(model))
    with pytest.raises(ValueError, match="subsample_size"):
        model.fit(X, y)
    assert vars(model) == before


@pytest.mark.parametrize("cls", [EigenProRegressor, EigenProClassifier])
def test_predict_changes_nothing(cls, three_classes):
    X, y = three_classes
    model = cls(random_state=0).fit(X, y)
    before = dict(vars(model))
    model.predict(X)
    assert vars(model).keys() == before.keys()
    assert all(vars(model)[name] is before[name] for name in before)


def test_computing_on_the_host_is_automatic(regression):
    X, y, *_ = regression
    coef = [
        EigenProRegressor(device=device, random_state=0).fit(X, y).dual_coef_
        for device in ("auto", "cpu")
    ]
    assert_array_equal(*coef)


def test_kernel_machine_is_its_formula(regression):
    X, y, X_test, _ = regression
    model = EigenProRegressor("gaussian", random_state=0, max_iter=3).fit(X, y)
    K = Gaussian(model.bandwidth_)(X_test, model.centers_)
    expected = (K @ model.dual_coef_ + model.intercept_)[:, 0]
    assert_allclose(model.predict(X_test), expected, rtol=1e-12)
