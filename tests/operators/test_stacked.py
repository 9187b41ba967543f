"""Sums over several matrices against those over one."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from eigenkern.kernels import Laplacian
from eigenkern.operators.matrix import StackedRows
from eigenkern.operators.tiled import TiledKernel


@pytest.fixture
def matrices(rng):
    Z = rng.standard_normal((11, 3))
    rows = rng.standard_normal((30, 3))
    parts = [TiledKernel(Laplacian(1.5), Z, X) for X in np.split(rows, [17, 22])]
    return StackedRows(parts), Laplacian(1.5)(rows, Z)


def test_gram(matrices, rng):
    stacked, K = matrices
    T, w, R = rng.standard_normal((30, 2)), rng.uniform(0, 2, 30), np.diag(range(11))
    for transform, C in [(None, K), (R + 0.0, K @ R)]:
        G, c = stacked.gram(T, w, transform=transform)
        assert_allclose(G, C.T @ np.diag(w) @ C, atol=1e-11)
        assert_allclose(c, C.T @ np.diag(w) @ T, atol=1e-11)


def test_adjoint_of(matrices, rng):
    stacked, K = matrices
    V, Y = rng.standard_normal((11, 2)), rng.standard_normal((30, 2))
    found = stacked.adjoint_of(V, lambda rows, F: np.tanh(F - Y[rows, :]))
    assert_allclose(found, K.T @ np.tanh(K @ V - Y), atol=1e-12)
