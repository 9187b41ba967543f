"""Gradients of models against differences, and their average outer product."""

import os

import array_api_compat
import numpy as np
import pytest
import scipy.sparse
from numpy.testing import assert_allclose, assert_array_equal
from sklearn import clone, config_context
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import Ridge

from eigenkern import (
    DSGClassifier,
    DSGRegressor,
    EigenProClassifier,
    EigenProRegressor,
    FalkonLikeRegressor,
    LinearEigenProRegressor,
    NystromClassifier,
    NystromRegressor,
    NytroRegressor,
    RFMClassifier,
    RFMRegressor,
)
from eigenkern.arrays.array import to_numpy
from eigenkern.inspection import average_gradient_outer_product, gradient
from eigenkern.kernels import Gaussian

KERNELS = ["gaussian", "laplacian", "cauchy", "matern32", "matern52", "polynomial"]
MODELS = [
    *(EigenProRegressor(kernel, random_state=0) for kernel in KERNELS),
    EigenProRegressor("linear", random_state=0),
    EigenProRegressor(algorithm="eigenpro2", max_iter=3, random_state=0),
    EigenProRegressor(n_centers=40, max_iter=3, random_state=0),
    NystromRegressor("gaussian", n_centers=40, random_state=0),
    NytroRegressor(n_centers=40, random_state=0),
    FalkonLikeRegressor(n_centers=40, random_state=0),
    DSGRegressor("matern52", max_iter=3, random_state=0),
    RFMRegressor(metric="diagonal", max_rounds=1, random_state=0),
    RFMRegressor(metric="full", max_rounds=2, random_state=0),
    RFMRegressor(
        DSGRegressor("gaussian", max_iter=3),
        metric="full",
        max_rounds=1,
        random_state=0,
    ),
]
models = pytest.mark.parametrize("model", MODELS, ids=repr)


def differences(values, X, step=1e-4):
    """Return fourth-order differences of a function (n, d) -> (n, l)."""
    columns = []
    for h in step * np.eye(X.shape[1]):
        near, far = (values(X + i * h) - values(X - i * h) for i in (1, 2))
        columns.append((8 * near - far) / (12 * step))
    return np.stack(columns, axis=1).reshape(*X.shape, -1)


@models
def test_gradients_are_differences(model, regression):
    X, y, X_test, _ = regression
    model.fit(X, np.column_stack([y, X[:, 0] - y**2]))
    G = gradient(model, X_test)
    assert G.shape == (40, 3, 2)
    expected = differences(model.predict, X_test)
    assert_allclose(G, expected, rtol=1e-6, atol=1e-6 * abs(expected).max())


@models
def test_gradients_of_float32_are_close(model, regression):
    X, y, X_test, _ = regression
    names = {"bandwidth", "estimator__bandwidth"} & model.get_params().keys()
    model = clone(model).set_params(**dict.fromkeys(names, "median"))  # the same one
    expected = gradient(model.fit(X, y), X_test)
    X, X_test = X.astype(np.float32), X_test.astype(np.float32)
    G = gradient(model.fit(X, y), X_test)
    # A penalty below the rounding of float32 makes the model float64.
    coef = getattr(model, "estimator_", model)
    assert G.dtype == getattr(coef, "dual_coef_", X).dtype
    # Both are separate fits: the float32 one has its own penalty.
    assert_allclose(G, expected, atol=0.02 * abs(expected).max())


@pytest.mark.parametrize("cls", [EigenProRegressor, DSGRegressor])
@pytest.mark.parametrize("kernel", KERNELS[:-1])
def test_gradients_far_from_the_origin(cls, kernel, regression):
    X, y, X_test, _ = (np.round(part * 2**20) / 2**20 for part in regression)
    model = cls(kernel, random_state=0, max_iter=3)
    expected = gradient(model.fit(X, y), X_test)
    G = gradient(model.fit(X + 2.0**13, y), X_test + 2.0**13)
    assert_allclose(G, expected, rtol=1e-6, atol=1e-6 * abs(expected).max())


@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize(
    "model",
    [
        EigenProClassifier(random_state=0),
        NystromClassifier(n_centers=40, random_state=0),
        DSGClassifier("matern52", max_iter=3, random_state=0),
        RFMClassifier(max_rounds=1, random_state=0),
    ],
    ids=repr,
)
def test_gradients_of_classifiers(model, n_classes, three_classes, rng):
    X, y = three_classes
    model.fit(X, np.array(["a", "b", "c"])[y % n_classes])
    rows = rng.standard_normal((20, 2))
    G = gradient(model, rows)
    assert G.shape == (20, 2, 1 if n_classes == 2 else 3)
    expected = differences(model.decision_function, rows)
    assert_allclose(G, expected, rtol=1e-6, atol=1e-6 * abs(expected).max())


def test_gradients_of_the_manhattan_distance(regression):
    """Except where a feature equals that of a center: there is a kink along it."""
    X, y, X_test, _ = regression
    model = EigenProRegressor("manhattan", random_state=0).fit(X, y)
    G = gradient(model, X_test)[:, :, 0]
    expected = differences(model.predict, X_test)[:, :, 0]
    smooth = np.abs(X_test[:, None, :] - X[None, :, :]).min(axis=1) > 2e-4
    assert np.count_nonzero(smooth) > 100
    error = np.abs(G - expected)[smooth].max()
    assert error < 1e-6 * np.abs(expected).max()
    at_centers = gradient(model, X[:3])[:, :, 0]
    a = model.dual_coef_.ravel()
    for x, found in zip(X[:3], at_centers, strict=True):
        K = np.exp(-np.abs(x - X).sum(axis=1) / model.bandwidth_)
        each = (K * a)[:, None] * np.sign(X - x) / model.bandwidth_
        assert_allclose(found, each.sum(axis=0), rtol=1e-8, atol=1e-8)


def test_gradients_at_centers_of_the_laplacian(regression):
    """The center itself is left out, which gives the mean of both sides of its kink."""
    X, y, *_ = regression
    model = EigenProRegressor(random_state=0).fit(X, y)
    expected = differences(model.predict, X[:20])
    assert_allclose(gradient(model, X[:20]), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.skipif(
    os.environ.get("SCIPY_ARRAY_API") != "1",
    reason="scikit-learn dispatches on arrays only with SCIPY_ARRAY_API=1",
)
@pytest.mark.parametrize("n_outputs", [1, 12])
@pytest.mark.parametrize(
    "model",
    [
        EigenProRegressor(random_state=0),
        DSGRegressor("matern52", max_iter=3, random_state=0),
        RFMRegressor(metric="full", max_rounds=1, random_state=0),
    ],
    ids=repr,
)
def test_other_libraries_agree_with_numpy(model, n_outputs, other_xp, regression):
    X, y, rows, _ = regression
    Y = np.stack([y + X[:, i % 3] ** i for i in range(n_outputs)], axis=1)
    functions = [
        gradient,
        lambda *a: average_gradient_outer_product(*a, random_state=0),
        lambda *a: average_gradient_outer_product(*a, kind="diagonal", random_state=0),
    ]
    model.fit(X, Y)
    expected = [function(model, rows) for function in functions]
    X, Y, rows_xp = (other_xp.asarray(array) for array in (X, Y, rows))
    with config_context(array_api_dispatch=True):
        model.fit(X, Y)
        for function, values in zip(functions, expected, strict=True):
            found = function(model, rows_xp)
            assert array_api_compat.array_namespace(found) == other_xp
            atol = 1e-7 * abs(values).max()
            assert_allclose(to_numpy(found), values, rtol=1e-6, atol=atol)
        with pytest.raises(ValueError, match=r"gradient\(\) must use the same namesp"):
            gradient(model, rows)


@pytest.fixture
def fitted(regression):
    X, y, *_ = regression
    return EigenProRegressor(random_state=0).fit(X, np.column_stack([y, X[:, 0]]))


@pytest.fixture
def many_outputs(rng):
    """A model of 30 outputs."""
    X = rng.standard_normal((60, 3))
    Y = np.sin(X @ rng.standard_normal((3, 30)))
    return EigenProRegressor(Gaussian(2.0), random_state=0).fit(X, Y), X


@pytest.mark.parametrize("weighted", [False, True])
def test_the_mean_of_outer_products(weighted, fitted, regression, rng):
    X = regression[2]
    w = rng.integers(0, 3, len(X)).astype(float) if weighted else None
    G = gradient(fitted, X)
    expected = np.average(G @ np.transpose(G, (0, 2, 1)), axis=0, weights=w)
    M = average_gradient_outer_product(fitted, X, sample_weight=w)
    assert M.dtype == np.float64
    assert_allclose(M, expected, rtol=1e-10)
    assert_array_equal(M, M.T)
    options = {"kind": "diagonal", "sample_weight": w}
    M = average_gradient_outer_product(fitted, X, **options)
    assert_allclose(M, np.diagonal(expected), rtol=1e-10)
    if weighted:
        M = average_gradient_outer_product(fitted, np.repeat(X, w.astype(int), axis=0))
        assert_allclose(M, expected, rtol=1e-10)


@pytest.mark.parametrize("kind", ["full", "diagonal"])
def test_memory_changes_nothing(kind, fitted, regression, monkeypatch):
    expected = average_gradient_outer_product(fitted, regression[2], kind=kind)
    for module in ("operators.gradient", "estimators.gradients"):
        monkeypatch.setattr(f"eigenkern.{module}.GRADIENT_BYTES", 1.0)
    found = average_gradient_outer_product(fitted, regression[2], kind=kind)
    assert_allclose(found, expected, rtol=1e-9)


def test_rows_are_drawn_from_a_seed(fitted, regression):
    def mean(seed, n, **options):
        return average_gradient_outer_product(
            fitted, X, max_rows=n, random_state=seed, **options
        )

    X = regression[0]
    assert_array_equal(mean(0, 30), mean(0, 30))
    assert not np.array_equal(mean(0, 30), mean(1, 30))
    assert_array_equal(mean(0, 160), average_gradient_outer_product(fitted, X))
    assert_array_equal(mean(0, 999), mean(1, 160))
    with pytest.raises(ValueError, match="max_rows=3 draws no row with a positive"):
        mean(0, 3, sample_weight=np.eye(160)[5])


def test_many_outputs_are_combined_without_bias(many_outputs):
    model, X = many_outputs
    G = gradient(model, X)
    exact = np.einsum("idl,iel->de", G, G) / len(X)
    n_seeds = 40
    found = [
        average_gradient_outer_product(model, X, random_state=seed)
        for seed in range(n_seeds)
    ]
    # 10 combinations in each of 15 blocks of 4 rows. The mean of R products of such
    # signs, of the same rows, has a squared error of at most (|M|^2 + tr(M)^2) / R.
    R = 10 * 15 * n_seeds
    bound = ((np.sum(exact**2) + np.trace(exact) ** 2) / R) ** 0.5
    error = np.sum((np.mean(found, axis=0) - exact) ** 2) ** 0.5
    assert error < 3 * bound < 0.1 * np.sum(exact**2) ** 0.5
    assert not np.allclose(found[0], exact, rtol=1e-3)
    again = average_gradient_outer_product(model, X, random_state=3, kind="diagonal")
    assert_allclose(again, np.diagonal(found[3]), rtol=1e-9)


@pytest.mark.parametrize("unit", [2.0**-60, 2.0**60])
def test_units_of_the_outputs(unit, regression):
    """Sums of squared gradients overflow or underflow in float32."""
    X, y, *_ = regression
    X = X.astype(np.float32)
    expected, M = (
        average_gradient_outer_product(
            EigenProRegressor(random_state=0).fit(X, scale * y), np.tile(X, (50, 1))
        )
        for scale in (1.0, unit)
    )
    assert_allclose(M / unit / unit, expected, rtol=1e-3, atol=1e-3 * expected.max())


def test_the_gradient_of_a_constant_is_zero(regression):
    X = regression[0]
    model = EigenProRegressor(random_state=0).fit(X, np.ones(160))
    assert_array_equal(gradient(model, X), np.zeros((160, 3, 1)))
    assert_array_equal(average_gradient_outer_product(model, X), np.zeros((3, 3)))


def test_the_model_must_be_on_kernels_that_have_a_slope(regression):
    X, y, *_ = regression
    K = Gaussian(2.0)(X)
    models = [
        (Ridge().fit(X, y), X, "model must be a model on kernels .* got Ridge"),
        (LinearEigenProRegressor().fit(X, y), X, "model must be a model on kernels"),
        (EigenProRegressor("precomputed").fit(K, y), K, "kernel='precomputed'"),
        (EigenProRegressor(Gaussian(2.0).__call__).fit(X, y), X, "declares no grad"),
        (None, X, "model must be a model on kernels .* got None"),
        (EigenProRegressor, X, "model must be a model on kernels"),
    ]
    for model, rows, message in models:
        for function in (gradient, average_gradient_outer_product):
            with pytest.raises(ValueError, match=message):
                function(model, rows)


@pytest.mark.parametrize("function", [gradient, average_gradient_outer_product])
def test_rows_are_checked(function, fitted, regression):
    X = regression[0]
    with pytest.raises(NotFittedError, match="not fitted yet"):
        function(RFMRegressor(), X)
    with pytest.raises(ValueError, match=r"X has 2 features, but .* is expecting 3"):
        function(fitted, X[:, :2])
    with pytest.raises(TypeError, match=r"[Ss]parse"):
        function(fitted, scipy.sparse.csr_array(X))
    with pytest.raises(ValueError, match="NaN"):
        function(fitted, np.full((2, 3), np.nan))


@pytest.mark.parametrize(
    "options, message",
    [
        ({"kind": "half"}, "kind must be 'full' or 'diagonal'; got 'half'"),
        ({"max_rows": 0}, "max_rows must be an integer >= 1; got 0"),
        ({"max_rows": 2.5}, "max_rows must be an integer >= 1; got 2.5"),
        ({"sample_weight": np.ones(3)}, r"sample_weight must have shape \(40,\)"),
        ({"sample_weight": np.zeros(40)}, "sample_weight must have a positive weight"),
        ({"sample_weight": -np.ones(40)}, "sample_weight must not be negative"),
    ],
    ids=str,
)
def test_parameters_are_checked(options, message, fitted, regression):
    with pytest.raises(ValueError, match=message):
        average_gradient_outer_product(fitted, regression[2], **options)
