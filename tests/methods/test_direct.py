"""The direct solution of a kernel machine, against NumPy's and against epochs."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.exceptions import ConvergenceWarning
from sklearn.kernel_ridge import KernelRidge

from eigenkern import EigenProClassifier, EigenProRegressor
from eigenkern.arrays import memory
from eigenkern.kernels import Gaussian, Laplacian
from eigenkern.methods.direct import solve_directly
from eigenkern.operators.matrix import GivenMatrix
from eigenkern.operators.tiled import TiledKernel


@pytest.fixture
def data(rng):
    X = rng.standard_normal((300, 3))
    y = np.sin(2 * X[:, :1]) + X[:, 1:2] * [[1.0, -0.5]]
    return X, y


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(
    "dtype, penalty, tol",
    [
        (np.float64, 1e-3, 1e-9),
        (np.float64, 1e-5, 1e-9),
        (np.float32, 1e-3, 2e-3),  # a factor in single precision
        (np.float32, 1e-5, 2e-2),  # in double precision
    ],
)
def test_it_solves_the_system(dtype, penalty, tol, weighted, data, rng):
    X, y = (values.astype(dtype) for values in data)
    w = rng.uniform(0.1, 3.0, 300).astype(dtype) if weighted else None
    K = Laplacian(2.0)(X.astype(np.float64), X.astype(np.float64))
    c = penalty * (1.0 if w is None else w.mean(dtype=np.float64))
    R = np.eye(300) if w is None else np.diag(1.0 / w.astype(np.float64))
    expected = np.linalg.solve(K + c * R, y.astype(np.float64))
    a, residual, *_ = solve_directly(TiledKernel(Laplacian(2.0), X), y, w, penalty)
    assert a.dtype == dtype
    assert_allclose(a, expected, atol=tol * np.abs(expected).max())
    assert_allclose(residual, y - K @ a, atol=2e-3 if dtype == np.float32 else 1e-10)


def test_a_given_matrix_stays_as_it_is(data):
    X, y = data
    K = Gaussian(1.0)(X, X).astype(np.float32)
    before = K.copy()
    assert solve_directly(GivenMatrix(K), y.astype(np.float32), None, 1e-3) is not None
    assert np.array_equal(K, before)


@pytest.mark.parametrize("flaw", ["indefinite", "not symmetric", "not finite"])
def test_what_has_no_solution_is_left_to_the_epochs(flaw, data, rng):
    X, y = data
    K = Gaussian(1.0)(X, X)
    if flaw == "indefinite":
        K = K - 2 * np.eye(300)
    elif flaw == "not symmetric":
        K = np.tril(K)
    else:
        K[3, 3] = np.inf
    assert solve_directly(GivenMatrix(K), y, None, 1e-3) is None


def test_few_rows_are_solved_directly(data):
    """It is kernel ridge regression with the penalty that corresponds to the epochs."""
    X, y = data
    model = EigenProRegressor(
        bandwidth=2.0, alpha=0.0, max_iter=10, random_state=0
    ).fit(X, y)
    assert model.algorithm_ == "direct" and model.n_iter_ == 1
    assert model.step_size_ is None and model.eigenvalues_ is None
    K, mean = Laplacian(2.0)(X, X), y.mean(axis=0)
    ridge = KernelRidge(kernel="precomputed", alpha=0.02 / 10).fit(K, y - mean)
    assert_allclose(model.predict(X), ridge.predict(K) + mean, atol=1e-8)
    residual = y - model.predict(X)
    assert_allclose(model.loss_curve_, [np.mean(residual**2)], rtol=1e-6)


def test_it_agrees_with_the_epochs(data):
    X, y = data
    options = {"bandwidth": 2.0, "alpha": 0.0, "random_state": 0}
    direct = EigenProRegressor(**options).fit(X, y)
    epochs = EigenProRegressor(algorithm="eigenpro2", **options).fit(X, y)
    assert epochs.algorithm_ == "eigenpro2" and epochs.n_iter_ > 1
    assert_allclose(direct.predict(X), epochs.predict(X), atol=0.02 * y.std())


@pytest.mark.parametrize(
    "asked",
    [
        {"algorithm": "sgd"},
        {"n_components": 10},
        {"batch_size": 50},
        {"step_size": 1.0},
        {"subsample_size": 100},
        {"damping": 0.5},
        {"early_stopping": True},
        {"warm_start": True},
        {"cache_size": 0},
    ],
    ids=str,
)
def test_who_asks_for_epochs_gets_them(asked, data):
    model = EigenProRegressor(random_state=0, max_iter=2, **asked).fit(*data)
    assert model.algorithm_ == asked.get("algorithm", "eigenpro2")
    assert model.step_size_ > 0


def test_epochs_where_memory_or_kernel_forbid_a_factor(data, monkeypatch):
    X, y = data

    def indefinite(X, Z):
        return Gaussian(1.0)(X, Z) - 2.0 * (X[:, None] == Z[None]).all(axis=2)

    model = EigenProRegressor(indefinite, max_iter=2, alpha=0.0)
    with pytest.warns(ConvergenceWarning, match="not positive semi-definite"):
        assert model.fit(X, y).algorithm_ == "direct"  # on its positive part
    monkeypatch.setattr(memory, "installed", lambda xp, device: 14.0 * 300**2)
    model = EigenProRegressor(max_iter=2, random_state=0).fit(X, y)
    assert model.algorithm_ == "eigenpro2"


def test_many_rows_take_epochs(rng):
    X = rng.standard_normal((8001, 2)).astype(np.float32)
    model = EigenProClassifier(max_iter=1, random_state=0).fit(X, X[:, 0] > 0)
    assert model.algorithm_ == "eigenpro2"


def test_a_solution_worse_than_the_mean_is_refused(rng):
    """K + c I is positive definite, but K is not: on v it would predict -y."""
    n = 100
    Q, _ = np.linalg.qr(np.c_[np.ones(n), rng.standard_normal((n, n - 1))])
    v = Q[:, -1]
    K = (Q * np.r_[np.ones(n - 1), -0.5]) @ Q.T
    K = (K + K.T) / 2
    model = EigenProRegressor("precomputed", alpha=1.0 / n, random_state=0)
    with pytest.warns(ConvergenceWarning, match="learned nothing"):
        model.fit(K, 3 + 10 * v)
    assert_allclose(model.predict(K), 3, atol=1e-9)
    # Along with an eigenvector that it predicts well, the sum of losses counts.
    y = 3 + v + 10 * Q[:, 4]
    with pytest.warns(ConvergenceWarning, match="not positive semi-definite"):
        assert model.fit(K, y).algorithm_ == "direct"  # on the positive part
    assert_allclose(model.predict(K), 3 + 10 * Q[:, 4] / 2, atol=1e-5)
