"""EigenPro on handwritten digits, compared with scikit-learn's SVC in the same run.

Trains on the 1797 digits that scikit-learn ships, or on MNIST if the environment
variable EIGENKERN_DATA names a folder with ``mnist.npz``. Prints what was chosen
automatically and why, and writes a plot of the convergence. Run ::

    make demo                       # or: python examples/demo.py
    make demo ARGS=--no-svc         # on MNIST, SVC alone takes several minutes
"""

import argparse
import os
import sys
import time
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.svm import SVC

from eigenkern import EigenProClassifier

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))
import datasets

PLOT = Path(__file__).parent / "demo_convergence.png"


class TestError:
    """Callback of scikit-learn that notes the test error after each epoch."""

    def __init__(self, X, y):
        self.X, self.y, self.errors, self.seconds = X, y, [], 0.0

    def setup(self, estimator, context):
        pass

    def teardown(self, estimator, context):
        pass

    def on_fit_task_begin(self, estimator, context, **ignored):
        pass

    def on_fit_task_end(self, estimator, context, *, fitted_estimator=None):
        if context.task_name == "epoch":
            start = time.perf_counter()
            score = fitted_estimator.score(self.X, self.y)
            self.errors.append(100 * (1 - score))
            self.seconds += time.perf_counter() - start


def load():
    """Return name, data and bandwidth."""
    if datasets.available("mnist"):
        return "MNIST", datasets.load("mnist"), 5.0
    X, y = load_digits(return_X_y=True)
    X_train, X_test, y_train, y_test = train_test_split(
        (X / 16).astype(np.float32), y, test_size=0.25, random_state=0, stratify=y
    )
    return "digits", datasets.Dataset(X_train, y_train, X_test, y_test), "median"


def timed(function, *args):
    start = time.perf_counter()
    result = function(*args)
    return result, time.perf_counter() - start


def compared(model, data):
    """Return seconds to fit and to predict, and the test score."""
    _, fit_time = timed(model.fit, data.X_train, data.y_train)
    score, predict_time = timed(model.score, data.X_test, data.y_test)
    return fit_time, predict_time, score


def chosen(model):
    """Rows of the table: what was chosen, and why."""
    return [
        ("bandwidth", f"{model.bandwidth_:.3g}", "median distance, or as given"),
        (
            "subsample",
            f"{model.subsample_size_} rows",
            "eigenvectors are computed on them",
        ),
        (
            "batch",
            f"{model.batch_size_} rows",
            f"up to {model.max_batch_size_} fill this machine; eight steps an epoch",
        ),
        (
            "eigenvectors",
            f"{model.n_components_}",
            "the fewest that allow the longest measured step",
        ),
        (
            "critical batch",
            f"{model.critical_batch_size_:.1f} -> "
            f"{model.adapted_critical_batch_size_:.0f} rows",
            "before and after preconditioning: beyond it rows are wasted",
        ),
        (
            "step",
            f"{model.step_size_:.3g}",
            f"0.8 of the longest stable one; beta {model.beta_:.3g}, top eigenvalue "
            f"{model.top_eigenvalue_:.3g}",
        ),
        (
            "acceleration",
            f"{model.acceleration_:.0f} x",
            "predicted, over plain gradient descent with the same batches",
        ),
        ("step halved", f"{model.n_step_halvings_} times", "by the guard"),
        (
            "kernel cache",
            f"{model.cache_size_:.0f} MB",
            "what fits in memory, where it pays; half the matrix suffices",
        ),
    ]


def plot(name, model, errors):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    epochs = np.arange(1, model.n_iter_ + 1)
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.5), layout="constrained")
    left.semilogy(epochs, model.loss_curve_, marker="o", markersize=4)
    left.set(xlabel="epoch", ylabel="mean squared residual", title="Training")
    right.plot(epochs, errors, marker="o", markersize=4, color="tab:orange")
    right.set(xlabel="epoch", ylabel="error in %", title="Test")
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.xaxis.get_major_locator().set_params(integer=True)
    figure.suptitle(f"EigenProClassifier on {name}, {model.kernel} kernel")
    figure.savefig(PLOT, dpi=120)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--no-svc", action="store_true")
    args = parser.parse_args()
    name, data, bandwidth = load()
    n, d = data.X_train.shape
    print(f"{name}: {n} training rows of {d} features, {len(data.X_test)} test rows\n")

    options = {"bandwidth": bandwidth, "max_iter": 10, "random_state": 0}
    model = EigenProClassifier("gaussian", **options)
    rows = []
    if n <= 8000:  # solved directly
        rows.append(("EigenPro, as it is", *compared(model, data)))
        model.set_params(algorithm="eigenpro2")
    test_error = TestError(data.X_test, data.y_test)
    model.set_params(verbose=1).set_callbacks(test_error)
    fit_time, *others = compared(model, data)
    label = f"EigenPro, {model.n_iter_} epochs"
    rows.append((label, fit_time - test_error.seconds, *others))

    print("\nChosen automatically:")
    for what, value, why in chosen(model):
        print(f"  {what:<15} {value:<18} {why}")

    if not args.no_svc:
        print("\nTraining SVC with the same kernel ...", flush=True)
        svc = SVC(C=10, gamma=0.5 / model.bandwidth_**2)
        rows.append(("SVC(C=10)", *compared(svc, data)))

    print(f"\n{'':<22}{'fit':>10}{'predict':>10}{'test error':>12}")
    for label, fit_time, predict_time, score in rows:
        print(
            f"{label:<22}{fit_time:>8.3f} s{predict_time:>8.3f} s"
            f"{100 * (1 - score):>10.2f} %"
        )
    plot(name, model, test_error.errors)
    print(f"\nConvergence plot: {os.path.relpath(PLOT)}")


if __name__ == "__main__":
    main()
