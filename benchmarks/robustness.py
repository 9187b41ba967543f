"""The automatic step over a suite of easy and nasty problems.

Every data set of EIGENKERN_DATA and a dozen synthetic ones, with seven kernels, three
bandwidths (1/4, 1 and 4 of the median distance) and two precisions. Each case is fitted
with the defaults of ``algorithm="eigenpro2"`` and ``"sgd"`` for 20 epochs and compared
with the direct solution of K a = y. For every third case a grid of steps, factors of
sqrt(2) apart, is run as well. Run ::

    EIGENKERN_DATA=/folder/of/npz python benchmarks/robustness.py          # hours
    python benchmarks/robustness.py --rows 3000 --data ijcnn1 d=1 --out some.csv
    python benchmarks/robustness.py --report       # summary and plot once more
    python benchmarks/robustness.py --setup        # seconds before the first epoch

Results go to ``results/robustness.csv`` case by case; a run that was interrupted goes
on where it stopped; remove the file to start anew. ``results/robustness.txt`` and
``.png`` sum them up. Cases run one a core, and their seconds are the processor's; with
``--setup`` one after the other on all cores, and only up to the first epoch:
``results/robustness_setup.txt``.

Losses are mean squared errors as fractions of those of predicting the mean. The epochs
to a loss are interpolated in its logarithm. A step's figure of merit is the number of
epochs to 1.05 times the least training loss that any step of the grid reaches in ten
epochs (1e-6 at least); for the validation loss likewise, not below 1.05 times the exact
solver's.
"""

import argparse
import csv
import os
import platform
import time
import warnings
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import suppress
from datetime import date
from multiprocessing import get_context
from pathlib import Path

import datasets
import numpy as np
import scipy.linalg
from callbacks import Timed
from kernel_product import processor
from sklearn.exceptions import ConvergenceWarning
from threadpoolctl import threadpool_limits

from eigenkern import EigenProRegressor, kernels

RESULTS = Path(__file__).parent / "results"
N_EPOCHS, N_EPOCHS_GRID = 20, 10
# Steps of the grid over the automatic one: from 1/16 to 4 times.
GRID = 2.0 ** (np.arange(-8, 5) / 2)
FACTORS, DTYPES = (0.25, 1.0, 4.0), ("float32", "float64")
KERNELS = (
    "gaussian",
    "laplacian",
    "cauchy",
    "matern32",
    "polynomial",
    "linear",
    "100 gaussian",
)
IMAGES = ("mnist", "fashion_mnist", "cifar10_gray")
REAL = (
    *IMAGES,
    "a9a",
    "ijcnn1",
    "coil2000",
    "cpusmall",
    "covtype_sub93k",
    "california_housing",
    "bike_hour",
    "kin8nm",
)
FIELDS = (
    "data kernel factor dtype n d m q s eta beta lambda halvings "
    "train val exact_train exact_val epochs seconds setup "
    "sgd_train sgd_val sgd_epochs sgd_seconds sgd_halvings "
    "best_factor ratio ratio_val"
).split()


def real(name, n_rows):
    """Return X, Y, X_val, Y_val in float64; classes become columns."""
    data = datasets.load(name, standardize=name not in (*IMAGES, "a9a"))
    rng = np.random.RandomState(0)
    train = rng.permutation(len(data.X_train))[:n_rows]
    test = rng.permutation(len(data.X_test))[: min(n_rows, 2000)]
    y, y_test = data.y_train[train], data.y_test[test]
    if name == "covtype_sub93k":
        y, y_test = y == 2, y_test == 2
    if name in IMAGES:
        Y, Y_test = (np.eye(10)[values] for values in (y, y_test))
    else:
        Y, Y_test = (values.astype(np.float64)[:, None] for values in (y, y_test))
    X, X_test = (a.astype(np.float64) for a in (data.X_train[train], data.X_test[test]))
    return X, Y, X_test, Y_test


def smooth(X, rng):
    """A smooth function of the rows, with a little noise."""
    W = rng.standard_normal((X.shape[1], 3)) / np.sqrt(X.shape[1])
    T = X @ W
    return np.sin(2 * T[:, 0]) + T[:, 1] * T[:, 2] + 0.05 * rng.standard_normal(len(X))


def synthetic(name, n_rows):
    """Return X, Y, X_val, Y_val in float64."""
    rng = np.random.RandomState(0)
    n, d = n_rows, 10
    if name == "n=8":
        n = 8
    elif name == "d=1":
        d = 1
    elif name == "d=5000":
        n, d = min(n_rows, 2000), 5000
    n_val = min(n_rows, 1000)
    X = rng.standard_normal((n + n_val, d))
    y = smooth(X, rng)
    if name == "heavy tails":
        X = rng.standard_t(1.5, size=X.shape)
        y = smooth(np.sign(X) * np.log1p(np.abs(X)), rng)
    elif name == "duplicates":
        X[:n] = X[rng.randint(max(n // 10, 1), size=n)]
        y = smooth(X, rng)
    elif name == "constant columns":
        X = np.hstack([X, np.full((len(X), 20), 1000.0), np.zeros((len(X), 5))])
    elif name == "unscaled":
        X = X * np.logspace(-3, 3, d)
    elif name == "noise only":
        y = rng.standard_normal(len(X))
    elif name == "label noise":
        y = np.sign(y) * np.where(rng.uniform(size=len(X)) < 0.01, -1.0, 1.0)
    elif name == "targets x 1e6":
        y = y * 1e6
    elif name == "targets x 1e-6":
        y = y * 1e-6
    return X[:n], y[:n, None], X[n:], y[n:, None]


SYNTHETIC = (
    "heavy tails",
    "duplicates",
    "constant columns",
    "unscaled",
    "n=8",
    "d=1",
    "d=5000",
    "noise only",
    "label noise",
    "targets x 1e6",
    "targets x 1e-6",
)


class Curve(Timed):
    """Callback that notes losses and the processor's seconds after each epoch."""

    def __init__(self, K, Y, K_val, Y_val):
        self.parts = (K, Y), (K_val, Y_val)
        mean = Y.mean(axis=0)
        self.zero = [max(np.mean((T - mean) ** 2), 1e-300) for _, T in self.parts]
        self.losses, self.seconds, self.pause = [(1.0, 1.0)], [0.0], 0.0
        self.setup_seconds = None

    def setup(self, estimator, context):
        self.start = time.process_time()

    def relative_losses(self, coef, intercept):
        coef, intercept = coef.astype(np.float64), intercept.astype(np.float64)
        return tuple(
            float(np.mean((K @ coef + intercept - T) ** 2)) / zero
            for (K, T), zero in zip(self.parts, self.zero, strict=True)
        )

    def on_fit_task_begin(self, estimator, context, **ignored):
        if context.task_name == "epoch" and self.setup_seconds is None:
            self.setup_seconds = time.process_time() - self.start

    def on_fit_task_end(self, estimator, context, *, fitted_estimator=None):
        if context.task_name != "epoch":
            return
        now = time.process_time()
        self.seconds.append(now - self.start - self.pause)
        model = fitted_estimator
        self.losses.append(self.relative_losses(model.dual_coef_, model.intercept_))
        self.pause += time.process_time() - now

    def epochs_to(self, target, part):
        """Epochs until training (0) or validation (1) loss is at most `target`."""
        losses = np.asarray(self.losses)[:, part]
        below = np.flatnonzero(losses <= target)
        if len(below) == 0:
            return np.inf
        i = below[0]
        if i == 0:
            return 0.0
        a, b, c = np.log(np.maximum([losses[i - 1], losses[i], target], 1e-30))
        return float(i - 1 + (a - c) / max(a - b, 1e-30))

    def seconds_to(self, target, part):
        epochs = self.epochs_to(target, part)
        return self.seconds[int(np.ceil(epochs))] if np.isfinite(epochs) else np.inf


def make_kernel(name, bandwidth):
    if name == "linear":
        return kernels.Linear()
    if name == "100 gaussian":
        gaussian = kernels.Gaussian(bandwidth)
        return lambda X, Z: 100.0 * gaussian(X, Z)
    classes = {
        "gaussian": kernels.Gaussian,
        "laplacian": kernels.Laplacian,
        "cauchy": kernels.Cauchy,
        "matern32": kernels.Matern,
        "polynomial": kernels.Polynomial,
    }
    return classes[name](bandwidth)


def fit(X, Y, kernel, measured, **parameters):
    """Return (model, curve) of a fit."""
    curve = Curve(*measured)
    parameters = {"algorithm": "eigenpro2", "tol": 0.0} | parameters
    parameters["alpha"] = 0.0  # the system itself is solved
    model = EigenProRegressor(kernel, random_state=0, **parameters)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.set_callbacks(curve).fit(X, Y)
    return model, curve


def exact_solution(K, Y):
    """Solve K a = y - mean, with as little on the diagonal as factorizes."""
    jitter = 1e-12 * K.shape[0] * np.abs(np.diag(K)).max()
    while True:
        try:
            factor = scipy.linalg.cho_factor(K + jitter * np.eye(len(K)))
            return scipy.linalg.cho_solve(factor, Y - Y.mean(axis=0))
        except scipy.linalg.LinAlgError:
            jitter *= 10


def run_problem(data, kernel_name, factor, n_rows, with_grid):
    """Return the rows of the table of one problem, one for each precision."""
    load = real if data in REAL else synthetic
    X, Y, X_val, Y_val = load(data, n_rows)
    median = kernels.median_distance(X, np.random.RandomState(0))
    kernel = make_kernel(kernel_name, factor * median)
    K, K_val = kernel(X, X), kernel(X_val, X)
    measured = K, Y, K_val, Y_val
    zero = Curve(*measured)
    exact = zero.relative_losses(exact_solution(K, Y), Y.mean(axis=0))
    target = 1.05 * exact[1]
    rows = []
    for dtype in DTYPES:
        row = dict.fromkeys(FIELDS, "")
        row |= {"data": data, "kernel": kernel_name, "factor": factor, "dtype": dtype}
        row |= {"n": X.shape[0], "d": X.shape[1]}
        row |= {"exact_train": exact[0], "exact_val": exact[1]}
        X_ = X.astype(dtype)
        model, curve = fit(X_, Y, kernel, measured, max_iter=N_EPOCHS)
        losses = zero.relative_losses(model.dual_coef_, model.intercept_)
        row |= {
            "m": model.batch_size_,
            "q": model.n_components_,
            "s": model.subsample_size_,
            "eta": model.step_size_,
            "beta": model.beta_,
            "lambda": model.top_eigenvalue_,
            "halvings": model.n_step_halvings_,
            "train": losses[0],
            "val": losses[1],
            "epochs": curve.epochs_to(target, 1),
            "seconds": curve.seconds_to(target, 1),
            "setup": curve.setup_seconds,
        }
        sgd, sgd_curve = fit(
            X_, Y, kernel, measured, max_iter=N_EPOCHS, algorithm="sgd"
        )
        losses = zero.relative_losses(sgd.dual_coef_, sgd.intercept_)
        row |= {
            "sgd_train": losses[0],
            "sgd_val": losses[1],
            "sgd_epochs": sgd_curve.epochs_to(target, 1),
            "sgd_seconds": sgd_curve.seconds_to(target, 1),
            "sgd_halvings": sgd.n_step_halvings_,
        }
        if with_grid:
            row |= grid_of_steps(X_, Y, kernel, measured, model, curve, exact)
        rows.append(row)
    return rows


def grid_of_steps(X, Y, kernel, measured, model, curve, exact):
    """Compare the automatic step with the best of the grid."""
    curves = {}
    for step_factor in GRID:
        curves[step_factor] = fit(
            X,
            Y,
            kernel,
            measured,
            max_iter=N_EPOCHS_GRID,
            step_size=step_factor * model.step_size_,
            n_components=model.n_components_,
            batch_size=model.batch_size_,
            subsample_size=model.subsample_size_,
        )[1]
    result = {}
    for part, name in enumerate(("ratio", "ratio_val")):
        finals = [np.min(np.asarray(c.losses)[:, part]) for c in curves.values()]
        # No finer than single precision tells losses apart.
        target = 1.05 * max(min(finals), exact[part] if part else 0.0, 1e-6)
        epochs = {f: max(c.epochs_to(target, part), 1.0) for f, c in curves.items()}
        best = min(epochs, key=epochs.get)
        result[name] = max(curve.epochs_to(target, part), 1.0) / epochs[best]
        if part == 0:
            result["best_factor"] = best
    return result


class FirstEpoch(Exception):
    """Raised when the first epoch begins."""


class Setup(Timed):
    """Callback that times a fit up to its first epoch, and ends it there."""

    def on_fit_task_begin(self, estimator, context, **ignored):
        if context.task_name == "epoch":
            self.seconds = time.perf_counter() - self.start
            raise FirstEpoch

    def on_fit_task_end(self, estimator, context, **ignored):
        pass


def time_setups(names, every, n_rows, path):
    """Time the setups of the suite on all cores, and write a summary."""
    found = []
    for data, kernel_name, factor in list(problems(names))[::every]:
        X, Y, *_ = (real if data in REAL else synthetic)(data, n_rows)
        median = kernels.median_distance(X, np.random.RandomState(0))
        kernel = make_kernel(kernel_name, factor * median)
        for dtype in DTYPES:
            timer = Setup()
            model = EigenProRegressor(kernel, algorithm="eigenpro2", random_state=0)
            model.set_params(alpha=0.0)
            model.set_callbacks(timer)
            with suppress(FirstEpoch):
                model.fit(X.astype(dtype), Y)
            found.append((timer.seconds, f"{data}, {kernel_name} x {factor}, {dtype}"))
            print(f"{found[-1][0]:6.2f} s  {found[-1][1]}", flush=True)
    seconds = np.asarray([row[0] for row in found])
    lines = [
        f"{date.today()}; {platform.machine()}, {processor()}, NumPy {np.__version__}",
        "",
        f"Seconds before the first epoch of {len(found)} fits, at most {n_rows} rows, "
        "the kernel matrix included:",
        f"median {np.median(seconds):.2f}, most {seconds.max():.2f}, more than 2 s in "
        f"{(seconds > 2).sum()}",
        "",
        "The longest:",
        *(f"{row[0]:6.2f} s  {row[1]}" for row in sorted(found, reverse=True)[:10]),
    ]
    path.write_text("\n".join(lines) + "\n")
    print("", *lines, sep="\n")


def measure_machine():
    """Let fits measure the machine, once: side by side they would find other rates."""
    y = np.arange(1000.0)
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        for dtype in DTYPES:
            EigenProRegressor(algorithm="eigenpro2", max_iter=1).fit(
                y[:, None].astype(dtype), y
            )


def problems(names):
    """Yield (data, kernel, factor) of the suite."""
    for data in names:
        for kernel in KERNELS:
            for factor in (1.0,) if kernel == "linear" else FACTORS:
                yield data, kernel, factor


def read(path):
    if not path.is_file():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def write(path, rows):
    path.parent.mkdir(exist_ok=True)
    partial = path.with_suffix(".partial")
    with partial.open("w", newline="") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        writer.writeheader()
        for row in rows:
            writer.writerow(
                {k: f"{v:.4g}" if isinstance(v, float) else v for k, v in row.items()}
            )
    partial.replace(path)


def numbers(rows, field):
    """Values of a column as floats, NaN where there is none."""
    return np.array([float(row[field]) if row[field] else np.nan for row in rows])


def report(rows, text_path, figure_path):
    """Write the summary and the plot of the table."""
    train, val = numbers(rows, "train"), numbers(rows, "val")
    halvings, ratio = numbers(rows, "halvings"), numbers(rows, "ratio")
    ratio_val = numbers(rows, "ratio_val")
    seconds, sgd_seconds = numbers(rows, "seconds"), numbers(rows, "sgd_seconds")
    setup = numbers(rows, "setup")
    exact_val = numbers(rows, "exact_val")
    grid = ~np.isnan(ratio_val)  # infinite: not reached within the epochs run
    slower = np.isfinite(sgd_seconds) & (sgd_seconds > 0)
    slower &= sgd_seconds * 1.1 < seconds
    lines = [
        f"{date.today()}; {platform.machine()}, {processor()}, one core a case, NumPy "
        f"{np.__version__}",
        "",
        f"cases                                          {len(rows)}",
        f"NaN                                            {np.isnan(train).sum()}",
        f"training loss above that of the mean           {(train > 1.001).sum()}",
        f"step halved by the guard                       {(halvings > 0).sum()}",
        f"sgd: step halved by the guard                  "
        f"{(numbers(rows, 'sgd_halvings') > 0).sum()}",
        f"validation loss at most 1.05 x exact solver's  "
        f"{np.isfinite(numbers(rows, 'epochs')).sum()} (sgd "
        f"{np.isfinite(numbers(rows, 'sgd_epochs')).sum()})",
        f"validation loss, median over exact solver's    "
        f"{np.nanmedian(val / exact_val):.3f}",
        f"seconds before the first epoch, median, most   "
        f"{np.nanmedian(setup):.1f}, {np.nanmax(setup):.1f} (kernel matrix included)",
        f"sgd in less than 1/1.1 of the seconds          {slower.sum()}, by at most "
        f"{np.max(seconds[slower] - sgd_seconds[slower], initial=0):.1f} s",
        "",
        f"Epochs over those of the best step of the grid, {grid.sum()} cases:",
        f"{'':18} {'<= 1.25':>8} {'<= 1.5':>8} {'<= 2':>8} {'median':>8} {'worst':>8}",
    ]
    for name, values in (("training loss", ratio), ("validation loss", ratio_val)):
        values = values[grid]
        parts = (f"{100 * np.mean(values <= bound):6.1f} %" for bound in (1.25, 1.5, 2))
        lines.append(
            f"{name:18} {' '.join(parts)} {np.median(values):8.2f} {values.max():8.2f}"
        )
    lines += ["", "Training loss slower than 1.25 times the best step:"]
    for i in np.flatnonzero(grid & ~(ratio <= 1.25)):
        row = rows[i]
        lines.append(
            f"  {row['data']:>18} {row['kernel']:>12} x {row['factor']:<4} "
            f"{row['dtype']}: {ratio[i]:.2f} (best step x {row['best_factor']}), "
            f"m {row['m']}, q {row['q']}, loss {train[i]:.2g}"
        )
    text_path.write_text("\n".join(lines) + "\n")
    print("\n".join(lines))

    draw(rows, figure_path)


def draw(rows, path):
    """Draw the epochs over those of the best step, and the losses beside sgd's."""
    import matplotlib.pyplot as plt

    # The size that it has on the page: 700 pixels wide.
    figure, (left, right) = plt.subplots(1, 2, figsize=(7, 3.4), layout="constrained")
    for name, field in (("training loss", "ratio"), ("validation loss", "ratio_val")):
        values = numbers(rows, field)
        values = np.sort(np.minimum(values[~np.isnan(values)], 10))
        part = 100 * np.arange(1, len(values) + 1) / len(values)
        left.step(values, part, where="post", label=name)
    left.axvline(1.25, color="0.4", linestyle=":", label="1.25 times")
    left.set(
        xlabel="epochs / epochs of the best step",
        ylabel=f"part of {len(values)} cases (%)",
        ylim=(0, 102),
    )
    left.legend(loc="lower right")
    least = 1e-12
    for dtype, style in zip(DTYPES, ("o", "x"), strict=True):
        some = [row for row in rows if row["dtype"] == dtype]
        losses = (numbers(some, field) for field in ("sgd_train", "train"))
        losses = (np.maximum(values, least) for values in losses)
        right.loglog(*losses, style, ms=3.5, alpha=0.6, label=dtype)
    right.plot([least, 1], [least, 1], color="0.4", linestyle=":", label="equal")
    right.set(
        xlabel="plain gradients: training loss",
        ylabel="EigenPro 2: training loss",
        xlim=(least / 3, 3),
        ylim=(least / 3, 3),
    )
    for axis in (right.xaxis, right.yaxis):
        axis.set_ticks(10.0 ** np.arange(-12, 1, 3))
        axis.set_minor_locator(plt.NullLocator())
    right.legend(loc="upper left")
    figure.savefig(path, dpi=200)
    plt.close(figure)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", nargs="+", default=(*REAL, *SYNTHETIC))
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--full", action="store_true", help="all rows of each set")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--every", type=int, default=1, help="only each k-th problem")
    parser.add_argument("--grid-every", type=int, default=3)
    parser.add_argument("--out", type=Path, default=RESULTS / "robustness.csv")
    parser.add_argument("--report", action="store_true", help="fit nothing")
    parser.add_argument("--setup", action="store_true", help="time setups only")
    args = parser.parse_args()
    n_rows = 10**9 if args.full else args.rows
    if args.setup:
        path = args.out.with_name(args.out.stem + "_setup.txt")
        time_setups(args.data, args.every, n_rows, path)
        return
    rows = read(args.out)
    if args.report:
        report(rows, args.out.with_suffix(".txt"), args.out.with_suffix(".png"))
        return
    done = {(r["data"], r["kernel"], float(r["factor"])) for r in rows}
    start = time.perf_counter()
    failed = []
    measure_machine()
    # One case a process, one process a core; forked ones know the machine.
    fork = get_context("fork")
    with ProcessPoolExecutor(args.jobs, fork, threadpool_limits, (1,)) as pool:
        futures = {}
        for i, problem in enumerate(problems(args.data)):
            if i % args.every or problem in done:
                continue
            with_grid = (i // args.every) % args.grid_every == 0
            future = pool.submit(run_problem, *problem, n_rows, with_grid)
            futures[future] = problem
        try:
            for k, future in enumerate(as_completed(futures), 1):
                try:
                    new = future.result()
                except Exception as error:
                    print(*futures[future], "FAILED", repr(error), flush=True)
                    failed.append(futures[future])
                    continue
                rows += new
                write(args.out, rows)
                seconds = time.perf_counter() - start
                print(f"{k}/{len(futures)} {seconds:.0f} s", *futures[future])
                for row in new:
                    print(
                        "    ",
                        " ".join(
                            f"{f}={row[f]:.3g}"
                            if isinstance(row[f], float)
                            else f"{f}={row[f]}"
                            for f in FIELDS[3:]
                        ),
                        flush=True,
                    )
        except KeyboardInterrupt:
            pool.shutdown(cancel_futures=True)
            raise
    report(read(args.out), args.out.with_suffix(".txt"), args.out.with_suffix(".png"))
    if failed:
        raise SystemExit(f"{len(failed)} problems failed: {failed}")


if __name__ == "__main__":
    main()
