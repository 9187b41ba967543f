"""Speed of the Nystrom family, each figure a ratio measured in one process.

* the paths of NKRLS (100 lambdas) and NYTRO (500 iterations) on Adult with 1000
  centers, over the kernel matrix and its Gram matrix alone;
* `NystromRegressor` on the full kernel against scikit-learn's `KernelRidge`;
* iterations that Falkon needs for the direct solution's error on MNIST, 5000 centers.

Run ``python benchmarks/nystrom_speed.py [--write]``: about five minutes on two cores.
"""

import argparse
import platform
import time
import warnings
from datetime import date
from functools import partial
from pathlib import Path

import numpy as np
from datasets import load
from kernel_product import processor
from sklearn.exceptions import ConvergenceWarning
from sklearn.kernel_ridge import KernelRidge
from sklearn.metrics.pairwise import rbf_kernel

from eigenkern import FalkonLikeClassifier, NystromClassifier, NystromRegressor
from eigenkern.kernels import Gaussian
from eigenkern.methods.left_out import validation_errors
from eigenkern.methods.moments import Moments
from eigenkern.methods.paths import DescentPath, RidgePath, Whitening
from eigenkern.operators.tiled import TiledKernel

RESULTS = Path(__file__).parent / "results"


def best_of(function, n=5):
    """Return the least seconds of `n` calls, and the last result."""
    times = []
    for _ in range(n):
        start = time.perf_counter()
        result = function()
        times.append(time.perf_counter() - start)
    return min(times), result


def paths_on_adult():
    """Yield lines about the paths on Adult."""
    data = load("a9a")
    y = data.y_train.astype(np.float64)[:, None]
    rng = np.random.default_rng(0)
    order = rng.permutation(len(y))
    X, y = data.X_train[order], y[order]
    n = len(y) - len(y) // 5
    Z, kernel, ones = X[:1000], Gaussian(6.6), np.ones(len(y))

    def gram():
        return TiledKernel(kernel, Z, X).gram(y, ones)

    def plain():
        K = TiledKernel(kernel, Z, X).block(dtype=np.float64)
        return K.T @ K

    def paths():
        whitening = Whitening.of(kernel(Z.astype(np.float64)), np.float32)
        kept = Z[whitening.kept]
        train, validation = (
            Moments.of(
                TiledKernel(kernel, kept, X[rows]), y[rows], ones[rows], whitening
            )
            for rows in (slice(0, n), slice(n, None))
        )
        spectrum = train.spectrum
        descent = DescentPath(np.arange(501), 1 / spectrum.top)
        return [
            validation_errors(
                spectrum, path.filters(spectrum), validation, train.mean
            ).argmin()
            for path in (RidgePath(np.logspace(-15, 0, 100)), descent)
        ]

    def sklearn():
        K = rbf_kernel(X, Z, gamma=1 / (2 * 6.6**2)).astype(np.float64)
        return K.T @ K

    functions = {
        "both paths with kernel and Gram matrix": paths,
        "our kernel and Gram matrix in blocks": gram,
        "our kernel in memory, one matrix product": plain,
        "scikit-learn's rbf_kernel, one matrix product": sklearn,
    }
    # In turns, so that all see the same machine.
    rounds = [[best_of(f, 1)[0] for f in functions.values()] for _ in range(8)]
    best = dict(zip(functions, np.min(rounds, axis=0), strict=True))
    (name, seconds), *floors = best.items()
    yield f"Adult, m = 1000: {name} {seconds:.2f} s"
    for name, floor in floors:
        yield f"    over {name}, {floor:.2f} s: {seconds / floor:.2f}"


def kernel_ridge():
    """Yield lines about the full kernel against scikit-learn."""
    data = load("mnist")
    y = data.y_train.astype(np.float64)
    n, y = 5000, y[:5000]
    peer = KernelRidge(kernel="rbf", gamma=1 / 50, alpha=1e-6 * n)
    ours = NystromRegressor("gaussian", bandwidth=5.0, n_centers=None, alpha=1e-6)
    for dtype in (np.float64, np.float32):
        X = data.X_train[:n].astype(dtype)
        theirs, _ = best_of(partial(peer.fit, X, y), 3)
        mine, _ = best_of(partial(ours.fit, X, y), 3)
        yield (
            f"MNIST, n = {n}, {np.dtype(dtype).name}: KernelRidge {theirs:.2f} s, "
            f"NystromRegressor(n_centers=None) {mine:.2f} s: {mine / theirs:.2f} times"
        )


def falkon():
    """Yield lines about Falkon and the direct solution."""
    data = load("mnist")
    options = {
        "kernel": "gaussian",
        "bandwidth": 5.0,
        "n_centers": 5000,
        "alpha": 1e-6,
        "random_state": 0,
    }
    start = time.perf_counter()
    direct = NystromClassifier(**options).fit(data.X_train, data.y_train)
    seconds = time.perf_counter() - start
    error = 100 * (1 - direct.score(data.X_test, data.y_test))
    yield f"MNIST, p = 5000: direct solution {error:.2f} % in {seconds:.1f} s"
    for n_iter in (5, 10, 15, 20):
        model = FalkonLikeClassifier(max_iter=n_iter, tol=0.0, **options)
        start = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # tol=0: all of them
            model.fit(data.X_train, data.y_train)
        seconds = time.perf_counter() - start
        error = 100 * (1 - model.score(data.X_test, data.y_test))
        yield (
            f"MNIST, p = 5000: Falkon, {n_iter} iterations, {error:.2f} % in "
            f"{seconds:.1f} s, residual {model.residuals_[-1]:.0e}"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="keep the results")
    args = parser.parse_args()
    lines = [
        f"{date.today()}; {platform.machine()}, {processor()}, NumPy {np.__version__}"
    ]
    print(lines[0])
    for part in (paths_on_adult, kernel_ridge, falkon):
        for line in part():
            print(line, flush=True)
            lines.append(line)
    if args.write:
        (RESULTS / "nystrom_speed.txt").write_text("\n".join(lines) + "\n")
