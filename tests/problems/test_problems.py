"""Promises of every training problem, against the formula of its model in NumPy.

To add a problem: a function of (X, Y, weights, train, held_out) that returns a `Case`,
in `CASES`.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from numpy.testing import assert_allclose
from scipy.spatial.distance import cdist

from eigenkern.kernels import Laplacian
from eigenkern.losses import Huber, SquaredError
from eigenkern.methods.stochastic import Expansion
from eigenkern.operators.cached import cached_bytes
from eigenkern.problems.basis_centers import GeneralProblem
from eigenkern.problems.basis_features import FourierProblem, LinearProblem
from eigenkern.problems.basis_rows import KernelProblem
from eigenkern.problems.data import Data

N, L = 70, 2
KERNEL = Laplacian(1.5)


def dense(X, Z):
    return np.exp(-cdist(X, Z) / 1.5)


def squares(Y, F):
    """Return the loss of every row: the mean of squares over the outputs."""
    return np.mean((Y - F) ** 2, axis=1)


@dataclass
class Case:
    """A problem, and its model in NumPy.

    Attributes
    ----------
    problem : Problem
    coef : object
        Random coefficients, as `problem.loss` takes them.
    predict : callable
        ``predict(attributes, rows)``: f on some rows of X, by the fitted attributes.
    loss : callable, default=squares
        ``loss(Y, F)`` of every row, in units of the problem.
    again : callable, default=None
        ``again(attributes)`` returns the coefficients of a fitted model.
    """

    problem: Any
    coef: Any
    predict: Any
    loss: Any = squares
    again: Any = None


def make_data(X, Y, weights, **options):
    return Data(X, Y, Y, weights, np.random.RandomState(0), **options)


def random_like(coef):
    return np.random.default_rng(1).standard_normal(coef.shape)


def kernel(X, Y, weights, train, held_out):
    options = {"kernel": KERNEL, "bandwidth": None, "device": "auto"}
    problem = KernelProblem(
        make_data(X, Y, weights).unmerged(train), held_out, **options
    )

    def predict(fitted, rows):
        K = dense(X[rows], fitted["centers_"])
        return K @ fitted["dual_coef_"] + fitted["intercept_"]

    coef = random_like(problem.initial_coef())
    return Case(problem, coef, predict, again=lambda f: problem.coef_of(f))


def kernel_cached(X, Y, weights, train, held_out):
    case = kernel(X, Y, weights, train, held_out)
    case.problem = kept(case.problem)
    assert case.problem.cache_megabytes > 0
    return case


def kept(problem):
    """Return a kernel problem with its matrices kept."""
    matrices = [problem.operator, problem.validation]
    matrices = [matrix for matrix in matrices if matrix is not None]
    return problem.cached(1000, cached_bytes(matrices, 1000, 20, 3))


def precomputed(X, Y, weights, train, held_out):
    K = dense(X, X)
    data = make_data(K, Y, weights, precomputed=True)
    options = {"kernel": "precomputed", "bandwidth": None, "device": "auto"}
    problem = KernelProblem(data.unmerged(train), held_out, **options)

    def predict(fitted, rows):
        assert fitted["centers_"] is fitted["kernel_"] is None
        return K[rows] @ fitted["dual_coef_"] + fitted["intercept_"]

    coef = random_like(problem.initial_coef())
    return Case(problem, coef, predict, again=lambda f: problem.coef_of(f))


def general(X, Y, weights, train, held_out):
    Z = np.random.default_rng(2).standard_normal((17, X.shape[1]))
    data = make_data(X, Y, weights)
    options = {"kernel": KERNEL, "centers": Z, "device": "auto"}
    problem = GeneralProblem(data, train, held_out, **options)

    def predict(fitted, rows):
        np.testing.assert_array_equal(fitted["centers_"], Z)
        return dense(X[rows], Z) @ fitted["dual_coef_"] + fitted["intercept_"]

    coef = random_like(problem.initial_coef())
    return Case(problem, coef, predict, again=lambda f: problem.coef_of(f))


def general_cached(X, Y, weights, train, held_out):
    case = general(X, Y, weights, train, held_out)
    case.problem = case.problem.kept(1000)
    assert case.problem.cache_megabytes > 0
    return case


def linear(X, Y, weights, train, held_out):
    options = {"device": "auto", "center": True, "one_dimensional": False}
    problem = LinearProblem(make_data(X, Y, weights), train, held_out, **options)
    dense_X = X.toarray() if scipy.sparse.issparse(X) else X

    def predict(fitted, rows):
        return dense_X[rows] @ fitted["coef_"].T + fitted["intercept_"]

    coef = random_like(problem.initial_coef())
    return Case(problem, coef, predict, again=lambda f: problem.coef_of(f))


def linear_sparse(X, Y, weights, train, held_out):
    X = scipy.sparse.csr_array(np.where(abs(X) > 0.7, X, 0.0))
    return linear(X, Y, weights, train, held_out)


def fourier(X, Y, weights, train, held_out, loss=None):
    problem = FourierProblem(
        make_data(X, Y, weights),
        train,
        held_out,
        SquaredError() if loss is None else loss,
        numbers=True,
        kernel=KERNEL,
        bandwidth=None,
        device="auto",
        block_size=5,
        frequency_bytes=1e6,
    )
    rng = np.random.default_rng(1)
    blocks = [rng.standard_normal((10, L)) for _ in range(3)]
    coef = Expansion(
        rng.standard_normal(L), rng.standard_normal(L), blocks, scale=0.7, n_steps=4
    )
    coef.betas = [rng.standard_normal(L) for _ in blocks]

    def predict(fitted, rows):
        F = np.zeros((len(rows), L))
        for seed, A in zip(fitted["seeds_"], fitted["coef_"], strict=True):
            rng = np.random.Generator(np.random.Philox(key=int(seed)))
            T = (X[rows] - fitted["offset_"]) @ KERNEL.frequencies(rng, X.shape[1], 5)
            F += np.hstack([np.cos(T), np.sin(T)]) @ A / np.sqrt(5)
        return F + fitted["intercept_"]

    scale = problem.fitted_attributes(coef)["target_scale_"]

    def half_squares(Y, F):
        return np.sum(((Y - F) / scale) ** 2, axis=1) / 2

    return Case(problem, coef, predict, half_squares)


CASES = [
    kernel,
    kernel_cached,
    precomputed,
    general,
    general_cached,
    linear,
    linear_sparse,
    fourier,
]


@pytest.fixture(params=[False, True], ids=["", "weighted"])
def rows(request, rng):
    """X, targets, weights, training rows in random order, and held-out rows."""
    X = rng.standard_normal((N, 4))
    Y = 5.0 + np.column_stack([3 * X[:, 0] ** 2, np.sin(X[:, 1])])
    weights = rng.uniform(0.1, 4.0, N) if request.param else None
    order = rng.permutation(N)
    return X, Y, weights, order[:50], np.sort(order[50:65])


@pytest.fixture(params=CASES, ids=lambda make: make.__name__)
def case(request, rows):
    return request.param(*rows)


def naive_loss(case, rows, F, n_rows=None):
    """Return the weighted mean loss of the first training rows, weights with mean 1."""
    _, Y, weights, train, _ = rows
    w = np.ones(N) if weights is None else weights
    w = w[train] / w[train].mean()
    return np.mean((w * case.loss(Y[train], F))[:n_rows])


def test_initial_coef_is_the_constant(case, rows):
    _, Y, weights, train, _ = rows
    coef, problem = case.problem.initial_coef(), case.problem
    w = None if weights is None else weights[train]
    mean = np.average(Y[train], axis=0, weights=w)
    assert_allclose(problem.validation_values(coef), np.tile(mean, (15, 1)), rtol=1e-12)
    fitted = problem.fitted_attributes(coef)
    assert_allclose(case.predict(fitted, train), np.tile(mean, (50, 1)), rtol=1e-12)
    # The loss is the weighted variance.
    assert_allclose(problem.loss(coef), naive_loss(case, rows, mean), rtol=1e-12)
    assert_allclose(problem.loss(coef, 9), naive_loss(case, rows, mean, 9), rtol=1e-12)


def test_loss_of_random_coefficients(case, rows):
    fitted = case.problem.fitted_attributes(case.coef)
    F = case.predict(fitted, rows[3])
    for n_rows in (None, 1, 13, 50, 51, 10_000):
        expected = naive_loss(case, rows, F, n_rows)
        assert_allclose(case.problem.loss(case.coef, n_rows), expected, rtol=1e-10)


def test_validation_values_are_those_of_the_fitted_model(case, rows):
    fitted = case.problem.fitted_attributes(case.coef)
    values = case.problem.validation_values(case.coef)
    assert type(values) is np.ndarray and values.shape == (15, L)
    assert_allclose(values, case.predict(fitted, rows[4]), rtol=1e-10)


def test_nothing_changes_the_coefficients(case):
    before = case.problem.fitted_attributes(case.coef)
    case.problem.loss(case.coef)
    case.problem.validation_values(case.coef)
    for name, value in case.problem.fitted_attributes(case.coef).items():
        if isinstance(value, np.ndarray):
            np.testing.assert_array_equal(value, before[name])


def test_a_fitted_model_has_the_coefficients_again(case):
    if case.again is None:
        pytest.skip("goes on from more than its coefficients")
    found = case.again(case.problem.fitted_attributes(case.coef))
    assert_allclose(found, case.coef, rtol=1e-12)


def test_targets_and_weights_are_those_of_the_training_rows(case, rows):
    _, Y, weights, train, _ = rows
    w = np.ones(N) if weights is None else weights
    if case.problem.weights is None:
        assert weights is None
    else:
        assert_allclose(case.problem.weights, w[train] / w[train].mean(), rtol=1e-12)
    constant = np.average(Y[train], axis=0, weights=w[train])
    targets = np.asarray(case.problem.targets)
    scale = np.std(Y[train], axis=0) / np.std(targets, axis=0)
    assert_allclose(scale * targets, Y[train] - constant, atol=1e-10)


def test_other_losses_of_a_fourier_problem(rows):
    case = fourier(*rows, loss=Huber(0.8))
    fitted = case.problem.fitted_attributes(case.coef)
    r = abs(rows[1] - case.predict(fitted, np.arange(N))) / fitted["target_scale_"]
    r = r[rows[3]]
    losses = np.sum(np.where(r < 0.8, r**2 / 2, 0.8 * (r - 0.4)), axis=1)
    w = np.ones(N) if rows[2] is None else rows[2]
    expected = np.average(losses, weights=w[rows[3]])
    assert_allclose(case.problem.loss(case.coef), expected, rtol=1e-10)


def test_without_rows_held_out(rows):
    for make in CASES:
        case = make(*rows[:4], None)
        assert np.isfinite(case.problem.loss(case.coef))


@pytest.mark.parametrize("make", [kernel, precomputed])
def test_diagonal_of_the_operator(make, rng):
    X, Y = rng.standard_normal((N, 3)), rng.standard_normal((N, L))
    train, weights = rng.permutation(N)[:50], rng.uniform(0.5, 2.0, size=N)
    problem = make(X, Y, weights, train, None).problem
    expected = np.ones(24)
    assert_allclose(problem.diagonal(slice(7, 31)), expected, rtol=1e-12)
    w = weights[train] / weights[train].mean()
    problem = kept(problem.penalized(3.0))
    expected += 3.0 / w[7:31]
    assert_allclose(problem.diagonal(slice(7, 31)), expected, rtol=1e-12)
