"""Error against time and memory: this package beside what else can be installed.

Run ::

    EIGENKERN_DATA=/folder/of/npz python benchmarks/compare.py
    python benchmarks/compare.py --rows all --data mnist ijcnn1
    python benchmarks/compare.py --report       # table and plot once more

Each fit is a process of its own, on all cores, one after the other; a fit that takes
longer than ``--limit`` seconds is ended. Each is a line of ``results/compare.csv``; a
run that was interrupted goes on where it stopped. xRFM, himalaya and
scikit-learn-intelex are left out where they are not installed (``pip install himalaya
xrfm torch scikit-learn-intelex``); of the last, `compare_intelex.csv` has whole sets ::

    python benchmarks/compare.py --rows all --data ijcnn1 a9a mnist \\
        --methods eigenpro centers svm intelex \\
        --out benchmarks/results/compare_intelex.csv

Rows: at most ``--rows`` to train on, 10000 to test on, drawn with seed 0, in float32.
Columns have mean 0 and deviation 1 but for images (in [0, 1]) and a9a (0 or 1); real
targets have mean 0 and deviation 1. Errors are in % of the test rows, or the RMSE over
the deviation of the test targets. Memory is the peak of the process over what it held
before the fit, in MB; a small fit before it has loaded the libraries.

All have their defaults but for random states and what `METHODS` says. Nothing was
tuned on these data; gamma is 1 / (d Var X), that of ``SVC(gamma="scale")``, wherever a
Gaussian kernel asks for one.
"""

import argparse
import csv
import importlib.util
import json
import platform
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from datetime import date
from importlib.metadata import version
from pathlib import Path

import datasets
import numpy as np
import psutil
from kernel_product import processor

RESULTS = Path(__file__).parent / "results"
DATA = (*datasets.TARGETS, *datasets.CLASSES, *datasets.IMAGES)
MAX_TEST = 10_000
N_CENTERS = 2000
ALPHAS = np.logspace(-4, 2, 7)
# Name -> label in tables, package whose version counts.
METHODS = {
    "eigenpro": ("EigenPro", "eigenkern"),
    "centers": ("EigenPro, 2000 centers", "eigenkern"),
    "nystrom": ('Nystrom, 2000 centers, alpha="path"', "eigenkern"),
    "nytro": ("NYTRO", "eigenkern"),
    "falkon": ("Falkon-like", "eigenkern"),
    "dsg": ("DSG", "eigenkern"),
    "linear": ("Linear EigenPro", "eigenkern"),
    "rfm": ("RFM", "eigenkern"),
    "svm": ("SVC, SVR", "scikit-learn"),
    "intelex": ("SVC, SVR of scikit-learn-intelex", "scikit-learn-intelex"),
    "ridge": ("KernelRidge, Gaussian kernel", "scikit-learn"),
    "nystroem": ("Nystroem, 2000 centers, + RidgeCV", "scikit-learn"),
    "himalaya": ("himalaya KernelRidgeCV, cv=3", "himalaya"),
    "xrfm": ("xRFM, a fifth of the rows to validate", "xrfm"),
    "boosting": ("HistGradientBoosting", "scikit-learn"),
}
# Of packages that are imported by another name.
MODULES = {"scikit-learn": "sklearn", "scikit-learn-intelex": "sklearnex"}
FIELDS = (
    "data",
    "rows",
    "method",
    "error",
    "fit",
    "predict",
    "memory",
    "note",
    "version",
    "machine",
    "date",
)


def part(name, n_rows):
    """Return X, y, X_test, y_test, and whether y is real."""
    X, y, X_test, y_test = datasets.parts(name)
    rng = np.random.RandomState(0)
    train = rng.permutation(len(X))[:n_rows]
    test = rng.permutation(len(X_test))[:MAX_TEST]
    X, y, X_test, y_test = X[train], y[train], X_test[test], y_test[test]
    regression = name in datasets.TARGETS
    if regression:
        mean, deviation = y.mean(dtype=np.float64), y.std(dtype=np.float64)
        y, y_test = (((a - mean) / deviation).astype(np.float32) for a in (y, y_test))
    else:
        classes = np.unique(y)
        y, y_test = (np.searchsorted(classes, a) for a in (y, y_test))
    return X, y, X_test, y_test, regression


def error(predicted, y_test, regression):
    """Return the RMSE over the deviation, or wrong labels in %."""
    if regression:
        return np.sqrt(np.mean((predicted - y_test) ** 2)) / np.std(y_test)
    return 100 * np.mean(predicted != y_test)


def make(method, regression, X):
    """Return an estimator, and whether classes are to be columns of -1 and 1."""
    gamma = 1 / (X.shape[1] * X.var(dtype=np.float64))
    kind = "Regressor" if regression else "Classifier"
    if METHODS[method][1] == "eigenkern":
        import eigenkern

        name, parameters = {
            "eigenpro": ("EigenPro", {}),
            "centers": ("EigenPro", {"n_centers": N_CENTERS}),
            "nystrom": ("Nystrom", {"n_centers": N_CENTERS, "alpha": "path"}),
            "nytro": ("Nytro", {}),
            "falkon": ("FalkonLike", {}),
            "dsg": ("DSG", {}),
            "linear": ("LinearEigenPro", {}),
            "rfm": ("RFM", {}),
        }[method]
        return getattr(eigenkern, name + kind)(random_state=0, **parameters), False
    if method == "svm":
        from sklearn.svm import SVC, SVR

        return (SVR() if regression else SVC()), False
    if method == "intelex":
        from sklearnex.svm import SVC, SVR

        return (SVR() if regression else SVC()), False
    if method == "ridge":
        from sklearn.kernel_ridge import KernelRidge

        return KernelRidge(kernel="rbf", gamma=gamma), not regression
    if method == "nystroem":
        from sklearn.kernel_approximation import Nystroem
        from sklearn.linear_model import RidgeClassifierCV, RidgeCV
        from sklearn.pipeline import make_pipeline

        features = Nystroem(gamma=gamma, n_components=N_CENTERS, random_state=0)
        linear = RidgeCV if regression else RidgeClassifierCV
        return make_pipeline(features, linear(alphas=ALPHAS)), False
    if method == "himalaya":
        from himalaya.kernel_ridge import KernelRidgeCV

        model = KernelRidgeCV(
            ALPHAS, kernel="rbf", kernel_params={"gamma": gamma}, cv=3, warn=False
        )
        return model, not regression
    if method == "xrfm":
        import torch
        from xrfm import xRFM

        device = torch.device("cpu")
        return xRFM(device=device, random_state=0, verbose=False), False
    from sklearn import ensemble

    boosting = getattr(ensemble, "HistGradientBoosting" + kind)
    return boosting(random_state=0), False


def fit(method, model, X, y, regression, columns):
    """Fit a model as its users would."""
    if method == "xrfm":  # asks its users for rows to validate on
        from sklearn.model_selection import train_test_split

        X, X_val, y, y_val = train_test_split(
            X, y, test_size=0.2, random_state=0, stratify=None if regression else y
        )
        return model.fit(X, y, X_val, y_val)
    if columns:
        y = (np.where(y[:, None] == np.unique(y), 1, -1)).astype(X.dtype)
    return model.fit(X, y)


def predict(model, X_test, columns):
    predicted = np.asarray(model.predict(X_test))
    return predicted.argmax(axis=1) if columns else predicted.reshape(len(X_test))


def one(method, path):
    """Fit and predict in this process; print what was measured as JSON."""
    warnings.simplefilter("ignore")
    with np.load(path) as arrays:
        X, y, X_test, y_test = (arrays[name] for name in ("X", "y", "X_test", "y_test"))
        regression = bool(arrays["regression"])
    model, columns = make(method, regression, X)
    some = np.concatenate([np.flatnonzero(y == c)[:20] for c in np.unique(y)][:20])
    fit(method, model, X[some], y[some], regression, columns)
    predict(model, X_test[:200], columns)
    model, columns = make(method, regression, X)
    before = psutil.Process().memory_info().rss
    start = time.perf_counter()
    fit(method, model, X, y, regression, columns)
    fitted = time.perf_counter()
    # On Linux in units of 1024 bytes.
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    begin = time.perf_counter()
    predicted = predict(model, X_test, columns)
    end = time.perf_counter()
    measured = {
        "error": float(error(predicted, y_test, regression)),
        "fit": fitted - start,
        "predict": end - begin,
        "memory": max(peak - before, 0) / 1e6,
    }
    print(json.dumps(measured))


def run(args):
    """Measure what the file of results does not have yet."""
    done = {(row["data"], row["rows"], row["method"]) for row in read(args.out)}
    installed = [
        method
        for method in args.methods
        if importlib.util.find_spec(MODULES.get(METHODS[method][1], METHODS[method][1]))
    ]
    for name in args.data:
        X, y, X_test, y_test, regression = part(name, args.rows)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "part.npz"
            np.savez(
                path, X=X, y=y, X_test=X_test, y_test=y_test, regression=regression
            )
            for method in installed:
                if (name, len(X), method) in done:
                    continue
                measured = separately(method, path, args.limit)
                label, package = METHODS[method]
                row = {
                    "data": name,
                    "rows": len(X),
                    "method": method,
                    **measured,
                    "version": f"{package} {version(package)}",
                    "machine": f"{processor()}, Python {platform.python_version()}",
                    "date": str(date.today()),
                }
                append(args.out, row)
                print(
                    f"{name:18} {len(X):6} {label:38} error {row['error']:8.4f}  "
                    f"fit {row['fit']:7.2f} s  predict {row['predict']:6.2f} s  "
                    f"{row['memory']:6.0f} MB  {row['note']}",
                    flush=True,
                )


def separately(method, path, limit):
    """Return what a process of its own measures, NaN for what it does not end."""
    nothing = dict.fromkeys(("error", "fit", "predict", "memory"), np.nan)
    command = [sys.executable, __file__, "--one", method, str(path)]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=limit)
    except subprocess.TimeoutExpired:
        return nothing | {"note": f"ended after {limit:.0f} s"}
    if ended.returncode:
        lines = ended.stderr.strip().splitlines() or [f"exit {ended.returncode}"]
        return nothing | {"note": lines[-1][:80]}
    return json.loads(ended.stdout.splitlines()[-1]) | {"note": ""}


def read(path):
    """Return the lines of the file of results, if there is one."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        row["rows"] = int(row["rows"])
        row |= {f: float(row[f]) for f in ("error", "fit", "predict", "memory")}
    return rows


def append(path, row):
    """Add a line to the file of results."""
    new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        if new:
            writer.writeheader()
        numbers = ("error", "fit", "predict", "memory")
        writer.writerow(row | {f: f"{row[f]:.4g}" for f in numbers})


def lines(rows):
    """Yield the lines of the table: of each set and size the methods by their error."""
    versions = dict.fromkeys(row["version"] for row in rows)
    machines = dict.fromkeys(f"{row['date']}, {row['machine']}" for row in rows)
    yield "; ".join(machines)
    yield ", ".join(versions)
    yield "Each fit a process of its own. Errors: %, or RMSE over deviation (tables)."
    cases = sorted({(row["data"], row["rows"]) for row in rows}, key=_order)
    for name, n in cases:
        yield ""
        yield f"{name}, {n} rows"
        yield f"{'':40}{'error':>10}{'fit, s':>10}{'predict, s':>12}{'memory, MB':>12}"
        found = [row for row in rows if (row["data"], row["rows"]) == (name, n)]
        for row in sorted(found, key=lambda row: np.nan_to_num(row["error"], nan=1e9)):
            label = METHODS[row["method"]][0]
            if np.isnan(row["error"]):
                yield f"{label:40}{row['note']:>44}"
                continue
            digits = 4 if name in datasets.TARGETS else 2
            yield (
                f"{label:40}{row['error']:10.{digits}f}{row['fit']:10.2f}"
                f"{row['predict']:12.2f}{row['memory']:12.0f}"
            )
    yield ""
    yield from short(rows, cases)


def short(rows, cases):
    """Yield, for each method, on how many sets it was best, and how far behind.

    Of the cases in which all methods ran.
    """
    known = {row["method"] for row in rows}
    ran = {case: set() for case in cases}
    for row in rows:
        ran[row["data"], row["rows"]].add(row["method"])
    cases = [case for case in cases if ran[case] == known]
    yield (
        "Errors over the best of the same rows, and seconds over EigenPro's; "
        f"{len(cases)} cases in which all ran"
    )
    yield f"{'':40}{'best on':>10}{'median':>10}{'worst':>10}{'time':>10}{'fits':>8}"
    cells = {(row["data"], row["rows"], row["method"]): row for row in rows}
    best = {
        case: np.nanmin([r["error"] for r in rows if (r["data"], r["rows"]) == case])
        for case in cases
    }
    for method, (label, _) in METHODS.items():
        found = [case for case in cases if (*case, method) in cells]
        ended = [case for case in found if cells[*case, method]["error"] >= 0]
        if not ended:
            continue
        ratios = [cells[*case, method]["error"] / best[case] for case in ended]
        times = [
            cells[*case, method]["fit"] / cells[*case, "eigenpro"]["fit"]
            for case in ended
            if (*case, "eigenpro") in cells
        ]
        yield (
            f"{label:40}{sum(r <= 1 for r in ratios):10}{np.median(ratios):10.3f}"
            f"{max(ratios):10.3f}{np.median(times):10.2f}{len(ended):5}/{len(found)}"
        )


def _order(case):
    return DATA.index(case[0]), case[1]


def plot(rows, path):
    """Plot error against training time, a panel for each set and size."""
    import matplotlib.pyplot as plt

    cases = sorted({(row["data"], row["rows"]) for row in rows}, key=_order)
    n_columns = 3
    n_lines = -(-(len(cases) + 1) // n_columns)
    fig, axes = plt.subplots(
        n_lines, n_columns, figsize=(9, 2.7 * n_lines), layout="constrained"
    )
    colors = dict(zip(METHODS, plt.colormaps["tab20"].colors))
    marks = {m: "o" if METHODS[m][1] == "eigenkern" else "^" for m in METHODS}
    for ax, (name, n) in zip(axes.flat, cases):
        for row in rows:
            if (row["data"], row["rows"]) == (name, n) and row["error"] >= 0:
                m = row["method"]
                ax.plot(row["fit"], row["error"], marks[m], color=colors[m], ms=8)
        ax.set_xscale("log")
        ax.set_title(f"{name}, {n} rows", fontsize=10)
        ax.set_xlabel("fit, s")
        unit = "RMSE / deviation" if name in datasets.TARGETS else "test error, %"
        ax.set_ylabel(unit)
        ax.margins(0.15)
    for ax in axes.flat[len(cases) :]:
        ax.axis("off")
    handles = [
        axes.flat[-1].plot([], [], marks[m], color=colors[m], label=METHODS[m][0])[0]
        for m in METHODS
        if any(row["method"] == m for row in rows)
    ]
    fig.legend(handles=handles, loc="outside lower center", ncols=2, fontsize=9)
    fig.savefig(path, dpi=100)


def report(path):
    """Write the table and the plot of the file of results."""
    rows = read(path)
    text = "\n".join(lines(rows)) + "\n"
    print(text)
    path.with_suffix(".txt").write_text(text)
    plot(rows, path.with_suffix(".png"))


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", nargs="+", default=DATA, choices=DATA)
    parser.add_argument("--methods", nargs="+", default=METHODS, choices=METHODS)
    parser.add_argument(
        "--rows",
        type=lambda text: None if text == "all" else int(text),
        default=8000,
        help="rows to train on at most, or 'all'",
    )
    parser.add_argument("--limit", type=float, default=300, help="seconds of a process")
    parser.add_argument("--out", type=Path, default=RESULTS / "compare.csv")
    parser.add_argument("--report", action="store_true", help="measure nothing")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        one(*args.one)
        return
    if not args.report:
        run(args)
    report(args.out)


if __name__ == "__main__":
    main()
