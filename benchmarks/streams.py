"""Streams in any order, beside shuffled ones: `partial_fit` and `fit_batches`.

Each data set, or a made one where EIGENKERN_DATA lacks it, is learned once in pieces,
shuffled, sorted by the target, sorted by a feature, or drifting slowly. A line has the
score (R^2, or the fraction of right labels) on new rows of each order, and a star where
the model warned that it got unshuffled data, or learned nothing from a piece.

Run ``EIGENKERN_DATA=/folder/of/npz python benchmarks/streams.py --write``: some two
minutes on two cores. Constants were chosen on `CHOSEN_ON`.
"""

import argparse
import platform
import warnings
from datetime import date
from pathlib import Path

import numpy as np
from datasets import available, parts
from kernel_product import processor
from sklearn.base import clone, is_classifier
from sklearn.datasets import make_friedman1, make_friedman2

from eigenkern import (
    DSGClassifier,
    DSGRegressor,
    EigenProClassifier,
    EigenProRegressor,
    LinearEigenProClassifier,
    LinearEigenProRegressor,
)

RESULTS = Path(__file__).parent / "results"
N_ROWS, N_TEST, SLACK = 4000, 2000, 0.05
MADE = {"friedman1": (make_friedman1, 1.0), "friedman2": (make_friedman2, 50.0)}
TARGETS = ("cpusmall", "kin8nm", "california_housing", "bike_hour", *MADE)
CLASSES = ("a9a", "covtype_sub93k", "ijcnn1", "mnist", "fashion_mnist")
CHOSEN_ON = (*TARGETS[:4], *CLASSES[:3])
ORDERS = {
    "shuffled": 250,
    "by target": 250,
    "by feature": 250,
    "target, 1000": 1000,
    "drift": 500,
}
OPTIONS = {"n_centers": 200, "bandwidth": "median", "random_state": 0}
REGRESSORS = {
    "gaussian": EigenProRegressor("gaussian", **OPTIONS),
    "laplacian": EigenProRegressor(**OPTIONS),
    "linear": LinearEigenProRegressor(random_state=0),
    "random features": DSGRegressor(max_features=2048, random_state=0),
}
CLASSIFIERS = {
    "laplacian": EigenProClassifier(**OPTIONS),
    "linear": LinearEigenProClassifier(random_state=0),
    "random features": DSGClassifier(max_features=2048, random_state=0),
}


def load(name):
    """Return standardized rows and targets to learn and to score."""
    if name in MADE:
        make, noise = MADE[name]
        X, y = make(N_ROWS + N_TEST, noise=noise, random_state=7)
        found = X[:N_ROWS], y[:N_ROWS], X[N_ROWS:], y[N_ROWS:]
    else:
        rng, data = np.random.default_rng(0), parts(name)
        rows = rng.permutation(len(data.y_train))[:N_ROWS]
        test = rng.permutation(len(data.y_test))[:N_TEST]
        found = data.X_train[rows], data.y_train[rows], data.X_test[test]
        found = *found, data.y_test[test]
    X, y, X_test, y_test = found
    X, X_test = X.astype(float), X_test.astype(float)
    mean, scale = X.mean(axis=0), X.std(axis=0)
    scale[scale == 0] = 1.0
    return (X - mean) / scale, y, (X_test - mean) / scale, y_test


def ordered(X, y, order):
    """Return the places of the rows in an order."""
    rng = np.random.RandomState(1)
    if order == "shuffled":
        return np.arange(len(y))
    if order == "by feature":
        return np.argsort(X[:, 0], kind="stable")
    if order == "drift":
        values = X @ rng.standard_normal(X.shape[1])
        return np.argsort(values + values.std() * rng.standard_normal(len(y)))
    return np.argsort(y, kind="stable")


def scored(model, X, y, size, test, *, batches):
    """Return the score of a stream of pieces, and whether the model warned."""
    model, options = clone(model), {}
    if is_classifier(model):
        options["classes"] = np.unique(y)
    places = [slice(i, i + size) for i in range(0, len(y), size)]
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        if batches:
            model.fit_batches([(X[part], y[part]) for part in places], **options)
        else:
            for part in places:
                model.partial_fit(X[part], y[part], **options)
                options = {}
    return model.score(*test), len(said) > 0


def report(names):
    """Yield the lines of the table, and what they come to."""
    yield f"{'data':20}{'model':24}" + "".join(f"{order:>14}" for order in ORDERS)
    counts = {}
    for name in names:
        X, y, *test = load(name)
        models = REGRESSORS if name in TARGETS else CLASSIFIERS
        cases = [(label, model, False) for label, model in models.items()]
        many = clone(models["laplacian"]).set_params(max_iter=5)
        for label, model, batches in [*cases, ("laplacian, fit_batches", many, True)]:
            cells, shuffled = "", None
            for order, size in ORDERS.items():
                o = ordered(X, y, order)
                score, warned = scored(model, X[o], y[o], size, test, batches=batches)
                shuffled = score if shuffled is None else shuffled
                cells += f"{score:13.3f}{' *'[warned]}"
                count = counts.setdefault(name in CHOSEN_ON, [0, 0, 0])
                near = score > shuffled - SLACK
                count[:] = count[0] + 1, count[1] + near, count[2] + (near or warned)
            yield f"{name:20}{label:24}{cells}"
    yield ""
    for chosen, (n, near, told) in sorted(counts.items(), reverse=True):
        sets = "constants were chosen on" if chosen else "kept aside"
        yield (
            f"{sets:26}{n:4} streams: {near} within {SLACK} of the shuffled one, "
            f"{told} within it or warned"
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", nargs="*", default=[*TARGETS, *CLASSES])
    parser.add_argument("--write", action="store_true", help="keep the results")
    args = parser.parse_args()
    lines = [f"{date.today()}; {platform.machine()}, {processor()}"]
    print(lines[0])
    names = [name for name in args.data if name in MADE or available(name)]
    for line in report(names):
        print(line, flush=True)
        lines.append(line)
    if args.write:
        (RESULTS / "streams.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
