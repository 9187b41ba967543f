"""Kernels that are not eigenkern's own: one check, one message, in every family."""

import warnings

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.spatial.distance import cdist
from sklearn import clone
from sklearn.base import is_classifier
from sklearn.exceptions import ConvergenceWarning

from eigenkern import (
    EigenProClassifier,
    EigenProRegressor,
    FalkonLikeClassifier,
    FalkonLikeRegressor,
    NystromClassifier,
    NystromRegressor,
    NytroClassifier,
    NytroRegressor,
)
from eigenkern.fitting.outcome import check_given_kernel
from eigenkern.kernels import Gaussian, Kernel, Laplacian, Linear, Polynomial

MACHINES = [
    EigenProRegressor(),
    EigenProRegressor(algorithm="eigenpro1", max_iter=3),
    EigenProRegressor(batch_size=50),
    EigenProRegressor(early_stopping=True),
    EigenProClassifier(),
    NystromRegressor(alpha=1e-3),
    NystromRegressor(alpha=1e6),
    NystromRegressor(alpha="path"),
    NystromRegressor(alpha="path", selection="gcv"),
    NystromRegressor(alpha="path", selection="loo"),
    NystromClassifier(),
    NytroRegressor(),
    NytroRegressor(selection=None, max_iter=30),
    NytroClassifier(),
    FalkonLikeRegressor(alpha=1e-3),
    FalkonLikeClassifier(alpha=1e-3),
]
ON_CENTERS = [
    EigenProRegressor(n_centers=40),
    EigenProRegressor(n_centers=40, algorithm="eigenpro3"),
    EigenProRegressor(n_centers=40, algorithm="eigenpro3-exact"),
    EigenProRegressor(n_centers=40, algorithm="eigenpro4", early_stopping=True),
    EigenProClassifier(n_centers=40),
    NystromRegressor(n_centers=40, alpha=1e-3),
    NystromRegressor(n_centers=40, alpha="path", centers="rpcholesky"),
    NystromClassifier(n_centers=40, loss="log_loss", alpha=1e-3),
    NytroRegressor(n_centers=40),
    FalkonLikeRegressor(n_centers=40, alpha=1e-3),
    FalkonLikeClassifier(n_centers=40, alpha=1e-3),
]


def minus_distance(X, Z):
    return -cdist(X, Z)


def sigmoid(X, Z):
    return np.tanh(0.5 * X @ Z.T - 0.5)


def negative(X, Z):
    return -np.exp(-(cdist(X, Z) ** 2) / 8)


def zero(X, Z):
    return np.zeros((len(X), len(Z)))


def lopsided(X, Z):
    return X @ np.triu(np.ones((X.shape[1], X.shape[1]))) @ Z.T


def complex_valued(X, Z):
    return np.exp(1j * (X[:, :1] - Z[:, 0]))


@pytest.fixture
def data(rng):
    X = rng.standard_normal((200, 3))
    return X, np.sin(X[:, 0]) + 0.3 * X[:, 1]


def fit(model, X, y, kernel):
    """Fit a model to a kernel; return it, and the warnings."""
    model = clone(model).set_params(kernel=kernel, random_state=0)
    with warnings.catch_warnings(record=True) as record:
        warnings.simplefilter("always")
        model.fit(X, y > 0 if is_classifier(model) else y)
    return model, [str(one.message) for one in record]


@pytest.mark.parametrize("kernel", [minus_distance, sigmoid, negative])
@pytest.mark.parametrize("model", MACHINES + ON_CENTERS, ids=repr)
def test_indefinite_kernels(model, kernel, data):
    X, y = data
    values = np.linalg.eigvalsh(kernel(X, X))
    model, messages = fit(model, X, y, kernel)
    named = (
        f"smallest eigenvalue on 200 rows is {values[0]:.3g}, its largest "
        f"{values[-1]:.3g}"
    )
    messages = [one for one in messages if "the least error at the end" not in one]
    assert len(messages) == 1 and named in messages[0]
    if is_classifier(model):
        assert model.score(X, y > 0) >= max(np.mean(y > 0), np.mean(y <= 0))
        return
    if getattr(model, "early_stopping", None) is True:
        assert model.score(X, y) >= -0.01  # the mean is that of nine tenths of the rows
        return
    assert model.score(X, y) >= -1e-6
    # A negative kernel has no positive part; the columns at the centers are features.
    learns = kernel is not negative or getattr(model, "n_centers", None) == 40
    weak = getattr(model, "alpha", 0) == 1e6
    assert model.score(X, y) > (0.8 if learns and not weak else -1e-6)
    assert ("learned nothing" in messages[0]) == (not learns or weak)


def test_positive_parts_are_those_of_dense_formulas(data):
    """f = sum_i a_i k(x, x_i) with a in the span of the positive eigenvectors."""
    X, y = data
    w = np.linspace(0.5, 1.5, 200)
    new = X[:20] + 0.1
    mean = np.average(y, weights=w)
    root = np.sqrt(w / w.mean())
    e, V = np.linalg.eigh(root[:, None] * sigmoid(X, X) * root)
    V, e = V[:, e > 1e-9 * e[-1]], e[e > 1e-9 * e[-1]]
    b = V @ ((V.T @ (root * (y - mean))) / (e + 0.01 * 200))
    expected = mean + sigmoid(new, X) @ (root * b)
    for model in (
        EigenProRegressor(sigmoid, alpha=0.01),
        NystromRegressor(sigmoid, alpha=0.01),
        FalkonLikeRegressor(sigmoid, alpha=0.01),
    ):
        with pytest.warns(ConvergenceWarning, match="not positive semi-definite"):
            model.fit(X, y, sample_weight=w)
        assert_allclose(model.predict(new), expected, atol=1e-8)


def test_columns_at_the_centers_are_features(data):
    """The norm is that of the absolute kernel matrix of the centers."""
    X, y = data
    Z = X[:30]
    e, V = np.linalg.eigh(sigmoid(Z, Z))
    C, norm = sigmoid(X, Z), (V * np.abs(e)) @ V.T
    a = np.linalg.solve(C.T @ C + 0.01 * 200 * norm, C.T @ (y - y.mean()))
    for model in (
        EigenProRegressor(sigmoid, centers=Z, alpha=0.01),
        NystromRegressor(sigmoid, centers=Z, alpha=0.01),
        FalkonLikeRegressor(sigmoid, centers=Z, alpha=0.01, tol=1e-10),
    ):
        with pytest.warns(ConvergenceWarning, match="not positive semi-definite"):
            model.fit(X, y)
        assert_allclose(model.predict(X), C @ a + y.mean(), atol=1e-6)


@pytest.mark.parametrize(
    "kernel, message",
    [
        (zero, r"zero.* must have positive k\(x, x\); got zero"),
        (lopsided, r"lopsided.* must be symmetric, k\(x, z\) = k\(z, x\); got"),
        (complex_valued, "complex_valued.* must return real numbers; got complex128"),
    ],
)
@pytest.mark.parametrize("model", MACHINES + ON_CENTERS, ids=repr)
def test_what_is_no_kernel(model, kernel, message, data):
    with pytest.raises(ValueError, match=message):
        fit(model, *data, kernel)


@pytest.mark.parametrize("model", MACHINES, ids=repr)
def test_matrices(model, data):
    X, y = data
    _, messages = fit(model, sigmoid(X, X), y, "precomputed")
    assert len(messages) == 1 and "not positive semi-definite" in messages[0]
    for kernel, message in ((zero, "got zero for every"), (lopsided, "be symmetric")):
        with pytest.raises(ValueError, match=f"kernel='precomputed' must.*{message}"):
            fit(model, kernel(X, X), y, "precomputed")
    with pytest.raises(ValueError, match=r"[Cc]omplex"):
        fit(model, complex_valued(X, X), y, "precomputed")


def test_predictions_of_complex_values(data):
    X, y = data
    model = NystromRegressor("precomputed").fit(np.exp(-cdist(X, X)), y)
    with pytest.raises(ValueError, match=r"[Cc]omplex"):
        model.predict(complex_valued(X, X))


def test_data_in_pieces(data):
    X, y = data
    for kernel, message in (
        (zero, "got zero"),
        (lopsided, "be symmetric"),
        (complex_valued, "real numbers"),
        (sigmoid, "must be positive semi-definite for data in pieces"),
    ):
        model = EigenProRegressor(kernel, n_centers=20)
        with pytest.raises(ValueError, match=message):
            model.partial_fit(X, y)
        with pytest.raises(ValueError, match=message):
            model.fit_batches([(X, y)])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("width", [1.0, 64.0])
@pytest.mark.parametrize("made", [Gaussian, Laplacian, Polynomial, Linear])
def test_rounding_is_no_property(made, width, dtype, rng):
    """Kernels by the names of functions: what eigenkern never checks for its own."""
    X = rng.standard_normal((300, 4)).astype(dtype)
    kernel = made() if made is Linear else made(width)
    rows = np.arange(300)
    assert check_given_kernel(lambda A, B: kernel(A, B), X, rows) is None
    assert check_given_kernel("precomputed", kernel(X, X), rows) is None


def test_own_kernels_are_not_checked(monkeypatch, data):
    def fail(self, X, Z=None):
        raise AssertionError

    monkeypatch.setattr(Gaussian, "__call__", fail)
    assert check_given_kernel(Gaussian(), data[0], np.arange(200)) is None
    assert check_given_kernel("gaussian", data[0], np.arange(200)) is None


def test_a_kernel_class_of_the_user_is_checked(data):
    class Sigmoid(Kernel):
        def encode(self, X):
            return X

        def left(self, E):
            return E

        def finish(self, xp, T):
            return xp.tanh(0.5 * T - 0.5)

        def diagonal(self, X):
            return np.tanh(0.5 * np.sum(X * X, axis=1) - 0.5)

    ends = check_given_kernel(Sigmoid(), data[0], np.arange(200))
    expected = np.linalg.eigvalsh(sigmoid(data[0], data[0]))[[0, -1]]
    assert_allclose([ends.lowest, ends.top], expected)


def test_rows_without_weight_are_not_checked(data):
    X, y = data
    X = np.concatenate([X, np.full((5, 3), 1e3)])
    y, w = np.append(y, np.zeros(5)), np.repeat([1.0, 0.0], [200, 5])

    def odd(A, B):  # asymmetric far away
        return np.exp(-cdist(A, B)) + (A[:, :1] > 100) * 3.0

    NystromRegressor(odd, alpha=1e-3).fit(X, y, sample_weight=w)
    with pytest.raises(ValueError, match="must be symmetric"):
        NystromRegressor(odd, alpha=1e-3).fit(X, y)
