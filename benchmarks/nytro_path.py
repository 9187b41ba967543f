"""Early stopping against the ridge path and one penalty, all rows as centers.

For each data set the error on test rows (1 - R2, or the fraction of wrong labels) and
the seconds of `NytroRegressor`, ``NystromRegressor(alpha="path")`` and
``NystromRegressor(alpha=1e-6)`` or their classifiers, with their defaults, the best of
five in turns; the chosen t and alpha; and how NYTRO compares with the path, and the
path with one penalty.

Run ``python benchmarks/nytro_path.py [--rows 6000 2000] [--write]``: some minutes.
"""

import argparse
import platform
import time
from datetime import date
from pathlib import Path

import numpy as np
from datasets import available, load
from kernel_product import processor

from eigenkern import (
    NystromClassifier,
    NystromRegressor,
    NytroClassifier,
    NytroRegressor,
)

RESULTS = Path(__file__).parent / "results"
REGRESSION = ("kin8nm", "cpusmall", "california_housing", "bike_hour")
CLASSIFICATION = (
    "ijcnn1",
    "covtype_sub93k",
    "a9a",
    "coil2000",
    "mnist",
    "fashion_mnist",
    "cifar10_gray",
)
N_TEST = 10_000


def models(name):
    """Return the models of a data set, by name."""
    if name in REGRESSION:
        ridge, nytro = NystromRegressor, NytroRegressor
    else:
        ridge, nytro = NystromClassifier, NytroClassifier
    return {
        "nytro": nytro(random_state=0),
        "path": ridge(alpha="path", random_state=0),
        "one": ridge(alpha=1e-6, random_state=0),
    }


def part(X, y, n, rng):
    """Return `n` rows at random."""
    rows = rng.permutation(len(y))[:n]
    return X[rows], y[rows]


def measure(name, n, n_runs=5):
    """Return a line about one data set, `n` rows to fit."""
    data = load(name, standardize=True)
    rng = np.random.default_rng(0)
    X, y = part(data.X_train, data.y_train, n, rng)
    X_test, y_test = part(data.X_test, data.y_test, N_TEST, rng)
    fitted = models(name)
    seconds = {key: [] for key in fitted}
    for _ in range(n_runs):
        for key, model in fitted.items():
            start = time.perf_counter()
            model.fit(X, y)
            seconds[key].append(time.perf_counter() - start)
    best = {key: min(times) for key, times in seconds.items()}
    error = {key: 1 - model.score(X_test, y_test) for key, model in fitted.items()}
    return (
        f"{name:18} {len(y):5} "
        + " ".join(f"{error[key]:8.4f} {best[key]:6.2f} s" for key in fitted)
        + f" {fitted['nytro'].n_iter_:9.3g} {fitted['path'].alpha_:8.1e}"
        f" {error['nytro'] / error['path']:6.3f}"
        f" {best['nytro'] / best['path']:6.2f} {best['path'] / best['one']:6.2f}"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", nargs="*", type=int, default=[6000, 2000])
    parser.add_argument("--data", nargs="*", default=[*REGRESSION, *CLASSIFICATION])
    parser.add_argument("--write", action="store_true", help="keep the results")
    args = parser.parse_args()
    lines = [
        f"{date.today()}; {platform.machine()}, {processor()}, NumPy {np.__version__}",
        f"{'':24} {'NYTRO':>17} {'ridge path':>17} {'alpha = 1e-6':>17} "
        f"{'':18} NYTRO / path   path /",
        f"{'data':18} {'rows':>5} "
        + " ".join(f"{'error':>8} {'time':>8}" for _ in range(3))
        + f" {'t':>9} {'alpha':>8} {'error':>6} {'time':>6} {'one':>6}",
    ]
    print("\n".join(lines))
    for n in args.rows:
        for name in filter(available, args.data):
            lines.append(measure(name, n))
            print(lines[-1], flush=True)
    if args.write:
        (RESULTS / "nytro_path.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
