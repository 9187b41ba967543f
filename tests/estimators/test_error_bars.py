"""Standard deviations of RFMRegressor: Gaussian processes, left-out rows, coverage."""

import pickle
import warnings

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import Matern

from eigenkern import (
    DSGRegressor,
    EigenProRegressor,
    FalkonLikeRegressor,
    NystromRegressor,
    NytroRegressor,
    RFMRegressor,
)
from eigenkern.estimators import rfm, tables
from eigenkern.fitting import error_bars

OPTIONS = {"max_rounds": 1, "random_state": 0}
INNER = EigenProRegressor("matern32", bandwidth=2.0, alpha=1e-3)


def drawn(n, seed=0, *, changing=False):
    """Return a function of two of four columns, with noise that x_3 changes, or not."""
    rng = np.random.RandomState(seed)
    X = rng.uniform(-2, 2, (n, 4))
    deviation = 0.05 + 0.5 * (X[:, 3] > 0) if changing else 0.3
    return X, np.sin(X[:, 0]) + X[:, 1] + deviation * rng.standard_normal(n)


@pytest.fixture(scope="module")
def fitted():
    X, y = drawn(150)
    return RFMRegressor(INNER, **OPTIONS).fit(X, y), X, y


def variances_of_a_process(model, X, T, w=1.0):
    """Return k(x, x) - k(x)' (K + c W^-1)^-1 k(x), c = alpha n, by scikit-learn."""
    shape = Matern(model.estimator_.kernel_.bandwidth, nu=1.5)
    c = model.estimator_.alpha_ * len(X) / w
    peer = GaussianProcessRegressor(shape, alpha=c, optimizer=None)
    peer.fit(model.transform(X), np.zeros(len(X)))
    return peer.predict(model.transform(T), return_std=True)[1] ** 2


@pytest.mark.parametrize("weighted", [False, True])
def test_constant_noise_is_a_gaussian_process(weighted):
    X, y = drawn(150)
    w = np.random.RandomState(1).uniform(0.5, 2, 150) if weighted else np.ones(150)
    model = RFMRegressor(INNER, **OPTIONS).fit(X, y, w)
    bars, T = model._error_bars, 0.9 * drawn(60, 1)[0]
    assert len(bars.known) == 0  # the residuals don't say that the noise changes
    v = variances_of_a_process(model, X, T, w / w.mean())
    std = model.predict(T, return_std=True)[1]
    near = v <= bars.largest
    assert near.sum() > 50
    expected = np.sqrt(bars.prior * v + bars.noise)
    assert_allclose(std[near], expected[near], rtol=1e-6)


def test_scale_is_that_of_models_without_a_row(fitted):
    model, X, y = fitted
    XR, kernel = model.transform(X), model.estimator_.kernel_
    c, squares = model.estimator_.alpha_ * 150, []
    bars = model._error_bars
    for i in range(150):
        rest = np.arange(150) != i
        one = EigenProRegressor(kernel, alpha=c / 149).fit(XR[rest], y[rest])
        v = GaussianProcessRegressor(
            Matern(kernel.bandwidth, nu=1.5), alpha=c, optimizer=None
        )
        v.fit(XR[rest], y[rest])
        v = v.predict(XR[i : i + 1], return_std=True)[1] ** 2
        error = y[i] - one.predict(XR[i : i + 1])
        squares.append(error**2 / (bars.prior * v + bars.noise))
    # The mean of the targets stays that of all rows.
    assert_allclose(np.mean(squares), 1.0, rtol=0.02)


def test_spread_is_a_maximum(rng):
    """At the maximum lambda a = u exp(-h) - 1, with h = K a."""
    z = rng.standard_normal((200, 2))
    residuals = np.exp(0.8 * z[:, :1]) * rng.standard_normal((200, 1))
    known, slope, coef, level, limits = error_bars._spread_of(
        z, residuals, np.full((200, 1), 3.0)
    )
    distances = np.sqrt(((z[:, None] - z) ** 2).sum(axis=2))
    K = z @ z.T + np.exp(-0.3 * distances)
    assert_array_equal(known, z)
    assert_allclose(slope, z.T @ coef)
    h, u = K @ coef, np.abs(residuals) / np.abs(residuals).mean()
    ratio = np.sum(coef * (u * np.exp(-h) - 1)) / np.sum(coef**2)
    nearest = error_bars._PENALTIES[np.argmin(abs(error_bars._PENALTIES - ratio))]
    assert_allclose(ratio, nearest, rtol=1e-3)
    assert_allclose(u * np.exp(-h) - 1, nearest * coef, atol=2e-3)
    total = (level + h)[:, 0]
    assert np.corrcoef(total, z[:, 0])[0, 1] > 0.97
    assert_allclose(np.mean(residuals[:, 0] ** 2 / 3 * np.exp(-2 * total)), 1, rtol=0.2)
    assert limits[0, 0] < h.mean() < limits[1, 0]


@pytest.mark.parametrize("n", [300, 1400])
def test_noise_that_changes(n):
    X, y = drawn(n + 4000, changing=True)
    model = RFMRegressor(**OPTIONS).fit(X[:n], y[:n])
    mean, std = model.predict(X[n:], return_std=True)
    inside = np.abs(y[n:] - mean) < 1.645 * std
    noisy = X[n:, 3] > 0.2
    quiet = X[n:, 3] < -0.2
    assert std[noisy].mean() > 3 * std[quiet].mean()
    assert 0.84 < inside[noisy].mean() < 0.96
    assert 0.84 < inside[quiet].mean() < 0.98
    assert 0.87 < inside.mean() < 0.93
    # More rows than are kept: the process is that of 700 of them.
    if n > 1000:
        bars = model._error_bars
        assert bars.factor.shape == (700, 700) and len(bars.known) == 700
        assert len(pickle.dumps(model)) < 6e6


def test_without_a_factor_it_is_calibrated_as_well():
    X, y = drawn(2100)
    model = RFMRegressor(INNER, **OPTIONS).fit(X[:700], y[:700])
    whole = model.predict(X[700:], return_std=True)[1]
    with pytest.MonkeyPatch.context() as patch:
        for module in (error_bars, rfm):
            patch.setattr(module, "ERROR_BAR_ROWS", 250)
        model.fit(X[:700], y[:700])
        mean, part = model.predict(X[700:], return_std=True)
    assert model._error_bars.factor.shape == (250, 250)
    assert_allclose(np.mean(part), np.mean(whole), rtol=0.1)
    assert_allclose(part, whole, rtol=0.5)
    inside = np.abs(y[700:] - mean) < 1.645 * part
    assert 0.87 < inside.mean() < 0.94


def test_far_rows_are_as_uncertain_as_the_targets():
    X, y = drawn(150)
    given = RFMRegressor(INNER, scaling="standard", **OPTIONS).fit(X, y)
    weights = np.random.RandomState(0).uniform(0.5, 2, 150)
    weighted = RFMRegressor(scaling="standard", **OPTIONS).fit(X, y, weights)
    for model, w in ((given, np.ones(150)), (weighted, weights)):
        mean, std = model.predict(np.full((2, 4), 1e6), return_std=True)
        average = np.average(y, weights=w)
        assert_allclose(mean, average, rtol=1e-2)
        spread = np.average((y - average) ** 2, weights=w) ** 0.5
        assert_allclose(std, spread, rtol=2e-2)
        # On the way there they don't exceed that, nor the error of the mean.
        way = np.linspace(0, 1, 50)[:, None] * np.full(4, 30.0)
        mean, std = model.predict(way, return_std=True)
        limit = np.maximum(spread, np.abs(mean - average))
        assert (std <= 1.2 * limit).all() and (std > 0.2).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("scaling", ["standard", "normal", "robust"])
def test_rows_outside_the_range_are_far_with_each_scaling(scaling, dtype, monkeypatch):
    """Two scalings move them to the edge; the others are as if they did not."""
    X, y = (part.astype(dtype) for part in drawn(150))
    model = RFMRegressor(INNER, scaling=scaling, **OPTIONS).fit(X, y)
    T = X[:40].copy()
    T[20:, :2] *= 500
    mean, std = model.predict(T, return_std=True)
    limit = np.maximum(y.var(), (mean[20:] - y.mean()) ** 2)
    assert_allclose(std[20:] ** 2, limit, rtol=1e-3)
    frame = pd.DataFrame(X, columns=list("abcd")).assign(e=np.where(y > 0, "+", "-"))
    frame.loc[3, "c"] = np.nan
    of_frame = RFMRegressor(INNER, scaling=scaling, **OPTIONS).fit(frame, y)
    far = frame[:5].assign(a=500.0, b=-500.0)
    assert (of_frame.predict(far, return_std=True)[1] > 0.9 * y.std()).all()
    monkeypatch.setattr(tables, "_FARTHEST", 0.0)
    assert_array_equal(model.predict(T[:20], return_std=True)[1], std[:20])


def test_copies_are_weights():
    X, y = drawn(120)
    w = np.random.RandomState(2).randint(1, 4, 120)
    rows = np.repeat(np.arange(120), w)
    new = drawn(50, 3)[0]
    copied = RFMRegressor(**OPTIONS).fit(X[rows], y[rows])
    weighted = RFMRegressor(**OPTIONS).fit(X, y, w)
    for one, other in zip(
        copied.predict(new, return_std=True),
        weighted.predict(new, return_std=True),
        strict=True,
    ):
        assert_allclose(one, other, rtol=1e-6)


def test_units_of_targets_and_outputs():
    X, y = drawn(120, changing=True)
    new = drawn(50, 3)[0]
    mean, std = RFMRegressor(**OPTIONS).fit(X, y).predict(new, return_std=True)
    other = RFMRegressor(**OPTIONS).fit(X, 1000 - 20 * y).predict(new, return_std=True)
    assert_allclose(other[0], 1000 - 20 * mean, rtol=1e-6)
    assert_allclose(other[1], 20 * std, rtol=1e-5)
    both = RFMRegressor(**OPTIONS).fit(X, np.stack([y, 5 - 3 * y], axis=1))
    means, stds = both.predict(new, return_std=True)
    assert means.shape == stds.shape == (50, 2)
    assert_allclose(stds[:, 1], 3 * stds[:, 0], rtol=1e-5)
    assert_allclose(stds[:, 0], std, rtol=0.2)


def test_same_in_single_precision_and_in_parts(fitted):
    model, X, y = fitted
    new = drawn(50, 3)[0]
    std = model.predict(new, return_std=True)[1]
    single = RFMRegressor(INNER, **OPTIONS).fit(X.astype(np.float32), y)
    other = single.predict(new.astype(np.float32), return_std=True)[1]
    assert other.dtype == np.float32
    assert_allclose(other, std, rtol=1e-3)
    rows = [model.predict(new[i : i + 1], return_std=True)[1] for i in range(50)]
    assert_allclose(np.concatenate(rows), std, rtol=1e-9)
    again = pickle.loads(pickle.dumps(model))
    assert_array_equal(again.predict(new, return_std=True)[1], std)
    assert_array_equal(again.predict(new), model.predict(new))


@pytest.mark.parametrize("library", ["array_api_strict", "torch"])
def test_libraries(library, fitted):
    xp = pytest.importorskip(library)
    X, y = drawn(150, changing=True)
    new = drawn(50, 3)[0]
    expected = RFMRegressor(INNER, **OPTIONS).fit(X, y).predict(new, return_std=True)
    model = RFMRegressor(INNER, **OPTIONS).fit(xp.asarray(X), xp.asarray(y))
    mean, std = model.predict(xp.asarray(new), return_std=True)
    assert type(std) is type(mean)
    assert_allclose(np.asarray(std), expected[1], rtol=1e-6)


@pytest.mark.filterwarnings("ignore:.*learned nothing")
def test_nothing_to_learn():
    X, y = drawn(60)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = RFMRegressor(**OPTIONS).fit(X, np.full(60, 3.0))
        mean, std = model.predict(X, return_std=True)
    assert_allclose(mean, 3.0)
    assert_array_equal(std, 0.0)
    model = RFMRegressor(**OPTIONS).fit(np.tile(X[:1], (60, 1)), y)
    mean, std = model.predict(X, return_std=True)
    assert_allclose(mean, y.mean())
    assert_allclose(std, y.std(ddof=1))
    model = RFMRegressor(**OPTIONS).fit(X[:8], y[:8])
    assert (model.predict(X, return_std=True)[1] > 0).all()


@pytest.mark.filterwarnings("ignore:.*learned nothing")
@pytest.mark.parametrize("copies", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("seed", range(3))
def test_noise_alone_has_the_deviation_of_the_targets(seed, dtype, copies):
    """The mean of the other targets tells a left-out one, which must not matter."""
    rng = np.random.default_rng(seed)
    X, y = rng.standard_normal((700, 5)).astype(dtype), rng.standard_normal(700)
    rows = np.arange(200)
    if copies:
        rows = np.append(rows, rows[:50])
    mean, std = RFMRegressor(**OPTIONS).fit(X[rows], y[rows]).predict(X[200:], True)
    assert_allclose(std.mean(), y[rows].std(), rtol=0.15)
    assert 0.8 < np.mean(np.abs(y[200:] - mean) < 1.645 * std) < 0.96


def test_repeated_rows_with_other_targets():
    """A table of categories: sixteen rows, and noise between their replicates."""
    rng = np.random.RandomState(0)
    X = 1.0 * rng.randint(2, size=(1500, 4))
    y = X[:, 0] + X[:, 1] * X[:, 2] + 0.5 * rng.standard_normal(1500)
    model = RFMRegressor(**OPTIONS).fit(X[:500], y[:500])
    mean, std = model.predict(X[500:], return_std=True)
    assert_allclose(np.mean(std), 0.5, rtol=0.05)
    assert 0.87 < np.mean(np.abs(y[500:] - mean) < 1.645 * std) < 0.93


@pytest.mark.parametrize(
    "estimator",
    [
        EigenProRegressor("laplacian", algorithm="eigenpro2"),
        EigenProRegressor("laplacian", n_centers=150, alpha=0.0),
        NytroRegressor("laplacian"),
    ],
    ids=str,
)
def test_other_estimators_use_the_rows_that_chose_the_metric(estimator):
    X, y = drawn(2400)
    model = RFMRegressor(estimator, **OPTIONS).fit(X[:400], y[:400])
    mean, std = model.predict(X[400:], return_std=True)
    assert 0.84 < np.mean(np.abs(y[400:] - mean) < 1.645 * std) < 0.96


@pytest.mark.parametrize(
    "estimator",
    [EigenProRegressor(alpha=0.0), EigenProRegressor(n_centers=50), NytroRegressor()],
    ids=str,
)
def test_new_targets_of_training_rows_have_noise_too(estimator):
    """Whether or not the model has a penalty that stands for it."""
    X, y = drawn(400)
    noise = np.random.RandomState(1).standard_normal(400)
    again = np.sin(X[:, 0]) + X[:, 1] + 0.3 * noise
    mean, std = RFMRegressor(estimator, **OPTIONS).fit(X, y).predict(X, return_std=True)
    assert 0.15 < np.median(std) < 0.45
    assert 0.6 < np.mean(np.abs(again - mean) < 1.645 * std)


def test_units_of_outputs_of_other_estimators():
    X, y = drawn(400)
    model = RFMRegressor(FalkonLikeRegressor(n_centers=50), **OPTIONS)
    expected = model.fit(X, y).predict(X, return_std=True)[1][:, None]
    found = model.fit(X, np.stack([1e3 * y, 1e-3 * y], axis=1))
    assert_allclose(
        found.predict(X, return_std=True)[1], expected * [1e3, 1e-3], rtol=1e-3
    )


def test_an_estimator_with_deviations_returns_its_own():
    X, y = drawn(100)
    model = RFMRegressor(NystromRegressor(n_centers=30), **OPTIONS).fit(X, y)
    expected = model.estimator_.predict(model.transform(X), return_std=True)
    for one, other in zip(model.predict(X, return_std=True), expected, strict=True):
        assert_array_equal(one, other)


def test_refusals():
    X, y = drawn(60)
    quantile = DSGRegressor("gaussian", loss="pinball", max_iter=2)
    model = RFMRegressor(quantile, **OPTIONS).fit(X, y)
    message = "return_std needs rows that were left out.*got estimator=DSGRegressor"
    with pytest.raises(ValueError, match=message):
        model.predict(X, return_std=True)
    assert model.predict(X).shape == (60,)
    few = RFMRegressor(NytroRegressor("laplacian", validation_fraction=0.5), **OPTIONS)
    few.fit(X[:6], y[:6])
    with pytest.raises(ValueError, match="20 rows or more"):
        few.predict(X, return_std=True)
    none = RFMRegressor(NystromRegressor(alpha=0.0, n_centers=20), **OPTIONS).fit(X, y)
    with pytest.raises(ValueError, match="return_std and return_cov need"):
        none.predict(X, return_std=True)


def test_a_kernel_without_a_limit():
    """Of the linear kernel v grows without limit, and the deviations with it."""
    X = drawn(100)[0]
    X -= X.mean(axis=0)
    y = X @ np.arange(4) + 0.1 * np.random.RandomState(0).standard_normal(100)
    model = RFMRegressor(EigenProRegressor("linear", alpha=1e-6), **OPTIONS).fit(X, y)
    near, far = (model.predict(s * X[:5], return_std=True)[1] for s in (1, 1e3))
    assert_allclose(near, 0.1, rtol=0.3)
    assert (far > 10 * near).all()
