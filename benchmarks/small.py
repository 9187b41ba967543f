"""Fits of 200 to 8000 rows, and a grid search, beside scikit-learn in the same run.

Run ::

    EIGENKERN_DATA=/folder/of/npz python benchmarks/small.py --write

sizes    seconds of a fit with defaults, best of three: digits-like rows of 16 features
         and ten classes in float32, every estimator, ``SVC(C=10)`` and ``KernelRidge``.
errors   held-out error of EigenPro with defaults, by its epochs
         (``algorithm="eigenpro2"``) and by the direct solution, on real data sets.
centers  the same on centers (``algorithm="eigenpro4"``), and log losses of classes.
search   ``GridSearchCV`` of the digits over 5 bandwidths and 5 folds, with one and two
         processes, and of ``SVC(C=10)`` over gamma.
linear   linear EigenPro of one epoch at most on 10000 x 2000 features, which is solved
         directly, and ``RidgeClassifier``.
"""

import argparse
import platform
import time
import warnings
from datetime import date
from pathlib import Path

import datasets
import numpy as np
from kernel_product import processor
from sklearn.datasets import load_digits, make_classification
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import RidgeClassifier
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV
from sklearn.svm import SVC

from eigenkern import (
    DSGClassifier,
    EigenProClassifier,
    EigenProRegressor,
    FalkonLikeClassifier,
    LinearEigenProClassifier,
    NystromClassifier,
    NystromRegressor,
    NytroClassifier,
)

RESULTS = Path(__file__).parent / "results"
SIZES = (200, 500, 1000, 2000, 4000, 6000, 7300, 8000)


def digits_like(n):
    """Return rows of ten classes, each of four clusters, and their labels."""
    rng = np.random.RandomState(0)
    clusters = 1.3 * rng.standard_normal((40, 16))
    nearest = rng.randint(40, size=n)
    X = clusters[nearest] + 0.7 * rng.standard_normal((n, 16))
    return X.astype(np.float32), nearest % 10


def best_of(function, n=3):
    """Return the least seconds of `n` calls, of one call that takes long."""
    seconds = []
    while len(seconds) < n and sum(seconds) < 30:
        start = time.perf_counter()
        function()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def sizes():
    """Yield lines: seconds of a fit by rows."""
    models = {
        "EigenPro": EigenProClassifier(random_state=0),
        "direct": NystromClassifier(alpha=1e-6),
        "ridge path": NystromClassifier(alpha="path", random_state=0),
        "NYTRO": NytroClassifier(random_state=0),
        "Falkon": FalkonLikeClassifier(random_state=0),
        "DSG": DSGClassifier(random_state=0),
        "linear": LinearEigenProClassifier(random_state=0),
        "SVC": SVC(C=10),
        "KernelRidge": KernelRidge(kernel="rbf", gamma=0.01),
    }
    yield "Seconds of a fit; direct is NystromClassifier(alpha=1e-6) on all rows."
    yield "  rows" + "".join(f"{name:>12}" for name in models) + "  EigenPro / direct"
    for n in SIZES:
        X, y = digits_like(n)
        row = []
        for name, model in models.items():
            target = np.eye(10)[y] if name == "KernelRidge" else y
            row.append(best_of(lambda m=model, t=target, X=X: m.fit(X, t)))
        ratio = row[0] / row[1]
        yield f"{n:6d}" + "".join(f"{t:12.3f}" for t in row) + f"{ratio:19.2f}"
    X, y = digits_like(8000 + 3700)
    del models["KernelRidge"]
    yield "Fitted to 8000 of such rows: seconds to predict 3700 others, error in %."
    seconds, wrong = [], []
    for model in models.values():
        model.fit(X[:8000], y[:8000])
        seconds.append(best_of(lambda m=model: m.predict(X[8000:])))
        wrong.append(100 * (1 - model.score(X[8000:], y[8000:])))
    yield "      " + "".join(f"{t:12.3f}" for t in seconds)
    yield "      " + "".join(f"{error:12.2f}" for error in wrong)


def part(name, n):
    """Return training rows and test rows of a data set, seed 0."""
    data = datasets.parts(name)
    rng = np.random.RandomState(0)
    train = rng.permutation(len(data.X_train))[:n]
    test = rng.permutation(len(data.X_test))[:3000]
    return (
        data.X_train[train],
        data.y_train[train],
        data.X_test[test],
        data.y_test[test],
    )


def errors():
    """Yield lines: errors by epochs and directly."""
    yield "Error in %, or 100 (1 - R2): EigenPro 2 by epochs / EigenPro with defaults /"
    yield "direct, NystromClassifier(alpha=1e-6) or the regressor, on all rows."
    yield f"{'rows':20}" + "".join(f"{n:>24}" for n in SIZES[:-3] + (7000,))
    for name in (*datasets.TARGETS, *datasets.IMAGES, *datasets.CLASSES):
        pair = (EigenProClassifier, NystromClassifier)
        if name in datasets.TARGETS:
            pair = (EigenProRegressor, NystromRegressor)
        line = f"{name:20}"
        for n in SIZES[:-3] + (7000,):
            X, y, X_test, y_test = part(name, n)
            if len(X) < n:
                continue
            models = [
                pair[0](algorithm="eigenpro2", random_state=0),
                pair[0](random_state=0),
                pair[1](alpha=1e-6, random_state=0),
            ]
            found = [100 * (1 - m.fit(X, y).score(X_test, y_test)) for m in models]
            line += f"{' / '.join(f'{error:.2f}' for error in found):>24}"
        yield line


def centers():
    """Yield lines: errors on centers, by epochs and directly."""
    sizes = (1000, 200), (1000, 500), (4000, 500), (4000, 2000)
    yield "Error in %, or 100 (1 - R2), and log loss: EigenPro 4 by epochs / directly."
    heads = (f"{n} rows, {p} centers" for n, p in sizes)
    yield f"{'':20}" + "".join(f"{head:>32}" for head in heads)
    for name in (*datasets.TARGETS, *datasets.IMAGES, *datasets.CLASSES):
        make = EigenProRegressor if name in datasets.TARGETS else EigenProClassifier
        line = f"{name:20}"
        for n, p in sizes:
            X, y, X_test, y_test = part(name, n)
            found, losses = [], []
            for algorithm in ("eigenpro4", "auto"):
                model = make(n_centers=p, algorithm=algorithm, random_state=0)
                score = model.fit(X, y).score(X_test, y_test)
                found.append(f"{100 * (1 - score):.2f}")
                if make is EigenProClassifier:
                    told = log_loss(
                        y_test, model.predict_proba(X_test), labels=model.classes_
                    )
                    losses.append(f"{told:.3f}")
            cell = " / ".join(found) + ("  " + " / ".join(losses) if losses else "")
            line += f"{cell:>32}"
        yield line


def search():
    """Yield lines: seconds of a grid search."""
    X, y = load_digits(return_X_y=True)
    X = (X / 16).astype(np.float32)

    def seconds(model, grid, n_jobs):
        found = GridSearchCV(model, grid, cv=5, n_jobs=n_jobs)
        elapsed = best_of(lambda: found.fit(X, y))
        return elapsed, found.best_score_

    bandwidths = {"bandwidth": [1.0, 1.5, 2.0, 3.0, 4.0]}
    gammas = {"gamma": [0.5 / s**2 for s in bandwidths["bandwidth"]]}
    svc, svc_score = seconds(SVC(C=10), gammas, 1)
    yield "GridSearchCV of the digits, 5 values, 5 folds: seconds, over SVC, score."
    yield f"{'SVC(C=10), gamma':32}{svc:6.2f} {1:6.2f}  {svc_score:.4f}"
    for n_jobs in (1, 2):
        model = EigenProClassifier("gaussian", random_state=0)
        ours, score = seconds(model, bandwidths, n_jobs)
        name = f"EigenPro, bandwidth, {n_jobs} process" + "es" * (n_jobs - 1)
        yield f"{name:32}{ours:6.2f} {ours / svc:6.2f}  {score:.4f}"


def linear():
    """Yield lines: linear EigenPro of one epoch at most."""
    X, y = make_classification(10000, 2000, n_informative=50, random_state=0)
    yield "10000 x 2000 features: seconds of max_iter=1, of RidgeClassifier, and ratio."
    for dtype in (np.float32, np.float64):
        A = X.astype(dtype)
        model = LinearEigenProClassifier(max_iter=1, random_state=0)
        ours, ridge = [], []
        for _ in range(3):  # alternating
            ours.append(best_of(lambda m=model, A=A: m.fit(A, y), 1))
            ridge.append(best_of(lambda A=A: RidgeClassifier().fit(A, y), 1))
        ours, ridge = min(ours), min(ridge)
        yield f"{dtype.__name__}  {ours:.2f}  {ridge:.2f}  {ours / ridge:.2f}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--part", choices=["sizes", "errors", "centers", "search", "linear"]
    )
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    parts = {"sizes": sizes, "search": search, "linear": linear}
    parts |= {"errors": errors, "centers": centers}
    for name, lines in parts.items():
        if args.part not in (None, name):
            continue
        report = [f"{date.today()}, {processor()}, Python {platform.python_version()}"]
        print(report[0])
        for line in lines():
            print(line, flush=True)
            report.append(line)
        if args.write:
            (RESULTS / f"small_{name}.txt").write_text("\n".join(report) + "\n")


if __name__ == "__main__":
    main()
