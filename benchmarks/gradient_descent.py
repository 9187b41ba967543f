"""What gradient descent leaves undone on MNIST: the numbers of the page about it.

Run ``python benchmarks/gradient_descent.py --write``: some four minutes on two cores.

Spectra of the kernel matrix, and on 10 000 rows (gaussian kernel, bandwidth 5) training
loss and test error of plain gradient descent and of EigenPro: with all rows in every
step, and in automatic batches.
"""

import argparse
import platform
import time
from datetime import date
from pathlib import Path

import numpy as np
from callbacks import Timed
from datasets import load
from kernel_product import processor

from eigenkern import EigenProClassifier
from eigenkern.kernels import Gaussian, Laplacian

RESULTS = Path(__file__).parent / "results"
N_ROWS = 10_000


class AtEpochs(Timed):
    """Callback: training loss and test error (%) after some epochs."""

    def __init__(self, data, epochs):
        self.data, self.epochs, self.rows, self.n_done = data, epochs, {}, 0

    def on_fit_task_end(self, estimator, context, *, fitted_estimator=None):
        if context.task_name != "epoch":
            return
        self.n_done += 1
        if self.n_done in self.epochs:
            X, y = self.data.X_train, self.data.y_train
            residual = fitted_estimator.decision_function(X) - np.eye(10)[y]
            error = 100 * (1 - fitted_estimator.score(*self.data[2:]))
            self.rows[self.n_done] = np.mean(residual**2), error


def fit(data, epochs, **parameters):
    """Return a model without early stopping, and its losses and errors."""
    callback = AtEpochs(data, epochs)
    model = EigenProClassifier(
        "gaussian",
        max_iter=epochs[-1],
        tol=0,
        alpha=0.0,
        random_state=0,
        **{"algorithm": "eigenpro2", "bandwidth": 5.0} | parameters,
    )
    model.set_callbacks(callback).fit(data.X_train, data.y_train)
    return model, callback.rows


def spectra(data):
    """Yield lines about the eigenvalues of kernel matrices."""
    yield "\nlambda_1 / lambda_(q+1), gaussian, bandwidth 5"
    numbers = (10, 20, 40, 80, 160, 320)
    yield f"{'rows':>6} " + " ".join(f"{'q = ' + str(q):>8}" for q in numbers)
    for n in (2000, 5000):
        values = np.linalg.eigvalsh(Gaussian(5.0)(data.X_train[:n]))[::-1]
        ratios = " ".join(f"{values[0] / values[q]:8.0f}" for q in numbers)
        yield f"{n:6d} {ratios}"
    reached = [int(np.sum(values > values[0] / (2 * t))) for t in (10, 100)]
    yield f"directions reached of 5000: {reached[0]} after 10 iterations, "
    yield f"    {reached[1]} after 100"
    values = np.linalg.eigvalsh(Laplacian(10.0)(data.X_train[:2000]))[::-1]
    yield "laplacian, bandwidth 10, 2000 rows: " + ", ".join(
        f"{values[0] / values[q]:.0f} (q = {q})" for q in (1, 40)
    )


def descents(data):
    """Yield lines about losses and errors."""
    head = f"{'':>6} {'plain: loss':>12} {'error %':>8}"
    head += f" {'EigenPro: loss':>15} {'error %':>8}"
    cases = (
        ("all rows in every step", "iterations", (1, 10, 80, 320, 1280), 80, N_ROWS),
        ("automatic batches", "epochs", (1, 5, 20), 20, "auto"),
    )
    for name, unit, epochs, last, batch_size in cases:
        yield f"\n{N_ROWS} rows, {name}; {unit}"
        yield head
        plain = fit(data, epochs, algorithm="sgd", batch_size=batch_size)[1]
        few = tuple(t for t in epochs if t <= last)
        model, found = fit(data, few, batch_size=batch_size)
        for t in epochs:
            cells = [plain[t], found[t]] if t in found else [plain[t]]
            (loss, error), *rest = cells
            line = f"{t:6d} {loss:12.4f} {error:8.1f}"
            for loss, error in rest:
                line += f" {loss:15.2g} {error:8.1f}"
            yield line
        yield (
            f"EigenPro: batch_size_ {model.batch_size_}, n_components_ "
            f"{model.n_components_}, subsample_size_ {model.subsample_size_}, "
            f"lambda_1 / lambda_(q+1) of the subsample "
            f"{model.eigenvalues_[0] / model.eigenvalues_[-1]:.0f}, "
            f"acceleration_ {model.acceleration_:.0f}"
        )


def accelerations(data):
    """Yield a line: acceleration_ by bandwidth."""
    found = []
    for bandwidth in (10.0, 5.0, 2.0, 1.0):
        model = fit(data, (1,), bandwidth=bandwidth)[0]
        found.append(f"{bandwidth:.0f}: {model.acceleration_:.3g}")
    yield "\nacceleration_ by bandwidth: " + ", ".join(found)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="write results/")
    args = parser.parse_args()
    data, start = load("mnist"), time.perf_counter()
    data = data._replace(X_train=data.X_train[:N_ROWS], y_train=data.y_train[:N_ROWS])
    lines = [
        f"python benchmarks/gradient_descent.py; {date.today()}; "
        f"{platform.machine()}, {processor()}, NumPy {np.__version__}",
    ]
    for part in (spectra, descents, accelerations):
        for line in part(data):
            print(line, flush=True)
            lines.append(line)
    lines.append(f"({time.perf_counter() - start:.0f} s)")
    if args.write:
        (RESULTS / "gradient_descent.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
