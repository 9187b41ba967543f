"""DSG with its defaults: seconds and errors, beside SVC and unbounded features.

Run ::

    EIGENKERN_DATA=/folder/of/npz python benchmarks/dsg_default.py --write

First a set of 16 features and ten classes, 7300 rows in float32, in turns with ``SVC``.
Then 6000 rows of real data sets, standardised. "unbounded" is the algorithm as in the
papers, with the features of every step kept: ``max_features=None, tol=1e-4,
block_size=128``. Its errors are the bar.
"""

import argparse
import platform
import time
from datetime import date
from pathlib import Path

import datasets
import numpy as np
from kernel_product import processor
from sklearn.datasets import make_classification
from sklearn.svm import SVC

from eigenkern import DSGClassifier, DSGRegressor

REAL = ("kin8nm", "a9a", "california_housing", "ijcnn1", "coil2000")
N_TRAIN, N_TEST = 6000, 10_000
UNBOUNDED = {"max_features": None, "tol": 1e-4, "block_size": 128}
RESULTS = Path(__file__).parent / "results" / "dsg_default.txt"


def ten_classes():
    """Return 7300 training and 3700 test rows."""
    X, y = make_classification(
        11_000,
        16,
        n_informative=14,
        n_redundant=2,
        n_classes=10,
        n_clusters_per_class=3,
        class_sep=2.5,
        random_state=0,
    )
    X = ((X - X.mean(axis=0)) / X.std(axis=0)).astype(np.float32)
    return datasets.Dataset(X[:7300], y[:7300], X[7300:], y[7300:])


def real(name):
    """Return some random rows of a data set."""
    data, rng = datasets.load(name, standardize=True), np.random.RandomState(0)
    train = rng.permutation(len(data.X_train))[:N_TRAIN]
    test = rng.permutation(len(data.X_test))[:N_TEST]
    parts = data.X_train[train], data.y_train[train], data.X_test[test]
    return datasets.Dataset(*parts, data.y_test[test])


def measure(model, data):
    """Return the least seconds of two fits and of two predictions, and the error.

    The error is in percent, or the RMSE over the deviation of the targets.
    """
    seconds = np.empty((2, 2))
    for row in seconds:
        start = time.perf_counter()
        model.fit(data.X_train, data.y_train)
        row[0] = time.perf_counter() - start
        start = time.perf_counter()
        predicted = model.predict(data.X_test)
        row[1] = time.perf_counter() - start
    if isinstance(model, DSGRegressor):
        error = np.sqrt(np.mean((predicted - data.y_test) ** 2)) / data.y_test.std()
    else:
        error = 100 * np.mean(predicted != data.y_test)
    return *seconds.min(axis=0), error


def lines():
    yield f"{'data':>20} {'model':>10} {'fit s':>8} {'predict s':>10} {'error':>8}"
    for name in ("ten classes", *REAL):
        data = ten_classes() if name == "ten classes" else real(name)
        classes = len(np.unique(data.y_train)) <= 20
        made = DSGClassifier if classes else DSGRegressor
        models = {
            "default": made(random_state=0),
            "unbounded": made(random_state=0, **UNBOUNDED),
        }
        if name == "ten classes":
            models["SVC(C=10)"] = SVC(C=10)
        for label, model in models.items():
            fit, predict, error = measure(model, data)
            line = f"{name:>20} {label:>10} {fit:8.2f} {predict:10.3f} {error:8.3f}"
            if label != "SVC(C=10)":
                line += f"  {model.t_} steps, {model.n_features_used_} frequencies"
            yield line


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="keep the results")
    args = parser.parse_args()
    written = [
        f"python benchmarks/dsg_default.py; {date.today()}; "
        f"{platform.machine()}, {processor()}, NumPy {np.__version__}"
    ]
    print(written[0], flush=True)
    for line in lines():
        print(line, flush=True)
        written.append(line)
    if args.write:
        RESULTS.write_text("\n".join(written) + "\n")


if __name__ == "__main__":
    main()
