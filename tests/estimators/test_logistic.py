"""Kernel logistic regression: scikit-learn's results, limits, invariances."""

from itertools import islice

import array_api_compat
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import expit, log_softmax, logit
from sklearn import clone, config_context
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression

from eigenkern import (
    FalkonLikeClassifier,
    NystromClassifier,
    RegularizationPathDisplay,
)
from eigenkern.arrays.array import to_numpy
from eigenkern.kernels import Laplacian
from eigenkern.methods.newton import Logistic, Preconditioner, minimized, newton
from eigenkern.methods.paths import Whitening
from eigenkern.operators.matrix import GivenMatrix

SIGMA = 1.5
KERNEL = Laplacian(SIGMA)
pytestmark = pytest.mark.filterwarnings("ignore:.* it still falls there")


@pytest.fixture
def exact(monkeypatch):
    """Make Nystrom models exact: 1e-6 in the objective is 1e-3 in some values."""
    monkeypatch.setattr("eigenkern.methods.newton._PATH_TOL", 1e-7)
    monkeypatch.setattr("eigenkern.estimators.nystrom.KEPT_TOL", 1e-7)


def problem(n_classes, rng, n=200):
    """Return rows and codes of overlapping clusters, and weights with zeros."""
    y = np.arange(n) % n_classes
    X = rng.standard_normal((n, 3)) + 1.5 * np.eye(4)[y][:, :3]
    return X, y, rng.integers(0, 3, n).astype(float)


def nystrom(**options):
    options = {"n_centers": 30, "alpha": 1e-3, "random_state": 0} | options
    return NystromClassifier(loss="log_loss", bandwidth=SIGMA, **options)


def falkon(**options):
    options = {"n_centers": 30, "alpha": 1e-3, "tol": 1e-8, "random_state": 0} | options
    return FalkonLikeClassifier(loss="log_loss", bandwidth=SIGMA, **options)


def features(model):
    """Return a function: K(X, Z) K(Z, Z)^-1/2 of a fitted model."""
    e, V = np.linalg.eigh(KERNEL(model.centers_, model.centers_))
    return lambda X: KERNEL(X, model.centers_) @ (V / np.sqrt(e))


@pytest.mark.parametrize("make", [nystrom, falkon])
@pytest.mark.parametrize("n_centers", [30, None])
@pytest.mark.parametrize("alpha", [1e-1, 1e-5])
@pytest.mark.parametrize("n_classes", [2, 4])
def test_is_logistic_regression_on_features(
    make, n_centers, alpha, n_classes, rng, exact
):
    X, y, w = problem(n_classes, rng)
    model = make(n_centers=n_centers, alpha=alpha).fit(X, y, w)
    if n_centers is None:
        assert_array_equal(np.sort(model.center_indices_), np.flatnonzero(w))
    Phi, C = features(model), 1 / (alpha * w.sum())
    peer = LogisticRegression(C=C, tol=1e-10, max_iter=1000, solver="newton-cg")
    peer.fit(Phi(X), y, w)
    expected = peer.decision_function(Phi(X))
    assert_allclose(model.decision_function(X), expected, atol=2e-5)
    assert_allclose(model.predict_proba(X), peer.predict_proba(Phi(X)), atol=1e-5)
    assert_allclose(model.intercept_, peer.intercept_, atol=2e-5)
    assert_allclose(
        model.predict_log_proba(X), np.log(model.predict_proba(X)), atol=1e-12
    )


@pytest.mark.parametrize("make", [nystrom, falkon])
@pytest.mark.parametrize("n_classes", [2, 3])
def test_the_gradient_is_zero(make, n_classes, rng, exact):
    X, y, w = problem(n_classes, rng)
    model = make(class_weight={0: 2.0}).fit(X, y, w)
    w = w * np.where(y == 0, 2.0, 1.0)
    P = model.predict_proba(X)
    G = (P - np.eye(n_classes)[y])[:, -model.dual_coef_.shape[1] :]
    G = G * w[:, None] / w.sum()
    K_mm = KERNEL(model.centers_, model.centers_)
    gradient = KERNEL(model.centers_, X) @ G + 1e-3 * K_mm @ model.dual_coef_
    assert_allclose(gradient, 0, atol=1e-8)
    assert_allclose(G.sum(axis=0), 0, atol=1e-8)


def objective(n_columns, rng, kept=slice(None)):
    """Return the objective for rows with given features, and its preconditioner."""
    n, p = 120, 25
    K = rng.standard_normal((n, p)) @ np.diag(0.7 ** np.arange(p))
    codes = rng.integers(0, max(n_columns, 2), n)
    Y = np.eye(n_columns)[codes] if n_columns > 1 else (2.0 * codes - 1.0)[:, None]
    w = rng.uniform(size=n)
    L = np.eye(p)
    logistic = Logistic(GivenMatrix(K), Y, w, lambda b: b, lambda g: g)
    sums = lambda point: logistic.sums(point, None, lambda C: C)  # noqa: E731
    assert Whitening.of(L, np.float64).R is None
    return logistic, Preconditioner(logistic, sums, 5.0), np.zeros((p + 1, n_columns))


@pytest.mark.parametrize("n_columns", [1, 3])
def test_products_are_derivatives(n_columns, rng):
    logistic, _, start = objective(n_columns, rng)
    alpha, h = 0.01, 1e-5
    b, V = rng.standard_normal((2, *start.shape))
    points = [logistic.at(b + step * V, alpha) for step in (-h, 0, h)]
    slope = (points[2].value - points[0].value) / (2 * h)
    assert_allclose(np.sum(points[1].gradient * V), slope, rtol=1e-6)
    expected = (points[2].gradient - points[0].gradient) / (2 * h)
    found = logistic.hessian(points[1], alpha)(V)
    assert_allclose(found, expected, atol=1e-7)
    if n_columns == 1:  # the sums are the Hessian itself
        A = logistic.sums(points[1], None, lambda C: C)
        A[np.arange(25), np.arange(25)] += alpha
        assert_allclose(A @ V, found, atol=1e-12)


@pytest.mark.parametrize("n_columns", [1, 3])
def test_the_objective_never_rises_and_converges(n_columns, rng):
    for alpha in (1e-8, 1e-2):  # noise as classes; separable except for the penalty
        logistic, preconditioner, start = objective(n_columns, rng)
        start = start + 20 * rng.standard_normal(start.shape)  # a bad one
        values = [logistic.at(start, alpha).value]
        for state in newton(logistic, preconditioner, start, [alpha], 1e-8):
            values.append(state.rest.value)
            if state.converged:
                break
        assert len(values) < 100
        assert (np.diff(values) <= 1e-12).all() and values[-1] < 0.1 * values[0]
        again = minimized(logistic, preconditioner, 0 * start, [alpha], 1e-8, 100)
        assert_allclose(again.rest.value, values[-1], rtol=1e-10)


def dense_objective(logistic, coef, alpha):
    """J and its gradient by their formulas, for classes +1 and -1."""
    K, y, w = logistic.matrix.block(), logistic.targets, logistic.weights[:, None]
    F = K @ coef[:-1] + coef[-1]
    value = np.sum(w * np.logaddexp(0, -y * F)) + alpha / 2 * np.sum(coef[:-1] ** 2)
    G = -w * y * expit(-y * F)
    return value, np.vstack([K.T @ G + alpha * coef[:-1], G.sum(axis=0)])


def test_the_penalty_of_a_point_is_that_of_the_step(rng):
    """A start that is good enough for every penalty is returned with the last one."""
    logistic, preconditioner, start = objective(1, rng)
    start = rng.standard_normal(start.shape)
    for alphas in ([1e-3], [1.0, 1e-1, 1e-3], [1e-3, 2e-3]):
        state = next(newton(logistic, preconditioner, start, alphas, 1e9))
        assert state.converged
        assert_array_equal(state.coef, start)
        value, gradient = dense_objective(logistic, start, alphas[-1])
        assert_allclose(state.rest.value, value, rtol=1e-13)
        assert_allclose(state.rest.gradient, gradient, atol=1e-13)


def test_newton_steps_end_where_only_rounding_is_left(rng):
    logistic, preconditioner, start = objective(1, rng)
    alphas = [1e-2, 1e-4]
    best = minimized(logistic, preconditioner, start, alphas, 1e-9, 100)
    at, calls = logistic.at, []

    def rounded(coef, alpha):  # so roughly that no last step lowers it
        calls.append(coef)
        point = at(coef, alpha)
        return point._replace(value=point.value + 1e-12 * len(calls))

    logistic.at = rounded
    found = minimized(logistic, preconditioner, start, alphas, 0.0, 100)
    assert found.converged and 0 < found.residual < 1e-5
    value, _ = dense_objective(logistic, found.coef, 1e-4)
    assert_allclose(value, best.rest.value, rtol=1e-10)


def test_a_newton_step_that_does_not_help(rng):
    """Every penalty is tried once; the last one is not said to have converged."""
    logistic, preconditioner, start = objective(1, rng)
    start, at = 20 * rng.standard_normal(start.shape), logistic.at

    def rising(coef, alpha):
        point = at(coef, alpha)
        return point._replace(value=point.value + 1e9 * (coef is not start))

    logistic.at = rising
    alphas = [1.0, 1e-1, 1e-2]
    states = list(islice(newton(logistic, preconditioner, start, alphas, 1e-8), 5))
    for state, alpha in zip(states, [*alphas, 1e-2, 1e-2], strict=True):
        assert_array_equal(state.coef, start)
        assert not state.converged and state.residual > 1e-5
        value, _ = dense_objective(logistic, start, alpha)
        assert_allclose(state.rest.value, value, rtol=1e-13)


def test_the_factor_follows_penalty_and_curvature(rng):
    """It is that of the sums, times the change of the curvature, plus the penalty."""
    logistic, preconditioner, start = objective(1, rng)
    g, far = rng.standard_normal((2, *start.shape))
    first = logistic.at(start, 0.0)
    later = logistic.at(30 * far, 0.0)
    sums = logistic.sums(first, None, lambda C: C)
    ratio = logistic.mean_curvature(later) / logistic.mean_curvature(first)
    assert ratio < 0.5  # less than half: the last factor is no longer good
    for point, alpha, part in (
        (first, 1e-2, 1.0), (first, 1e-4, 1.0), (first, 1.0, 1.0), (later, 1.0, ratio)
    ):  # fmt: skip
        preconditioner.prepare(point, alpha)
        found = preconditioner.inner(preconditioner.inner_transposed(g))
        penalty = np.diag(np.append(np.full(25, alpha), 0.0))
        assert_allclose(found, np.linalg.solve(part * sums + penalty, g), rtol=1e-8)
    preconditioner.spent(6)  # more than its patience: new sums
    preconditioner.prepare(later, 1.0)
    found = preconditioner.inner(preconditioner.inner_transposed(g))
    sums = logistic.sums(later, None, lambda C: C)
    assert_allclose(found, np.linalg.solve(sums + penalty, g), rtol=1e-8)


@pytest.mark.parametrize("scale", [2.0**-60, 2.0**60])
def test_the_unit_of_a_kernel_changes_no_factor(scale, rng):
    """Even if rounding has made the sums indefinite, and the penalty drowns in it."""
    A = rng.standard_normal((26, 3))
    sums = A @ A.T - 1e-13 * np.eye(26)
    g, found = rng.standard_normal((26, 1)), []
    for unit in (1.0, scale):
        logistic, _, start = objective(1, rng)
        P = Preconditioner(logistic, lambda point, unit=unit: unit * sums, 5.0)
        P.prepare(logistic.at(start, 0.0), unit * 1e-20)
        found.append(unit * P.inner(P.inner_transposed(g)))
    assert_array_equal(found[0], found[1])
    # The factor is that of the sums up to rounding.
    part = A @ np.ones((3, 1))
    solved = P.inner(P.inner_transposed(scale * sums @ part))
    assert_allclose(sums @ solved, sums @ part, rtol=0, atol=1e-6)


def test_path_is_plotted(rng):
    plt = pytest.importorskip("matplotlib.pyplot")
    X, y, _ = problem(3, rng)
    model = nystrom(alpha="path").fit(X, y)
    display = RegularizationPathDisplay.from_estimator(model)
    assert display.ax_.get_ylabel() == "log loss, holdout"
    plt.close(display.figure_)


def test_separable_classes_stay_finite(rng):
    X = np.concatenate([rng.uniform(size=(40, 2)), 10 + rng.uniform(size=(40, 2))])
    y = np.repeat(["left", "right"], 40)
    for make in (nystrom, falkon):
        model = make(alpha=1e-9).fit(X, y)
        F = model.decision_function(X)
        assert np.isfinite(F).all() and (np.abs(F) > 3).all()
        assert_array_equal(model.predict(X), y)


@pytest.mark.parametrize("n_classes", [2, 3])
def test_path_is_single_fits(n_classes, rng, exact):
    X, y, _ = problem(n_classes, rng)
    X_val, y_val, w_val = problem(n_classes, rng)
    alphas = [1e-4, 1e-1, 1e-2, 1e-3]
    model = nystrom(alpha="path", alphas=alphas)
    model.fit(X, y, X_val=X_val, y_val=y_val, sample_weight_val=w_val)
    losses = []
    for alpha in alphas:
        P = nystrom(alpha=alpha).fit(X, y).predict_log_proba(X_val)
        losses.append(-np.average(P[np.arange(200), y_val], weights=w_val))
    tried = np.isfinite(model.validation_path_)
    assert tried.sum() >= 3
    assert_allclose(model.validation_path_[tried], np.array(losses)[tried], rtol=1e-5)
    assert model.alpha_ == alphas[np.nanargmin(model.validation_path_)]
    alone = nystrom(alpha=model.alpha_).fit(X, y)
    assert_allclose(model.decision_function(X), alone.decision_function(X), atol=1e-5)


def test_path_refits_all_rows(rng, exact):
    X, y, _ = problem(3, rng)
    for n_centers in (None, 30):
        model = nystrom(alpha="path", n_centers=n_centers).fit(X, y)
        assert np.isnan(model.validation_path_[0])  # 1e-15: the path has ended
        assert 1e-6 < model.alpha_ < 1 and len(model.alphas_) == 31
        alone = nystrom(alpha=model.alpha_, n_centers=None, centers=model.centers_)
        expected = alone.fit(X, y).decision_function(X)
        assert_allclose(model.decision_function(X), expected, atol=2e-5)
        larger = nystrom(alpha="path", n_centers=n_centers, one_standard_error=True)
        assert larger.fit(X, y).alpha_ > model.alpha_


@pytest.mark.parametrize("make", [nystrom, falkon])
def test_weights_are_repetitions(make, rng, exact):
    X, y, w = problem(3, rng)
    copies = np.repeat(np.arange(200), w.astype(int))
    for options in ({"n_centers": None}, {"centers": X[:20], "n_centers": None}):
        one = make(**options).fit(X, y, w)
        other = make(**options).fit(X[copies], y[copies])
        F, G = one.decision_function(X), other.decision_function(X)
        assert_allclose(F, G, atol=2e-5)


def test_classes_may_be_renamed_and_rows_reordered(rng, exact):
    X, y, _ = problem(3, rng)
    order = rng.permutation(200)
    names = np.array(["c", "a", "b"])
    for make in (nystrom, falkon):
        P = make(n_centers=None).fit(X, y).predict_proba(X)
        other = make(n_centers=None).fit(X[order], names[y[order]])
        assert_array_equal(other.classes_, ["a", "b", "c"])
        assert_allclose(other.predict_proba(X)[:, [2, 0, 1]], P, atol=1e-5)


@pytest.mark.parametrize("make", [nystrom, falkon])
def test_classes_without_weight_or_alone(make, rng):
    X, y, _ = problem(3, rng)
    P = make(class_weight={1: 0.0}).fit(X, y).predict_proba(X)
    assert (P[:, 1] < 1e-4).all()
    model = make().fit(X, y, (y == 2).astype(float))
    assert_array_equal(model.predict(X), 2)
    model = make().fit(X, np.full(200, "one"))
    assert_array_equal(model.predict_proba(X), np.ones((200, 1)))
    model = make().fit(X, y == 0, (y == 0).astype(float))
    assert (model.predict_proba(X)[:, 1] > 0.99).all()


def test_large_penalties_leave_the_frequencies(rng):
    X, y, w = problem(2, rng)
    frequency = np.average(y, weights=w)
    with pytest.warns(ConvergenceWarning, match="learned nothing"):
        model = nystrom(alpha=1e6).fit(X, y, w)
    assert_allclose(model.decision_function(X), logit(frequency), atol=1e-5)


@pytest.mark.parametrize("make", [nystrom, falkon])
def test_float32_and_precomputed(make, rng, exact):
    X, y, _ = problem(3, rng)
    expected = make().fit(X, y).decision_function(X)
    single = make().fit(X.astype(np.float32), y)
    F = single.decision_function(X.astype(np.float32))
    assert F.dtype == np.float32
    assert_allclose(F, expected, atol=1e-3)
    given = make(kernel="precomputed").fit(KERNEL(X, X), y)
    same = make(centers=X[given.center_indices_], n_centers=None).fit(X, y)
    expected = same.decision_function(X)
    assert_allclose(given.decision_function(KERNEL(X, X)), expected, atol=1e-5)


@pytest.mark.parametrize("n_centers", [15, None])
@pytest.mark.parametrize("n_classes", [2, 3])
def test_other_libraries(n_centers, n_classes, rng, other_xp, exact):
    X, y, w = problem(n_classes, rng, 60)
    for model in (
        nystrom(n_centers=n_centers, alpha="path", alphas=[1e-1, 1e-2]),
        falkon(n_centers=n_centers),
    ):
        expected = clone(model).fit(X, y, w).predict_proba(X)
        with config_context(array_api_dispatch=True):
            other = clone(model).fit(other_xp.asarray(X), other_xp.asarray(y), w)
            P = other.predict_proba(other_xp.asarray(X))
        assert array_api_compat.array_namespace(P) == other_xp
        assert_allclose(to_numpy(P), expected, atol=1e-6)


def test_falkon_goes_on(rng):
    X, y, _ = problem(3, rng)
    model = falkon(warm_start=True, tol=1e-6).fit(X, y)
    n_first, F = model.n_iter_, model.decision_function(X)
    model.fit(X, y)
    assert model.n_iter_ == 1 < n_first
    assert_allclose(model.decision_function(X), F, atol=1e-5)


def test_falkon_warns(rng):
    X, y, _ = problem(3, rng)
    with pytest.warns(ConvergenceWarning, match="stopped after 2 iterations"):
        model = falkon(max_iter=2).fit(X, y)
    log_P = log_softmax(model.decision_function(X), axis=1)
    assert -log_P[np.arange(200), y].mean() < np.log(3)


def test_nystrom_warns(rng, monkeypatch):
    monkeypatch.setattr("eigenkern.estimators.nystrom.MOST_STEPS", 2)
    X, y, _ = problem(3, rng)
    with pytest.warns(ConvergenceWarning, match="stopped after 2 Newton steps"):
        assert nystrom().fit(X, y).score(X, y) > 0.5


@pytest.mark.parametrize(
    "options, match",
    [
        ({"alpha": 0}, "alpha must be positive with loss='log_loss'"),
        ({"alphas": [0, 1], "alpha": "path"}, "alphas must be positive"),
        ({"selection": "gcv"}, "or 'holdout' with loss='log_loss'.*; got 'gcv'"),
        ({"selection": "loo", "alpha": "path"}, "selection must be 'auto' or 'holdo"),
        ({"store_coef_path": True}, "store_coef_path must be False"),
    ],
)
def test_what_is_not_there(options, match, rng):
    X, y, _ = problem(2, rng)
    with pytest.raises(ValueError, match=match):
        nystrom(**options).fit(X, y)
    with pytest.raises(ValueError, match="loss must be one of"):
        NystromClassifier(loss="hinge").fit(X, y)
    with pytest.raises(ValueError, match="alpha must be positive"):
        falkon(alpha=0).fit(X, y)
