"""General kernel models: EigenPro 3 and 4, beside the paper and other solvers.

Run ``python benchmarks/general_kernel_models.py [--part NAME] [--write]``; without
`--part` all of them, in half an hour on two cores:

table2    accuracy with k-means and uniform centers, beside the paper's
figures   test error against rows for some numbers of centers, and the other way round
solvers   EigenPro 3 and 4, Falkon-like and the direct solution on MNIST
memory    time and peak memory of these solvers against the number of centers
cost      time of a batch, and peak memory of a fit, against the number of centers
failures  the cases in which the public code of EigenPro 4 diverges, and crashes
stream    five million rows in constant memory

``--quick`` leaves 10 000 centers out of table2: they take nine of its ten minutes.
"""

import argparse
import platform
import time
import tracemalloc
import warnings
from datetime import date
from functools import partial
from pathlib import Path

import numpy as np
from callbacks import Timed
from datasets import load
from kernel_product import processor
from sklearn.exceptions import ConvergenceWarning

from eigenkern import (
    EigenProClassifier,
    EigenProRegressor,
    FalkonLikeClassifier,
)
from eigenkern.arrays.linalg import cholesky, solve_triangular
from eigenkern.kernels import Laplacian
from eigenkern.operators.tiled import TiledKernel

RESULTS = Path(__file__).parent / "results"
KERNEL = Laplacian(10.0)
# Percent of accuracy: k-means, uniform.
TABLE_2 = {
    "mnist": {100: (91.89, 87.24), 1000: (95.96, 94.96), 10000: (97.69, 97.31)},
    "fashion_mnist": {
        100: (78.66, 76.24),
        1000: (85.55, 84.59),
        10000: (88.13, 87.84),
    },
}


def accuracy(model, data):
    """Return the percent of test rows that are right."""
    return 100 * model.score(data.X_test, data.y_test)


def timed(model, X, y):
    """Return the seconds of a fit."""
    start = time.perf_counter()
    model.fit(X, y)
    return time.perf_counter() - start


def table2(write):
    """Yield lines: k-means and uniform centers."""
    yield f"\nAccuracy (%) of EigenPro 4, {KERNEL}, paper's in brackets; seconds"
    yield (
        f"{'data':>14} {'p':>6} {'k-means':>15} {'fit':>7}"
        f" {'uniform, 3 draws':>24} {'fit':>7}"
    )
    for name, rows in TABLE_2.items():
        data = load(name)
        for p, (paper_kmeans, paper_uniform) in rows.items():
            model = EigenProClassifier(
                KERNEL,
                algorithm="eigenpro4",
                n_centers=p,
                centers="kmeans",
                max_iter=10,
                random_state=0,
            )
            seconds = timed(model, data.X_train, data.y_train)
            cells = [f"{accuracy(model, data):6.2f} ({paper_kmeans:.2f})"]
            cells.append(f"{seconds:5.1f} s")
            found, total = [], 0.0
            for seed in range(3):
                model.set_params(centers="uniform", random_state=seed)
                total += timed(model, data.X_train, data.y_train)
                found.append(accuracy(model, data))
            spread = f"{np.mean(found):6.2f} +- {np.std(found):.2f}"
            cells.append(f"{spread} ({paper_uniform:.2f})")
            yield (
                f"{name:>14} {p:6d} {cells[0]:>15} {cells[1]:>7}"
                f" {cells[2]:>24} {total / 3:5.1f} s"
            )


def figures(write):
    """Yield lines: test error against rows and centers."""
    sizes, numbers = (5000, 10000, 20000, 60000), (500, 1000, 2000, 4000)
    curves = {}
    for name in ("mnist", "cifar10_gray"):
        data = load(name)
        order = np.random.RandomState(0).permutation(len(data.y_train))
        available = [n for n in sizes if n < len(order)] + [len(order)]
        X, y = data.X_train[order], data.y_train[order]
        yield f"\n{name}: test error (%), {KERNEL}; of EigenPro 2 on the centers alone"
        head = " ".join(f"{'n = ' + str(n):>10}" for n in available)
        yield f"{'p':>6} {'EigenPro 2':>11} {head}"
        for p in numbers:
            options = {"max_iter": 10, "alpha": 0.0, "random_state": 0}
            machine = EigenProClassifier(KERNEL, algorithm="eigenpro2", **options)
            machine.fit(X[:p], y[:p])
            errors = []
            for n in available:
                if n < p:
                    errors.append(np.nan)
                    continue
                model = EigenProClassifier(
                    KERNEL, algorithm="eigenpro4", centers=X[:p], **options
                )
                errors.append(100 - accuracy(model.fit(X[:n], y[:n]), data))
            curves[name, p] = available, errors, 100 - accuracy(machine, data)
            cells = " ".join(f"{error:10.2f}" for error in errors)
            yield f"{p:6d} {curves[name, p][2]:11.2f} {cells}"
    if write:
        draw(curves)


def draw(curves):
    """Draw test errors against rows and against centers."""
    import matplotlib.pyplot as plt

    names = list(dict.fromkeys(name for name, _ in curves))
    size = {"figsize": (8.5, 7), "layout": "constrained"}
    figure, axes = plt.subplots(2, len(names), sharey="col", **size)
    for (left, right), name in zip(axes.T, names, strict=True):
        own = {p: curve for (owner, p), curve in curves.items() if owner == name}
        sizes = next(iter(own.values()))[0]
        for i, (p, (_, errors, _)) in enumerate(own.items()):
            left.semilogx(sizes, errors, "o-", color=f"C{i}", label=f"p = {p}")
        by_size = zip(*(errors for _, errors, _ in own.values()), strict=True)
        for i, (n, errors) in enumerate(zip(sizes, by_size, strict=True)):
            right.semilogx(list(own), errors, "o-", color=f"C{i + 4}", label=f"n = {n}")
        alone = [alone for _, _, alone in own.values()]
        right.semilogx(list(own), alone, "kx:", label="centers only")
        left.set(title=name, xlabel="training rows n")
        right.set(xlabel="centers p")
        left.set_xticks(sizes, [f"{n // 1000}k" for n in sizes])
        right.set_xticks(list(own), [str(p) for p in own])
        for ax in (left, right):
            ax.minorticks_off()
            ax.set_ylabel("test error (%)")
            ax.legend(fontsize=9, labelspacing=0.2, loc="upper right")
    figure.savefig(RESULTS / "general_kernel_models.png", dpi=160)


def memory(write):
    """Yield lines: seconds and peak memory of the solvers against centers."""
    data, sizes = load("mnist"), (1000, 2000, 4000)
    rows = np.random.RandomState(0).permutation(len(data.y_train))[:20000]
    data = data._replace(X_train=data.X_train[rows], y_train=data.y_train[rows])
    yield f"\nMNIST, {len(rows)} rows, {KERNEL}: seconds, and peak MB beside the data"
    yield f"{'solver':>28} " + " ".join(f"{'p = ' + str(p):>18}" for p in sizes)
    direct = "normal equations, direct"
    for name in (*iterative(1), direct):
        cells = []
        for p in sizes:
            tracemalloc.start()
            if name == direct:
                seconds = normal_equations(data, p)[1]
            else:
                seconds = timed(iterative(p)[name], data.X_train, data.y_train)
            megabytes = tracemalloc.get_traced_memory()[1] / 1e6
            tracemalloc.stop()
            cells.append(f"{seconds:.1f} s {megabytes:.0f}")
        yield f"{name:>28} " + " ".join(f"{cell:>18}" for cell in cells)


def iterative(p):
    """Return solvers of a model on `p` uniform centers, by name."""
    options = {"n_centers": p, "alpha": 0.0, "random_state": 0}
    made = partial(EigenProClassifier, KERNEL, max_iter=5, **options)
    return {
        "EigenPro 4, 5 epochs": made(algorithm="eigenpro4"),
        "EigenPro 3, 5 epochs": made(algorithm="eigenpro3"),
        "EigenPro 4, O(p) memory": made(cache_size=0),
        "Falkon-like, 10 iterations": FalkonLikeClassifier(
            KERNEL, alpha=1e-8, max_iter=10, **options
        ),
    }


def normal_equations(data, p):
    """Return percent of test errors and seconds of the direct solution.

    (K_nm' K_nm + alpha n K_mm) a = K_nm' y by one Cholesky factor, in float64.
    """
    start = time.perf_counter()
    Z = data.X_train[np.random.RandomState(0).permutation(len(data.X_train))[:p]]
    Y = np.eye(10)[data.y_train]
    gram, cross = TiledKernel(KERNEL, Z, data.X_train).gram(Y)
    gram += 1e-8 * len(Y) * TiledKernel(KERNEL, Z).block(dtype=np.float64)
    L = cholesky(gram)
    coef = solve_triangular(L, solve_triangular(L, cross), transposed=True)
    seconds = time.perf_counter() - start
    F = TiledKernel(KERNEL, Z, data.X_test) @ coef.astype(np.float32)
    return 100 * np.mean(F.argmax(axis=1) != data.y_test), seconds


def solvers(write):
    """Yield lines: one model, four solvers."""
    data = load("mnist")
    yield f"\nMNIST, all rows, uniform centers, {KERNEL}: test error (%) and seconds"
    yield f"{'solver':>28} " + " ".join(f"{'p = ' + str(p):>18}" for p in (2000, 10000))
    table = {}
    for p in (2000, 10000):
        table[p] = iterative(p)
        for name, model in table[p].items():
            seconds = timed(model, data.X_train, data.y_train)
            table[p][name] = 100 - accuracy(model, data), seconds
        table[p]["normal equations, direct"] = normal_equations(data, p)
    for name in table[2000]:
        cells = [
            f"{error:.2f} {seconds:7.1f} s"
            for error, seconds in (table[p][name] for p in table)
        ]
        yield f"{name:>28} " + " ".join(f"{cell:>18}" for cell in cells)
    seconds = [table[10000][name][1] for name in table[2000]]
    ratio = seconds[0] / seconds[4]
    yield f"EigenPro 4 over the direct solution, p = 10000: {ratio:.2f}"


class Epochs(Timed):
    """Callback: seconds of every epoch."""

    def __init__(self):
        self.seconds = []

    def on_fit_task_begin(self, estimator, context, **ignored):
        self.begin = time.perf_counter()

    def on_fit_task_end(self, estimator, context, **ignored):
        if context.task_name == "epoch":
            self.seconds.append(time.perf_counter() - self.begin)
        return False


def cost(write):
    """Yield lines: seconds of a batch and peak memory, in O(p) memory."""
    d, n_outputs, m = 100, 10, 512
    rng = np.random.RandomState(0)
    sizes = (2000, 4000, 8000, 16000, 32000)
    yield f"\nEigenPro 4 with cache_size=0, d = {d}, l = {n_outputs}, m = {m}, float32"
    bound = "12 p (d + l + 2 m) MB"
    yield f"{'p':>6} {'T':>4} {'ms a batch':>11} {'peak MB':>9} {bound:>22}"
    seconds = []
    for p in sizes:
        n = 4 * p
        X = rng.standard_normal((n, d)).astype(np.float32)
        Y = np.sin(X[:, :n_outputs])
        callback = Epochs()
        options = {"centers": X[:p], "cache_size": 0, "batch_size": m}
        options["alpha"] = 0.0
        model = EigenProRegressor(
            Laplacian(10.0), max_iter=2, random_state=0, **options
        )
        model.set_callbacks(callback).fit(X, Y)
        seconds.append(min(callback.seconds) / -(-n // m))
        model = EigenProRegressor(
            Laplacian(10.0), max_iter=1, random_state=0, **options
        )
        tracemalloc.start()
        model.fit(X, Y)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        bound = 12 * p * (d + n_outputs + 2 * m)
        yield (
            f"{p:6d} {model.projection_interval_:4d} {1e3 * seconds[-1]:11.1f}"
            f" {peak / 1e6:9.0f} {bound / 1e6:22.0f}"
        )
    slope = np.polyfit(np.log(sizes), np.log(seconds), 1)[0]
    yield f"slope of the time in log-log: {slope:.2f}"


def failures(write):
    """Yield lines: the cases on which the public code of EigenPro 4 fails."""
    rng = np.random.RandomState(0)
    X = rng.standard_normal((10000, 10)).astype(np.float32)
    y = np.sin(X @ rng.standard_normal(10)) + 0.1 * rng.standard_normal(10000)
    yield "\nn = 10000, d = 10, laplacian 10: training loss (least squares), halvings"
    for p, m, q in (
        (4000, 1000, 100),
        (4000, 1000, 300),
        (4000, 4000, 100),
        (500, 1000, 100),
    ):
        model = EigenProRegressor(
            KERNEL,
            centers=X[:p],
            batch_size=m,
            n_components=q,
            max_iter=10,
            random_state=0,
        )
        model.fit(X, y)
        K = KERNEL(X.astype(np.float64), X[:p].astype(np.float64))
        residual = y - y.mean()
        K_y = np.linalg.lstsq(K, residual, rcond=1e-10)[0]
        least = np.mean((K @ K_y - residual) ** 2)
        loss = np.mean((model.predict(X) - y) ** 2)
        yield (
            f"p = {p}, m = {m}, q = {q}, T = {model.projection_interval_}: "
            f"{loss:.4f} ({least:.4f}), {model.n_step_halvings_}"
        )


def stream(write):
    """Yield lines: five million synthetic rows, none of them kept."""
    n, d, p, size = 5_000_000, 10, 5000, 20_000
    w = np.random.RandomState(1).standard_normal(d)

    def target(X):
        return np.sin(X @ w) + np.tanh(X[:, 0] * X[:, 1])

    def rows():
        rng = np.random.RandomState(0)
        for i in range(n // size):
            X = rng.standard_normal((size, d)).astype(np.float32)
            yield X, target(X) + 0.3 * rng.standard_normal(size)
            if (i + 1) * size in (n // 50, n // 5, n):
                peaks[(i + 1) * size] = tracemalloc.get_traced_memory()[1]

    peaks = {}
    model = EigenProRegressor(Laplacian(3.0), n_centers=p, random_state=0)
    tracemalloc.start()
    start = time.perf_counter()
    model.fit_batches(rows())
    seconds = time.perf_counter() - start
    tracemalloc.stop()
    X = np.random.RandomState(2).standard_normal((20000, d)).astype(np.float32)
    error = np.mean((model.predict(X) - target(X)) ** 2) / np.var(target(X))
    yield f"\n{n} rows, d = {d}, p = {p}: {seconds:.0f} s, 1 - R^2 = {error:.4f}"
    cells = ", ".join(f"{peak / 1e6:.0f} MB after {k}" for k, peak in peaks.items())
    yield f"peak memory: {cells} rows"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parts = {"table2": table2, "figures": figures, "solvers": solvers, "cost": cost}
    parts |= {"memory": memory, "failures": failures, "stream": stream}
    parser.add_argument("--part", choices=parts, help="default: all")
    parser.add_argument(
        "--quick", action="store_true", help="no 10000 centers in table2"
    )
    parser.add_argument("--write", action="store_true", help="write results/")
    args = parser.parse_args()
    warnings.simplefilter("ignore", ConvergenceWarning)
    if args.quick:
        for rows in TABLE_2.values():
            rows.pop(10000)
    for name in [args.part] if args.part else parts:
        lines = [
            f"python benchmarks/general_kernel_models.py --part {name}"
            f"{' --quick' if args.quick else ''}; "
            f"{date.today()}; {platform.machine()}, {processor()}, "
            f"NumPy {np.__version__}"
        ]
        print(lines[0], flush=True)
        start = time.perf_counter()
        for line in parts[name](args.write):
            print(line, flush=True)
            lines.append(line)
        lines.append(f"({time.perf_counter() - start:.0f} s)")
        print(lines[-1])
        if args.write:
            text = "\n".join(lines) + "\n"
            (RESULTS / f"general_{name}.txt").write_text(text)


if __name__ == "__main__":
    main()
