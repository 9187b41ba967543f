"""Bandwidths by leaving one out, ``bandwidth="auto"``, against the median distance.

For each data set, number of rows and kernel, as it is and with noise (normal noise as
large as the targets, or a tenth of the labels flipped, in training only), means over
two samples of the rows: the held-out error of EigenPro with its defaults (mean squared
error over the variance, or the fraction of wrong labels) with ``bandwidth="median"``
and ``"auto"``, their ratio, the bandwidths over the median, the seconds of both fits,
and those of the choice in the second.

Run ``EIGENKERN_DATA=/folder/of/npz python benchmarks/bandwidth.py --write``: some 10
minutes on two cores. The constants were chosen with 2000 other rows of these sets.

With ``--grid`` instead, for all rows and for 300 centers: the error with the median
distance and with ``"auto"``, as it is and by leaving out 300 rows, over that of the
best of nine bandwidths, 1/8 to 32 times the median.
"""

import argparse
import platform
import time
import warnings
from datetime import date
from itertools import product
from pathlib import Path

import numpy as np
from datasets import CLASSES, IMAGES, TARGETS, available, parts
from kernel_product import processor

from eigenkern import (
    EigenProClassifier,
    EigenProRegressor,
    NystromClassifier,
    NystromRegressor,
)
from eigenkern.plan import bandwidth_choice
from eigenkern.problems import kernel_parameters as parameters

RESULTS = Path(__file__).parent / "results"
N_TEST, SEEDS, KERNELS = 4000, (20, 21), ("laplacian", "gaussian")
NAMES = {False: "clean", True: "noisy"}


class Timed:
    """A function that keeps the seconds of its last call."""

    def __init__(self, function):
        self.function, self.seconds = function, 0.0

    def __call__(self, *args):
        start = time.perf_counter()
        result = self.function(*args)
        self.seconds = time.perf_counter() - start
        return result


CHOICE = parameters.auto_bandwidth = Timed(parameters.auto_bandwidth)


def fitted(model, X, y):
    """Return a fitted model, and the seconds that it took."""
    start = time.perf_counter()
    model.fit(X, y)
    return model, time.perf_counter() - start


def noisy(y, name, rng):
    """Return targets with noise as large as they are, or a tenth of other labels."""
    if name in TARGETS:
        return y + y.std() * rng.standard_normal(len(y))
    classes, codes = np.unique(y, return_inverse=True)
    flipped = rng.random(len(y)) < 0.1
    codes[flipped] += rng.integers(1, len(classes), flipped.sum())
    return classes[codes % len(classes)]


def measure(name, data, kernel, n, noise):
    """Return errors, factors of the median and seconds, a column a seed."""
    cls = EigenProRegressor if name in TARGETS else EigenProClassifier
    found = []
    for seed in SEEDS:
        rng = np.random.default_rng(seed)
        rows = rng.permutation(len(data.y_train))[:n]
        test = rng.permutation(len(data.y_test))[:N_TEST]
        X, y = data.X_train[rows], data.y_train[rows]
        y = noisy(y, name, rng) if noise else y
        median, seconds = fitted(
            cls(kernel, bandwidth="median", random_state=seed), X, y
        )
        auto, auto_seconds = fitted(cls(kernel, random_state=seed), X, y)
        errors = [
            1 - model.score(data.X_test[test], data.y_test[test])
            for model in (median, auto)
        ]
        factor = auto.bandwidth_ / median.bandwidth_
        found.append([*errors, factor, seconds, auto_seconds, CHOICE.seconds])
    return np.transpose(found)


def report(names, sizes):
    """Yield the lines of the table, and what they come to."""
    yield (
        f"{'data':20}{'rows':>6} {'kernel':10}{'':6}{'median':>8}{'auto':>8}"
        f"{'ratio':>7}{'factors':>12}{'median':>8}{'auto':>8}{'choice':>8}"
    )
    ratios = {}
    for name in names:
        data = parts(name)
        for case in product(sizes, KERNELS, (False, True)):
            n, kernel, noise = case
            found = measure(name, data, kernel, n, noise)
            median, auto, _, *seconds = found.mean(axis=1)
            ratios[name, *case] = auto / median
            factors = ", ".join(f"{factor:g}" for factor in found[2])
            yield (
                f"{name:20}{n:6} {kernel:10}{NAMES[noise]:6}{median:8.4f}{auto:8.4f}"
                f"{auto / median:7.3f}{factors:>12}"
                + "".join(f"{value:8.2f}" for value in seconds)
            )
    yield ""
    for n, kernel, noise in product(sizes, KERNELS, (False, True)):
        of_sets = np.array([ratios[name, n, kernel, noise] for name in names])
        mean = np.exp(np.log(of_sets).mean())
        yield (
            f"{n} rows, {kernel}, {NAMES[noise]}: at most 1.01 times the median's "
            f"error on {(of_sets <= 1.01).sum()} of {len(of_sets)} sets; ratio: "
            f"geometric mean {mean:.3f}, largest {of_sets.max():.3f}"
        )


def ratios_to_best(name, data, kernel, n, n_centers):
    """Return errors over that of the best bandwidth: median, auto, auto of 300 rows."""
    if n_centers is None:
        cls = EigenProRegressor if name in TARGETS else EigenProClassifier
        options = {"random_state": SEEDS[0]}
    else:
        cls = NystromRegressor if name in TARGETS else NystromClassifier
        options = {"random_state": SEEDS[0], "n_centers": n_centers}
    rng = np.random.default_rng(SEEDS[0])
    rows = rng.permutation(len(data.y_train))[:n]
    test = rng.permutation(len(data.y_test))[:N_TEST]

    def error(bandwidth):
        model = cls(kernel, bandwidth=bandwidth, **options)
        model.fit(data.X_train[rows], data.y_train[rows])
        return 1 - model.score(data.X_test[test], data.y_test[test]), model.bandwidth_

    at_median, median = error("median")
    auto, _ = error("auto")
    most, bandwidth_choice._MOST_FITTED = bandwidth_choice._MOST_FITTED, 300
    try:
        few, _ = error("auto")
    finally:
        bandwidth_choice._MOST_FITTED = most
    grid = [error(float(factor * median))[0] for factor in 2.0 ** np.arange(-3, 6)]
    return np.array([at_median, auto, few]) / min(*grid, at_median)


def report_of_grid(names, sizes):
    """Yield the lines of the table of `ratios_to_best`, and what they come to."""
    columns = f"{'kernel':10}{'centers':>8}{'median':>8}{'auto':>8}{'of 300':>8}"
    yield f"{'data':20}{'rows':>6} {columns}"
    found = {}
    for name in names:
        data = parts(name)
        for n, kernel, p in product(sizes, KERNELS, (None, 300)):
            ratios = found[name, n, kernel, p] = ratios_to_best(
                name, data, kernel, n, p
            )
            yield f"{name:20}{n:6} {kernel:10}{p or 'all':>8}" + "".join(
                f"{ratio:8.3f}" for ratio in ratios
            )
    yield ""
    for n, kernel, p in product(sizes, KERNELS, (None, 300)):
        ratios = np.array([found[name, n, kernel, p] for name in names])
        means, largest = np.exp(np.log(ratios).mean(axis=0)), ratios.max(axis=0)
        yield f"{n} rows, {kernel}, centers: {p or 'all'}; geometric means " + (
            ", ".join(f"{value:.3f}" for value in means)
            + "; largest "
            + ", ".join(f"{value:.3f}" for value in largest)
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", nargs="*", type=int, default=[1000, 6000])
    parser.add_argument("--data", nargs="*", default=[*TARGETS, *CLASSES, *IMAGES])
    parser.add_argument("--grid", action="store_true", help="against the best")
    parser.add_argument("--write", action="store_true", help="keep the results")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    lines = [f"{date.today()}; {platform.machine()}, {processor()}"]
    print(lines[0])
    table = report_of_grid if args.grid else report
    for line in table([name for name in args.data if available(name)], args.rows):
        print(line, flush=True)
        lines.append(line)
    if args.write:
        file = "bandwidth_grid.txt" if args.grid else "bandwidth.txt"
        (RESULTS / file).write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
