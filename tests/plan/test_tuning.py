"""What "auto" chooses: formulas, bounds, and the measured step."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from eigenkern.arrays import memory
from eigenkern.kernels import Gaussian, Laplacian
from eigenkern.operators.matrix import GivenMatrix
from eigenkern.operators.tiled import TiledKernel
from eigenkern.plan import sizes, step
from eigenkern.plan.sizes import ClosedForm, chosen_sizes, max_batch_size
from eigenkern.plan.spectrum import HeldOutSpectrum
from eigenkern.plan.step import Measured


@pytest.fixture
def operator(rng):
    return TiledKernel(Laplacian(2.0), rng.standard_normal((300, 4)))


def tune(operator, largest, *, subsample_size="auto", batch_size="auto", **options):
    """Tune as a fit with these parameters does."""
    q = options.get("n_components", "auto")
    s, q, m = chosen_sizes(operator, largest, subsample_size, q, batch_size)
    return step.tune(operator, (s, q, m, largest), **options)


def test_step_size_formula():
    measured = Measured(7, beta=0.9, top_eigenvalue=0.02, in_sample_eigenvalue=0.01)
    assert measured.critical_batch_size == pytest.approx(45)
    # theta 2 m / (beta + (m - 1) lambda)
    assert measured.step_size(1) == pytest.approx(0.8 * 2 / 0.9)
    assert measured.step_size(46) == pytest.approx(0.8 * 2 * 46 / 1.8)


def test_zero_kernel_takes_any_step():
    measured = Measured(0, 0.0, 0.0, 0.0)
    assert measured.step_size(10) == 1.0
    assert measured.critical_batch_size == float("inf")


def test_little_memory_takes_fewer_rows(operator, monkeypatch):
    monkeypatch.setattr(memory, "installed", lambda xp, device: 1e6)
    tuning = tune(operator, max_batch_size(operator, 4, 1), batch_size=30)
    s = tuning.preconditioner.subsample_size
    assert 0.9e6 / 2 < 6 * 8 * s**2 <= 1e6 / 2
    monkeypatch.undo()
    ample = tune(
        operator, max_batch_size(operator, 4, 1), batch_size=30, n_components=10
    )
    assert ample.preconditioner.subsample_size == 300


def test_zero_kernel_is_tuned():
    tuning = tune(GivenMatrix(np.zeros((40, 40))), 40)
    assert (tuning.step_size, tuning.preconditioner.n_components) == (1.0, 0)


def test_full_batches_take_the_predicted_step(operator):
    tuning = tune(operator, max_batch_size(operator, 4, 1), batch_size=300)
    assert tuning.step_size == tuning.adapted.step_size(300)


def test_the_step_is_a_part_of_the_edge(operator):
    tuning = tune(operator, max_batch_size(operator, 4, 1), n_components=10)
    given = tune(
        operator, max_batch_size(operator, 4, 1), n_components=10, step_size=7.0
    )
    assert given.step_size == 7.0
    # The step of r K is that of K over r.
    scaled = GivenMatrix(1e3 * operator.block())
    other = tune(scaled, max_batch_size(scaled, 4, 1), n_components=10)
    assert_allclose(1e3 * other.step_size, tuning.step_size, rtol=1e-6)


def test_everything_given(operator):
    tuning = tune(
        operator,
        max_batch_size(operator, 4, 1),
        subsample_size=100,
        n_components=17,
        batch_size=33,
        step_size=2.5,
        damping=0.5,
    )
    assert tuning.preconditioner.subsample_size == 100
    assert tuning.preconditioner.n_components == tuning.adapted.n_components == 17
    assert tuning.preconditioner.damping == 0.5
    assert (tuning.batch_size, tuning.step_size) == (33, 2.5)


def test_everything_automatic(operator):
    tuning = tune(operator, max_batch_size(operator, 4, 1))
    q, m = tuning.preconditioner.n_components, tuning.batch_size
    assert tuning.preconditioner.subsample_size == 300
    assert m == min(tuning.max_batch_size, 300 // 8)
    assert 0 <= q <= 300 // 2
    predicted = tuning.adapted.step_size(m)
    K = operator.block()
    spectrum = HeldOutSpectrum(
        K, K @ tuning.preconditioner.vectors, tuning.preconditioner
    )
    edge = spectrum.largest_stable_step(q, m, predicted)
    assert tuning.step_size == pytest.approx(0.8 * edge)
    assert_allclose(
        tuning.acceleration, predicted / tuning.plain.step_size(m), rtol=1e-12
    )
    # With all rows of a small set, the measured eigenvalue is exact.
    K = operator.block()
    sigma = np.linalg.eigvalsh(K)[::-1] / 300
    assert_allclose(tuning.plain.top_eigenvalue, sigma[0], rtol=0.01)
    assert_allclose(tuning.adapted.top_eigenvalue, sigma[q], rtol=0.01)


@pytest.mark.parametrize("n", [100, 300])
def test_automatic_q_is_not_far_from_the_best(n, rng):
    operator = TiledKernel(Laplacian(2.0), rng.standard_normal((n, 4)))
    best = max(
        tune(operator, max_batch_size(operator, 4, 1), n_components=q).acceleration
        for q in (5, 10, 20)
    )
    assert tune(operator, max_batch_size(operator, 4, 1)).acceleration > best / 3


@pytest.mark.parametrize(
    "n, expected",
    [(2, 2), (1000, 1000), (1001, 1000), (9000, 1500), (50_000, 2000), (10**6, 4000)],
)
def test_subsample_size(n, expected):
    assert sizes.default_subsample_size(n) == expected


KINDS = ("ridge", "path", "falkon")


@pytest.fixture
def two_cores(monkeypatch):
    """A machine with two cores and 20 GB."""
    monkeypatch.setattr(sizes, "n_cores", lambda: 2)
    monkeypatch.setattr(sizes.memory, "installed", lambda xp, device: 20e9)


def n_centers(kind, n, d=10, n_columns=1, **options):
    X = np.broadcast_to(np.float64(0), (n, d))
    return sizes.default_n_centers(kind, X, n_columns, np, "cpu", **options)


@pytest.mark.parametrize("kind", KINDS)
def test_automatic_centers_of_small_data_are_all_rows(kind, two_cores, monkeypatch):
    for n in (2, 1000, 6000, 7300):
        assert n_centers(kind, n) is None
        assert n_centers(kind, n, d=784, n_columns=10) is None
    monkeypatch.setattr(sizes, "n_cores", lambda: 1)
    assert n_centers(kind, 6000) is None


@pytest.mark.parametrize("kind", KINDS)
def test_automatic_centers_grow_as_a_root(kind, two_cores):
    for n in (17_000, 20_000):
        assert n_centers(kind, n) <= 5 * n**0.5 * np.log(n)
    m = n_centers("falkon", 27_000)
    assert m == int(5 * 27_000**0.5 * np.log(27_000))
    # One minute for n m^2 / 2 sums of products, at 40 Gflop/s per thread in float64.
    m = n_centers("ridge", 10**6)
    assert 30 < 10**6 * m**2 / 80e9 < 60
    assert 1000 < n_centers(kind, 10**6) < 3000
    assert n_centers(kind, 10**9) >= 1


@pytest.mark.parametrize("kind", ["ridge", "path"])
def test_automatic_centers_within_a_limit(kind, two_cores):
    assert n_centers(kind, 6000, most=6000) is None
    assert n_centers(kind, 6001, most=6000) == 6000
    found = [n_centers(kind, n, most=6000) for n in (8611, 12_000, 10**5, 10**6)]
    assert found == sorted(found, reverse=True) and found[0] > 5500
    assert found[-1] == n_centers(kind, 10**6)


@pytest.mark.parametrize("kind", KINDS)
def test_automatic_centers_fit_the_memory(kind, two_cores, monkeypatch):
    for free in (5e8, 2e9):
        monkeypatch.setattr(sizes.memory, "installed", lambda xp, device, f=free: f)
        m = n_centers(kind, 12_000, validated=True, n_stored=10)
        needed = ClosedForm.make(kind, m, 12_000, validated=True, n_stored=30 * m)
        assert 0.95 * free / 2 < needed.bytes <= free / 2
    assert n_centers(kind, 10**6, centers="rpcholesky") * 10**6 * 16 < 1e9


def test_large_batches_take_larger_steps_than_those_simulated(monkeypatch, rng):
    monkeypatch.setattr(sizes, "N_MEASURED", 200)
    operator = TiledKernel(Laplacian(2.0), rng.standard_normal((600, 4)))
    options = {"subsample_size": 100, "n_components": 10}
    small, large = (
        tune(operator, max_batch_size(operator, 4, 1), batch_size=m, **options)
        for m in (50, 300)
    )  # 50 of 200 rows are simulated for both
    ratio = small.adapted.step_size(300) / small.adapted.step_size(50)
    assert large.step_size / small.step_size == pytest.approx(ratio)


@pytest.mark.parametrize(
    "n, d, n_columns, free",
    [(2, 1, 1, 1e9), (1000, 10, 1, 1e9), (10**5, 784, 10, 1e9), (10**6, 20, 1, 1e8)],
)
def test_max_batch_size_fits_memory(n, d, n_columns, free, monkeypatch, operator):
    monkeypatch.setattr(memory, "installed", lambda xp, device: 2 * free)
    monkeypatch.setattr(sizes, "filling_work", lambda operator: 1e9)
    operator.shape, operator.n_workers = (n, n), 4
    m = max_batch_size(operator, d, n_columns)
    assert 1 <= m <= n
    width = d + n_columns
    assert m == 1 or (width + m) * n * operator.itemsize <= free
    # As large as memory, the number of rows and the rule of work allow.
    filling = max(1e9 / (width * n), 4 * 256)
    holding = free / operator.itemsize / n - width
    assert m == max(1, int(min(n, filling, holding)))


@pytest.mark.parametrize("n", [2, 3, 7, 50])
def test_tiny_sets(n, rng):
    tuning = tune(TiledKernel(Gaussian(), rng.standard_normal((n, 2))), n)
    assert 1 <= tuning.batch_size <= n
    assert tuning.preconditioner.n_components <= n // 2
    assert np.isfinite(tuning.step_size) and tuning.step_size > 0


@pytest.mark.parametrize(
    "sizes, message",
    [
        ({"subsample_size": 301}, "subsample_size must be at most 300.*got 301"),
        ({"batch_size": 301}, "batch_size must be at most 300.*got 301"),
        ({"n_components": 300}, "n_components must be less than.*got 300.*of 300"),
        (
            {"n_components": 50, "subsample_size": 50},
            "n_components must be less than subsample_size; got 50.*subsample of 50",
        ),
    ],
)
def test_impossible_sizes(sizes, message, operator):
    with pytest.raises(ValueError, match=message):
        tune(operator, max_batch_size(operator, 4, 1), **sizes)


def test_weights_shift_the_measurement(operator, rng):
    weights = np.where(np.arange(300) < 150, 2.0, 0.0)
    tuning = tune(
        operator, max_batch_size(operator, 4, 1), weights=weights, n_components=10
    )
    K = operator.block()[:150, :150]
    assert_allclose(
        tuning.plain.top_eigenvalue, np.linalg.eigvalsh(K)[-1] / 150, rtol=0.01
    )


@pytest.fixture
def clustered(rng):
    """Dense clusters on a few features, and a heavy-tailed cloud around them."""
    centers = rng.standard_normal((12, 6))
    X = centers[rng.integers(12, size=1200)] + 0.3 * rng.standard_normal((1200, 6))
    X[::4] = 1.2 * rng.standard_normal((300, 6)) * rng.exponential(size=(300, 1))
    return X[rng.permutation(1200)]


def test_in_sample_eigenvalues_are_a_trap(clustered):
    operator = TiledKernel(Gaussian(4.0), clustered)
    tuning = tune(
        operator, max_batch_size(operator, 6, 1), subsample_size=200, n_components=50
    )
    in_sample = float(tuning.preconditioner.eigenvalues[50])
    exact = np.linalg.eigvalsh(preconditioned_matrix(operator, tuning))[-1] / 1200
    assert exact > 10 * in_sample
    assert_allclose(tuning.adapted.top_eigenvalue, exact, rtol=0.05)


def preconditioned_matrix(operator, tuning):
    K, P = operator.block(), tuning.preconditioner
    U = K[:, : P.subsample_size] @ P.vectors
    return K - (U * P.scales) @ U.T


def test_chosen_q_has_the_critical_batch_size_within_reach(clustered):
    operator = TiledKernel(Gaussian(1.0), clustered)
    tuning = tune(
        operator, max_batch_size(operator, 6, 1), subsample_size=200, batch_size=64
    )
    assert tuning.adapted.critical_batch_size <= 64
    assert tuning.plain.critical_batch_size < tuning.adapted.critical_batch_size
