"""Tables as people have them: each family's default on training rows that were spoiled.

Every set in the folder of EIGENKERN_DATA that `datasets` lists, and every table in its
folder ``tables``, categories one-hot, is spoiled in ten ways (`SPOILED`; with two fill
values). For each of them the error of each family on new rows is printed over

- that of its fit to the clean rows (for "minority": with weights instead of copies);
- that of ``HistGradientBoosting*()`` on the same spoiled rows.

The summary counts, for each way, the sets on which a family's error is more than 5 %,
and for labels one standard error of the new rows, above that of the clean fit, and
those on which it is worse than the constant. `SAME` lists the ways that keep what
the table says, where neither should happen.

Run ``EIGENKERN_DATA=/folder/of/npz python benchmarks/messy.py`` (about an hour on two
cores). Each fit is a line of ``results/messy.csv``; a run that was interrupted goes on
where it stopped, and ``--report`` only makes the table and the plot again.

Rows: at most 2000 to train on and 2000 to test on, in float64. Numbers have mean 0 and
deviation 1, as in the other benchmarks. Errors are the RMSE over the deviation of the
new targets, or the fraction of wrong labels. RFM, whose fits to images take minutes, is
left out there.
"""

import argparse
import csv
import platform
import warnings
import zlib
from datetime import date
from pathlib import Path

import datasets
import numpy as np
import pandas as pd
from datasets import CLASSES, IMAGES, TABLES, TARGETS, available, parts
from kernel_product import processor
from sklearn.ensemble import (
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
)

import eigenkern

RESULTS = Path(__file__).parent / "results"
FAMILIES = (
    "EigenPro",
    "LinearEigenPro",
    "Nystrom",
    "Nytro",
    "FalkonLike",
    "DSG",
    "RFM",
)
BOOSTING, SLOW = "HistGB", ("RFM", True)
LOSES = 1.05  # times the error of the clean fit
FIELDS = ("data", "spoiled", "family", "error", "constant", "n_test", "note")


# Ways to spoil a table: each returns X, y and X_test anew.


def fill(value, rng, X, y, X_test):
    """A fill value in three rows of a column."""
    X = X.copy()
    rows, column = rng.choice(len(X), 3, replace=False), rng.integers(X.shape[1])
    X[rows, column] = value
    return X, y, X_test


def fill_1e12(*table):
    return fill(1e12, *table)


def fill_1e37(*table):
    return fill(9.97e36, *table)


def copies(rng, X, y, X_test):
    """A tenth of the rows a second time."""
    rows = np.append(np.arange(len(X)), rng.choice(len(X), len(X) // 10, replace=False))
    return X[rows], y[rows], X_test


def is_rare(y):
    """Which rows are of the smallest class, or of the upper tenth of the targets."""
    if is_regression(y):
        return y > np.quantile(y, 0.9)
    codes = np.unique(y, return_inverse=True)[1]
    return codes == np.bincount(codes).argmin()


def minority(rng, X, y, X_test):
    """The rare rows ten times."""
    rows = rng.permutation(np.repeat(np.arange(len(X)), np.where(is_rare(y), 10, 1)))
    return X[rows], y[rows], X_test


def levels(rng, X, y, X_test):
    """Five levels a column, in the test rows too."""
    edges = np.quantile(X, [0.2, 0.4, 0.6, 0.8], axis=0)
    middles = np.quantile(X, [0.1, 0.3, 0.5, 0.7, 0.9], axis=0)
    X, X_test = (
        np.take_along_axis(middles, (A > edges[:, None]).sum(axis=0), axis=0)
        for A in (X, X_test)
    )
    return X, y, X_test


def heavy_tails(rng, X, y, X_test):
    """The third power of each column, in the test rows too."""
    return X**3, y, X_test**3


def float16(rng, X, y, X_test):
    """Half precision, stored in single precision."""
    return X.astype(np.float16).astype(np.float32), y, X_test.astype(np.float32)


def shifted(rng, X, y, X_test):
    return X + 1e6, y, X_test + 1e6


def constant_columns(rng, X, y, X_test):
    """Every column twice, and three constants."""
    X, X_test = (np.hstack([A, A, np.full((len(A), 3), 1e3)]) for A in (X, X_test))
    return X, y, X_test


def flipped(rng, X, y, X_test):
    """One target in twenty is that of another row, or another label."""
    y, wrong = y.copy(), rng.random(len(y)) < 0.05
    if is_regression(y):
        y[wrong] = rng.choice(y, wrong.sum())
        return X, y, X_test
    classes, codes = np.unique(y, return_inverse=True)
    codes[wrong] += rng.integers(1, len(classes), wrong.sum())
    return X, classes[codes % len(classes)], X_test


def in_order(rng, X, y, X_test):
    """Sorted by target."""
    rows = np.argsort(y, kind="stable")
    return X[rows], y[rows], X_test


SAME = (
    fill_1e12,
    fill_1e37,
    copies,
    minority,
    float16,
    shifted,
    constant_columns,
    in_order,
)
SPOILED = {f.__name__: f for f in (*SAME, levels, heavy_tails, flipped)}


def is_regression(y):
    return y.dtype.kind == "f"


def table(name):
    """Return a table from the folder `tables`: rows, categories one-hot, and targets.

    Gaps are 0, the mean, or a category.
    """
    frame, y = datasets.frame(name)
    numbers = frame.select_dtypes("number")
    numbers = ((numbers - numbers.mean()) / numbers.std(ddof=0)).fillna(0.0)
    texts = frame.drop(columns=numbers.columns)
    if len(texts.columns):
        numbers = numbers.join(pd.get_dummies(texts, dummy_na=True))
    return numbers.to_numpy(dtype=np.float64), y


def problem(name, n):
    """Return at most `n` training rows, their targets, and as many new ones."""
    rng = np.random.default_rng(0)
    if name in TABLES:
        X, y = table(name)
        rows = rng.permutation(len(y))
        n_test = min(n, len(y) // 5)
        test, train = rows[:n_test], rows[n_test:][:n]
        X, y, X_test, y_test = X[train], y[train], X[test], y[test]
    else:
        data = parts(name)
        train, test = (rng.permutation(len(y))[:n] for y in (data.y_train, data.y_test))
        X, y = data.X_train[train].astype(np.float64), data.y_train[train]
        X_test, y_test = data.X_test[test].astype(np.float64), data.y_test[test]
    if name in TARGETS or (name in TABLES and TABLES[name][1]):
        mean, deviation = y.mean(dtype=float), y.std(dtype=float)
        return X, (y - mean) / deviation, X_test, (y_test - mean) / deviation
    return X, y.astype(int), X_test, y_test.astype(int)


def sets():
    """Return the names of the sets that the folder holds."""
    return [n for n in (*TARGETS, *CLASSES, *IMAGES, *TABLES) if available(n)]


def error(predicted, y_test):
    if is_regression(y_test):
        return np.sqrt(np.mean((predicted - y_test) ** 2)) / np.std(y_test)
    return np.mean(predicted != y_test)


def error_of_constant(y, y_test):
    if is_regression(y):
        return error(np.mean(y), y_test)
    classes, codes = np.unique(y, return_inverse=True)
    return error(classes[np.bincount(codes).argmax()], y_test)


def measured(family, X, y, X_test, y_test, weights=None):
    """Return the error of a default, infinite if it fails, and what it said."""
    if family == BOOSTING:
        kinds = HistGradientBoostingClassifier, HistGradientBoostingRegressor
        model = kinds[is_regression(y)](random_state=0)
    else:
        kind = "Regressor" if is_regression(y) else "Classifier"
        model = getattr(eigenkern, family + kind)(random_state=0)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            found = error(
                model.fit(X, y, sample_weight=weights).predict(X_test), y_test
            )
        except Exception as failure:
            return np.inf, f"{type(failure).__name__}: {failure}"
    return found, str(said[0].message) if said else ""


def run(arguments):
    """Append what is missing to the records."""
    done = {(row["data"], row["spoiled"], row["family"]) for row in read(arguments.out)}
    for name in arguments.sets:
        X, y, X_test, y_test = problem(name, arguments.rows)
        weights = np.where(is_rare(y), 10.0, 1.0)
        cases = {"clean": (X, y, X_test), "weighted": (X, y, X_test)}
        for label, spoil in SPOILED.items():
            seed = zlib.crc32(f"{name} {label}".encode())
            cases[label] = spoil(np.random.default_rng(seed), X, y, X_test)
        for label, (A, b, A_test) in cases.items():
            w = weights if label == "weighted" else None
            constant = error_of_constant(b, y_test)
            for family in (*arguments.families, BOOSTING):
                if (name, label, family) in done or (family, name in IMAGES) == SLOW:
                    continue
                found, note = measured(family, A, b, A_test, y_test, w)
                row = name, label, family, found, constant, len(y_test), note
                new = not arguments.out.exists()
                with arguments.out.open("a", newline="") as file:
                    writer = csv.writer(file, lineterminator="\n")
                    writer.writerows([FIELDS, row] if new else [row])
                print(f"{name:20}{label:20}{family:16}{found:8.4f}  {note}", flush=True)


def read(path):
    """Return the records, if there are any."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        row |= {field: float(row[field]) for field in ("error", "constant", "n_test")}
    return rows


class Cells:
    """The records by data set, way of spoiling and family."""

    def __init__(self, rows):
        self.rows = {(row["data"], row["spoiled"], row["family"]): row for row in rows}
        self.data = list(dict.fromkeys(row["data"] for row in rows))
        found = {row["family"] for row in rows}
        self.families = [family for family in FAMILIES if family in found]

    def has(self, name, family):
        """Whether a family was fitted to a data set."""
        return (name, "clean", family) in self.rows

    def clean(self, name, label, family):
        """Return the record of the fit to the same information, not spoiled."""
        clean = "weighted" if label == "minority" else "clean"
        return self.rows[name, clean, family]

    def over_clean(self, name, label, family):
        base = self.clean(name, label, family)["error"]
        return self.rows[name, label, family]["error"] / max(base, 1e-9)

    def over_boosting(self, name, label, family):
        base = self.rows[name, label, BOOSTING]["error"]
        return self.rows[name, label, family]["error"] / max(base, 1e-9)

    def loses(self, name, label, family):
        """Whether an error is more than 5 %, and for labels chance, above the clean."""
        row, base = self.rows[name, label, family], self.clean(name, label, family)
        chance = 0.0
        if name not in TARGETS and not TABLES.get(name, ("", False))[1]:
            chance = (base["error"] * (1 - base["error"]) / base["n_test"]) ** 0.5
        return row["error"] > LOSES * base["error"] + chance

    def is_worse_than_the_constant(self, name, label, family):
        row = self.rows[name, label, family]
        return not row["error"] <= row["constant"]


def report(cells):
    """Return the text of the tables."""
    lines = [
        f"{date.today()}, {processor()}, Python {platform.python_version()}, "
        f"eigenkern {eigenkern.__version__}",
        "",
        "Errors over those of the clean fit / of gradient boosting on the same rows",
        "+: more than 5 % above the clean fit; !: worse than the constant",
    ]
    for name in cells.data:
        lines += ["", f"{name:18}" + "".join(f"{f:>17}" for f in cells.families)]
        for label in ("clean", *SPOILED):
            row = f"{label:18}"
            for family in cells.families:
                key = name, label, family
                if not cells.has(name, family):
                    row += f"{'-':>17}"
                    continue
                mark = "+" if cells.loses(*key) else " "
                mark += "!" if cells.is_worse_than_the_constant(*key) else " "
                pair = cells.over_clean(*key), cells.over_boosting(*key)
                row += f"{pair[0]:8.3f} /{pair[1]:5.2f}{mark}"
            lines.append(row)
    lines += ["", "", "In short", ""]
    lines += [
        f"Families that lose more than 5 % of {len(cells.data)} sets, / that are "
        "worse than the constant"
    ]
    lines += ["", f"{'':18}" + "".join(f"{f:>17}" for f in cells.families)]
    for label in SPOILED:
        row = f"{label:18}"
        for family in cells.families:
            counts = [
                sum(
                    judge(name, label, family)
                    for name in cells.data
                    if cells.has(name, family)
                )
                for judge in (cells.loses, cells.is_worse_than_the_constant)
            ]
            row += f"{counts[0]:>13} / {counts[1]}"
        same = SPOILED[label] in SAME
        lines.append(row + ("" if same else "   (may cost more)"))
    notes = {
        f"{row['data']}, {row['spoiled']}, {row['family']}: {row['note']}"
        for row in cells.rows.values()
        if row["note"] and row["family"] != BOOSTING
    }
    return "\n".join([*lines, "", "What was said", "", *sorted(notes)]) + "\n"


def plot(cells, path):
    """Draw the errors over those of the clean fit, one point for each set."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 7), layout="constrained")
    for k, family in enumerate(cells.families):
        points = [
            (cells.over_clean(name, label, family), i + 0.7 * k / len(cells.families))
            for i, label in enumerate(SPOILED)
            for name in cells.data
            if cells.has(name, family)
        ]
        x, y = np.array(points).T
        axes.plot(np.clip(x, 0.5, 20), y, "o", ms=3.5, alpha=0.7, label=family)
    axes.axvline(1, color="gray", lw=0.8)
    axes.axvline(LOSES, color="gray", lw=0.8, ls=":")
    for i in range(1, len(SPOILED)):
        axes.axhline(i - 0.15, color="lightgray", lw=0.6)
    ticks = (0.5, 0.7, 1, 1.5, 2, 3, 5, 10, 20)
    axes.set(xscale="log", xlabel="error over that of the clean fit (at most 20)")
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    labels = [label.replace("_", " ") for label in SPOILED]
    axes.set_yticks(np.arange(len(SPOILED)) + 0.3, labels)
    axes.invert_yaxis()
    figure.legend(loc="outside upper center", ncols=4, frameon=False)
    figure.savefig(path, dpi=110)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--sets", nargs="+", default=sets())
    parser.add_argument("--families", nargs="+", choices=FAMILIES, default=FAMILIES)
    parser.add_argument("--out", type=Path, default=RESULTS / "messy.csv")
    parser.add_argument("--report", action="store_true", help="fit nothing")
    arguments = parser.parse_args()
    if not arguments.report:
        run(arguments)
    cells = Cells(read(arguments.out))
    text = report(cells)
    print(text)
    arguments.out.with_suffix(".txt").write_text(text)
    plot(cells, arguments.out.with_suffix(".png"))


if __name__ == "__main__":
    main()
