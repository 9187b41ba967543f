"""The losses against their formulas, finite differences and SciPy."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax
from sklearn.metrics import mean_pinball_loss

from eigenkern.losses import (
    EpsilonInsensitive,
    Hinge,
    Huber,
    LogLoss,
    Pinball,
    SquaredError,
)

NUMBERS = [SquaredError(), Huber(0.7), EpsilonInsensitive(0.3), Pinball((0.2,))]
CLASSES = [Hinge(), LogLoss(1), LogLoss(3), SquaredError()]


def columns_of(codes, n_classes):
    if n_classes == 2:
        return (2.0 * codes - 1.0)[:, None]
    return np.eye(n_classes)[codes]


@pytest.fixture(params=[1, 3], ids=["one column", "three columns"])
def n_columns(request):
    return request.param


def problems(n_columns, rng):
    """Yield losses with suitable targets."""
    for loss in NUMBERS:
        yield loss, rng.standard_normal((40, n_columns))
    codes = rng.integers(0, 2 if n_columns == 1 else 3, 40)
    for loss in CLASSES:
        if getattr(loss, "n_columns", n_columns) == n_columns:
            yield loss, columns_of(codes, 2 if n_columns == 1 else 3)


class SharpPinball:
    def __init__(self, quantile):
        self.quantile = quantile

    def value(self, Y, F):
        r = Y - F
        return np.maximum(self.quantile * r, (self.quantile - 1) * r).sum(axis=1)


def test_gradients_are_derivatives(n_columns, rng):
    F = 2.0 * rng.standard_normal((40, n_columns))
    for loss, Y in problems(n_columns, rng):
        for column in range(n_columns):
            step = np.zeros(n_columns)
            step[column] = 1e-6
            slope = (loss.value(Y, F + step) - loss.value(Y, F - step)) / 2e-6
            assert_allclose(loss.gradient(Y, F)[:, column], slope, atol=1e-8)


def test_second_derivatives(n_columns, rng):
    F = 2.0 * rng.standard_normal((40, n_columns))
    for loss, Y in problems(n_columns, rng):
        second = loss.second_derivative(loss.gradient(Y, F))
        if not isinstance(loss, LogLoss | Pinball):
            assert_array_equal(second, np.full((40, n_columns), loss.curvature))
            continue
        for column in range(n_columns):
            step = np.zeros(n_columns)
            step[column] = 1e-6
            change = loss.gradient(Y, F + step) - loss.gradient(Y, F - step)
            assert_allclose(second[:, column], change[:, column] / 2e-6, atol=1e-8)


def test_losses_are_convex_and_curvature_is_their_bound(n_columns, rng):
    F, G = 3.0 * rng.standard_normal((2, 40, n_columns))
    for loss, Y in problems(n_columns, rng):
        middle = loss.value(Y, 0.5 * (F + G))
        assert (middle <= 0.5 * (loss.value(Y, F) + loss.value(Y, G)) + 1e-12).all()
        if isinstance(loss, SquaredError | Huber | LogLoss | Pinball):
            change = np.linalg.norm(loss.gradient(Y, F) - loss.gradient(Y, G), axis=1)
            limit = loss.curvature * np.linalg.norm(F - G, axis=1)
            assert (change <= limit * (1 + 1e-12)).all()


def test_values_are_the_formulas(rng):
    Y, F = rng.standard_normal((2, 40, 1))
    size = np.abs(F - Y)[:, 0]
    assert_allclose(SquaredError().value(Y, F), size**2 / 2)
    outer = 0.7 * (size - 0.35)
    assert_allclose(Huber(0.7).value(Y, F), np.where(size < 0.7, size**2 / 2, outer))
    expected = np.maximum(size - 0.3, 0)
    assert_allclose(EpsilonInsensitive(0.3).value(Y, F), expected)
    signs = np.sign(Y)
    assert_allclose(Hinge().value(signs, F), np.maximum(1 - signs * F, 0)[:, 0])
    assert_allclose(LogLoss(1).value(signs, F), np.log1p(np.exp(-signs * F))[:, 0])


def test_multinomial_log_loss_is_softmax(rng):
    F = 3.0 * rng.standard_normal((40, 3))
    codes = rng.integers(0, 3, 40)
    loss, Y = LogLoss(3), columns_of(codes, 3)
    expected = -log_softmax(F, axis=1)[np.arange(40), codes]
    assert_allclose(loss.value(Y, F), expected)
    assert_allclose(loss.probabilities(F), softmax(F, axis=1))
    two = loss.probabilities(np.column_stack([np.zeros(40), F[:, 0]]))
    assert_allclose(LogLoss(1).probabilities(F[:, :1]), two, atol=1e-15)


@pytest.mark.parametrize("size", [1e3, 1e30])
def test_log_loss_of_large_values_is_finite(size):
    F = np.array([[size], [-size]])
    Y = np.array([[1.0], [1.0]])
    assert_allclose(LogLoss(1).value(Y, F), [0, size])
    assert_allclose(LogLoss(1).gradient(Y, F), [[0], [-1]], atol=1e-15)
    F3, Y3 = np.array([[size, 0, -size]]), np.array([[0.0, 0.0, 1.0]])
    assert_allclose(LogLoss(3).value(Y3, F3), [2 * size])
    assert_allclose(LogLoss(3).gradient(Y3, F3), [[1, 0, -1]], atol=1e-15)


def test_hinge_of_several_columns_is_one_against_the_rest(rng):
    F = rng.standard_normal((40, 3))
    Y = columns_of(rng.integers(0, 3, 40), 3)
    expected = sum(
        Hinge().value(2 * Y[:, [j]] - 1, F[:, [j]]) for j in range(Y.shape[1])
    )
    assert_allclose(Hinge().value(Y, F), expected)


@pytest.mark.parametrize("weighted", [False, True])
def test_baselines_are_good_constants(weighted, n_columns, rng):
    weights = rng.integers(1, 3, 40) if weighted else None
    w = np.ones(40) if weights is None else weights
    for loss, Y in problems(n_columns, rng):
        if isinstance(loss, Hinge):  # starts at zero, whatever the class weights
            assert_allclose(loss.baseline(Y, weights), np.zeros(n_columns))
            continue
        deviation = loss
        if isinstance(loss, Huber | EpsilonInsensitive):  # start at the median
            deviation = EpsilonInsensitive(0.0)
        if isinstance(loss, Pinball):  # starts at the quantile, without a smooth kink
            deviation = SharpPinball(0.2)

        def mean(constant, loss=deviation, Y=Y):
            F = np.broadcast_to(constant, Y.shape)
            return np.average(loss.value(Y, F), weights=w)

        best = minimize(mean, np.zeros(n_columns), method="Nelder-Mead", tol=1e-10)
        # Half a row added to each class changes the logarithm a little.
        slack = 2e-3 if isinstance(loss, LogLoss) else 1e-8
        assert mean(loss.baseline(Y, weights)) <= best.fun * (1 + slack)


def test_log_loss_starts_from_finite_values_with_one_class():
    assert_allclose(LogLoss(1).baseline(np.full((9, 1), -1.0), None), [np.log(1 / 19)])


@pytest.mark.parametrize("n_columns", [1, 3])
@pytest.mark.parametrize("made", [SquaredError, LogLoss])
def test_value_and_gradient_are_both(made, n_columns):
    rng = np.random.default_rng(0)
    F = 30.0 * rng.standard_normal((20, n_columns))
    Y = np.sign(F) if n_columns == 1 else np.eye(3)[rng.integers(0, 3, 20)]
    loss = made(n_columns) if made is LogLoss else made()
    value, gradient = loss.value_and_gradient(Y, F)
    assert_allclose(value, loss.value(Y, F), rtol=1e-12, atol=1e-12)
    assert_allclose(gradient, loss.gradient(Y, F), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("quantiles", [(0.1,), (0.1, 0.5, 0.9)])
def test_pinball_is_the_mean_of_the_sharp_one_around(quantiles, rng):
    loss, Y = Pinball(quantiles), rng.standard_normal((300, 1))
    Y = np.repeat(Y, len(quantiles), axis=1)
    F = Y + 0.2 * rng.standard_normal(Y.shape)
    noise = loss.width * (np.arange(1000) + 0.5) / 500 - loss.width
    expected = np.zeros(300)
    for q, y, f in zip(quantiles, Y.T, F.T, strict=True):
        sharp = SharpPinball(q).value
        expected += np.mean([sharp(y[:, None] - e, f[:, None]) for e in noise], axis=0)
    assert_allclose(loss.value(Y, F), expected, atol=1e-6)
    # Far from the kink it equals scikit-learn's loss.
    far = Y + np.sign(F - Y)
    sharp = sum(
        mean_pinball_loss(y, f, alpha=q)
        for q, y, f in zip(quantiles, Y.T, far.T, strict=True)
    )
    assert_allclose(loss.value(Y, far).mean(), sharp)


@pytest.mark.parametrize("quantile", [0.1, 0.3, 0.9])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_second_derivative_of_the_pinball_loss_is_that_of_its_kink(quantile, dtype):
    loss = Pinball((quantile,))
    F = np.array([[-5.0], [-0.99], [0.0], [0.99], [5.0]], dtype) * loss.width
    second = loss.second_derivative(loss.gradient(np.zeros_like(F), F))
    assert second.dtype == dtype
    assert_allclose(second[:, 0], loss.curvature * np.array([0, 1, 1, 1, 0]))


def test_weights_of_quantiles_are_repetitions(rng):
    Y, w = rng.standard_normal((50, 2)), rng.integers(1, 4, 50)
    loss = Pinball((0.1, 0.6))
    repeated = loss.baseline(np.repeat(Y, w, axis=0), None)
    assert_array_equal(loss.baseline(Y, w.astype(float)), repeated)
