"""Seconds of library calls for the top eigenvectors of a subsample's kernel matrix.

MNIST, gaussian kernel, bandwidth 5, float64. The error is the largest relative one of
the q eigenvalues, against LAPACK's. Run ::

    EIGENKERN_DATA=/folder/of/npz python benchmarks/eigenvectors.py --write
"""

import argparse
import platform
import time
import warnings
from datetime import date
from pathlib import Path

import datasets
import numpy as np
import scipy.linalg
from kernel_product import processor
from scipy.sparse.linalg import eigsh, lobpcg
from sklearn.utils.extmath import randomized_range_finder

from eigenkern.kernels import Gaussian

SIZES = ((1000, 100), (1000, 250), (2000, 100), (2000, 500), (4000, 100), (4000, 500))


def subset(K, q):
    return scipy.linalg.eigh(K, subset_by_index=(len(K) - q, len(K) - 1))[0]


def full(K, q):
    return scipy.linalg.eigh(K, driver="evd")[0][-q:]


def lanczos(K, q):
    return eigsh(K, q)[0]


def block_gradients(K, q):
    start = np.random.RandomState(0).standard_normal((len(K), q))
    return lobpcg(K, start, maxiter=20, tol=1e-4)[0]


def randomised(K, q):
    Q = randomized_range_finder(K, size=q + 20, n_iter=2, random_state=0)
    return np.linalg.eigvalsh(Q.T @ K @ Q)[-q:]


SOLVERS = {
    "eigh, subset": subset,
    "eigh, whole": full,
    "eigsh": lanczos,
    "lobpcg": block_gradients,
    "range finder": randomised,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    X = datasets.load("mnist").X_train[: max(s for s, _ in SIZES)].astype(np.float64)
    lines = [
        f"{date.today()}; {platform.machine()}, {processor()}, NumPy {np.__version__}",
        "",
        f"{'s':>5} {'q':>4} " + " ".join(f"{name:>19}" for name in SOLVERS),
    ]
    print("\n".join(lines))
    for s, q in SIZES:
        K, exact, cells = Gaussian(5.0)(X[:s]), None, []
        for solver in SOLVERS.values():
            time.sleep(0.1)
            start = time.perf_counter()
            with warnings.catch_warnings():  # lobpcg tells what it did not reach
                warnings.simplefilter("ignore", UserWarning)
                values = np.sort(solver(K, q))
            seconds = time.perf_counter() - start
            exact = values if exact is None else exact
            error = np.max(np.abs(values / exact - 1))
            cells.append(f"{seconds:>8.2f} s {error:>8.0e}")
        lines.append(f"{s:>5} {q:>4} " + " ".join(f"{cell:>19}" for cell in cells))
        print(lines[-1], flush=True)
    if args.write:
        path = Path(__file__).parent / "results" / "eigenvectors.txt"
        path.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
