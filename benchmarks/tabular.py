"""Tables: learned metrics beside gradient boosting, forests, SVMs and xRFM.

Run ::

    EIGENKERN_DATA=/folder/of/data python benchmarks/tabular.py \\
        --boost-python boost/bin/python --xrfm-python xrfm/bin/python
    python benchmarks/tabular.py --methods plain rfm --seeds 0 --out some.csv
    python benchmarks/tabular.py --report       # table, bars and plot once more

Each fit is a line of ``results/tabular.csv``; a run that was interrupted goes on where
it stopped, and lines that are removed are measured anew. With ``--busy`` other work may
run beside it: errors are the same, and no seconds are kept. ``results/tabular.txt`` and
``.png`` sum them up. The peers that are not in scikit-learn have environments of their
own, and are left out without them::

    python -m venv boost
    boost/bin/pip install pandas scikit-learn catboost lightgbm
    python -m venv xrfm && xrfm/bin/pip install torch xrfm==0.4.5  # that for the CPU

Rows: at most 8000 to train on and 10000 to test on, drawn anew by each seed; from the
training and the test part of sets that come in two, otherwise from all rows, a fifth of
which is for tests. (coil2000 is so small that every seed uses all of it.) Targets have
mean 0 and deviation 1 on the training rows. Errors are in % of the test rows, or the
RMSE over the deviation of the test targets.

Sets of numbers have columns of mean 0 and deviation 1, in float32. Tables with
categories and gaps go as they are to the methods that take them: rfm, boosting, search,
CatBoost and LightGBM. The others get numbers: the mean for a gap and a column that says
where gaps are, mean 0 and deviation 1, and a column of 0 and 1 for each category.

plain      ``EigenProRegressor()`` or ``EigenProClassifier()``
manhattan  the same with ``kernel="manhattan"``
rfm        ``RFMRegressor()`` or ``RFMClassifier()``
boosting   ``HistGradientBoosting*()``
search     the same, random settings (`SPACE`) for as long as the fit of rfm took: early
           stopping and the score on a fifth of the training rows, then the best setting
           with its number of trees on all of them
catboost   ``CatBoost*()``
lightgbm   ``LGBM*()``
forest     ``RandomForest*(n_jobs=2)``
svm        ``SVR()`` or ``SVC()``
xrfm       ``xRFM()`` on the CPU, a fifth of the training rows as its validation set
xrfm_30    the same, the best on that set of 30 draws from the space that its authors
           search (``pytabkit``, "default"); one seed

All have scikit-learn's or their own defaults but for ``random_state``, and both cores.
"""

import argparse
import csv
import os
import platform
import subprocess
import tempfile
import time
import warnings
from datetime import date
from functools import cache
from importlib.metadata import version
from pathlib import Path

import datasets
import numpy as np
from kernel_product import processor
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.ensemble import (
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.impute import SimpleImputer
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.svm import SVC, SVR

import eigenkern

RESULTS = Path(__file__).parent / "results"
WORKER = Path(__file__).with_name("peer_worker.py")
REGRESSION = (
    *("bike_hour", "california_housing", "cpusmall", "kin8nm"),
    *(name for name, (_, is_number) in datasets.TABLES.items() if is_number),
)
# sets with a training and a test part
SPLIT = ("a9a", "coil2000", "ijcnn1")
DATA = (*REGRESSION, *SPLIT, "covtype_sub93k")
DATA += tuple(name for name in datasets.TABLES if name not in REGRESSION)
MAX_TRAIN, MAX_TEST = 8000, 10_000
METHODS = {
    "plain": "EigenPro",
    "manhattan": "Manhattan",
    "rfm": "RFM",
    "boosting": "HistGB",
    "search": "HistGB search",
    "catboost": "CatBoost",
    "lightgbm": "LightGBM",
    "forest": "forest",
    "svm": "SVC, SVR",
    "xrfm": "xRFM",
    "xrfm_30": "xRFM, best of 30",
}
BOOSTINGS = ("boosting", "catboost", "lightgbm")
# in environments of their own: the option that names their Python
PEERS = dict.fromkeys(("catboost", "lightgbm"), "boost_python")
PEERS |= dict.fromkeys(("xrfm", "xrfm_30"), "xrfm_python")
TAKE_TABLES = ("rfm", "search", *BOOSTINGS)
OURS = {
    "plain": ("EigenPro", {}),
    "manhattan": ("EigenPro", {"kernel": "manhattan"}),
    "rfm": ("RFM", {}),
}
# Least and largest value of each parameter, drawn uniformly in the logarithm.
SPACE = {
    "learning_rate": (0.01, 0.5),
    "max_leaf_nodes": (4, 128),
    "min_samples_leaf": (2, 100),
    "l2_regularization": (1e-4, 10.0),
}
MAX_TREES = 1000
FIELDS = (
    "data",
    "seed",
    "method",
    "error",
    "fit",
    "predict",
    "n",
    "note",
    "version",
    "machine",
    "date",
)


@cache
def whole(name):
    """Return a data set, classes numbered from 0."""
    if name in datasets.TABLES:
        X, y = datasets.frame(name)
        data = datasets.Dataset(X, y, X[:0], y[:0])
    else:
        data = datasets.load(name)
    if name in REGRESSION:
        return data
    classes = np.unique(np.concatenate([data.y_train, data.y_test]))
    return data._replace(
        y_train=np.searchsorted(classes, data.y_train),
        y_test=np.searchsorted(classes, data.y_test),
    )


def part(name, seed):
    """Return X, y, X_test, y_test of a seed."""
    X, y, X_test, y_test = whole(name)
    rng = np.random.RandomState(seed)
    if name in SPLIT:
        train = rng.permutation(len(X))[:MAX_TRAIN]
        test = rng.permutation(len(X_test))[:MAX_TEST]
    else:
        if name not in datasets.TABLES:
            X, y = np.concatenate([X, X_test]), np.concatenate([y, y_test])
        X_test, y_test = X, y
        order = rng.permutation(len(X))
        n_test = min(len(X) // 5, MAX_TEST)
        test, train = order[:n_test], order[n_test:][:MAX_TRAIN]
    y, y_test = y[train], y_test[test]
    if name in datasets.TABLES:
        X, X_test = (
            a.iloc[i].reset_index(drop=True) for a, i in ((X, train), (X_test, test))
        )
    else:
        X, X_test = X[train], X_test[test]
        scaler = StandardScaler().fit(X.astype(np.float64))
        X, X_test = (scaler.transform(a).astype(np.float32) for a in (X, X_test))
    if name in REGRESSION:
        mean, deviation = y.mean(dtype=np.float64), y.std(dtype=np.float64)
        y, y_test = (((a - mean) / deviation).astype(np.float32) for a in (y, y_test))
    return X, y, X_test, y_test


def numbers(X, X_test):
    """Return tables as numbers, in float32; arrays as they are."""
    if isinstance(X, np.ndarray):
        return X, X_test
    scale = make_pipeline(SimpleImputer(add_indicator=True), StandardScaler())
    encode = OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    prepare = make_column_transformer(
        (scale, make_column_selector(dtype_include="number")),
        (encode, make_column_selector(dtype_exclude="number")),
    )
    prepare.fit(X)
    return (prepare.transform(table).astype(np.float32) for table in (X, X_test))


def codes(X, X_test):
    """Return tables as arrays, categories as their numbers, and which columns are."""
    if isinstance(X, np.ndarray):
        return X, X_test, []
    categorical = [i for i, t in enumerate(X.dtypes) if t == "category"]
    tables = [table.copy() for table in (X, X_test)]
    for table in tables:
        for column in table.columns[categorical]:
            table[column] = table[column].cat.codes.replace(-1, np.nan)
    return *(table.to_numpy(np.float64) for table in tables), categorical


def error(predicted, y_test, regression):
    if regression:
        return np.sqrt(np.mean((predicted - y_test) ** 2)) / np.std(y_test)
    return 100 * np.mean(predicted != y_test)


def make(method, seed, regression):
    """Return an estimator."""
    if method in OURS:
        name, parameters = OURS[method]
        kind = "Regressor" if regression else "Classifier"
        return getattr(eigenkern, name + kind)(random_state=seed, **parameters)
    if method == "svm":
        return SVR() if regression else SVC()
    if method == "forest":
        forest = RandomForestRegressor if regression else RandomForestClassifier
        return forest(n_jobs=2, random_state=seed)
    return boosting(seed, regression)


def boosting(seed, regression, **parameters):
    if regression:
        return HistGradientBoostingRegressor(random_state=seed, **parameters)
    return HistGradientBoostingClassifier(random_state=seed, **parameters)


def held_out(X, y, seed, regression):
    """Return X, X_val, y, y_val, a fifth of the rows held out."""
    classes = None if regression else y
    return train_test_split(X, y, test_size=0.2, random_state=seed, stratify=classes)


def search(X, y, seed, regression, budget):
    """Return boosting of the best setting found in `budget` seconds, and the draws.

    The first setting is the default. Drawing ends when one more draw, as long as the
    mean, and the last fit, as long as that of the best setting, exceed the budget.
    """
    start = time.perf_counter()
    rng = np.random.RandomState(seed)
    X_fit, X_val, y_fit, y_val = held_out(X, y, seed, regression)
    best_score, n_draws, chosen, spent, last = -np.inf, 0, {}, 0.0, 0.0
    while n_draws == 0 or spent * (1 + 1 / n_draws) + last < budget:
        drawn = {} if n_draws == 0 else draw(rng)
        begin = time.perf_counter()
        model = boosting(
            seed, regression, max_iter=MAX_TREES, early_stopping=True, **drawn
        )
        model.fit(X_fit, y_fit, X_val=X_val, y_val=y_val)
        score = model.score(X_val, y_val)
        n_draws, spent = n_draws + 1, time.perf_counter() - start
        if score > best_score:
            best_score, last = score, time.perf_counter() - begin
            # validation_score_[0] is the score before the first tree
            n_trees = max(int(np.argmax(model.validation_score_)), 1)
            chosen = drawn | {"max_iter": n_trees}
    model = boosting(seed, regression, early_stopping=False, **chosen)
    return model.fit(X, y), n_draws


def draw(rng):
    """Return random values of the parameters of `SPACE`."""
    values = {}
    for name, (low, high) in SPACE.items():
        value = float(np.exp(rng.uniform(np.log(low), np.log(high))))
        values[name] = round(value) if isinstance(low, int) else value
    return values


def measure(method, X, X_test, y, seed, regression, budget):
    """Return the predictions, seconds to fit and to predict, and a note."""
    start = time.perf_counter()
    note = ""
    if method == "search":
        model, n_draws = search(X, y, seed, regression, budget)
        note = f"{n_draws} settings"
    else:
        model = make(method, seed, regression).fit(X, y)
    fitted = time.perf_counter()
    predicted = model.predict(X_test)
    end = time.perf_counter()
    if method == "rfm":
        note = f"{model.metric_kind_}, {model.n_rounds_} rounds"
    return predicted, fitted - start, end - fitted, note


def warm_up(methods):
    """Fit small models, so that threads and libraries have started."""
    X = np.random.RandomState(0).standard_normal((200, 5)).astype(np.float32)
    for method in set(methods) - {*PEERS, "search"}:
        make(method, 0, True).fit(X, X[:, 0]).predict(X)
        make(method, 0, False).fit(X, X[:, 0] > 0).predict(X)


def peer(method, python, X, y, X_test, seed, regression):
    """Return what `measure` does, and the versions, of a peer in its environment."""
    arrays = {"y": y, "seed": seed, "regression": regression, "categorical": []}
    if method in BOOSTINGS:
        arrays["X"], arrays["X_test"], arrays["categorical"] = codes(X, X_test)
    else:
        X, arrays["X_test"] = numbers(X, X_test)
        X_fit, X_val, y_fit, y_val = held_out(X, y, seed, regression)
        arrays |= {"X": X_fit, "y": y_fit, "X_val": X_val, "y_val": y_val}
    with tempfile.TemporaryDirectory() as folder:
        paths = [os.path.join(folder, name) for name in ("in.npz", "out.npz")]
        np.savez(paths[0], **arrays)
        subprocess.run([python, "-I", WORKER, method, *paths], check=True)
        with np.load(paths[1]) as found:
            return (
                found["predicted"],
                float(found["fit"]),
                float(found["predict"]),
                str(found["note"]),
                str(found["version"]),
            )


def run(args):
    """Measure what the file of results does not have yet."""
    rows = read(args.out)
    done = {(row["data"], row["seed"], row["method"]): row for row in rows}
    warm_up(args.methods)
    for seed in args.seeds:
        for name in args.data:
            regression = name in REGRESSION
            X, y, X_test, y_test = part(name, seed)
            for method in args.methods:
                if (name, seed, method) in done:
                    continue
                measured_rfm = done.get((name, seed, "rfm"))
                seconds = (measured_rfm or {}).get("fit", np.nan)
                if method == "search" and (args.busy or np.isnan(seconds)):
                    print(f"{name}, seed {seed}: search is left out, it lasts as rfm")
                    continue
                if method == "xrfm_30" and seed:
                    continue
                if method in PEERS:
                    python = getattr(args, PEERS[method])
                    found = peer(method, python, X, y, X_test, seed, regression)
                else:
                    budget = seconds if method == "search" else None
                    rows_of = X, X_test
                    if method not in TAKE_TABLES:
                        rows_of = numbers(*rows_of)
                    found = measure(method, *rows_of, y, seed, regression, budget)
                    package = "eigenkern" if method in OURS else "scikit-learn"
                    found += (f"{package} {version(package)}",)
                predicted, fit, predict, note, versions = found
                if args.busy:
                    fit = predict = np.nan
                row = {
                    "data": name,
                    "seed": seed,
                    "method": method,
                    "error": float(error(predicted, y_test, regression)),
                    "fit": fit,
                    "predict": predict,
                    "n": len(X),
                    "note": note,
                    "version": versions,
                    "machine": f"{processor()}, Python {platform.python_version()}",
                    "date": str(date.today()),
                }
                append(args.out, row)
                done[name, seed, method] = row
                print(
                    f"{name:18} seed {seed} {METHODS[method]:13} error "
                    f"{row['error']:8.4f}  fit {fit:7.2f} s  predict {predict:6.2f} s  "
                    f"{note}",
                    flush=True,
                )


def read(path):
    """Return the lines of the file of results, if there is one."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        row["seed"], row["n"] = int(row["seed"]), int(row["n"])
        row |= {field: float(row[field]) for field in ("error", "fit", "predict")}
    return rows


def append(path, row):
    """Add a line to the file of results."""
    new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        if new:
            writer.writeheader()
        number = {f: f"{row[f]:.5g}" for f in ("error", "fit", "predict")}
        writer.writerow(row | number)


class Table:
    """Means and deviations over the seeds."""

    def __init__(self, rows):
        self.cells = {}
        for row in rows:
            cell = self.cells.setdefault((row["data"], row["method"]), {})
            cell[row["seed"]] = row
        self.data = [d for d in DATA if any(d == row["data"] for row in rows)]
        self.methods = [m for m in METHODS if any(m == row["method"] for row in rows)]

    def seeds(self, data, method, field="error"):
        """Seeds of a method for which there is a number."""
        cell = self.cells.get((data, method), {})
        return {seed for seed, row in cell.items() if row[field] == row[field]}

    def values(self, data, method, field="error", seeds=None):
        seeds = self.seeds(data, method, field) if seeds is None else seeds
        cell = self.cells.get((data, method), {})
        return np.array([cell[seed][field] for seed in sorted(seeds)])

    def pair(self, data, method, other, field):
        """Values of two methods on the seeds of both."""
        seeds = self.seeds(data, method, field) & self.seeds(data, other, field)
        return (self.values(data, m, field, seeds) for m in (method, other))

    def ratio(self, data, method, other, field="error"):
        """Mean of a method over that of another; NaN where one was not run.

        Over no error at all it is infinite, or 1 without errors.
        """
        values, others = self.pair(data, method, other, field)
        if not len(values):
            return np.nan
        mean, of_other = values.mean(), others.mean()
        if of_other == 0:
            return 1.0 if mean == 0 else np.inf
        return mean / of_other

    def spread(self, data, method, other):
        """Deviation over the seeds of the ratio of the errors; 0 for one seed."""
        values, others = self.pair(data, method, other, "error")
        return np.std(values / others, ddof=1) if len(values) > 1 else 0.0

    def ratios(self, method, other, field="error"):
        """Ratios of all data sets, by name."""
        found = {d: self.ratio(d, method, other, field) for d in self.data}
        return {d: ratio for d, ratio in found.items() if not np.isnan(ratio)}


def bars(table):
    """Yield (what is asked, what was measured, whether it is reached)."""
    for name, bound in (
        ("bike_hour", 0.25),
        ("california_housing", 0.43),
        ("kin8nm", 0.255),
        ("covtype_sub93k", 17.0),
    ):
        errors = table.values(name, "rfm")
        if len(errors):
            mean = errors.mean()
            yield f"{name}: error at most {bound}", f"{mean:.4g}", mean <= bound
    plain = table.ratios("rfm", "plain")
    for name in ("cpusmall", "a9a"):
        if name in plain:
            ratio = plain[name]
            yield f"{name}: at most 1.02 x EigenPro", f"{ratio:.3f}", ratio <= 1.02
    boosted = {}  # over the best of the boostings
    for method in BOOSTINGS:
        for name, ratio in table.ratios("rfm", method).items():
            boosted[name] = max(ratio, boosted.get(name, 0.0))
    if boosted:
        n = sum(ratio <= 1 for ratio in boosted.values())
        yield (
            "at most the best boosting's error on two thirds of the sets",
            f"{n} of {len(boosted)}",
            3 * n >= 2 * len(boosted),
        )
        worst = max(boosted, key=boosted.get)
        figure = f"{boosted[worst]:.3f} ({worst})"
        yield "never above 1.08 x that", figure, boosted[worst] <= 1.08
    slower = table.ratios("rfm", "plain", "fit")
    if slower:
        worst, median = max(slower, key=slower.get), np.median([*slower.values()])
        figure = f"{median:.1f}; {slower[worst]:.1f} ({worst})"
        yield "in the median, at most 10 x EigenPro's time", figure, median <= 10
    other = table.ratios("rfm", "xrfm_30")
    if other:
        behind = [name for name, ratio in other.items() if ratio > 1]
        yield (
            "behind xRFM's search on at most half of the sets",
            f"{len(behind)} of {len(other)} ({', '.join(behind) or 'none'})",
            2 * len(behind) <= len(other),
        )
    other = table.ratios("rfm", "xrfm")
    if other:
        behind = [name for name, ratio in other.items() if ratio > 1]
        yield (
            "behind xRFM on at most a third of the sets",
            f"{len(behind)} of {len(other)} ({', '.join(behind) or 'none'})",
            3 * len(behind) <= len(other),
        )
        seconds = table.ratios("rfm", "xrfm", "fit")
        n = sum(ratio < 1 for ratio in seconds.values())
        yield (
            "fit faster than xRFM on every set",
            f"{n} of {len(seconds)}, time over xRFM's {min(seconds.values()):.2f} to "
            f"{max(seconds.values()):.2f}",
            n == len(seconds),
        )


def lines(rows):
    """Yield the lines of the report."""
    table = Table(rows)

    def distinct(field):
        return ", ".join(sorted({row[field] for row in rows if row[field]}))

    def grid(cell):
        yield f"{'':20}" + "".join(f"{METHODS[m]:>17}" for m in table.methods)
        for d in table.data:
            yield f"{d:20}" + "".join(f"{cell(d, m):>17}" for m in table.methods)

    def spread(d, m):
        values = table.values(d, m)
        if not len(values):
            return ""
        digits = 4 if d in REGRESSION else 2
        text = f"{values.mean():.{digits}f}"
        if len(values) > 1:
            text += f" ± {values.std(ddof=1):.{digits}f}"
        seeds = table.seeds(d, m)
        means = [
            table.values(d, other, seeds=seeds).mean()
            for other in table.methods
            if seeds <= table.seeds(d, other)
        ]
        return f"*{text}" if values.mean() == min(means) else text

    def seconds(field):
        def cell(d, m):
            values = table.values(d, m, field)
            return f"{values.mean():.2f}" if len(values) else ""

        return cell

    yield f"{distinct('date')}, {distinct('machine')}, {distinct('version')}"
    yield ""
    yield "Test error, mean and deviation over the seeds: in % for classes, otherwise"
    yield "RMSE over the deviation of the targets. At most 8000 rows to train on. The"
    yield "best of each set is marked *, of those that ran with the same seeds."
    yield from grid(spread)
    seeds = {m: {r["seed"] for r in rows if r["method"] == m} for m in table.methods}
    most = max(len(s) for s in seeds.values())
    yield f"Seeds: {most}" + "".join(
        f"; {METHODS[m]}: {len(s)}" for m, s in seeds.items() if len(s) < most
    )
    for field, title in (("fit", "fit"), ("predict", "predict at most 10000 rows")):
        yield ""
        yield f"Seconds to {title}, mean"
        yield from grid(seconds(field))
    found = [
        f"{d}: {'; '.join(table.values(d, 'rfm', 'note'))}"
        for d in table.data
        if len(table.values(d, "rfm"))
    ]
    if found:
        yield ""
        yield "Metric of RFM, seed by seed"
        yield from found
        yield ""
        yield "What RFM is to reach, on means over the seeds"
    for asked, measured, reached in bars(table):
        yield f"{'reached' if reached else 'NOT REACHED':12} {asked}: {measured}"


def plot(rows, path):
    """Draw the errors over those of gradient boosting, seed by seed."""
    import matplotlib.pyplot as plt

    table = Table(rows)
    names = [d for d in table.data if len(table.values(d, "boosting"))]
    figure, ax = plt.subplots(figsize=(8, 0.8 * len(names) + 1.8), layout="constrained")
    for k, (method, marker) in enumerate(
        zip(table.methods, "oshDv^PX<>d", strict=False)
    ):
        offset = 0.7 * (k / max(len(table.methods) - 1, 1) - 0.5)
        points = []
        for i, d in enumerate(names):
            center = table.ratio(d, method, "boosting")
            if np.isfinite(center):
                points.append((center, i + offset, table.spread(d, method, "boosting")))
        if points:
            x, y, deviations = zip(*points, strict=True)
            ax.errorbar(
                x, y, xerr=deviations, fmt=marker, ms=5, lw=1, label=METHODS[method]
            )
    ax.axvline(1, color="gray", lw=0.8)
    for i in range(len(names) - 1):
        ax.axhline(i + 0.5, color="lightgray", lw=0.6)
    ticks = (0.2, 0.3, 0.4, 0.5, 0.7, 1, 1.4, 2, 3, 4, 6, 10, 15, 20)
    ax.set(
        xscale="log",
        xlabel="test error over that of HistGradientBoosting with defaults",
        ylim=(len(names) - 0.5, -0.5),
    )
    low, high = ax.get_xlim()
    ax.set_xticks([t for t in ticks if low < t < high], minor=False)
    ax.xaxis.set_major_formatter("{x:g}")
    ax.xaxis.set_minor_locator(plt.NullLocator())
    ax.set_yticks(range(len(names)), names)
    figure.legend(loc="outside upper center", ncols=4, frameon=False)
    figure.savefig(path, dpi=150)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", nargs="+", choices=DATA, default=DATA)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--seeds", nargs="+", type=int, default=range(5))
    parser.add_argument("--boost-python", help="Python with catboost and lightgbm")
    parser.add_argument("--xrfm-python", help="Python that has xrfm")
    parser.add_argument("--busy", action="store_true", help="keep no seconds")
    parser.add_argument("--out", type=Path, default=RESULTS / "tabular.csv")
    parser.add_argument("--report", action="store_true", help="fit nothing")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    if not args.report:
        for method, option in PEERS.items():
            if method in args.methods and getattr(args, option) is None:
                says = "--" + option.replace("_", "-")
                print(f"{METHODS[method]} is left out; {says} says where it is")
                args.methods = [m for m in args.methods if m != method]
        run(args)
    rows = read(args.out)
    report = list(lines(rows))
    print("\n".join(report))
    args.out.with_suffix(".txt").write_text("\n".join(report) + "\n")
    plot(rows, args.out.with_suffix(".png"))


if __name__ == "__main__":
    main()
