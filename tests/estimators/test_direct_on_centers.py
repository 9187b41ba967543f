"""Models on centers solved directly, against their formulas and epochs."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.exceptions import ConvergenceWarning

from eigenkern import EigenProClassifier, EigenProRegressor, estimate
from eigenkern.kernels import Gaussian, Laplacian, Linear

N, P = 400, 40
TOLD = [
    "batch_size_",
    "step_size_",
    "n_components_",
    "eigenvalues_",
    "projection_interval_",
]


@pytest.fixture
def data(rng):
    """Rows, two noisy targets, other rows, and weights, some of them 0."""
    X = rng.standard_normal((N + 100, 3))
    Y = np.stack([np.sin(2 * X[:, 0]), 5 + X[:, 1] * X[:, 2]], axis=1)
    Y += 0.2 * rng.standard_normal(Y.shape)
    w = rng.uniform(0.1, 3.0, N) * (np.arange(N) % 7 > 0)
    return X[:N], Y[:N], X[N:], w


def ridge(kernel, c, Z, X, Y, X_test, w=None):
    """Return predictions of least squares on centers, with penalty c on the sum."""
    w = np.ones(len(X)) if w is None else w / w[w > 0].mean()
    mean = np.average(Y, axis=0, weights=w)
    K, K_zz = kernel(X, Z), kernel(Z)
    a = np.linalg.solve(
        K.T @ (w[:, None] * K) + c * K_zz, K.T @ (w[:, None] * (Y - mean))
    )
    return kernel(X_test, Z) @ a + mean


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("c", [0.1, 100.0])
@pytest.mark.parametrize("kernel", [Laplacian(2.0), Gaussian(0.5)], ids=repr)
def test_the_penalty_is_that_of_least_squares(kernel, c, weighted, data):
    X, Y, X_test, w = data
    w = w if weighted else None
    n = N if w is None else np.count_nonzero(w)
    model = EigenProRegressor(kernel, n_centers=P, alpha=c / n, random_state=0)
    model.fit(X, Y, sample_weight=w)
    assert model.algorithm_ == "direct" and model.n_iter_ == 1
    assert model.alpha_ == pytest.approx(c / n)
    assert model.dual_coef_.shape == (P, 2)
    assert [getattr(model, name) for name in TOLD] == len(TOLD) * [None]
    expected = ridge(kernel, c, model.centers_, X, Y, X_test, w)
    assert_allclose(model.predict(X_test), expected, atol=1e-6)
    squares = np.average((model.predict(X) - Y) ** 2, axis=0, weights=w)
    assert_allclose(model.loss_curve_, [squares.mean()], rtol=1e-6)


@pytest.mark.filterwarnings("ignore:.* learned nothing")  # targets are noise
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_targets_that_no_center_explains_are_solved_directly_too(dtype, rng):
    """Rounding may put the loss of such a model above that of the mean."""
    X = rng.standard_normal((N, 2)).astype(dtype)
    kernel, Z = Gaussian(3.0), X[:20]
    basis = np.column_stack([np.ones(N), kernel(X, Z)]).astype(np.float64)
    for _ in range(8):
        y = rng.standard_normal(N)
        y -= basis @ np.linalg.lstsq(basis, y, rcond=None)[0]
        model = EigenProRegressor(kernel, centers=Z, alpha=1e-4, random_state=0)
        model.fit(X, 5 + y)
        assert model.algorithm_ == "direct"
        rtol = 1e-5 if dtype == np.float32 else 1e-6  # 3e-6 on some processors
        assert_allclose(model.loss_curve_, [np.var(y)], rtol=rtol)
        atol = 1e-2 if dtype == np.float32 else 1e-9
        assert_allclose(model.predict(X), 5, atol=atol)


def test_without_a_penalty_it_is_that_of_the_epochs(data):
    X, Y, X_test, _ = data
    kernel, options = Laplacian(2.0), {"alpha": 0.0, "random_state": 0}
    model = EigenProRegressor(kernel, n_centers=P, max_iter=5, **options).fit(X, Y)
    assert model.algorithm_ == "direct" and model.alpha_ == 0
    expected = ridge(kernel, 0.02 / 5, model.centers_, X, Y, X_test)
    assert_allclose(model.predict(X_test), expected, atol=1e-6)


def test_many_epochs_come_close(data):
    X, Y, X_test, _ = data
    options = {"kernel": Laplacian(2.0), "centers": X[::10], "random_state": 0}
    Y = Y + np.random.default_rng(0).standard_normal(Y.shape)
    direct = EigenProRegressor(**options).fit(X, Y)
    epochs = EigenProRegressor(algorithm="eigenpro4", max_iter=200, tol=0, **options)
    epochs.fit(X, Y)
    assert direct.algorithm_ == "direct" and direct.alpha_ == epochs.alpha_ > 0
    assert_array_equal(direct.centers_, epochs.centers_)
    assert_allclose(direct.predict(X_test), epochs.predict(X_test), atol=0.06)


@pytest.mark.parametrize(
    "parameters",
    [
        {"batch_size": 50},
        {"step_size": 1.0},
        {"damping": 0.5},
        {"early_stopping": True},
        {"warm_start": True},
        {"cache_size": 0},
        {"algorithm": "eigenpro3"},
    ],
    ids=str,
)
def test_what_asks_for_epochs(parameters, data):
    X, Y, *_ = data
    options = {"max_iter": 2, "random_state": 0, "bandwidth": "median"}
    model = EigenProRegressor(n_centers=P, **options, **parameters)
    assert model.fit(X, Y).algorithm_ == estimate(model, N, 3, 2).method != "direct"


def test_many_centers_of_many_rows_are_for_epochs():
    few, many = (
        estimate(EigenProRegressor(n_centers=p), 1_000_000, 10, dtype="float32").method
        for p in (200, 5000)
    )
    assert (few, many) == ("direct", "eigenpro4")


def test_single_precision(data):
    X, Y, X_test, _ = data
    double, single = (
        EigenProRegressor(Laplacian(2.0), centers=X[:P].astype(dtype), alpha=1e-4)
        .fit(X.astype(dtype), Y)
        .predict(X_test.astype(dtype))
        for dtype in (np.float64, np.float32)
    )
    assert single.dtype == np.float32
    assert_allclose(single, double, atol=1e-4)


def test_a_penalty_below_rounding_is_for_epochs(data):
    X, Y, *_ = data
    model = EigenProRegressor(n_centers=P, alpha=1e-12, max_iter=2, random_state=0)
    expected = model.fit(X, Y).predict(X)
    assert model.algorithm_ == "direct"
    single = X.astype(np.float32)
    assert model.fit(single, Y).algorithm_ == "direct"
    assert_allclose(model.predict(single), expected, atol=1e-3)
    assert estimate(model, N, 3, 2, dtype="float32").method == "direct"
    assert model.set_params(alpha=1e-18).fit(X, Y).algorithm_ == "eigenpro4"


def test_equations_without_a_factor_are_for_epochs(data):
    X, Y, *_ = data
    zero = EigenProRegressor("linear", n_centers=P, max_iter=2)
    with pytest.warns(ConvergenceWarning, match="all rows of X with weight are equal"):
        assert zero.fit(0 * X, Y).algorithm_ == "eigenpro4"
    assert_allclose(zero.predict(X), np.broadcast_to(Y.mean(axis=0), Y.shape))


def test_more_centers_than_dimensions(data):
    X, Y, X_test, _ = data
    model = EigenProRegressor(Linear(), n_centers=P, alpha=1e-3).fit(X, Y)
    assert model.algorithm_ == "direct"
    mean = Y.mean(axis=0)
    a = np.linalg.solve(X.T @ X + 1e-3 * N * np.eye(3), X.T @ (Y - mean))
    assert_allclose(model.predict(X_test), X_test @ a + mean, atol=1e-7)


def test_probabilities_are_of_rows_left_out_that_are_no_centers(monkeypatch):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((1600, 3))
    y = (X[:, 0] * X[:, 1] > 0).astype(int)

    def log_loss():
        model = EigenProClassifier(n_centers=300, alpha=0.0, random_state=0)
        model.fit(X[:600], y[:600])
        assert model.algorithm_ == "direct"
        found = model.predict_proba(X[600:])
        return -np.mean(np.log(found[np.arange(1000), y[600:]]))

    assert log_loss() < 0.12
    among = "eigenkern.estimators.eigenpro_fit.rows_among"
    monkeypatch.setattr(among, lambda X, Z: np.zeros(len(X), bool))
    assert log_loss() > 0.14


def test_a_stream_goes_on_from_it(data):
    X, Y, X_test, _ = data
    model = EigenProRegressor(Laplacian(2.0), n_centers=P, random_state=0)
    before = model.fit(X, Y).predict(X_test)
    model.partial_fit(X, Y)
    assert model.algorithm_ == "eigenpro4" and model.t_ > 160
    assert np.abs(model.predict(X_test) - before).max() < 0.1


def test_checkpoints_and_progress(data, tmp_path, capsys):
    X, Y, X_test, _ = data
    model = EigenProRegressor(n_centers=P, random_state=0, verbose=1)
    expected = model.fit(X, Y, checkpoint=tmp_path / "a").predict(X_test)
    *_, last = capsys.readouterr().out.splitlines()
    assert f" solved directly: loss {model.loss_curve_[0]:.4g}  " in last
    again = model.fit(X, Y, checkpoint=tmp_path / "a", resume=True)
    assert_array_equal(again.predict(X_test), expected)
