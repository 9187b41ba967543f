"""Kernel logistic regression beside calibrated least squares, boosting and features.

Run ::

    EIGENKERN_DATA=/folder/of/npz python benchmarks/logistic.py --write
    python benchmarks/logistic.py --data fashion_mnist covtype_sub93k    # while made

Rows: 10000 of the training part at random (fewer where there are fewer), at most 10000
of the test part; columns standardized but for images. All models on centers have 1000.
ECE is the expected calibration error of the most probable class in 15 bins. Times are
of the fit, best of one: the machine is in the first line.

nystrom      ``NystromClassifier(loss="log_loss", alpha="path", n_centers=1000)``
falkon       ``FalkonLikeClassifier(loss="log_loss", alpha=a, n_centers=1000)`` with the
             alpha that the line before has found
calibrated   ``CalibratedClassifierCV(NystromClassifier(alpha="path", ...), cv=5)``
boosting     ``HistGradientBoostingClassifier()``; not on images, where it took more
             than 13 minutes
features     ``LogisticRegression()`` on scikit-learn's ``Nystroem`` features: gaussian
             kernel of the median distance, 1000 components
"""

import argparse
import time
import warnings
from datetime import date
from pathlib import Path

import datasets
import numpy as np
from kernel_product import processor
from sklearn.calibration import CalibratedClassifierCV
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.kernel_approximation import Nystroem
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.pipeline import make_pipeline

from eigenkern import FalkonLikeClassifier, NystromClassifier
from eigenkern.kernels import median_distance

RESULTS = Path(__file__).parent / "results"
DATA = ("a9a", "ijcnn1", "coil2000", "mnist")
N, N_CENTERS, N_BINS = 10_000, 1000, 15


def part(name):
    """Return X, y, X_test, y_test."""
    images = name in ("mnist", "fashion_mnist")
    data = datasets.load(name, standardize=not images)
    rng = np.random.RandomState(0)
    train = rng.permutation(len(data.X_train))[:N]
    test = rng.permutation(len(data.X_test))[:N]
    return (
        data.X_train[train],
        data.y_train[train],
        data.X_test[test],
        data.y_test[test],
    )


def calibration_error(P, correct):
    """Return the expected calibration error of the most probable class."""
    top = P.max(axis=1)
    bins = np.minimum((top * N_BINS).astype(int), N_BINS - 1)
    gaps = np.bincount(bins, weights=correct - top, minlength=N_BINS)
    return np.abs(gaps).sum() / len(top)


def models(X):
    """Yield names and models, the Falkon-like one with the alpha of the first."""
    shared = {"n_centers": N_CENTERS, "random_state": 0}
    nystrom = NystromClassifier(loss="log_loss", alpha="path", **shared)
    yield "nystrom", nystrom
    alpha = nystrom.alpha_
    yield "falkon", FalkonLikeClassifier(loss="log_loss", alpha=alpha, **shared)
    squared = NystromClassifier(alpha="path", **shared)
    yield "calibrated", CalibratedClassifierCV(squared, cv=5)
    if X.shape[1] < 500:
        yield "boosting", HistGradientBoostingClassifier(random_state=0)
    gamma = 0.5 / median_distance(X, np.random.RandomState(0)) ** 2
    features = Nystroem(gamma=gamma, n_components=N_CENTERS, random_state=0)
    yield "features", make_pipeline(features, LogisticRegression(max_iter=300))


def measure(name):
    """Yield the lines of a data set."""
    X, y, X_test, y_test = part(name)
    yield f"{name}: {len(X)} x {X.shape[1]}, {len(np.unique(y))} classes"
    for method, model in models(X):
        start = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.fit(X, y)
        seconds = time.perf_counter() - start
        P = model.predict_proba(X_test).astype(np.float64)
        P /= P.sum(axis=1, keepdims=True)  # float32 rounds
        correct = model.classes_[P.argmax(axis=1)] == y_test
        alpha = getattr(model, "alpha_", getattr(model, "alpha", None))
        note = "" if alpha is None else f"  alpha {alpha:.1e}"
        yield (
            f"  {method:12} log loss {log_loss(y_test, P):.4f}  "
            f"ECE {100 * calibration_error(P, correct):5.2f} %  "
            f"error {100 * (1 - correct.mean()):5.2f} %  fit {seconds:6.2f} s{note}"
        )


def main():
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", nargs="+", default=DATA)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    lines = [f"{processor()}, {date.today()}"]
    print(lines[0], flush=True)
    for name in arguments.data:
        for line in measure(name):
            lines.append(line)
            print(line, flush=True)
    if arguments.write:
        (RESULTS / "logistic.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
