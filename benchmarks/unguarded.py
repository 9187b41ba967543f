"""EigenPro 2 and 3 by their formulas, with a common setting, beside this package's.

Run ``EIGENKERN_DATA=/folder/of/npz python benchmarks/unguarded.py --write``.

EigenPro is often compared with in one fixed setting: 12000 rows for the eigenvectors
(s), 100 of them (r), the batch and the step from the eigenvalues of that subsample,
nothing measured and nothing guarded. So it was in the comparison of Rathore et al.,
"Have ASkotch: A neat solution for large-scale kernel ridge regression"
(arXiv:2407.10070), whose public code gives s, r, the exponent 0.95 of EigenPro 2, the
largest batch n / 10 and ten inner iterations of each projection of EigenPro 3; that is
written anew here in NumPy. Both then learn for five epochs with the same
kernel: the Gaussian with the bandwidth 0.1 of that comparison for covtype, with 5 for
images, otherwise Matern-5/2 with the bandwidth sqrt(d), as there for molecules.

The table has the squared residual on training rows over the variance of the targets
after some epochs, and the test error at the end; this package's EigenPro has its own
batch, step and preconditioner, no penalty and no early end.
"""

import argparse
import platform
import warnings
from datetime import date
from pathlib import Path

import datasets
import numpy as np
from kernel_product import processor
from scipy.sparse.linalg import eigsh
from sklearn.exceptions import ConvergenceWarning

from eigenkern import EigenProRegressor
from eigenkern.kernels import Gaussian, Matern

RESULTS = Path(__file__).parent / "results"
N_ROWS, N_CENTERS, N_TEST = 20_000, 5000, 5000
EPOCHS = (1, 2, 5)
S, R, GAMMA, INNER = 12_000, 100, 0.95, 10
DATA = (*datasets.TARGETS, "a9a", "ijcnn1", "covtype_sub93k", *datasets.IMAGES)


def part(name):
    """Return X, Y (columns of -1 and 1 for classes), X_test, Y_test and a kernel."""
    X, y, X_test, y_test = datasets.parts(name)
    rng = np.random.RandomState(0)
    train, test = (
        rng.permutation(len(X))[:N_ROWS],
        rng.permutation(len(X_test))[:N_TEST],
    )
    if name in datasets.TARGETS:
        Y, Y_test = y[train, None], y_test[test, None]
        mean, deviation = Y.mean(dtype=np.float64), Y.std(dtype=np.float64)
        Y, Y_test = (((a - mean) / deviation).astype(np.float32) for a in (Y, Y_test))
    else:
        classes = np.unique(y) if len(np.unique(y)) > 2 else np.unique(y)[1:]
        Y, Y_test = (
            np.where(a[:, None] == classes, 1, -1).astype(np.float32)
            for a in (y[train], y_test[test])
        )
    X, X_test = X[train], X_test[test]
    if name == "covtype_sub93k":  # columns between 0 and 1, as in that comparison
        low, high = X.min(axis=0), X.max(axis=0)
        width = np.where(high > low, high - low, 1)
        return (X - low) / width, Y, (X_test - low) / width, Y_test, Gaussian(0.1)
    kernel = (
        Gaussian(5.0)
        if name in datasets.IMAGES
        else Matern(float(np.sqrt(X.shape[1])), nu=2.5)
    )
    return X, Y, X_test, Y_test, kernel


class Formulas:
    """Eigenvectors of a subsample, batch and step by the formulas of the papers."""

    def __init__(self, kernel, X, rng, *, gamma, batch_size=None):
        n, s = len(X), min(S, len(X))
        self.rows = rng.choice(n, s, replace=False)
        K = kernel(X[self.rows], X[self.rows]) / s
        values, vectors = eigsh(K, k=R + 1, which="LA", v0=np.ones(s, K.dtype))
        values, vectors = values[::-1].astype(K.dtype), vectors[:, ::-1]
        tail, values = values[-1], values[:-1]
        self.vectors = vectors[:, :-1] / np.sqrt(s)
        self.scale = (1 - (tail / values) ** gamma) / values
        top = values[0] * (tail / values[0]) ** gamma
        beta = float(K.diagonal().max() * s)
        critical = int(beta / top + 1)
        self.batch_size = batch_size or min(critical, n // 10)
        m = self.batch_size
        self.step = 1 / beta if m < critical else 2 / (beta + (m - 1) * top)

    def correction(self, K, G):
        """Return what the rows of the subsample get, K of them and the batch."""
        return self.vectors @ (self.scale[:, None] * (self.vectors.T @ (K @ G)))


def eigenpro2(kernel, X, Y, formulas, rng, coef, n_batches=None):
    """Run an epoch of EigenPro 2, or some batches, on coef in place."""
    order = rng.permutation(len(X))
    for start in range(0, len(X), formulas.batch_size)[:n_batches]:
        batch = order[start : start + formulas.batch_size]
        G = kernel(X[batch], X) @ coef - Y[batch]
        coef[batch] -= formulas.step * G
        K = kernel(X[formulas.rows], X[batch])
        coef[formulas.rows] += formulas.step * formulas.correction(K, G)


def eigenpro3(kernel, X, Y, Z, formulas, projection, rng, coef):
    """Run an epoch of EigenPro 3, each projection by some steps of EigenPro 2."""
    order = rng.permutation(len(X))
    K_sub = kernel(Z, X[formulas.rows])
    for start in range(0, len(X), formulas.batch_size):
        batch = order[start : start + formulas.batch_size]
        K = kernel(X[batch], Z)
        G = K @ coef - Y[batch]
        h = K.T @ G
        h -= K_sub @ formulas.correction(kernel(X[formulas.rows], X[batch]), G)
        projected = np.zeros_like(coef)
        eigenpro2(kernel, Z, h, projection, rng, projected, INNER)
        coef -= formulas.step * projected


class Track:
    """Training residual after some epochs, and the test error at the end."""

    def __init__(self, kernel, X, Y, X_test, Y_test):
        self.kernel, self.X, self.Y = kernel, X[:2000], Y[:2000]
        self.X_test, self.Y_test = X_test, Y_test
        self.variance = np.mean((Y - Y.mean(axis=0)) ** 2)

    def residual(self, F):
        return float(np.mean((F - self.Y) ** 2, dtype=np.float64) / self.variance)

    def error(self, F):
        if len(np.unique(self.Y_test)) > 2:
            return float(np.sqrt(np.mean((F - self.Y_test) ** 2)) / self.Y_test.std())
        if F.shape[1] == 1:
            return float(100 * np.mean((F > 0) != (self.Y_test > 0)))
        return float(100 * np.mean(F.argmax(axis=1) != self.Y_test.argmax(axis=1)))

    def run(self, epoch, Z, coef):
        """Return residuals and error of a function that runs one epoch on coef."""
        residuals = []
        for i in range(max(EPOCHS)):
            epoch(coef)
            if i + 1 in EPOCHS:
                residuals.append(self.residual(self.kernel(self.X, Z) @ coef))
        return residuals, self.error(self.kernel(self.X_test, Z) @ coef)

    def ours(self, X, Y, **parameters):
        """Return residuals, the error and the model of this package."""
        residuals = []
        for n_epochs in EPOCHS:
            model = EigenProRegressor(
                self.kernel,
                max_iter=n_epochs,
                tol=0,
                alpha=0.0,
                random_state=0,
                **parameters,
            ).fit(X, Y)
            F = model.predict(self.X).reshape(self.Y.shape)
            residuals.append(self.residual(F))
        F = model.predict(self.X_test).reshape(self.Y_test.shape)
        return residuals, self.error(F), model


def measure(name):
    """Yield the lines of a data set."""
    X, Y, X_test, Y_test, kernel = part(name)
    track = Track(kernel, X, Y, X_test, Y_test)
    yield f"{name}, {len(X)} x {X.shape[1]}, {kernel}"

    rng = np.random.RandomState(1)
    formulas = Formulas(kernel, X, rng, gamma=GAMMA)
    coef = np.zeros_like(Y)

    def epoch(coef):
        eigenpro2(kernel, X, Y, formulas, rng, coef)

    yield line("EigenPro 2, formulas", formulas.batch_size, *track.run(epoch, X, coef))
    *found, model = track.ours(X, Y, algorithm="eigenpro2")
    yield line("EigenPro 2, eigenkern", model.batch_size_, *found)

    distinct = np.unique(X, axis=0)
    chosen = rng.choice(len(distinct), min(N_CENTERS, len(X) // 2), replace=False)
    Z = distinct[chosen]
    formulas = Formulas(kernel, X, rng, gamma=1)
    projection = Formulas(kernel, Z, rng, gamma=GAMMA, batch_size=len(Z) // INNER)
    coef = np.zeros((len(Z), Y.shape[1]), Y.dtype)

    def epoch(coef):
        eigenpro3(kernel, X, Y, Z, formulas, projection, rng, coef)

    yield line("EigenPro 3, formulas", formulas.batch_size, *track.run(epoch, Z, coef))
    *found, model = track.ours(X, Y, algorithm="eigenpro3", centers=Z)
    yield line("EigenPro 3, eigenkern", model.batch_size_, *found)
    yield ""


def line(label, batch_size, residuals, error):
    cells = [f"{r:10.2g}" for r in residuals]
    verdict = "diverges" if not residuals[-1] < 1 else ""
    return f"{label:24}{batch_size:7}{''.join(cells)}{error:10.4g}  {verdict}".rstrip()


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", nargs="+", default=DATA, choices=DATA)
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    head = "".join(f"{f'epoch {i}':>10}" for i in EPOCHS)
    lines = [
        f"{date.today()}, {processor()}, Python {platform.python_version()}",
        "Squared residual on training rows over the variance of the targets, and the "
        "test error (%, or RMSE over deviation)",
        "",
        f"{'':24}{'batch':>7}{head}{'test':>10}",
    ]
    print(*lines, sep="\n")
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore", ConvergenceWarning)
        for name in args.data:
            for text in measure(name):
                lines.append(text)
                print(text, flush=True)
    if args.write:
        (RESULTS / "unguarded.txt").write_text("\n".join(lines))


if __name__ == "__main__":
    main()
