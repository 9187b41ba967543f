"""Intervals for new targets: coverage, width, density, on four regression sets.

Run ::

    EIGENKERN_DATA=/folder/of/npz python benchmarks/uncertainty.py
    python benchmarks/uncertainty.py --data kin8nm --seeds 0 --methods path
    python benchmarks/uncertainty.py --report       # table and picture once more

Each fit is a line of ``results/uncertainty.csv``; a run that was interrupted goes on
where it stopped, and lines that are removed are measured anew.
``results/uncertainty.txt`` and ``.png`` sum them up.

Rows: 4000 to train on, at most 4000 to test on, drawn anew by each seed; columns and
targets have mean 0 and deviation 1 on the training rows, so that widths are in
deviations of the targets.

default   ``NystromRegressor().predict(X, return_std=True)``
path      ``NystromRegressor(alpha="path")``
gaussian  the same with ``kernel="gaussian"``
centers   the same as path with ``n_centers=1000``
conformal split-conformal intervals around ``NystromRegressor(alpha="path")``, fitted to
          four fifths of the rows: of one width, the quantile of the absolute residuals
          on the others
gpr       ``GaussianProcessRegressor`` on 1000 of the rows, the kernel of path times a
          constant with a ``WhiteKernel``; all three parameters by maximum likelihood

The intervals of a model with standard deviations are its mean, plus and minus so many
of them as a Gaussian has. NLPD is the mean negative logarithm of their density at the
targets.
"""

import argparse
import csv
import platform
import time
import warnings
from datetime import date
from importlib.metadata import version
from pathlib import Path

import numpy as np
from kernel_product import processor
from scipy.stats import norm
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel
from sklearn.model_selection import train_test_split
from tabular import REGRESSION, part

from eigenkern import NystromRegressor

RESULTS = Path(__file__).parent / "results"
N_TRAIN, N_TEST, N_GPR = 4000, 4000, 1000
LEVELS = (50, 80, 90, 95)
PATH = {"alpha": "path"}
OURS = {
    "default": {"alpha": 1e-6},
    "path": PATH,
    "gaussian": PATH | {"kernel": "gaussian"},
    "centers": PATH | {"n_centers": 1000},
}
METHODS = (*OURS, "conformal", "gpr")
COVERS, WIDTHS = (tuple(f"{kind}{p}" for p in LEVELS) for kind in ("cover", "width"))
NUMBERS = (*COVERS, *WIDTHS, "nlpd", "rmse", "fit", "predict")
FIELDS = ("data", "seed", "method", *NUMBERS, "version", "machine", "date")


def gpr(X, y):
    """Return a fitted Gaussian process with the laplacian kernel, Matern of 1/2."""
    kernel = ConstantKernel() * Matern(length_scale=X.shape[1] ** 0.5, nu=0.5)
    model = GaussianProcessRegressor(kernel + WhiteKernel(0.1))
    return model.fit(X[:N_GPR].astype(np.float64), y[:N_GPR].astype(np.float64))


def with_deviations(method, X, y, X_test, seed):
    """Return mean, half widths of all levels, deviation, seconds."""
    start = time.perf_counter()
    if method == "gpr":
        model = gpr(X, y)
    else:
        model = NystromRegressor(random_state=seed, **OURS[method]).fit(X, y)
    fitted = time.perf_counter()
    mean, deviation = model.predict(X_test, return_std=True)
    end = time.perf_counter()
    factors = norm.ppf([0.5 + level / 200 for level in LEVELS])
    return mean, deviation * factors[:, None], deviation, fitted - start, end - fitted


def conformal(X, y, X_test, seed):
    """Return the same of split-conformal intervals; they have no deviation."""
    start = time.perf_counter()
    X, X_rest, y, y_rest = train_test_split(X, y, test_size=0.2, random_state=seed)
    model = NystromRegressor(random_state=seed, **PATH).fit(X, y)
    residuals = np.sort(np.abs(y_rest - model.predict(X_rest)))
    fitted = time.perf_counter()
    places = np.ceil((len(residuals) + 1) * np.array(LEVELS) / 100).astype(int) - 1
    mean = model.predict(X_test)
    end = time.perf_counter()
    half = np.tile(residuals[places][:, None], len(X_test))
    return mean, half, None, fitted - start, end - fitted


def measure(name, method, seed):
    """Return the numbers of a line."""
    X, y, X_test, y_test = part(name, seed)
    X, y, X_test, y_test = X[:N_TRAIN], y[:N_TRAIN], X_test[:N_TEST], y_test[:N_TEST]
    if method == "conformal":
        found = conformal(X, y, X_test, seed)
    else:
        found = with_deviations(method, X, y, X_test, seed)
    mean, half, deviation, fit, predict = found
    error = np.abs(y_test - mean)
    row = dict(zip(COVERS, 100 * np.mean(error <= half, axis=1), strict=True))
    row |= dict(zip(WIDTHS, 2 * np.mean(half, axis=1), strict=True))
    row["nlpd"] = np.nan
    if deviation is not None:
        row["nlpd"] = -np.mean(norm.logpdf(error, scale=deviation))
    return row | {"rmse": np.mean(error**2) ** 0.5, "fit": fit, "predict": predict}


def run(args):
    """Measure what the file of results does not have yet."""
    done = {(row["data"], row["seed"], row["method"]) for row in read(args.out)}
    for seed in args.seeds:
        for name in args.data:
            for method in args.methods:
                if (name, seed, method) in done:
                    continue
                row = measure(name, method, seed)
                print(
                    f"{name:18} seed {seed} {method:9} covers "
                    + " ".join(f"{row[field]:5.1f}" for field in COVERS)
                    + f" %, width {row['width90']:.2f}, NLPD {row['nlpd']:.3f}, "
                    f"fit {row['fit']:.2f} s",
                    flush=True,
                )
                row |= {"data": name, "seed": seed, "method": method}
                package = "scikit-learn" if method == "gpr" else "eigenkern"
                row["version"] = f"{package} {version(package)}"
                row["machine"] = f"{processor()}, Python {platform.python_version()}"
                append(args.out, row | {"date": str(date.today())})


def read(path):
    """Return the lines of the file of results, if there is one."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    return [
        row
        | {"seed": int(row["seed"])}
        | {field: float(row[field]) for field in NUMBERS}
        for row in rows
    ]


def append(path, row):
    """Add a line to the file of results."""
    new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerow(row | {field: f"{row[field]:.5g}" for field in NUMBERS})


def lines(rows):
    """Yield the lines of the report."""
    for field in ("date", "machine", "version"):
        yield "; ".join(sorted({row[field] for row in rows}))
    n_seeds = len({row["seed"] for row in rows})
    yield ""
    yield f"{N_TRAIN} rows to train on (gpr: {N_GPR}), means over {n_seeds} seeds;"
    yield "least to largest of the coverage of 90 %; widths of 90 % in deviations of y."
    yield (
        f"{'':30}"
        + "".join(f"{f'{p} %':>7}" for p in LEVELS)
        + f"{'90 %: from, to':>16}{'width':>8}{'NLPD':>8}{'RMSE':>8}"
        + f"{'fit, s':>8}{'predict':>9}"
    )
    for name in REGRESSION:
        for method in METHODS:
            found = [r for r in rows if r["data"] == name and r["method"] == method]
            if not found:
                continue
            mean = {field: np.mean([row[field] for row in found]) for field in NUMBERS}
            covers = [row["cover90"] for row in found]
            yield (
                f"{name:20}{method:10}"
                + "".join(f"{mean[field]:7.1f}" for field in COVERS)
                + f"{min(covers):9.1f},{max(covers):6.1f}{mean['width90']:8.2f}"
                + f"{mean['nlpd']:8.3f}{mean['rmse']:8.3f}"
                + f"{mean['fit']:8.2f}{mean['predict']:9.2f}"
            )
    yield ""
    outside = [
        f"{row['data']}, seed {row['seed']}, {row['method']}: {row['cover90']:.1f} %"
        for row in rows
        if row["method"] in OURS and not 87 <= row["cover90"] <= 93
    ]
    n_ours = sum(row["method"] in OURS for row in rows)
    yield f"87 to 93 % of new targets in 90 % intervals: {n_ours - len(outside)} of"
    yield f"{n_ours} fits with standard deviations of NystromRegressor"
    yield from outside


def plot(rows, path):
    """Draw the coverage against the level."""
    import matplotlib.pyplot as plt

    names = [name for name in REGRESSION if any(r["data"] == name for r in rows)]
    figure, axes = plt.subplots(
        2, len(names), figsize=(3 * len(names), 6), layout="constrained", squeeze=False
    )
    for name, (top, bottom) in zip(names, axes.T, strict=True):
        top.plot([45, 100], [45, 100], color="gray", lw=0.8)
        for k, method in enumerate(METHODS):
            found = [r for r in rows if r["data"] == name and r["method"] == method]
            if not found:
                continue
            covers = np.array([[row[field] for field in COVERS] for row in found])
            widths = [row["width90"] for row in found]
            top.plot(LEVELS, covers.mean(axis=0), "osDv^P"[k] + "-", ms=4, label=method)
            bottom.errorbar(
                np.mean(widths),
                covers[:, 2].mean(),
                xerr=np.std(widths),
                yerr=np.std(covers[:, 2]),
                fmt="osDv^P"[k],
            )
        bottom.axhspan(87, 93, color="lightgray", alpha=0.5)
        top.set(title=name, xlabel="level, %", ylabel="covered, %")
        bottom.set(xlabel="width of 90 % intervals", ylabel="covered, %", ylim=(84, 97))
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=6, frameon=False)
    figure.savefig(path, dpi=120)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", nargs="+", choices=REGRESSION, default=REGRESSION)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS)
    parser.add_argument("--seeds", nargs="+", type=int, default=range(5))
    parser.add_argument("--out", type=Path, default=RESULTS / "uncertainty.csv")
    parser.add_argument("--report", action="store_true", help="fit nothing")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    if not args.report:
        run(args)
    rows = read(args.out)
    report = list(lines(rows))
    print("\n".join(report))
    args.out.with_suffix(".txt").write_text("\n".join(report) + "\n")
    plot(rows, args.out.with_suffix(".png"))


if __name__ == "__main__":
    main()
