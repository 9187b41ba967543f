"""The spectral preconditioner and its measurement against dense linear algebra."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from eigenkern._array import to_numpy
from eigenkern.kernels import Gaussian, Laplacian, Linear
from eigenkern.preconditioners import HeldOutSpectrum, Spectral

S, N = 80, 150


@pytest.fixture
def rows(rng):
    X = rng.standard_normal((S + N, 3))
    return X[:S], X[S:]


@pytest.fixture(params=[False, True], ids=["plain", "weighted"])
def weights(request, rng):
    """Weights of the subsample and of the held-out rows, with a zero among them."""
    if not request.param:
        return None, None
    w = rng.exponential(size=S + N)
    w[[3, S + 3]] = 0.0
    return w[:S], w[S:]


def preconditioned(K_xz, K_xs, K_sz, P):
    """The dense k_P(X, Z) of its definition."""
    return K_xz - K_xs @ P.vectors @ np.diag(P.scales) @ P.vectors.T @ K_sz


def root(weights, n):
    return np.sqrt(np.ones(n) if weights is None else weights)[:, None]


@pytest.mark.parametrize("damping", [1.0, 0.5])
@pytest.mark.parametrize("q", [0, 1, 20, S - 1])
def test_eigenvalues_are_lowered_to_the_next(q, damping, rows, weights):
    K = Laplacian(2.0)(rows[0])
    P = Spectral.from_subsample(K, q, weights=weights[0], damping=damping)
    r = root(weights[0], S)
    sigma = np.linalg.eigvalsh(r * K * r.T)[::-1]
    lowered = np.linalg.eigvalsh(r * preconditioned(K, K, K, P) * r.T)[::-1]
    q = P.n_components
    # k_P has the eigenvalues tau sigma_{q+1} in place of the first q.
    expected = np.sort(np.r_[[damping * sigma[q]] * q, sigma[q:]])[::-1]
    assert_allclose(lowered, expected, atol=1e-10 * sigma[0])
    assert_allclose(P.eigenvalues, sigma[: q + 1] / S, rtol=1e-8, atol=1e-15)


def test_attributes(rows):
    P = Spectral.from_subsample(Gaussian()(rows[0]), 7)
    assert P.vectors.shape == (S, 7) and P.scales.shape == (7,)
    assert P.eigenvalues.shape == (8,) and np.all(np.diff(P.eigenvalues) <= 0)
    assert (P.n_components, P.subsample_size, P.damping) == (7, S, 1.0)


def test_correction_is_its_formula(rows, weights, rng):
    X_s, X = rows
    P = Spectral.from_subsample(Gaussian()(X_s), 12, weights=weights[0], damping=0.9)
    K_bs, G = Gaussian()(X, X_s), rng.standard_normal((N, 4))
    expected = P.vectors @ np.diag(P.scales) @ P.vectors.T @ K_bs.T @ G
    assert_allclose(P.correction(K_bs, G), expected, atol=1e-10)


def test_scales_are_their_formula(rows):
    K = Laplacian()(rows[0])
    P = Spectral.from_subsample(K, 12, damping=0.25)
    sigma = np.linalg.eigvalsh(K)[::-1]
    expected = (1 - 0.25 * sigma[12] / sigma[:12]) / sigma[:12]
    assert_allclose(P.scales, expected, rtol=1e-10)


@pytest.mark.parametrize("q", [0, 5, 12])
def test_truncate_is_a_smaller_preconditioner(q, rows, weights):
    K = Laplacian()(rows[0])
    P = Spectral.from_subsample(K, 12, weights=weights[0], damping=0.7).truncate(q)
    expected = Spectral.from_subsample(K, q, weights=weights[0], damping=0.7)
    assert P.n_components == q and P.damping == 0.7
    assert_allclose(P.scales, expected.scales, rtol=1e-9)
    assert_allclose(P.eigenvalues, expected.eigenvalues, rtol=1e-9)
    assert_allclose(abs(P.vectors), abs(expected.vectors), atol=1e-8)


def test_meaningless_eigenvalues_are_left_out(rng):
    X = rng.standard_normal((50, 3))
    # Rank three: the third eigenvalue is the level of the others.
    P = Spectral.from_subsample(Linear()(X), 20)
    assert P.n_components == 2
    assert np.all(np.isfinite(P.scales)) and P.eigenvalues.shape == (3,)
    assert Spectral.from_subsample(np.zeros((9, 9)), 4).n_components == 0
    assert Spectral.from_subsample(-np.eye(9), 4).n_components == 0


def test_float32_stays_and_is_computed_in_float64(rows):
    K = Gaussian(3.0)(rows[0].astype(np.float32))
    P = Spectral.from_subsample(K, 10)
    assert P.vectors.dtype == P.scales.dtype == P.eigenvalues.dtype == np.float32
    expected = Spectral.from_subsample(K.astype(np.float64), 10)
    assert_allclose(P.scales, expected.scales, rtol=1e-6)


@pytest.mark.parametrize("q", [0, 5, 20])
def test_held_out_spectrum_is_its_definition(q, rows, weights):
    X_s, H = rows
    kernel = Laplacian(1.5)
    P = Spectral.from_subsample(kernel(X_s), 20, weights=weights[0])
    K_hs = kernel(H, X_s)
    spectrum = HeldOutSpectrum(kernel(H), K_hs, P, weights[1])
    beta, top = spectrum.measure(q)
    G = preconditioned(kernel(H), K_hs, K_hs.T, P.truncate(q))
    r = root(weights[1], N)
    expected = np.linalg.eigvalsh(r * G * r.T / N)[-1]
    # Weights enter the noise of a step twice.
    noise = r**2 * np.sqrt(np.diagonal(G))[:, None]
    noisy = np.linalg.eigvalsh(noise * G * noise.T / N)[-1]
    assert_allclose(top, expected, rtol=0.01)
    assert_allclose(beta, noisy / expected, rtol=0.02)


def test_beta_of_a_normalised_kernel_is_one(rows):
    spectrum = HeldOutSpectrum(
        Gaussian()(rows[1]),
        Gaussian()(*rows[::-1]),
        Spectral.from_subsample(Gaussian()(rows[0]), 5),
    )
    assert_allclose(spectrum.measure(0)[0], 1.0, rtol=1e-10)


def test_spectrum_of_the_zero_kernel():
    P = Spectral.from_subsample(np.zeros((5, 5)), 2)
    spectrum = HeldOutSpectrum(np.zeros((9, 9)), np.zeros((9, 5)), P)
    assert spectrum.measure(0) == (0.0, 0.0)


def test_other_libraries_agree_with_numpy(other_xp, rows, weights):
    X_s, H = rows
    kernel = Laplacian(1.5)
    arrays = kernel(X_s), kernel(H), kernel(H, X_s), *weights

    def run(K_ss, K_hh, K_hs, w_s, w_h):
        P = Spectral.from_subsample(K_ss, 10, weights=w_s)
        G = P.correction(K_hs, K_hs[:, :2])
        return (
            to_numpy(P.scales),
            to_numpy(G),
            HeldOutSpectrum(K_hh, K_hs, P, w_h).measure(6),
        )

    expected = run(*arrays)
    found = run(*(None if a is None else other_xp.asarray(a) for a in arrays))
    for a, b in zip(found, expected):
        assert_allclose(a, b, rtol=1e-8, atol=1e-10)


def test_the_edge_of_full_batches_is_that_of_gradient_descent(rng):
    K = Gaussian(2.0)(rng.standard_normal((200, 4)))
    P = Spectral.from_subsample(K[:80, :80], 10)
    spectrum = HeldOutSpectrum(K, K[:, :80], P)
    for q in (0, 10):
        truncated = P.truncate(q)
        U = K[:, :80] @ truncated.vectors
        top = np.linalg.eigvalsh(K - (U * truncated.scales) @ U.T)[-1]
        edge = 2 / (top / 200)
        for guess in (edge, edge / 50, 50 * edge):
            found = spectrum.largest_stable_step(q, 200, guess)
            assert edge / 2 ** (1 / 6) < found <= edge * (1 + 1e-3)


def test_the_edge_of_one_row_at_a_time(rng):
    """Rows that do not meet are each stable up to 2 / (w k(x, x)); m = 1."""
    K = np.diag(rng.uniform(0.5, 2.0, size=60))
    weights = rng.uniform(0.5, 1.5, size=60)
    P = Spectral.from_subsample(K[:10, :10], 0)
    spectrum = HeldOutSpectrum(K, K[:, :10], P, weights)
    edge = 2 / np.max(weights * np.diag(K))
    found = spectrum.largest_stable_step(0, 1, edge)
    assert edge / 2 ** (1 / 6) < found <= edge * (1 + 1e-3)


def test_the_edge_scales_with_the_kernel(rng):
    K = Gaussian(2.0)(rng.standard_normal((200, 4))).astype(np.float32)
    P = Spectral.from_subsample(K[:80, :80], 10)
    one = HeldOutSpectrum(K, K[:, :80], P)
    edge = one.largest_stable_step(10, 25, 100.0)
    scale = np.float32(2.0**80)
    scaled = Spectral.from_subsample(scale * K[:80, :80], 10)
    other = HeldOutSpectrum(scale * K, scale * K[:, :80], scaled)
    assert_allclose(
        float(scale) * other.largest_stable_step(10, 25, 100.0 / float(scale)), edge
    )
    beta, top = one.measure(10)
    assert_allclose(np.divide(other.measure(10), scale), (beta, top), rtol=1e-3)
