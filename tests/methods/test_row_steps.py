"""Shorter steps on rows with a larger k_P(x, x) than those that were measured."""

from functools import partial
from itertools import islice

import numpy as np
import pytest
from numpy.testing import assert_allclose

from eigenkern import EigenProClassifier, EigenProRegressor
from eigenkern.arrays.array import to_numpy
from eigenkern.kernels import Gaussian, Polynomial
from eigenkern.methods.epochs import eigenpro, step_on_all_rows, step_on_rows
from eigenkern.methods.step_search import RowSteps
from eigenkern.operators.matrix import GivenMatrix
from eigenkern.preconditioners.global_spectral import GlobalSpectral
from eigenkern.preconditioners.spectral import Spectral
from eigenkern.problems.data import Data

N, S, Q, M = 60, 20, 6, 16


@pytest.fixture
def matrix(rng):
    return Polynomial(2.0, degree=2, coef0=1.0)(rng.standard_normal((N, 3)))


def entries(K, P):
    """Return the diagonal of k_P from its definition; V of the subsample, or of all."""
    rows = P.vectors.shape[0]
    p = K[:, :rows] @ to_numpy(P.vectors)
    return np.diag(K - p @ np.diag(to_numpy(P.scales)) @ p.T)


def factors(steps, K, P):
    """Return the factors of all rows, batch by batch."""
    found = []
    for start in range(0, N, M):
        b = slice(start, min(start + M, N))
        r = steps.of(b, K[b, : P.n_columns])
        assert r is steps.of(b, None)  # computed once
        ones = np.ones((b.stop - b.start, 1))
        found.append(ones if r is None else to_numpy(r))
    return np.concatenate(found)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("q", [0, Q])
@pytest.mark.parametrize(
    "make",
    [
        Spectral.of,
        partial(GlobalSpectral.of, svd_solver="nystrom", rng=np.random.RandomState(0)),
    ],
    ids=["eigenpro2", "eigenpro1"],
)
def test_factors_are_those_of_the_definition(make, q, weighted, matrix, rng):
    w = rng.uniform(0.5, 2.0, size=N) if weighted else None
    P = make(GivenMatrix(matrix), S, q, weights=w)
    size = entries(matrix, P) * (1.0 if w is None else w)
    largest = float(np.sort(size)[-5:-3].mean())
    steps = RowSteps(P, lambda b: np.diag(matrix)[b], w, largest)
    found = factors(steps, matrix, P)[:, 0]
    assert_allclose(found, np.minimum(1.0, largest / size), rtol=1e-8)
    assert np.sum(found < 1) == 4
    steps = RowSteps(P, lambda b: np.diag(matrix)[b], w, float(size.max()) * (1 + 1e-9))
    assert steps.of(slice(0, M), matrix[:M, : P.n_columns]) is None


def test_factors_of_batches_with_equal_starts(matrix):
    P = Spectral.of(GivenMatrix(matrix), S, Q)
    size = entries(matrix, P)
    steps = RowSteps(P, lambda b: np.diag(matrix)[b], None, float(np.median(size)))
    for b in (slice(0, M), slice(0, 2 * M), slice(M, N), slice(M, N - 5)):
        found = steps.of(b, matrix[b, : P.n_columns])[:, 0]
        assert_allclose(found, np.minimum(1.0, np.median(size) / size[b]), rtol=1e-8)


def test_factors_in_other_libraries(other_xp, matrix):
    P = Spectral.of(GivenMatrix(matrix), S, Q)
    largest = float(np.median(entries(matrix, P)))
    expected = factors(
        RowSteps(P, lambda b: np.diag(matrix)[b], None, largest), matrix, P
    )
    K = other_xp.asarray(matrix)
    P = Spectral.of(GivenMatrix(K), S, Q)
    diagonal = other_xp.linalg.diagonal(K)
    found = factors(RowSteps(P, lambda b: diagonal[b], None, largest), K, P)
    assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize("step", [step_on_rows, step_on_all_rows])
def test_the_solution_stays_as_it_is(step, rng):
    X = rng.standard_normal((N, 2))
    K = Gaussian(1.0)(X) + np.eye(N)
    Y = rng.standard_normal((N, 2))
    options = {"svd_solver": "nystrom", "rng": np.random.RandomState(0)}
    make = partial(GlobalSpectral.of, **options)
    make = Spectral.of if step is step_on_rows else make
    P = make(GivenMatrix(K), S, Q)
    largest = float(np.quantile(entries(K, P), 0.2))
    steps = RowSteps(P, lambda b: np.diag(K)[b], None, largest)
    solver = eigenpro(
        GivenMatrix(K),
        Y,
        P,
        coef=np.zeros_like(Y),
        weights=None,
        batch_size=M,
        step_size=0.1 * M,
        rng=np.random.RandomState(0),
        step=step,
        try_steps=False,
        row_steps=steps,
    )
    state = list(islice(solver, 300))[-1]
    assert_allclose(state.coef, np.linalg.solve(K, Y), atol=1e-6)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("algorithm", ["eigenpro1", "eigenpro2"])
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_an_outlier_that_was_not_measured_does_no_harm(
    algorithm, weighted, monkeypatch, rng
):
    """It is far from all other rows, and k is smooth."""
    monkeypatch.setattr("eigenkern.plan.sizes.N_MEASURED", 200)
    # The outlier comes after the measured rows.
    monkeypatch.setattr(Data, "merged", lambda data, rows, fewest: data.unmerged(rows))
    X = rng.standard_normal((600, 2))
    y = np.sin(X[:, 0]) + X[:, 1]
    X[590] = 40.0
    w = rng.uniform(0.5, 1.5, size=600) if weighted else None
    model = EigenProRegressor(
        "gaussian",
        bandwidth=6.0,
        algorithm=algorithm,
        subsample_size=100,
        alpha=0.0,
        batch_size=60,
        random_state=2,
    )

    def error():
        model.fit(X, y, sample_weight=w)
        return np.average((model.predict(X) - y) ** 2, weights=w) / np.var(y)

    assert error() < 0.005
    assert model.n_step_halvings_ == 0
    monkeypatch.setattr(RowSteps, "of", lambda *_: None)
    assert error() > 0.01
    assert model.n_step_halvings_ > 1


@pytest.mark.parametrize("make", [EigenProRegressor, EigenProClassifier])
@pytest.mark.parametrize(
    "place",
    [0, 449, 530, 539, 540, 570, 599],
    ids=["first", "batch", "late", "539", "540", "last batch", "last"],
)
def test_an_outlier_at_any_place(make, place, monkeypatch, rng):
    """A classifier holds out every tenth row, also if that is the outlier."""
    monkeypatch.setattr("eigenkern.plan.sizes.N_MEASURED", 200)
    monkeypatch.setattr(Data, "merged", lambda data, rows, fewest: data.unmerged(rows))
    X = rng.standard_normal((600, 2))
    y = np.sin(X[:, 0]) + X[:, 1]
    X[place] = 40.0
    model = make(
        "gaussian",
        bandwidth=6.0,
        algorithm="eigenpro2",
        subsample_size=100,
        batch_size=64,
        random_state=0,
    )
    is_regressor = make is EigenProRegressor
    model.fit(X, y if is_regressor else y > 0)
    assert model.n_step_halvings_ == 0
    others = np.arange(600) != place
    if is_regressor:
        assert np.mean((model.predict(X) - y)[others] ** 2) < 0.01 * np.var(y)
    else:
        assert model.score(X[others], y[others] > 0) > 0.95


@pytest.mark.filterwarnings("ignore:.* learned nothing")
def test_no_factors_if_all_rows_are_measured_or_the_step_is_given(monkeypatch, rng):
    X = rng.standard_normal((300, 2))

    def fail(*_):
        raise AssertionError("no factors are needed")

    monkeypatch.setattr(RowSteps, "of", fail)
    model = EigenProRegressor(algorithm="eigenpro2", max_iter=1, random_state=0)
    model.fit(X, X[:, 0])
    monkeypatch.setattr("eigenkern.plan.sizes.N_MEASURED", 100)
    model.set_params(step_size=0.1).fit(X, X[:, 0])
    with pytest.raises(AssertionError, match="no factors"):
        model.set_params(step_size="auto").fit(X, X[:, 0])
