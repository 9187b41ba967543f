"""Variances of predictions against Gaussian processes, formulas, left-out rows."""

from contextlib import nullcontext

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.spatial.distance import cdist
from sklearn import config_context
from sklearn.base import clone
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Matern

from eigenkern import NystromClassifier, NystromRegressor
from eigenkern.arrays.array import to_numpy
from eigenkern.fitting import posterior as gaussian_process
from eigenkern.methods.left_out import n_left_out, scales

SIGMA = 1.5
OPTIONS = {"bandwidth": SIGMA, "alpha": 1e-3, "random_state": 0}


@pytest.fixture
def noisy(rng):
    """A smooth function on 160 rows, with noise of deviation 0.3, and 40 usual rows."""
    X = rng.standard_normal((200, 3))
    y = np.sin(X[:, 0]) + X[:, 1] + 5 + 0.3 * rng.standard_normal(200)
    return X[:160], y[:160], 0.7 * X[160:]


@pytest.fixture
def weights(rng):
    return rng.uniform(0.3, 3, 160)


@pytest.mark.parametrize("centers", ["rows", "all as centers", "given"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", ["gaussian", "laplacian"])
def test_all_rows_are_a_gaussian_process(centers, weighted, name, noisy, weights):
    X, y, T = noisy
    w = weights if weighted else None
    more = {"all as centers": {"n_centers": 160}, "given": {"centers": X}}
    model = NystromRegressor(name, **OPTIONS, **more.get(centers, {})).fit(X, y, w)
    (prior,), (noise,) = model.prior_variance_, model.noise_variance_
    assert_allclose(noise / prior, 1e-3 * 160)
    relative = weights / weights.mean() if weighted else np.ones(160)
    shape = RBF(SIGMA) if name == "gaussian" else Matern(SIGMA, nu=0.5)
    peer = GaussianProcessRegressor(
        ConstantKernel(prior) * shape, alpha=noise / relative, optimizer=None
    )
    peer.fit(X, y - model.intercept_)
    mean, std = model.predict(T, return_std=True)
    assert_allclose(mean, peer.predict(T) + model.intercept_, atol=1e-6)
    expected = peer.predict(T, return_std=True)[1]
    assert_allclose(std, np.sqrt(expected**2 + noise), rtol=1e-6)
    _, cov = model.predict(T, return_cov=True)
    expected = peer.predict(T, return_cov=True)[1]
    assert_allclose(cov, expected + noise * np.eye(40), atol=1e-6)
    assert mean.shape == std.shape == (40,) and cov.shape == (40, 40)


@pytest.mark.parametrize("weighted", [False, True])
def test_centers_are_their_formula(weighted, noisy, weights):
    X, y, T = noisy
    w = weights / weights.mean() if weighted else np.ones(160)
    model = NystromRegressor(n_centers=40, **OPTIONS).fit(X, y, 7 * w)
    (prior,), (noise,) = model.prior_variance_, model.noise_variance_

    def k(X, Z):
        return np.exp(-cdist(X, Z) / SIGMA)

    Z = model.centers_
    K_nm, K_tm = k(X, Z), k(T, Z)
    known = K_tm @ np.linalg.solve(k(Z, Z), K_tm.T)
    A = K_nm.T @ (w[:, None] * K_nm) + 1e-3 * 160 * k(Z, Z)
    expected = prior * (k(T, T) - known) + noise * (
        K_tm @ np.linalg.solve(A, K_tm.T) + np.eye(40)
    )
    _, cov = model.predict(T, return_cov=True)
    assert_allclose(cov, expected, atol=1e-9)
    assert_array_equal(cov, cov.T)
    _, std = model.predict(T, return_std=True)
    assert_allclose(std**2, np.diag(expected), rtol=1e-7)


@pytest.mark.parametrize("centers", ["rows", "given", "uniform"])
def test_scale_is_that_of_rows_left_out(centers, noisy, monkeypatch):
    X, y, T = (values[:90] for values in noisy)
    options = {"given": {"centers": T[:30]}, "uniform": {"n_centers": 30}}
    model = NystromRegressor(**OPTIONS | {"alpha": 0.01}, **options.get(centers, {}))
    model.fit(X, y)
    monkeypatch.setattr(
        gaussian_process.Posterior, "_limited", lambda self, variance, *_: variance
    )
    others, ratios = {}, []
    rows = np.arange(90)
    if centers != "rows":
        others["centers"] = model.centers_
    if centers == "uniform":
        rows = np.setdiff1d(rows, model.center_indices_)
    for i in rows:
        rest = np.arange(90) != i
        other = NystromRegressor(**OPTIONS | {"alpha": 0.9 / 89}, **others)
        mean, std = other.fit(X[rest], y[rest]).predict(X[i : i + 1], return_std=True)
        assert_allclose(other.noise_variance_ / other.prior_variance_, 0.9)
        ratios.append((y[i] - mean[0]) ** 2 / (std[0] ** 2 / other.prior_variance_[0]))
    assert_allclose(model.prior_variance_, np.mean(ratios), rtol=1e-8)
    assert_allclose(model.noise_variance_, 0.9 * np.mean(ratios), rtol=1e-8)


def test_weighted_scale_is_that_of_rows_left_out(noisy, weights):
    X, y, weights = *(values[:60] for values in noisy[:2]), weights[:60]
    model = NystromRegressor(**OPTIONS).fit(X, y, weights)
    w, c = weights / weights.mean(), 0.06
    K, squares = np.exp(-cdist(X, X) / SIGMA), []
    for i in range(60):
        rest = np.arange(60) != i
        A = K[rest][:, rest] + c * np.diag(1 / w[rest])
        k, mean = K[rest, i], np.average(y[rest], weights=w[rest])
        error = y[i] - mean - k @ np.linalg.solve(A, y[rest] - mean)
        squares.append(error**2 / (1 - k @ np.linalg.solve(A, k) + c / w[i]))
    assert_allclose(model.prior_variance_, np.mean(squares), rtol=1e-8)


@pytest.mark.parametrize("options", [{}, {"n_centers": 100}, {"alpha": "path"}])
def test_intervals_hold_new_targets(options, rng):
    X = rng.standard_normal((4000, 3))
    y = np.sin(2 * X[:, 0]) * X[:, 1] + 0.3 * rng.standard_t(5, 4000)
    model = NystromRegressor(**OPTIONS | options).fit(X[:1000], y[:1000])
    mean, std = model.predict(X[1000:], return_std=True)
    assert 0.87 < np.mean(abs(y[1000:] - mean) < 1.645 * std) < 0.93
    # Far from all rows only the targets are known.
    far = model.predict(X[:5] + 1000, return_std=True)[1]
    assert_allclose(far, np.repeat(y[:1000].std(), 5))
    assert far.min() > 0.99 * std.max()


@pytest.mark.parametrize("noise", [0.0, 0.3])
@pytest.mark.parametrize("n", [30, 300])
@pytest.mark.parametrize("name", ["gaussian", "laplacian", "matern52"])
def test_far_deviations_are_those_of_the_targets(name, n, noise, rng):
    """Whatever s^2 is: it is 1e-7 to 1e6 times the variance of the targets here."""
    for d, options in ((1, {}), (3, {"n_centers": max(n // 5, 10)}), (3, {})):
        X, weights = rng.uniform(-2, 2, (n + 500, d)), rng.uniform(0.5, 2, n)
        y = np.sin(3 * X[:, 0]) + noise * rng.standard_normal(n + 500)
        model = NystromRegressor(name, alpha="path", random_state=0, **options)
        model.fit(X[:n], y[:n], weights)
        mean, far = model.predict(np.full((2, d), 1e4), return_std=True)
        average = np.average(y[:n], weights=weights)
        spread = np.average((y[:n] - average) ** 2, weights=weights)
        assert_allclose(mean, average, atol=1e-6)
        assert_allclose(far, max(spread, *model.noise_variance_) ** 0.5, rtol=1e-6)
        # The covariance is that of two rows of which nothing is known of each other.
        _, covariance = model.predict(np.array([[1e4] * d, [0] * d]), return_cov=True)
        assert_allclose(np.diag(covariance)[0], far[0] ** 2, rtol=1e-6)
        assert np.linalg.eigvalsh(covariance)[0] >= 0
        # Among the rows the intervals hold: few rows are left out one by one.
        F, deviation = model.predict(X[n:], return_std=True)
        covered = np.mean(abs(y[n:] - F) <= 1.645 * deviation)
        assert covered > (0.84 if n == 300 else 0.7)
        moved = (F - average) ** 2 + model.noise_variance_
        assert (deviation**2 < 1.001 * np.maximum(far[0] ** 2, moved)).all()


def test_a_small_step_outside_the_data(rng):
    """A path on a hundred rows neither explodes half a unit outside nor is sure."""
    for seed in range(5):
        rng = np.random.default_rng(seed)
        X = rng.uniform(-2, 2, (100, 1))
        y = np.sin(3 * X[:, 0]) + 0.3 * rng.standard_normal(100)
        model = NystromRegressor("gaussian", alpha="path", random_state=0).fit(X, y)
        assert model.selection_ == "loo"
        mean, deviation = model.predict([[2.2], [-2.2]], return_std=True)
        assert (abs(mean - np.sin([6.6, -6.6])) < 3 * deviation).all()
        assert abs(mean).max() < 6


@pytest.mark.parametrize("name", ["gaussian", "laplacian"])
def test_what_centers_say_of_themselves_is_not_asked(name, rng):
    """Without its row, almost nothing determines the coefficient of a center."""
    X = rng.uniform(size=(3000, 6))
    y = np.sin(4 * X[:, 0]) * X[:, 1]
    model = NystromRegressor(name, n_centers=400, alpha=1e-13, random_state=0)
    mean, std = model.fit(X[:1000], y[:1000]).predict(X[1000:], return_std=True)
    assert 0.86 < np.mean(abs(y[1000:] - mean) < 1.645 * std) < 0.94
    assert_allclose(np.mean((y[1000:] - mean) ** 2 / std**2), 1, rtol=0.25)


def test_few_centers_do_not_hide_the_noise(rng):
    """The penalty implies no noise; rows that are centers would have no variance."""
    X = rng.standard_normal((3000, 2))
    y = np.sin(2 * X[:, 0]) + 0.3 * rng.standard_normal(3000)
    model = NystromRegressor(bandwidth=2.0, n_centers=100, alpha=1e-12, random_state=0)
    model.fit(X[:1000], y[:1000])
    mean, std = model.predict(X[1000:], return_std=True)
    assert 0.87 < np.mean(abs(y[1000:] - mean) < 1.645 * std) < 0.93
    _, std = model.predict(model.centers_, return_std=True)
    assert 0.25 < std.min() and std.max() < 0.5
    assert_allclose(model.noise_variance_, 0.09, rtol=0.3)


def test_interpolation_does_not_hide_the_noise(rng):
    """Without a penalty, copied rows would have no variance, others far too much."""
    X = rng.integers(0, 8, (3000, 3)).astype(float)
    y = np.sin(X[:, 0]) + 0.3 * rng.standard_normal(3000)
    model = NystromRegressor(alpha=1e-12, random_state=0).fit(X[:600], y[:600])
    mean, std = model.predict(X[600:], return_std=True)
    assert 0.87 < np.mean(abs(y[600:] - mean) < 1.645 * std) < 0.95
    assert std.min() > 0.2 and std.max() < 1.5


def test_scales_are_the_most_likely(rng):
    unseen, noise = rng.uniform(0.01, 1, 4000), rng.uniform(1, 1.5, 4000)
    residuals = rng.standard_normal((4000, 2))
    residuals[:, 0] *= np.sqrt(4 * unseen + 0.4 * noise)
    residuals[:, 1] *= np.sqrt(9 * unseen + 0.09 * noise)
    # The penalty is wrong about the first output, right about the second.
    prior, sigma = scales(residuals, unseen, noise, 0.01, 1.0)
    assert_allclose(prior, [4, 9], rtol=0.15)
    assert_allclose(sigma, [0.4, 0.09], rtol=0.15)
    assert sigma[1] == pytest.approx(0.01 * prior[1], rel=1e-12)


def test_rows_left_out_are_a_sample(rng):
    """The noise grows along the rows, so the last rows are unlike the others."""
    X = rng.standard_normal((2000, 2))
    y = np.sin(X[:, 0]) + np.linspace(0, 1, 2000) ** 2 * rng.standard_normal(2000)
    assert n_left_out(2000, 1 / 4) == 500
    order = rng.permutation(2000)
    for options in ({}, {"n_centers": 100}):
        model = NystromRegressor(**OPTIONS, **options)
        expected = model.fit(X[order], y[order]).noise_variance_
        assert_allclose(model.fit(X, y).noise_variance_, expected, rtol=0.3)


@pytest.mark.parametrize("options", [{}, {"n_centers": 40}])
def test_invariances(options, noisy, weights, rng):
    X, y, T = noisy
    model = NystromRegressor(**OPTIONS, **options).fit(X, y, weights)
    mean, std = model.predict(T, return_std=True)
    order = rng.permutation(160)
    model.fit(X[order], y[order], 10 * weights[order])
    assert_allclose(model.predict(T, return_std=True), (mean, std), rtol=1e-8)
    model.fit(X, 10 * y + 3, weights)
    _, other = model.predict(T, return_std=True)
    assert_allclose(other, 10 * std, rtol=1e-8)
    dropped = np.concatenate([weights, [0.0]])
    model.fit(np.vstack([X, X[:1]]), np.append(y, 1e6), dropped)
    _, other = model.predict(T, return_std=True)
    assert_allclose(other, std, rtol=0.05)  # its alpha n is larger
    model.fit(X.astype(np.float32), y, weights)
    _, other = model.predict(T.astype(np.float32), return_std=True)
    assert other.dtype == np.float32
    assert_allclose(other, std, rtol=1e-4)


@pytest.mark.parametrize("options", [{}, {"n_centers": 40}])
def test_outputs_have_their_own_spread(options, noisy):
    X, y, T = noisy
    model = NystromRegressor(**OPTIONS, **options)
    Y = np.stack([y, np.cos(y) * X[:, 2], np.ones(160)], axis=1)
    mean, std = model.fit(X, Y).predict(T, return_std=True)
    _, cov = model.predict(T, return_cov=True)
    assert mean.shape == std.shape == (40, 3) and cov.shape == (40, 40, 3)
    assert model.prior_variance_.shape == model.noise_variance_.shape == (3,)
    for j in range(3):
        alone = model.fit(X, Y[:, j]).predict(T, return_std=True)[1]
        assert_allclose(std[:, j], alone, rtol=1e-9)
        assert_allclose(np.diag(cov[:, :, j]), std[:, j] ** 2, rtol=1e-9)
    assert_array_equal(std[:, 2], 0)  # constant


@pytest.mark.parametrize("options", [{}, {"n_centers": 40}])
def test_other_kernels(options, noisy):
    X, y, T = noisy

    def function(X, Z):
        return np.exp(-cdist(X, Z) / SIGMA)

    model = NystromRegressor(**OPTIONS, **options)
    expected = model.fit(X, y).predict(T, return_std=True)
    model.set_params(kernel=function).fit(X, y)
    assert_allclose(model.predict(T, return_std=True), expected, rtol=1e-6)
    # The variance of a linear function grows with the square of the distance.
    model.set_params(kernel="linear").fit(X, y)
    near, far = (model.predict(s * T, return_cov=True)[1] for s in (1, 10))
    noise = model.noise_variance_ * np.eye(40)
    assert_allclose(far - noise, 100 * (near - noise), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("options", [{}, {"n_centers": 40}])
def test_other_libraries(options, noisy, weights, other_xp):
    X, y, T = noisy
    model = NystromRegressor(**OPTIONS, **options).fit(X, y, weights)
    expected = [model.predict(T, **{key: True}) for key in ("return_std", "return_cov")]
    with config_context(array_api_dispatch=True):
        arrays = [other_xp.asarray(values) for values in (X, y, weights)]
        model.fit(*arrays)
        rows = other_xp.asarray(T)
        found = [model.predict(rows, **{k: True}) for k in ("return_std", "return_cov")]
    for (_, one), (_, other) in zip(expected, found, strict=True):
        assert type(other) is type(rows)
        assert_allclose(to_numpy(other), one, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("options", [{}, {"n_centers": 100}])
def test_penalties_below_rounding(options, rng):
    X = rng.uniform(-1, 1, (300, 2))
    y = np.sin(3 * X[:, 0]) + X[:, 1] ** 2
    model = NystromRegressor("gaussian", bandwidth=1.0, alpha=1e-15, random_state=0)
    model.set_params(**options).fit(X[:200], y[:200])
    mean, std = model.predict(X[200:], return_std=True)
    assert (std > 0).all() and np.mean(std**2) ** 0.5 < 1e-2
    assert np.mean(abs(mean - y[200:]) < 3 * std) > 0.9


def test_without_penalty(noisy):
    X, y, T = noisy
    model = NystromRegressor(**OPTIONS | {"alpha": 0}).fit(X, y)
    assert_array_equal(model.noise_variance_, 0)
    assert_allclose(model.predict(X, return_std=True)[1], 0, atol=1e-6)
    assert (model.predict(T, return_std=True)[1] > 0.1).all()


def test_what_has_no_spread(noisy):
    X, y, T = noisy
    model = NystromRegressor(**OPTIONS).fit(X, y)
    with pytest.raises(RuntimeError, match="At most one of return_std or return_cov"):
        model.predict(T, return_std=True, return_cov=True)

    def indefinite(X, Z):
        return np.tanh(X @ Z.T - 1)

    K = np.exp(-cdist(X, X))
    for options, rows in (
        ({"kernel": "precomputed"}, K),
        ({"alpha": 0, "n_centers": 40}, X),
        ({"kernel": indefinite, "alpha": 1e-12}, X),
    ):
        model = NystromRegressor(**OPTIONS | options)
        with pytest.warns() if callable(model.kernel) else nullcontext():
            model.fit(rows, y)
        assert model.prior_variance_ is None and model.noise_variance_ is None
        assert model.predict(rows).shape == (160,)
        for key in ("return_std", "return_cov"):
            with pytest.raises(ValueError, match=r"need a positive semi-definite"):
                model.predict(rows, **{key: True})


def test_classifiers_keep_no_factor(noisy):
    X, y, _ = noisy
    model = NystromClassifier(**OPTIONS).fit(X, y > 5)
    assert not hasattr(model, "prior_variance_")
    assert not hasattr(model, "_posterior_factor")


def test_a_factor_that_is_too_large_is_not_kept(rng, monkeypatch):
    X = rng.standard_normal((60, 2))
    monkeypatch.setattr(gaussian_process, "_MOST_CENTERS", 40)
    model = NystromRegressor(n_centers=40, alpha=1e-2, random_state=0).fit(X, X[:, 0])
    assert (model.predict(X, return_std=True)[1] > 0).all()
    model = NystromRegressor(n_centers=None, alpha=1e-2).fit(X, X[:, 0])
    with pytest.raises(ValueError, match=r"at most 40 centers, .* n_centers_=60"):
        model.predict(X, return_std=True)


def coverage(model, X, y, X_new, y_new, w=None):
    """Return the share of new targets in 90 % intervals."""
    mean, std = model.fit(X, y, sample_weight=w).predict(X_new, return_std=True)
    return np.mean(np.abs(mean - y_new) < 1.645 * std)


MODELS = [
    NystromRegressor(random_state=0),
    NystromRegressor(n_centers=100, random_state=0),
    NystromRegressor(alpha="path", random_state=0),
    NystromRegressor(alpha="path", selection="gcv", random_state=0),
    NystromRegressor(alpha="path", n_centers=100, random_state=0),
]


@pytest.mark.parametrize("model", MODELS, ids=str)
@pytest.mark.filterwarnings("ignore:n_centers=")
def test_intervals_of_replicates_are_those_of_one_target(model, rng):
    def draw(n):
        X = 1.0 * rng.integers(0, 4, (n, 3))
        f = X[:, 0] * X[:, 1] - 2 * np.sin(X[:, 2])
        return X, f + 2 * rng.standard_normal(n)

    new = draw(3000)
    for n in (200, 800):
        model = clone(model)
        if model.n_centers == 100:
            model.set_params(n_centers=40)
        assert coverage(model, *draw(n), *new) == pytest.approx(0.9, abs=0.035)
        assert model.noise_variance_ == pytest.approx(4.0, rel=0.2)


@pytest.mark.parametrize("model", MODELS, ids=str)
def test_intervals_of_copies_are_no_narrower(model, rng):
    X = rng.standard_normal((900, 3))
    y = np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2] + 0.5 * rng.standard_normal(900)
    X, y, *new = X[:400], y[:400], X[400:], y[400:]
    once = coverage(clone(model), X, y, *new)
    for i in (np.r_[:400, :400], rng.integers(0, 400, 400)):
        assert coverage(clone(model), X[i], y[i], *new) > min(once, 0.9) - 0.04


def test_copies_have_the_standard_deviations_of_weights(rng):
    X = rng.standard_normal((150, 3))
    y = np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2] + 0.5 * rng.standard_normal(150)
    w = rng.integers(1, 4, 150)
    i, new = np.repeat(np.arange(150), w), rng.standard_normal((50, 3))
    for alpha in (1e-3, "path"):
        model = NystromRegressor(alpha=alpha, bandwidth=2.0, random_state=0)
        copied = model.fit(X[i], y[i]).predict(new, return_std=True)[1]
        weighted = model.fit(X, y, sample_weight=w).predict(new, return_std=True)[1]
        # They were measured on the same rows; the weights' mean is not the rows'.
        assert_allclose(copied, weighted, rtol=0.03)
