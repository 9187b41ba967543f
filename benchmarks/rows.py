"""RFM on 30 000 to 1 000 000 rows: seconds, memory, errors, beside gradient boosting.

Run ``python benchmarks/rows.py --write`` on a quiet machine (about an hour on two
cores): a smooth function of some directions of 20 features, n rows to fit and 1 000 000
others to predict, each n in a process of its own; and real sets with one metric, whose
last fit is done in parts, with all rows as centers, and with 4000 centers.

``--rows 30000`` takes these numbers of rows only, and ``--sets`` these sets.
"""

import argparse
import json
import platform
import resource
import subprocess
import sys
import time
from datetime import date
from pathlib import Path

import numpy as np
from datasets import CLASSES, parts
from kernel_product import processor
from sklearn.ensemble import HistGradientBoostingRegressor

from eigenkern import EigenProClassifier, EigenProRegressor, RFMClassifier, RFMRegressor
from eigenkern.arrays.threads import n_cores

RESULT = Path(__file__).parent / "results" / "rows.txt"
ROWS = (30_000, 100_000, 300_000, 1_000_000)
# Those on which the constants were chosen are marked by a star.
SETS = ("california_housing", "bike_hour", "ijcnn1", "covtype_sub93k", "waves", "steep")
CHOSEN_ON = ("california_housing", "waves")
N_NEW, N_CENTERS = 1_000_000, 4000
# Seconds to fit and to predict 1 000 000 rows, peak in GB, error over that of all rows.
BARS = {300_000: 150, 1_000_000: 480, "predict": 60, "GB": 6.0, "ratio": 1.1}


def waves(X):
    """Return a smooth function of four directions."""
    Z = X @ np.linalg.qr(np.random.default_rng(1).normal(size=(X.shape[1],) * 2))[0]
    return np.sin(2 * Z[:, 0]) + Z[:, 1] * Z[:, 2] + np.cos(1.5 * Z[:, 3] + Z[:, 0])


def steep(X):
    """Return a smooth function of three features that is steep in one place."""
    return np.tanh(4 * X[:, 0] * X[:, 1]) + np.exp(-((X[:, 2] - 1) ** 2))


def table(n, function=waves, seed=0):
    """Return n rows of 20 features, and targets with little noise."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 20))
    return X, function(X) + 0.05 * rng.normal(size=n)


def peak_megabytes():
    """Return the largest memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def rmse(model, X, y):
    return float(np.mean((model.predict(X) - y) ** 2) ** 0.5)


def of_rows(n, kind):
    """Fit one model to n rows in this process, and print what it took, as JSON."""
    X, y = table(n)
    X_new, y_new = table(N_NEW, seed=1)
    found = {"before": peak_megabytes()}
    if kind == "boosting":
        model = HistGradientBoostingRegressor(max_iter=500, random_state=0)
    else:
        few = 2000  # code and rates are loaded and measured once
        RFMRegressor(max_rounds=1, random_state=0).fit(X[:few], y[:few])
        found["before"] = peak_megabytes()
        model = RFMRegressor(random_state=0)
    start = time.perf_counter()
    model.fit(X, y)
    found["fit"] = time.perf_counter() - start
    found["peak"] = peak_megabytes()
    start = time.perf_counter()
    found["error"] = rmse(model, X_new, y_new)
    found["predict"] = time.perf_counter() - start
    found["parts"] = getattr(model, "n_parts_", None)
    print(json.dumps(found))


def lines_of_rows(sizes):
    """Yield the lines of the table of rows."""
    yield "rows      parts  fit s  boosting s  predict s  peak MB  RMSE    boosting"
    for n in sizes:
        found = []
        for kind in ("rfm", "boosting"):
            command = [sys.executable, __file__, "--one", str(n), kind]
            done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
            found.append(json.loads(done.stdout))
        rfm, boosting = found
        yield (
            f"{n:<9} {rfm['parts']:<6} {rfm['fit']:<6.0f} {boosting['fit']:<11.0f} "
            f"{rfm['predict']:<10.1f} {rfm['peak']:<8.0f} {rfm['error']:<7.4f} "
            f"{boosting['error']:.4f}{_missed(n, rfm, boosting)}"
        )


def _missed(n, rfm, boosting):
    """Return the bars that a fit missed, as text."""
    missed = [
        name
        for name, bad in {
            "fit": rfm["fit"] > BARS.get(n, np.inf),
            "predict": rfm["predict"] > BARS["predict"],
            "memory": rfm["peak"] > 1e3 * BARS["GB"],
            "error": rfm["error"] > boosting["error"],
        }.items()
        if bad
    ]
    return f"  missed: {', '.join(missed)}" if missed else ""


def load(name):
    """Return a set as `datasets.parts` does, or one of the functions above."""
    if name not in ("waves", "steep"):
        return parts(name)
    function = {"waves": waves, "steep": steep}[name]
    return *table(40_000, function), *table(20_000, function, seed=1)


def lines_of_sets(names):
    """Yield the lines of the table of sets."""
    yield "set                  rows   parts  in parts all rows centers  seconds"
    for name in names:
        X, y, X_new, y_new = load(name)
        X, X_new = (rows[:60_000].astype(np.float64) for rows in (X, X_new))
        y, y_new = y[:60_000], y_new[:60_000]
        labels = name in CLASSES
        cls = (RFMRegressor, EigenProRegressor)
        if labels:
            cls = (RFMClassifier, EigenProClassifier)
        else:
            y, y_new = ((one - y.mean()) / y.std() for one in (y, y_new))
        model = cls[0](random_state=0).fit(X, y)
        X_R, X_R_new = model.transform(X), model.transform(X_new)
        options = {"bandwidth": model.estimator_.bandwidth, "random_state": 0}
        kernel, errors, seconds = model.estimator_.kernel, [], []
        for one in (
            type(model.estimator_)(kernel, **options),
            cls[1](kernel, **options),
            cls[1](kernel, n_centers=N_CENTERS, **options),
        ):
            start = time.perf_counter()
            one.fit(X_R, y)
            seconds.append(time.perf_counter() - start)
            wrong = 1.0 - one.score(X_R_new, y_new)
            errors.append(100 * wrong if labels else wrong**0.5)
        star = "*" if name in CHOSEN_ON else ""
        missed = errors[0] > BARS["ratio"] * errors[1]
        shown = "  ".join(f"{error:<7.4f}" for error in errors)
        took = " ".join(f"{one:.0f}" for one in seconds)
        yield (
            f"{name + star:<20} {len(X):<6} {model.n_parts_:<6} {shown}  {took}"
            f"{'  missed: ratio' if missed else ''}"
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--write", action="store_true", help="write results/rows.txt")
    parser.add_argument("--rows", type=int, nargs="*", default=ROWS)
    parser.add_argument("--sets", nargs="*", default=SETS)
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        of_rows(int(options.one[0]), options.one[1])
        return
    lines = [
        "RFM with its defaults on many rows, and the last fit of RFM done in three "
        "ways.",
        f"{date.today()}, {processor()}, {n_cores()} cores, Python "
        f"{platform.python_version()}",
        "",
    ]
    print("\n".join(lines), flush=True)
    for found in (lines_of_rows(options.rows), lines_of_sets(options.sets)):
        for line in found:
            print(line, flush=True)
            lines.append(line)
        lines.append("")
    lines.append("RMSE, or % of labels; *: the constants were chosen on this set.")
    if options.write:
        RESULT.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
