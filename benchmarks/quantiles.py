"""Quantiles by doubly stochastic gradients, beside gradient boosting.

Run ::

    EIGENKERN_DATA=/folder/of/npz python benchmarks/quantiles.py --data kin8nm
    python benchmarks/quantiles.py --report        # summary and plot once more

Quantiles 0.1, 0.5 and 0.9 of four data sets, standardized, at most 4000 training rows
drawn anew for each of five seeds (one for DSG without early stopping, which takes
all its epochs), always the same test rows. ``DSGRegressor`` with
``loss="pinball"`` learns the three in one fit, with defaults but for `early_stopping`
and, in "DSG, Manhattan", ``kernel="manhattan"``; in "RFM, then DSG" that model is the
last step of a pipeline, on the features of ``RFMRegressor``;
``HistGradientBoostingRegressor`` with defaults in three fits; "constant" is the
quantile of the training targets.

coverage  part of the test rows at or below the prediction: right is the quantile.
loss      mean pinball loss of the test rows, over that of the constant.
seconds   of fit and predictions, on a machine that others used as well.

The width of the loss's kink was chosen on three synthetic sets and one seed of
california_housing (``--choose``). Results go to ``results/quantiles.csv``, from which a
run that was interrupted goes on; ``.txt`` and ``.png`` sum them up.
"""

import argparse
import csv
import os
import time
from datetime import date
from pathlib import Path

import datasets
import numpy as np
from kernel_product import processor
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.metrics import mean_pinball_loss
from threadpoolctl import threadpool_limits

from eigenkern import DSGRegressor, RFMRegressor
from eigenkern.losses import Pinball

RESULTS = Path(__file__).parent / "results"
DATA = ("bike_hour", "california_housing", "cpusmall", "kin8nm")
QUANTILES = (0.1, 0.5, 0.9)
OURS = ("DSG, early stopping", "DSG, Manhattan", "RFM, then DSG", "DSG")
BOOSTING, STYLES = "gradient boosting", ("o-", "d-.", "v-", "s:", "^--")
N_ROWS, N_SEEDS, N_SEEDS_WITHOUT = 4000, 5, 1
FIELDS = ("data", "seed", "method", "quantile", "coverage", "loss", "seconds")


def real(name, seed):
    """Return training rows drawn with a seed, and the test rows."""
    data = datasets.load(name, standardize=True)
    rows = np.random.RandomState(seed).permutation(len(data.X_train))[:N_ROWS]
    y, y_test = (part.astype(np.float64) for part in (data.y_train, data.y_test))
    return data.X_train[rows], y[rows], data.X_test, y_test


def synthetic(name, seed):
    """Return the same of a smooth function, with noise that grows along a feature."""
    rng = np.random.RandomState(seed)
    n = N_ROWS + 3000
    X = rng.standard_normal((n, 5))
    draw = rng.standard_exponential if "exponential" in name else rng.standard_normal
    noise = (0.2 + 0.5 * np.abs(X[:, 3])) * draw(n)
    y = np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2]
    y += 0.2 * noise if "little" in name else noise
    X = X.astype(np.float32)
    return X[:N_ROWS], y[:N_ROWS], X[N_ROWS:], y[N_ROWS:]


def dsg(X, y, X_test, seed, **options):
    model = DSGRegressor(loss="pinball", quantile=QUANTILES, random_state=seed)
    return model.set_params(**options).fit(X, y).predict(X_test)


def dsg_on_metric(X, y, X_test, seed, **options):
    metric = RFMRegressor(random_state=seed).fit(X, y)
    X, X_test = metric.transform(X), metric.transform(X_test)
    return dsg(X, y, X_test, seed, **options)


def boosting(X, y, X_test, seed):
    model = HistGradientBoostingRegressor(loss="quantile", random_state=seed)
    # On a busy machine threads that wait for each other take minutes.
    with threadpool_limits(1, "openmp"):
        fits = (model.set_params(quantile=q).fit(X, y) for q in QUANTILES)
        return np.column_stack([fit.predict(X_test) for fit in fits])


def constant(X, y, X_test, seed):
    return np.tile(np.quantile(y, QUANTILES), (len(X_test), 1))


def losses(P, y):
    columns = zip(P.T, QUANTILES, strict=True)
    return np.array([mean_pinball_loss(y, p, alpha=q) for p, q in columns])


def measure(name, seed, method):
    """Yield the rows of the table of one method and training set."""
    predict, options = METHODS[method]
    X, y, X_test, y_test = real(name, seed)
    zero = losses(constant(X, y, X_test, seed), y_test)
    start = time.perf_counter()
    P = predict(X, y, X_test, seed, **options)
    seconds = time.perf_counter() - start
    coverages = (y_test[:, None] <= P).mean(axis=0)
    for row in zip(QUANTILES, coverages, losses(P, y_test) / zero, strict=True):
        yield dict(zip(FIELDS, (name, seed, method, *row, seconds), strict=True))


MANHATTAN = {"early_stopping": True, "kernel": "manhattan"}
METHODS = {
    "DSG, early stopping": (dsg, {"early_stopping": True}),
    "DSG, Manhattan": (dsg, MANHATTAN),
    "RFM, then DSG": (dsg_on_metric, MANHATTAN),
    "gradient boosting": (boosting, {}),
    "constant": (constant, {}),
    "DSG": (dsg, {"alpha": 1e-6}),  # no rows are held out
}


def cases(names):
    """Yield data, seed and method, those first that matter most."""
    for seed in range(N_SEEDS):
        for name in names:
            for method in tuple(METHODS)[:-1]:  # all but "DSG"
                yield name, seed, method
    for seed in range(N_SEEDS_WITHOUT):
        for name in names:
            yield name, seed, "DSG"


def choose():
    """Print what the width of the kink was chosen by."""
    names = ("normal noise", "exponential noise", "little noise", "california_housing")
    for name in names:
        load = real if name in DATA else synthetic
        X, y, X_test, y_test = load(name, 0)
        for width in (0.05, 0.1, 0.2):
            Pinball.width = width
            start = time.perf_counter()
            P = dsg(X, y, X_test, 0, early_stopping=True)
            seconds = time.perf_counter() - start
            loss = losses(P, y_test) / losses(constant(X, y, X_test, 0), y_test)
            coverage = (y_test[:, None] <= P).mean(axis=0)
            line = (
                f"{name:20}{width:5} loss {loss.round(4)} coverage {coverage.round(3)}"
            )
            print(f"{line} {seconds:.1f} s", flush=True)


def read(path):
    if not path.is_file():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def write(path, rows):
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        writer.writeheader()
        for row in rows:
            writer.writerow(
                {k: f"{v:.4g}" if isinstance(v, float) else v for k, v in row.items()}
            )


def report(rows, path):
    """Write the summary and the plot of the table."""
    means = {}
    for data in DATA:
        for method in METHODS:
            for q in QUANTILES:
                found = [
                    [float(row[field]) for field in FIELDS[4:]]
                    for row in rows
                    if (row["data"], row["method"], float(row["quantile"]))
                    == (data, method, q)
                ]
                means[data, method, q] = np.mean(found, axis=0)
    lines = [
        f"{date.today()}; {processor()}, {os.cpu_count()} cores",
        "",
        f"Means of {N_SEEDS} seeds ({N_SEEDS_WITHOUT} of DSG without early stopping). "
        "Coverage in %; loss over that of the constant; "
        "seconds for all three.",
        "",
        f"{'':41} coverage              loss",
        f"{'data':20}{'method':21}"
        + "".join(f"{q:7}" for q in 2 * QUANTILES)
        + "  seconds",
    ]
    for data in DATA:
        for method in METHODS:
            parts = [means[data, method, q] for q in QUANTILES]
            lines.append(
                f"{data:20}{method:21}"
                + "".join(f"{100 * part[0]:7.1f}" for part in parts)
                + "".join(f"{part[1]:7.3f}" for part in parts)
                + f"{parts[0][2]:9.1f}"
            )
        lines.append("")

    def mean_loss(data, method):
        return np.mean([means[data, method, q][1] for q in QUANTILES])

    for method in (*OURS, BOOSTING):
        off = [abs(means[data, method, q][0] - q) for data in DATA for q in QUANTILES]
        lines.append(
            f"{method}: coverage off by at most {100 * max(off):.1f} points, on "
            f"average {100 * np.mean(off):.1f}"
        )
    for method in OURS:
        better = {
            q: sum(
                means[data, method, q][1] <= means[data, BOOSTING, q][1]
                for data in DATA
            )
            for q in QUANTILES
        }
        text = ", ".join(f"{better[q]} of {len(DATA)} at {q}" for q in QUANTILES)
        together = sum(
            mean_loss(data, method) <= mean_loss(data, BOOSTING) for data in DATA
        )
        lines.append(
            f"{method}: loss at most that of gradient boosting on {text}, "
            f"{together} of {len(DATA)} in the mean of the three"
        )
    path.with_suffix(".txt").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))

    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, 4, figsize=(8.5, 5), layout="constrained")
    for j, data in enumerate(DATA):
        for method, style in zip((*OURS, BOOSTING), STYLES, strict=True):
            parts = np.array([means[data, method, q] for q in QUANTILES])
            off = 100 * (parts[:, 0] - QUANTILES)
            axes[0, j].plot(QUANTILES, off, style, label=method)
            axes[1, j].plot(QUANTILES, parts[:, 1], style)
        axes[0, j].axhspan(-2, 2, color="0.9")
        axes[0, j].set_title(data, fontsize=11)
        axes[0, j].set(xticks=QUANTILES)
        axes[1, j].set(xlabel="quantile", xticks=QUANTILES)
    axes[0, 0].set(ylabel="coverage off by (points)")
    axes[1, 0].set(ylabel="pinball loss (constant: 1)")
    figure.legend(
        *axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=5
    )
    figure.savefig(path.with_suffix(".png"), dpi=160)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", nargs="+", default=DATA, choices=DATA)
    parser.add_argument("--report", action="store_true", help="fit nothing")
    parser.add_argument("--choose", action="store_true", help="try widths of the kink")
    args = parser.parse_args()
    path = RESULTS / "quantiles.csv"
    if args.choose:
        choose()
        return
    rows = read(path)
    done = {(row["data"], int(row["seed"]), row["method"]) for row in rows}
    for case in () if args.report else cases(args.data):
        if case not in done:
            rows += measure(*case)
            done.add(case)
            write(path, rows)
            print(*case, flush=True)
    if done.issuperset(cases(DATA)):
        report(read(path), path)


if __name__ == "__main__":
    main()
