"""Shapley values against all subsets, at limits, and of every model on centers."""

import math
import os
from itertools import product

import array_api_compat
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn import config_context
from sklearn.exceptions import NotFittedError

from eigenkern import (
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
from eigenkern.inspection import shapley_values
from eigenkern.kernels import Gaussian, Manhattan

kernels = pytest.mark.parametrize("kernel", [Gaussian, Manhattan])


def fitted(kernel, X, y=None, alpha=1e-2):
    """Return a model whose coefficients are not large, so that errors are small."""
    y = np.sin(2 * X[:, 0]) + X[:, 0] * X[:, -1] if y is None else y
    kernel = kernel(0.8 * X.shape[1] ** (0.5 if kernel is Gaussian else 1.0))
    return NystromRegressor(kernel, alpha=alpha, random_state=0).fit(X, y)


def enumerated(model, kernel, x, background, players):
    """Return the Shapley values of a row by their definition, (n_players, l)."""
    sigma, Z = model.kernel_.bandwidth, model.centers_

    def factors(rows):
        D = np.abs(rows[:, None, :] - Z) / sigma
        K = np.exp(-D * D / 2 if kernel is Gaussian else -D)
        return np.stack([K[:, :, one].prod(axis=2) for one in players], axis=2)

    present, d = factors(x[None, :]), len(players)
    absent = np.ones_like(present) if background is None else factors(background)
    subsets = np.array(list(product([False, True], repeat=d)))
    values = np.array(
        [
            np.where(S, present, absent).prod(axis=2).mean(axis=0) @ model.dual_coef_
            for S in subsets
        ]
    )
    phi, sizes = np.zeros((d, values.shape[1])), subsets.sum(axis=1)
    for i in range(d):
        without = np.flatnonzero(~subsets[:, i])  # in binary, 2^(d - 1 - i) before
        s = sizes[without]
        weights = 1 / (d * np.array([math.comb(d - 1, k) for k in s]))
        phi[i] = weights @ (values[without + 2 ** (d - 1 - i)] - values[without])
    return phi


@kernels
@pytest.mark.parametrize("n_background", [None, 3])
@pytest.mark.parametrize("d", [1, 2, 3, 6, 11, 12])
def test_the_definition(kernel, n_background, d, rng):
    X = rng.standard_normal((25, d))
    model = fitted(kernel, X, np.column_stack([X[:, 0] ** 2, X[:, -1]]))
    rows = rng.standard_normal((2, d))
    background = None if n_background is None else rng.standard_normal((3, d))
    result = shapley_values(model, rows, background=background)
    assert result.values.shape == (2, d, 2)
    players = [[j] for j in range(d)]
    for x, found in zip(rows, result.values, strict=True):
        expected = enumerated(model, kernel, x, background, players)
        assert_allclose(found, expected, atol=1e-12 * abs(expected).max())
    sums = result.base_values + result.values.sum(axis=1)
    assert_allclose(sums, model.predict(rows), atol=1e-12)
    if background is None:
        base = model.dual_coef_.sum(axis=0) + model.intercept_
    else:
        base = model.predict(background).mean(axis=0)
    assert_allclose(result.base_values, np.tile(base, (2, 1)), atol=1e-12)


@kernels
@pytest.mark.parametrize("n_background", [None, 2])
@pytest.mark.parametrize("spread", [0.1, 1.0, 10.0])
@pytest.mark.parametrize("d", [60, 95, 200, 500])
def test_sums_of_many_columns(kernel, n_background, spread, d, rng):
    """Factors from 1 - 1e-3 to 0: partial products underflow, and no sum is wrong."""
    X = rng.standard_normal((30, d))
    model = fitted(kernel, X)
    rows = X[:4] + spread * rng.standard_normal((4, d))
    rows[0, 3] = 1e3  # the factor of one column alone is zero
    background = None if n_background is None else rows[2:] - spread
    result = shapley_values(model, rows, background=background)
    sums = result.base_values + result.values.sum(axis=1)
    assert_allclose(sums, model.predict(rows), atol=1e-12)


@pytest.mark.parametrize("d", [90, 100, 500, 2000])
def test_columns_that_are_alike(d):
    """Half of the columns are like those of the only center, half of them are not."""
    Z = np.zeros((2, d))
    Z[1] = 1.0
    model = NystromRegressor(Manhattan(float(d)), alpha=1.0).fit(Z, [1.0, 2.0])
    model.dual_coef_ = np.array([[1.0], [0.0]])
    x, b = np.zeros((1, d)), np.zeros((1, d))
    x[0, ::2], b[0, 1::2] = 3.0, 1.0
    present, absent = shapley_values(model, x, background=b).values[0, :2]
    # The columns of each half have equal shares, and by Owen's formula ::
    #   (k - 1) int (1 + t (k - 1))^(d/2 - 1) (t + (1 - t) c)^(d/2) dt
    k, c = math.exp(-3 / d), math.exp(-1 / d)
    t = (np.arange(200_000) + 0.5) / 200_000  # the midpoint rule, for smooth functions
    up, down = 1 + t * (k - 1), t + (1 - t) * c
    expected = (k - 1) * np.mean(up ** (d // 2 - 1) * down ** (d // 2))
    assert_allclose(present, expected, rtol=1e-9)
    assert_allclose(absent + present, (k ** (d / 2) - c ** (d / 2)) * 2 / d, rtol=1e-10)
    assert_allclose(np.ptp(shapley_values(model, x).values[0, ::2]), 0, atol=1e-16)


@kernels
def test_groups_are_players(kernel, rng):
    X = rng.standard_normal((25, 7))
    model, rows, background = fitted(kernel, X), X[:2] + 0.5, X[5:8]
    groups = {"late": [6, 2], "middle": [3, 4]}
    result = shapley_values(model, rows, background=background, groups=groups)
    assert result.feature_names == ["x0", "x1", "late", "middle", "x5"]
    players = [[0], [1], [2, 6], [3, 4], [5]]
    for x, found in zip(rows, result.values, strict=True):
        expected = enumerated(model, kernel, x, background, players)[:, 0]
        assert_allclose(found, expected, atol=1e-12)
    assert_array_equal(result.data[:, [0, 1, 4]], rows[:, [0, 1, 5]])
    assert np.isnan(result.data[:, 2:4]).all()
    alone = shapley_values(model, rows, groups={"all": range(7)})
    assert_allclose(alone.values[:, 0], model.predict(rows) - alone.base_values)
    one_each = shapley_values(model, rows, groups={"first": [0]})
    assert_array_equal(one_each.values, shapley_values(model, rows).values)


def test_names(rng):
    pandas = pytest.importorskip("pandas")
    X = pandas.DataFrame(rng.standard_normal((40, 3)), columns=["a", "b", "c"])
    model = fitted(Gaussian, X.to_numpy())
    model.fit(X, X["a"])
    result = shapley_values(model, X[:5], background=X)
    assert result.feature_names == ["a", "b", "c"]
    assert_array_equal(result.data, X[:5].to_numpy())
    result = shapley_values(model, X[:5], background=X, groups={"ends": ["c", 0]})
    assert result.feature_names == ["ends", "b"]


@kernels
def test_what_does_not_matter(kernel, rng, monkeypatch):
    X = rng.standard_normal((70, 6))
    X[:, 4] = 1.0
    model, rows, background = fitted(kernel, X), X[:9] + 0.3, X[20:24]
    rows[:, [1, 4]] = background[0, [1, 4]]
    background[:, [1, 4]] = background[0, [1, 4]]

    def values(rows, background=background):
        return shapley_values(model, rows, background=background).values

    expected = values(rows)
    assert_array_equal(expected[:, [1, 4]], 0)  # present and absent are the same
    assert_allclose(values(rows[::-1])[::-1], expected, atol=1e-14)
    copies = np.repeat(background, 3, axis=0)[::-1]
    assert_allclose(values(rows, copies), expected, atol=1e-14)
    assert_allclose(
        np.mean([values(rows, one[None, :]) for one in background], axis=0),
        expected,
        atol=1e-14,
    )
    assert_allclose(values(rows, rows[:1])[0], 0, atol=1e-15)
    for size in (1, 100, 2**20):
        monkeypatch.setattr("eigenkern.estimators.shapley.SHAPLEY_TILE", size)
        assert_allclose(values(rows), expected, atol=1e-14)
    monkeypatch.undo()
    monkeypatch.setattr("eigenkern.arrays.threads.SHARED_SECONDS", 1e-9)
    for n_threads in (1, 3):
        monkeypatch.setattr(
            "eigenkern.estimators.shapley.n_blas_threads", lambda n=n_threads: n
        )
        assert_array_equal(values(rows), expected)


@pytest.mark.filterwarnings("ignore:.*cut off")
def test_fill_values(rng):
    X = rng.standard_normal((60, 4))
    X[::7, 2], X[::11, 2] = 1e12, 1e14
    for kernel in (Gaussian, Manhattan):
        model = fitted(kernel, X)
        result = shapley_values(model, X, background=X[:5])
        sums = result.base_values + result.values.sum(axis=1)
        assert_allclose(sums, model.predict(X), atol=1e-6)  # the error of predict
    far = np.full((1, 4), 1e300)
    result = shapley_values(model, far, background=X[:1])
    assert_allclose(result.values.sum(), model.intercept_ - model.predict(X[:1]))


@kernels
def test_data_types(kernel, rng):
    X = rng.standard_normal((50, 4))
    y = np.sin(X[:, 0])
    rows = X[:7].astype(np.float32)
    model = fitted(kernel, X.astype(np.float32), y, alpha=0.1)
    assert model.dual_coef_.dtype == np.float32
    found = shapley_values(model, rows, background=rows[:2])
    expected = shapley_values(fitted(kernel, X, y, alpha=0.1), X[:7], background=X[:2])
    assert found.values.dtype == found.base_values.dtype == found.data.dtype
    assert found.values.dtype == np.float64
    assert_allclose(found.values, expected.values, atol=1e-5)
    sums = found.base_values + found.values.sum(axis=1)
    assert_allclose(sums, model.predict(rows), atol=1e-5)


@pytest.mark.parametrize(
    "model",
    [
        EigenProRegressor("manhattan", random_state=0),
        EigenProRegressor("gaussian", alpha=0.1, max_iter=3, algorithm="eigenpro2"),
        EigenProRegressor("gaussian", n_centers=20, max_iter=3, random_state=0),
        NystromRegressor("manhattan", n_centers=20, random_state=0),
        NytroRegressor("gaussian", n_centers=20, random_state=0),
        FalkonLikeRegressor("gaussian", n_centers=20, random_state=0),
        RFMRegressor(EigenProRegressor("manhattan"), metric="diagonal", random_state=0),
        RFMRegressor(
            NystromRegressor("gaussian", alpha=0.1), metric="diagonal", random_state=0
        ),
        EigenProClassifier("manhattan", random_state=0),
        NystromClassifier("gaussian", alpha=0.1, random_state=0),
        RFMClassifier(
            EigenProClassifier("manhattan"), metric="diagonal", random_state=0
        ),
    ],
    ids=repr,
)
@pytest.mark.parametrize("n_outputs", [1, 3])
def test_every_model_on_centers(model, n_outputs, regression):
    X, y, rows, _ = regression
    values = getattr(model, "decision_function", model.predict)
    if hasattr(model, "decision_function"):
        model.fit(X, np.digitize(y, [-0.5, 0.5] if n_outputs == 3 else [0.0]))
    else:
        model.fit(X, np.stack([y, X[:, 0], X[:, 1]], axis=1) if n_outputs == 3 else y)
    result = shapley_values(model, rows, background=X[:5])
    shape = (40,) if n_outputs == 1 else (40, 3)
    assert result.values.shape == (40, 3, *shape[1:])
    assert result.base_values.shape == shape
    sums = result.base_values + result.values.sum(axis=1)
    expected = values(rows)
    assert_allclose(sums, expected, atol=1e-9 * abs(expected).max())
    expected = values(X[:5]).mean(axis=0)
    assert_allclose(result.base_values[0], expected, atol=1e-8)


def test_a_metric_scales_columns(regression):
    X, _, rows, _ = regression
    inner = NystromRegressor("gaussian", alpha=0.1)
    model = RFMRegressor(inner, metric="diagonal", random_state=0).fit(X, X[:, 0] ** 2)
    assert model.metric_kind_ == "diagonal"
    mapped, base = model.transform(rows), model.transform(X[:4])
    expected = shapley_values(model.estimator_, mapped, background=base)
    found = shapley_values(model, rows, background=X[:4])
    assert_allclose(found.values, expected.values, atol=1e-12)
    assert_array_equal(found.data, rows)


def test_a_table_with_categories_and_gaps(regression):
    pd = pytest.importorskip("pandas")
    X, y, *_ = regression
    y = y + (X[:, 2] > 0)
    names = np.where(X[:, 2] > 1, "high", np.where(X[:, 2] > 0, "middle", "low"))
    table = pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "c": names, "d": np.nan})
    table.loc[::7, "b"] = np.nan
    model = RFMRegressor(
        EigenProRegressor("gaussian"), metric="diagonal", random_state=0
    )
    model.fit(table, y)
    rows, background = table.iloc[:20], table.iloc[20:25]
    result = shapley_values(model, rows, background=background)
    assert result.feature_names == ["a", "b", "c", "d"]
    sums = result.base_values + result.values.sum(axis=1)
    assert_allclose(sums, model.predict(rows), atol=1e-9)
    assert_array_equal(result.values[:, 3], np.zeros(20))
    assert_array_equal(result.data[:, :2].astype(float), rows[["a", "b"]])
    assert_array_equal(result.data[:, 2], rows["c"])
    assert np.isnan(result.data[:, 3].astype(float)).all()
    # The category by enumeration: of the other three columns one has no values.
    others, phi = [["a"], ["b"], ["a", "b"], []], 0.0
    for present in others:
        weight = {0: 1 / 3, 1: 1 / 6, 2: 1 / 3}[len(present)]
        for own, sign in ((["c"], 1), ([], -1)):
            for i in range(5):
                mixed = pd.concat([background.iloc[[i]]] * 20, ignore_index=True)
                for name in present + own:
                    mixed[name] = rows[name].to_numpy()
                phi = phi + sign * weight * model.predict(mixed) / 5
    assert_allclose(result.values[:, 2], phi, atol=1e-10)
    both = shapley_values(model, rows, background=background, groups={"ac": ["a", "c"]})
    assert both.feature_names == ["ac", "b", "d"]
    assert_allclose(both.values.sum(axis=1), result.values.sum(axis=1), atol=1e-10)


@pytest.mark.skipif(
    os.environ.get("SCIPY_ARRAY_API") != "1",
    reason="scikit-learn dispatches on arrays only with SCIPY_ARRAY_API=1",
)
@kernels
def test_other_libraries_agree_with_numpy(kernel, other_xp, regression):
    X, y, rows, _ = regression
    model = RFMRegressor(
        NystromRegressor(kernel(2.0), alpha=0.1), metric="diagonal", random_state=0
    )
    groups = {"both": [0, 2]}
    model.fit(X, y)
    expected = shapley_values(model, rows, background=X[:3], groups=groups)
    with config_context(array_api_dispatch=True):
        X, y, rows = (other_xp.asarray(array) for array in (X, y, rows))
        model.fit(X, y)
        found = shapley_values(model, rows, background=X[:3, :], groups=groups)
        for name in ("values", "base_values", "data"):
            array = getattr(found, name)
            assert array_api_compat.array_namespace(array) == other_xp
            assert_allclose(to_numpy(array), getattr(expected, name), atol=1e-9)
        with pytest.raises(ValueError, match=r"shapley_values\(\) must use the same"):
            shapley_values(model, to_numpy(rows))


def test_the_kernel_must_be_a_product(regression):
    X, y, *_ = regression
    y = y + np.sin(3 * (X[:, 0] + X[:, 1]))
    full = RFMRegressor(
        EigenProRegressor("gaussian"), metric="full", max_rounds=1, random_state=0
    )
    models = [
        (EigenProRegressor("laplacian"), "Laplacian.* is not a product over columns"),
        (EigenProRegressor("matern32"), "fit it with kernel='gaussian' or 'manhattan'"),
        (EigenProRegressor("linear"), "Linear.* is not a product"),
        (EigenProRegressor(Gaussian(2.0).__call__), "is not a product over columns"),
        (RFMRegressor(max_rounds=0, metric="full"), "estimator=EigenProRegressor.'gau"),
        (full, "full: fit it with metric='diagonal'"),
        (DSGRegressor("gaussian", max_iter=1), "not over random features"),
        (LinearEigenProRegressor(), "model must be a model on kernels of eigenkern"),
    ]
    for model, message in models:
        with pytest.raises(ValueError, match=message):
            shapley_values(model.fit(X, y), X)
    K = Gaussian(2.0)(X)
    with pytest.raises(ValueError, match="kernel='precomputed'"):
        shapley_values(EigenProRegressor("precomputed").fit(K, y), K)

    class Squared(Gaussian):
        def finish(self, xp, T):
            return super().finish(xp, T) ** 2

    with pytest.raises(ValueError, match="is not a product over columns"):
        shapley_values(EigenProRegressor(Squared(2.0)).fit(X, y), X)


def test_parameters_are_checked(regression):
    X, y, rows, _ = regression
    with pytest.raises(NotFittedError, match="not fitted yet"):
        shapley_values(EigenProRegressor("gaussian"), rows)
    model = fitted(Gaussian, X, y)
    with pytest.raises(ValueError, match=r"X has 2 features, but .* is expecting 3"):
        shapley_values(model, rows[:, :2])
    with pytest.raises(ValueError, match="background is not valid: X has 2 features"):
        shapley_values(model, rows, background=rows[:, :2])
    with pytest.raises(ValueError, match=r"background is not valid: .* NaN"):
        shapley_values(model, rows, background=np.full((2, 3), np.nan))
    for groups in ({"a": [3]}, {"a": [0, 0]}, {"a": ["x0"]}, {"a": []}, {"a": 1}):
        with pytest.raises(ValueError, match="groups must list columns by position fr"):
            shapley_values(model, rows, groups=groups)
    with pytest.raises(ValueError, match=r"each column once; got \[1, 2\] for 'b'"):
        shapley_values(model, rows, groups={"a": [0, 1], "b": [1, 2]})
    with pytest.raises(ValueError, match="groups must be a dict of lists of columns"):
        shapley_values(model, rows, groups=[[0, 1]])


def test_plots_of_shap(regression):
    shap = pytest.importorskip("shap")
    pyplot = pytest.importorskip("matplotlib.pyplot")
    X, y, rows, _ = regression
    model = fitted(Gaussian, X, np.column_stack([y, y**2]))
    several = shap.Explanation(**vars(shapley_values(model, rows, background=X[:5])))
    for explained in (several[:, :, 0], several[..., 1]):
        shap.plots.beeswarm(explained, show=False)
        shap.plots.bar(explained, show=False)
        shap.plots.scatter(explained[:, 0], show=False)
        shap.plots.waterfall(explained[0], show=False)
        pyplot.close("all")
