"""The automatic step on the nastiest cases of benchmarks/robustness.py."""

import warnings

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.exceptions import ConvergenceWarning

from eigenkern import EigenProRegressor
from eigenkern.kernels import Gaussian, median_distance
from eigenkern.operators.tiled import TiledKernel
from eigenkern.plan.sizes import chosen_sizes
from eigenkern.plan.step import tune

N, D = 1400, 6


def smooth(X):
    return np.sin(X[:, 0]) + X[:, 1] * np.tanh(X[:, 2])


def clusters(rng):
    """Dense clusters in few dimensions in a cloud, as in ijcnn1."""
    centers = rng.standard_normal((12, D))
    X = centers[rng.integers(12, size=N)] + 0.3 * rng.standard_normal((N, D))
    X[::4] = 1.2 * rng.standard_normal((N // 4, D)) * rng.exponential(size=(N // 4, 1))
    return X, smooth(X)


def heavy_tails(rng):
    X = rng.standard_t(1.5, size=(N, D))
    return X, smooth(np.sign(X) * np.log1p(np.abs(X)))


def large_norms(rng):
    X = rng.standard_normal((N, D))
    return 1e3 * X, smooth(X)


def contradictory_duplicates(rng):
    X = rng.standard_normal((N // 10, D))[rng.integers(N // 10, size=N)]
    return X, smooth(X) + 0.1 * rng.standard_normal(N)


def constant_columns(rng):
    X = rng.standard_normal((N, D))
    return np.hstack([X, np.full((N, 20), 1000.0), np.zeros((N, 5))]), smooth(X)


def unscaled(rng):
    X = rng.standard_normal((N, D)) * np.logspace(-3, 3, D)
    return X, np.sin(X[:, -1] / 1e3)


def one_column(rng):
    X = rng.standard_normal((N, 1))
    return X, np.sin(3 * X[:, 0])


def few_rows(rng):
    X = rng.standard_normal((8, D))
    return X, smooth(X)


def many_columns(rng):
    X = rng.standard_normal((400, 3000))
    return X, X[:, :50].sum(axis=1)


def hundred_gaussians(X, Z):
    return 100.0 * Gaussian(2.0)(X, Z)


# Data, kernel, bandwidth over the median distance, R^2 on training rows.
CASES = [
    (clusters, "gaussian", 1.0, 0.9),
    (clusters, "gaussian", 0.25, 0.99),
    (clusters, hundred_gaussians, 1.0, 0.9),
    (heavy_tails, "laplacian", 0.25, 0.99),
    (heavy_tails, "gaussian", 4.0, 0.5),
    (large_norms, "linear", 1.0, 0.2),
    (large_norms, "polynomial", 0.25, 0.5),
    (contradictory_duplicates, "laplacian", 1.0, 0.9),
    (contradictory_duplicates, "gaussian", 0.25, 0.9),
    (constant_columns, "matern32", 1.0, 0.99),
    (unscaled, "gaussian", 4.0, 0.9),
    (unscaled, "laplacian", 0.25, 0.99),
    (one_column, "gaussian", 1.0, 0.5),
    (few_rows, "cauchy", 1.0, 0.9),
    (many_columns, "linear", 1.0, 0.9),
]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    "data, kernel, factor, score",
    CASES,
    ids=[f"{c[0].__name__}-{getattr(c[1], '__name__', c[1])}-{c[2]}" for c in CASES],
)
def test_no_divergence_and_no_crawl(data, kernel, factor, score, dtype):
    X, y = data(np.random.default_rng(0))
    bandwidth = factor * median_distance(X, np.random.RandomState(0))
    model = EigenProRegressor(kernel, bandwidth=bandwidth, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # In float32 a row 600 narrow bandwidths away costs the others digits.
        warnings.filterwarnings("ignore", "column 4 of X holds .* it was cut off")
        model.fit(X.astype(dtype), y.astype(dtype))
    assert np.isfinite(model.dual_coef_).all()
    assert model.n_step_halvings_ == 0
    assert model.score(X.astype(dtype), y) > score


def test_where_the_subsample_is_trusted_the_fit_diverges():
    """q = s / 4 on clustered data: the in-sample eigenvalue is far too small."""
    X, y = clusters(np.random.default_rng(0))
    K = TiledKernel(Gaussian(4.0), X)
    sizes = chosen_sizes(K, len(X), 200, 50, "auto")
    tuning = tune(K, (*sizes, len(X)), n_components=50)
    m, trusting = tuning.batch_size, 1.6 / tuning.adapted.in_sample_eigenvalue
    assert trusting > 10 * tuning.step_size
    common = {"bandwidth": 4.0, "subsample_size": 200, "n_components": 50}
    common |= {"batch_size": m, "random_state": 0}
    measured = EigenProRegressor("gaussian", **common).fit(X, y)
    assert measured.n_step_halvings_ == 0
    diverged = EigenProRegressor("gaussian", **common, step_size=trusting)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        diverged.fit(X, y)
    assert diverged.n_step_halvings_ > 2
    assert 0 <= diverged.score(X, y) < measured.score(X, y)


@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_the_scale_of_the_targets_changes_nothing(scale):
    X, y = clusters(np.random.default_rng(0))
    one = EigenProRegressor("gaussian", random_state=0, max_iter=5).fit(X, y)
    other = EigenProRegressor("gaussian", random_state=0, max_iter=5).fit(X, scale * y)
    assert other.step_size_ == one.step_size_
    assert_allclose(other.predict(X), scale * one.predict(X), rtol=1e-6, atol=0)


@pytest.mark.parametrize("algorithm", ["eigenpro2", "sgd"])
def test_noise_is_not_worse_than_the_mean(algorithm):
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((N, D)), rng.standard_normal(N)
    for kernel in ("linear", "gaussian", "polynomial"):
        model = EigenProRegressor(kernel, algorithm=algorithm, random_state=0)
        with warnings.catch_warnings():  # it may warn that it found nothing
            warnings.simplefilter("ignore", ConvergenceWarning)
            model.fit(X, y)
        assert model.score(X, y) >= 0
        assert model.n_step_halvings_ == 0


def test_kernel_values_beyond_the_square_root_of_the_largest_float():
    X, y = heavy_tails(np.random.default_rng(0))
    X = (1e4 * X).astype(np.float32)
    model = EigenProRegressor("polynomial", bandwidth=1.0, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a large row; it may have learned nothing
        model.fit(X, y.astype(np.float32))
        F = model.predict(X)
    assert np.isfinite(model.dual_coef_).all()
    assert np.mean((F - y) ** 2) <= np.var(y) * (1 + 1e-3)
