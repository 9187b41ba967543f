"""Kernel principal components: angle to the exact ones, seconds and memory.

20 components, gaussian kernel, bandwidth "median", float32, beside scikit-learn's
``KernelPCA``. Run ::

    EIGENKERN_DATA=/folder/of/npz python benchmarks/kernel_pca.py
    python benchmarks/kernel_pca.py --write         # and keep it in results/

Each fit is a process of its own. The angle is the largest principal one between the
components of the training rows and those of scikit-learn in float64 with ARPACK. What
users do today with many rows is "3000 rows": those are fitted, and all transformed.
Seconds are those of the processor in ``fit``, over all threads: they hardly depend on
what else the machine does. Memory is the peak of the whole process, and what the fit
added, or less: loading the data may have taken more.
"""

import argparse
import json
import platform
import resource
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path

import datasets
import numpy as np
import psutil
import sklearn
from kernel_product import processor
from scipy.linalg import subspace_angles
from sklearn import decomposition

from eigenkern import KernelPCA
from eigenkern.arrays.threads import n_blas_threads
from eigenkern.kernels import median_distance

RESULTS = Path(__file__).parent / "results" / "kernel_pca.txt"
K, FEW = 20, 10_000
EXACT, SOME = "arpack, float64", "3000 rows"
SETS = ("mnist", "fashion_mnist", "covtype_sub93k")
OURS = (1000, 3000, None)
LARGE = (("mnist", 3000), ("mnist", None), ("covtype_sub93k", 3000))


def rows_of(name, n):
    X = datasets.parts(name).X_train
    return X[np.random.RandomState(0).permutation(len(X))[:n]]


def one(name, n, method):
    """Fit here; return rows, seconds, MB at the peak, MB added; components if few."""
    X = rows_of(name, n)
    if isinstance(method, str):
        X = X.astype(np.float64) if method == EXACT else X
        gamma = 0.5 / median_distance(X, np.random.RandomState(0)) ** 2
        options = {"kernel": "rbf", "gamma": gamma, "random_state": 0}
        solver = "randomized" if method == "randomized" else "arpack"
        model = decomposition.KernelPCA(K, eigen_solver=solver, **options)
    else:
        model = KernelPCA(K, n_centers=method, random_state=0)
    before, start = psutil.Process().memory_info().rss, time.process_time()
    model.fit(X[:3000] if method == SOME else X)
    seconds = time.process_time() - start
    peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    scores = model.transform(X) if n else X[:0]
    return len(X), seconds, peak / 1e6, (peak - before) / 1e6, scores


def run(name, n, method):
    """Return what `one` returns in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "found.npz"
        job = json.dumps([name, n, method])
        subprocess.run([sys.executable, __file__, "--one", job, path], check=True)
        with np.load(path) as found:
            return *found["sizes"], found["scores"]


def label(method):
    if isinstance(method, str):
        return f"scikit-learn, {method}"
    return f"n_centers={method}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="keep the results")
    parser.add_argument("--shared", action="store_true", help="other work goes on")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        *sizes, scores = one(*json.loads(args.one[0]))
        np.savez(args.one[1], sizes=sizes, scores=scores)
        return
    lines = [
        f"{date.today()}; {platform.machine()}, {processor()}, {n_blas_threads()} "
        f"threads{', shared with other work' * args.shared}, NumPy {np.__version__}, "
        f"scikit-learn {sklearn.__version__}",
        "",
        f"{'data':>14} {'rows':>6} {'method':>29} {'angle':>8} {'s':>6} "
        f"{'peak MB':>8} {'added':>6}",
    ]
    print("\n".join(lines), flush=True)

    def add(name, method, angle, n, seconds, peak, added):
        lines.append(
            f"{name:>14} {n:>6.0f} {label(method):>29} {angle:>8} {seconds:>6.1f} "
            f"{peak:>8.0f} {added:>6.0f}"
        )
        print(lines[-1], flush=True)

    for name in SETS:
        exact = None
        for method in (EXACT, "randomized", SOME, *OURS):
            *sizes, scores = run(name, FEW, method)
            exact = scores if exact is None else exact
            angle = subspace_angles(exact, scores.astype(np.float64))[0]
            add(name, method, f"{angle:.1e}", *sizes)
    for name, method in LARGE:
        *sizes, _ = run(name, None, method)
        add(name, method, "", *sizes)
    if args.write:
        RESULTS.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
