"""Sums over the features of a file."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from eigenkern.operators import centered
from eigenkern.operators.centered import sums_of_features
from eigenkern.rows.lazy_rows import StoredRows

N, D = 700, 6


@pytest.fixture
def rows(rng):
    X = rng.standard_normal((N, D)) + np.arange(D) ** 3
    X[:, 2], X[:, 4] = 0.1, 0.0
    return X[np.argsort(X[:, 0])]


@pytest.mark.parametrize("panel", [2, 512])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_sums_are_those_of_all_rows(dtype, weighted, panel, rows, rng, monkeypatch):
    monkeypatch.setattr(centered, "PANEL_WIDTH", panel)
    X, Y = rows.astype(dtype), rng.standard_normal((N, 2))
    index = rng.permutation(N)[: N - 50]
    w, y = rng.uniform(0.1, 1.0, len(index)), Y[index]
    if not weighted:
        w = np.ones(len(index))
    stored = StoredRows(X, dtype, 64).take(index)
    given, level = w if weighted else None, np.array([3.0, 3.0])
    found = sums_of_features(stored, y + 3.0, given, level, center=True, with_gram=True)
    assert found.extremes == (X[index].min(), X[index].max())
    assert_array_equal(np.isnan(found.levels), np.arange(D) != 2)
    assert found.mean[2] == found.levels[2] == X[0, 2]
    mean = np.average(X[index].astype(float), axis=0, weights=w)
    assert_allclose(found.mean, mean, rtol=1e-12, atol=1e-12)
    F = X[index] - mean
    G, b = found.normal_equations(mean)
    atol = 1e-12 * N * np.ptp(X) ** 2
    assert_allclose(G, F.T @ (w[:, None] * F), rtol=1e-12, atol=atol)
    assert_allclose(b, F.T @ (w[:, None] * y), rtol=1e-12, atol=atol)


def test_without_a_mean_nothing_is_subtracted(rows, rng):
    y = rng.standard_normal((N, 1))
    stored = StoredRows(rows, float, 64)
    found = sums_of_features(stored, y, None, np.zeros(1), center=False, with_gram=True)
    assert np.isnan(found.levels).all()
    G, b = found.normal_equations(np.zeros(D))
    assert_allclose(G, rows.T @ rows, rtol=1e-12)
    assert_allclose(b, rows.T @ y, rtol=1e-12)
    found = sums_of_features(
        stored, y, None, np.zeros(1), center=False, with_gram=False
    )
    assert found.gram is None and found.cross.shape == (D, 1)


def test_rows_far_from_the_first_ones(rows, rng, monkeypatch):
    monkeypatch.setattr(centered, "_ROWS_OF_SHIFT", 10)
    rows[10:, 1] += 1e6
    stored = StoredRows(rows, float, 64)
    y = rng.standard_normal((N, 1))
    found = sums_of_features(stored, y, None, np.zeros(1), center=True, with_gram=True)
    F = rows - rows.mean(axis=0)
    G, _ = found.normal_equations(rows.mean(axis=0))
    size = np.sqrt(np.diag(F.T @ F))
    size[size < 1e-9] = 1.0
    assert_allclose(
        G / size / size[:, None], F.T @ F / size / size[:, None], atol=1e-11
    )
