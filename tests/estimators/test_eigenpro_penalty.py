"""The penalty of EigenPro, against scikit-learn's kernel ridge regression."""

import tracemalloc

import numpy as np
import pytest
import sklearn
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.kernel_ridge import KernelRidge
from sklearn.metrics import r2_score

from eigenkern import EigenProClassifier, EigenProRegressor
from eigenkern.arrays.array import to_numpy
from eigenkern.kernels import Gaussian, Laplacian, Linear, Polynomial
from eigenkern.methods import direct
from eigenkern.methods.direct import solve_directly
from eigenkern.operators.tiled import TiledKernel

N = 160
# Epochs until the coefficients no longer change.
CONVERGED = {"max_iter": 300, "tol": 0.0, "n_iter_no_change": 300}
EPOCHS = [
    {"algorithm": "eigenpro2", **CONVERGED},
    {"algorithm": "eigenpro2", "cache_size": 0, **CONVERGED},
    {"algorithm": "eigenpro1", **CONVERGED},
    {"algorithm": "eigenpro1", "svd_solver": "randomized", **CONVERGED},
    {"algorithm": "sgd", **CONVERGED},
    {"subsample_size": 40, "batch_size": 20, **CONVERGED},
]


@pytest.fixture
def data(rng):
    """Rows, two noisy targets, other rows, weights."""
    X = rng.standard_normal((N + 40, 3))
    Y = np.stack([np.sin(2 * X[:, 0]), 5 + X[:, 1] * X[:, 2]], axis=1)
    Y += 0.3 * rng.standard_normal(Y.shape)
    return X[:N], Y[:N], X[N:], rng.uniform(0.1, 3.0, N)


def ridge(kernel, alpha, X, Y, X_test, w=None):
    """Return predictions of scikit-learn, with EigenPro's intercept."""
    mean = np.average(Y, axis=0, weights=w)
    total = len(Y) if w is None else w.sum()
    model = KernelRidge(alpha=alpha * total, kernel="precomputed")
    model.fit(kernel(X), Y - mean, sample_weight=w)
    return model.predict(kernel(X_test, X)) + mean


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("c", [1e-5, 1e-2, 1.0, 100.0])
@pytest.mark.parametrize("kernel", [Laplacian(2.0), Gaussian(1.0), Linear()], ids=repr)
def test_few_rows_are_solved_directly(kernel, c, weighted, data):
    X, Y, X_test, w = data
    w = w if weighted else None
    model = EigenProRegressor(kernel, alpha=c / N).fit(X, Y, sample_weight=w)
    assert model.algorithm_ == "direct"
    expected = ridge(kernel, c / N, X, Y, X_test, w)
    assert_allclose(model.predict(X_test), expected, atol=1e-7)
    # The loss is that of the model, not of the penalized system.
    squares = np.average((model.predict(X) - Y) ** 2, axis=0, weights=w)
    assert_allclose(model.loss_curve_, [squares.mean()], rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("c", [0.1, 10.0])
@pytest.mark.parametrize("options", EPOCHS, ids=str)
def test_epochs_converge_to_kernel_ridge_regression(options, c, weighted, data):
    X, Y, X_test, w = data
    w, kernel = w if weighted else None, Laplacian(1.0)
    model = EigenProRegressor(kernel, alpha=c / N, random_state=0, **options)
    model.fit(X, Y, sample_weight=w)
    assert model.algorithm_ != "direct" and model.n_step_halvings_ == 0
    expected = ridge(kernel, c / N, X, Y, X_test, w)
    assert_allclose(model.predict(X_test), expected, atol=1e-4)
    assert model.loss_curve_[-1] < 1e-8


@pytest.mark.parametrize("kernel", [Linear(), Polynomial(2, 3.0)], ids=repr)
@pytest.mark.parametrize("algorithm", ["eigenpro1", "eigenpro2", "sgd"])
def test_epochs_of_a_factored_kernel(algorithm, kernel, data):
    X, Y, X_test, w = data
    model = EigenProRegressor(
        kernel, alpha=0.1, algorithm=algorithm, random_state=0, **CONVERGED
    ).fit(X, Y, sample_weight=w)
    expected = ridge(kernel, 0.1, X, Y, X_test, w)
    assert_allclose(model.predict(X_test), expected, atol=1e-4)


@pytest.mark.parametrize("algorithm", ["auto", "eigenpro1", "eigenpro2", "sgd"])
def test_a_given_kernel_matrix_stays_as_it_is(algorithm, data):
    X, Y, X_test, w = data
    kernel = Laplacian(1.0)
    K = kernel(X)
    model = EigenProRegressor(
        "precomputed", alpha=0.01, algorithm=algorithm, random_state=0, max_iter=200
    )
    model.set_params(tol=0.0, n_iter_no_change=200).fit(K, Y, sample_weight=w)
    assert_array_equal(K, kernel(X))
    expected = ridge(kernel, 0.01, X, Y, X_test, w)
    assert_allclose(model.predict(kernel(X_test, X)), expected, atol=1e-4)


@pytest.mark.parametrize("library", ["numpy", "array_api_strict"])
def test_a_given_kernel_matrix_is_copied_once(library, rng):
    xp, n = pytest.importorskip(library), 3000
    X = rng.standard_normal((n, 3))
    K = xp.asarray(Gaussian(1.0)(X, X))
    y = xp.asarray(np.sin(2 * X[:, 0]) + 0.3 * rng.standard_normal(n))
    model = EigenProRegressor("precomputed", alpha=0.01, algorithm="sgd", max_iter=2)
    tracemalloc.start()
    try:
        with sklearn.config_context(array_api_dispatch=True):
            model.set_params(random_state=0).fit(K, y)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # In training order, and half as much to measure the step in float32.
    assert peak < 1.6 * 8 * n * n
    assert_array_equal(to_numpy(K), Gaussian(1.0)(X, X))


@pytest.mark.parametrize("algorithm", ["auto", "eigenpro2"])
def test_rows_without_weight_do_not_count(algorithm, data):
    X, Y, X_test, w = data
    w[::4] = 0
    model = EigenProRegressor(alpha=0.01, algorithm=algorithm, bandwidth=2.0)
    model.set_params(random_state=0, max_iter=300, tol=0.0, n_iter_no_change=300)
    model.fit(X, Y, sample_weight=w)
    kept = w > 0
    expected = ridge(Laplacian(2.0), 0.01, X[kept], Y[kept], X_test, w[kept])
    assert_allclose(model.predict(X_test), expected, atol=1e-4)
    assert not model.dual_coef_[~kept].any()


@pytest.mark.parametrize("algorithm", ["auto", "eigenpro2"])
def test_copies_of_a_row_are_penalised_as_rows(algorithm, data):
    """The penalty belongs to a position in X, not to its content."""
    X, Y, X_test, _ = data
    X, Y = np.concatenate([X, X[:50]]), np.concatenate([Y, Y[50:100]])
    model = EigenProRegressor(alpha=0.01, algorithm=algorithm, bandwidth=2.0)
    model.set_params(random_state=0, max_iter=300, tol=0.0, n_iter_no_change=300)
    expected = ridge(Laplacian(2.0), 0.01, X, Y, X_test)
    assert_allclose(model.fit(X, Y).predict(X_test), expected, atol=1e-4)


@pytest.mark.parametrize("algorithm", ["auto", "eigenpro2"])
def test_classifier(algorithm, three_classes):
    X, y = three_classes
    kernel, columns = Laplacian(1.0), np.eye(3)[y]
    model = EigenProClassifier(
        kernel, alpha=0.02, algorithm=algorithm, random_state=0, **CONVERGED
    )
    model.set_params(warm_start=algorithm != "auto")  # it holds no rows out
    model.fit(X, y)
    expected = ridge(kernel, 0.02, X, columns, X + 0.1)
    assert_allclose(model.decision_function(X + 0.1), expected, atol=1e-4)
    two = EigenProClassifier(kernel, alpha=0.02).fit(X, y == 1)
    expected = ridge(kernel, 0.02, X, 2 * columns[:, 1:2] - 1, X)[:, 0]
    assert_allclose(two.decision_function(X), expected, atol=1e-6)


@pytest.mark.parametrize("algorithm, tol", [("auto", 1e-4), ("eigenpro2", 1e-3)])
def test_single_precision(algorithm, tol, data):
    X, Y, X_test, w = data
    single = [values.astype(np.float32) for values in (X, Y, w)]
    model = EigenProRegressor(
        Laplacian(1.0), alpha=0.01, algorithm=algorithm, random_state=0, max_iter=200
    ).fit(single[0], single[1], sample_weight=single[2])
    found = model.predict(X_test.astype(np.float32))
    assert found.dtype == np.float32
    assert_allclose(found, ridge(Laplacian(1.0), 0.01, X, Y, X_test, w), atol=tol)


@pytest.mark.parametrize("algorithm", ["auto", "eigenpro1", "eigenpro2"])
@pytest.mark.parametrize("kernel", ["laplacian", "linear"])
def test_array_libraries(kernel, algorithm, data, other_xp):
    X, Y, *_ = data
    options = {"batch_size": 40} if algorithm != "auto" else {}
    model = EigenProRegressor(
        kernel, alpha=0.05, algorithm=algorithm, random_state=0, **options
    )
    expected = model.fit(X, Y).predict(X)
    with sklearn.config_context(array_api_dispatch=True):
        rows = other_xp.asarray(X)
        found = model.fit(rows, other_xp.asarray(Y)).predict(rows)
    assert_allclose(to_numpy(found), expected, atol=1e-6)


def test_validation_scores_are_of_the_model(data):
    """The penalty does not enter values of held-out rows."""
    X, Y, *_ = data
    model = EigenProRegressor(alpha=0.1, early_stopping=True, random_state=0).fit(X, Y)
    held = ~model.dual_coef_.any(axis=1)
    assert held.sum() == N // 10
    score = r2_score(Y[held], model.predict(X)[held])
    assert max(model.validation_scores_) == pytest.approx(score, abs=1e-12)


def test_the_step_takes_the_penalty_into_account(data):
    """For single rows, its stable range ends at 2 / (1 + c), as k(x, x) = 1 + c."""
    X, Y, *_ = data
    options = {"algorithm": "sgd", "batch_size": 1, "random_state": 0, "max_iter": 3}
    plain = EigenProRegressor(Laplacian(0.01), **options).fit(X, Y)
    model = EigenProRegressor(Laplacian(0.01), alpha=99.0 / N, **options).fit(X, Y)
    assert model.beta_ == pytest.approx(100.0, rel=1e-3)
    assert model.step_size_ < plain.step_size_ / 50
    assert model.n_step_halvings_ == 0


def test_a_warm_start_goes_on_with_the_penalty(data):
    X, Y, X_test, _ = data
    model = EigenProRegressor(
        Laplacian(1.0), alpha=0.01, warm_start=True, random_state=0, tol=0.0
    )
    for _ in range(10):
        model.fit(X, Y)
    expected = ridge(Laplacian(1.0), 0.01, X, Y, X_test)
    assert_allclose(model.predict(X_test), expected, atol=1e-6)


def test_double_precision_solves_what_single_does_not(data, monkeypatch):
    X, Y, *_ = data
    precisions, solved = [], direct._solved

    def record(A, y, weights, penalty, ridge, dtype, *args):
        precisions.append(np.dtype(dtype).name)
        return solved(A, y, weights, penalty, ridge, dtype, *args)

    monkeypatch.setattr(direct, "_solved", record)
    K = TiledKernel(Gaussian(3.0), X)
    a, residual, *_ = solve_directly(K, Y, None, ridge=1e-6)
    assert_allclose(residual, 1e-6 * a, atol=1e-8)  # |a| is up to 7e5
    solve_directly(K, Y, None, ridge=1.0)
    assert precisions == ["float64"] * 2  # rows in double precision have no other
    precisions.clear()
    K, Y = TiledKernel(Gaussian(3.0), X.astype(np.float32)), Y.astype(np.float32)
    solve_directly(K, Y, None, ridge=1.0)
    solve_directly(K, Y, None, ridge=1e-6)
    assert precisions == ["float32", "float64"]
    precisions.clear()
    monkeypatch.setattr(direct, "_SINGLE_EPS", 0.0)  # single precision first
    assert solve_directly(K, Y, None, ridge=1e-6) is None  # nor does double here
    assert precisions == ["float32", "float64"]


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("alpha", [1e-5, 1e-6, 3e-7, 1e-7, 1e-8, 1e-9, "auto"])
@pytest.mark.parametrize("p", [None, 100])
def test_single_precision_resolves_the_penalties_of_double(p, alpha, weighted, rng):
    """Around the rounding of kernel values, where wide kernels need small penalties."""
    X = rng.standard_normal((700, 6))
    y = np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2] + 0.3 * rng.standard_normal(700)
    X, X_test, y, y_test = X[:500], X[500:], y[:500], y[500:]
    w = rng.uniform(0.5, 2.0, 500) if weighted else None
    options = {"bandwidth": 20.0, "alpha": alpha, "random_state": 0}
    if p is not None:
        options["centers"] = X[:p]
    models = [EigenProRegressor("gaussian", **options)]
    models[0].fit(X, y, sample_weight=w)
    if p is not None:
        options["centers"] = X[:p].astype(np.float32)
    models.append(EigenProRegressor("gaussian", **options))
    models[1].fit(*(values.astype(np.float32) for values in (X, y)), sample_weight=w)
    assert models[1].algorithm_ == "direct"
    double, single = (model.predict(X_test.astype(np.float32)) for model in models)
    # A share of the error on new rows: that of the test rows' noise is 0.3.
    error = np.sqrt(np.mean((double - y_test) ** 2))
    assert np.sqrt(np.mean((single - double) ** 2)) < 0.02 * error


def nystrom(kernel, c, X, Y, Z, X_test, w=None):
    """Return predictions of least squares on centers, with the penalty c a' K_ZZ a."""
    w = np.ones(len(X)) if w is None else w / w.mean()
    mean, K = np.average(Y, axis=0, weights=w), kernel(X, Z)
    A = (K.T * w) @ K + c * kernel(Z)
    return (
        kernel(X_test, Z) @ np.linalg.solve(A, K.T @ (w[:, None] * (Y - mean))) + mean
    )


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("n_components", [0, 10])
@pytest.mark.parametrize("c", [0.1, 1.0, 1000.0])
def test_centers_have_the_penalty_of_nystrom(c, n_components, weighted, data):
    X, Y, X_test, w = data
    w, kernel = w if weighted else None, Laplacian(2.0)
    model = EigenProRegressor(
        kernel,
        centers=X[::8],
        alpha=c / N,
        n_components=n_components,
        batch_size=N,
        random_state=0,
        **(CONVERGED | {"max_iter": 2000, "n_iter_no_change": 2000}),
    ).fit(X, Y, sample_weight=w)
    assert (model.alpha_, model.n_step_halvings_) == (c / N, 0)
    expected = nystrom(kernel, c, X, Y, X[::8], X_test, w)
    assert_allclose(model.predict(X_test), expected, atol=1e-4)


@pytest.mark.parametrize("algorithm", ["eigenpro3", "eigenpro4"])
def test_small_batches_and_pieces_come_near_it(algorithm, data):
    X, Y, X_test, _ = data
    kernel = Laplacian(2.0)
    expected = nystrom(kernel, 100.0, X, Y, X[::8], X_test)
    model = EigenProRegressor(
        kernel,
        centers=X[::8],
        algorithm=algorithm,
        alpha=100.0 / N,
        batch_size=20,
        max_iter=50,
        random_state=0,
    )
    assert_allclose(model.fit(X, Y).predict(X_test), expected, atol=0.05)
    model.set_params(max_iter=1).fit_batches([(X, Y)] * 50)
    assert model.alpha_ == 100.0 / N
    assert_allclose(model.predict(X_test), expected, atol=0.05)


def test_exact_projections_have_none(data):
    X, Y, *_ = data
    model = EigenProRegressor(alpha=0.1, algorithm="eigenpro3-exact", n_centers=20)
    with pytest.raises(ValueError, match=r"alpha must be 'auto' or 0 .* got 0.1"):
        model.fit(X, Y)
    model.set_params(alpha=0.0)
    assert model.fit(X, Y).alpha_ == 0.0
