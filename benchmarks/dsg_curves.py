"""DSG, UDSG and CDSG against time and features, as in the figures of their paper.

Run ``python benchmarks/dsg_curves.py [PART ...] [--write]``: 90 minutes on two
cores, with these parts:

log_loss, squared_error
         training loss of DSG, UDSG and CDSG for the logistic or the square loss on five
         data sets, without running values: every step evaluates all blocks, batches of
         4096 rows, blocks of 256 features (the paper's figure 1; means of two seeds).
         The fits take turns, an epoch each, and what counts are seconds of CPU time: a
         shared machine is not as fast at all times. The baseline: scikit-learn's
         ``RBFSampler`` of as many features as four blocks with ``LogisticRegression``
         or ``Ridge``, in seconds of a clock.
log_loss_auto, squared_error_auto
         the same with running values, everything automatic.
svc      hinge loss against ``SVC(C=1)`` on 20000 rows, at the time when that has
         converged (table 3).
errors   test errors on Adult and MNIST (PCA to 100).
features errors, sizes and times with old and new blocks in turn, and with the rule of
         ``n_old="auto"``.
auto     all automatic on every data set (5000 rows), every loss: does it diverge?
memory   peak of memory of 10^5 and of 10^6 rows streamed by `partial_fit`.

``--report`` runs nothing and draws the pictures of the losses anew from the tables.

Images are brought to 100 features by PCA, other data to mean 0 and deviation 1. The
kernel is gaussian, with the median distance as bandwidth. Losses are means over 5000
training rows and leave out the penalty, which lambda = 1e-6 makes small.
"""

import argparse
import os
import platform
import resource
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from functools import partial
from pathlib import Path

import datasets
import numpy as np
from callbacks import Timed
from datasets import IMAGES, load
from kernel_product import processor
from sklearn.decomposition import PCA
from sklearn.kernel_approximation import RBFSampler
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.svm import SVC

from eigenkern import DSGClassifier, DSGRegressor
from eigenkern.kernels import median_distance
from eigenkern.losses import LogLoss, SquaredError

RESULTS = Path(__file__).parent / "results"
DATA = ("cifar10_gray", "mnist", "a9a", "ijcnn1", "covtype_sub93k")
ALGORITHMS = ("dsg", "udsg", "cdsg")
LOSSES = ("log_loss", "squared_error")
SECONDS = 20.0
BLOCK = 256


class Stop(Timed):
    """Callback that ends a fit after some seconds."""

    def __init__(self, seconds):
        self.limit = seconds

    def on_fit_task_end(self, estimator, context, **ignored):
        return time.perf_counter() - self.start > self.limit


class Turns:
    """Lets one of several threads work at a time, in turn.

    A machine that is slower for a minute is then so for all of them.
    """

    def __init__(self, names):
        self._queue, self._changed = list(names), threading.Condition()

    def wait(self, name):
        """Wait until it is the turn of `name`."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue[0] == name)

    def end(self, name, leave=False):
        """End a turn, the last one if it is to `leave`."""
        with self._changed:
            self._queue.remove(name)
            if not leave:
                self._queue.append(name)
            self._changed.notify_all()


class Curve(Stop):
    """Callback: training loss on some rows against CPU seconds, until time is up.

    After every epoch the other fits have their turn.
    """

    def setup(self, estimator, context):
        self.start = time.process_time()

    def __init__(self, X, y, loss, seconds, name, turns):
        super().__init__(seconds)
        self.X, self.y, self.loss, self.name, self.turns = X, y, loss, name, turns
        self.rows, self.own = [], 0.0

    def on_fit_task_end(self, estimator, context, *, fitted_estimator=None):
        if context.task_name != "epoch":
            return False
        now = time.process_time()
        seconds = now - self.start - self.own
        model = fitted_estimator
        value = loss_of(model.decision_function(self.X), model, self.y, self.loss)
        self.rows.append((seconds, model.n_features_used_, value))
        self.turns.end(self.name)
        self.turns.wait(self.name)
        self.own += time.process_time() - now
        return seconds > self.limit


def loss_of(F, model, y, loss):
    """Return the mean loss of decision values."""
    codes = np.searchsorted(model.classes_, y)
    F = F.reshape(len(y), -1)
    Y = np.eye(len(model.classes_))[codes]
    if F.shape[1] == 1:
        Y = (2.0 * codes - 1.0)[:, None]
    made = LogLoss(F.shape[1]) if loss == "log_loss" else SquaredError()
    return float(made.value(Y, F.astype(np.float64)).mean())


def prepare(name):
    """Return the data, with features as the paper has them."""
    data = load(name, standardize=name not in IMAGES)
    if name in IMAGES:
        pca = PCA(100, random_state=0).fit(data.X_train[:20000])
        X_train, X_test = (pca.transform(X) for X in (data.X_train, data.X_test))
        data = data._replace(X_train=X_train, X_test=X_test)
    order = np.random.RandomState(0).permutation(len(data.y_train))
    return data._replace(X_train=data.X_train[order], y_train=data.y_train[order])


def curves_of(data, loss, seed, options):
    """Return the curves of all algorithms, fitted in turn."""
    turns = Turns(ALGORITHMS)
    with ThreadPoolExecutor(len(ALGORITHMS)) as threads:
        fits = {
            name: threads.submit(curve, data, name, loss, seed, turns, options)
            for name in ALGORITHMS
        }
        return {name: fit.result() for name, fit in fits.items()}


def curve(data, algorithm, loss, seed, turns, options):
    """Return the rows (seconds, features, loss) of a fit, and its halvings."""
    turns.wait(algorithm)
    X, y = data.X_train[:5000], data.y_train[:5000]
    callback = Curve(X, y, loss, SECONDS, algorithm, turns)
    model = DSGClassifier(
        "gaussian",
        algorithm=algorithm,
        n_old=1,
        loss=loss,
        max_iter=100_000,
        n_iter_no_change=100_000,
        alpha=1e-6,
        random_state=seed,
        **options,
    )
    try:
        model.set_callbacks(callback).fit(data.X_train, data.y_train)
    finally:
        turns.end(algorithm, leave=True)
    return np.array(callback.rows), model.n_step_halvings_


def baseline(data, loss):
    """Return seconds and loss of a linear model on a fixed number of features."""
    sigma = median_distance(data.X_train, np.random.RandomState(0))
    features = RBFSampler(
        gamma=0.5 / sigma**2, n_components=2 * 4 * BLOCK, random_state=0
    )
    n = len(data.y_train)
    start = time.perf_counter()
    X, y = data.X_train[:5000], data.y_train[:5000]
    if loss == "log_loss":
        model = make_pipeline(features, LogisticRegression(C=1e6 / n, max_iter=50))
        model.fit(data.X_train, data.y_train)
        seconds = time.perf_counter() - start
        return seconds, loss_of(model.decision_function(X), model, y, loss)
    classes = np.unique(data.y_train)
    Y = np.eye(len(classes))[np.searchsorted(classes, data.y_train)]
    if len(classes) == 2:
        Y = 2.0 * Y[:, 1:] - 1.0
    model = make_pipeline(features, Ridge(alpha=1e-6 * n))
    model.fit(data.X_train, Y)
    seconds = time.perf_counter() - start
    F = model.predict(X).reshape(len(X), -1)
    return seconds, float((0.5 * (F - Y[:5000]) ** 2).sum(axis=1).mean())


def at(rows, seconds):
    """Return the loss at a time, between epochs interpolated."""
    return float(np.exp(np.interp(seconds, rows[:, 0], np.log(rows[:, 2]))))


def curves(loss, paper):
    """Yield lines about the curves of a loss."""
    options, n_seeds, setting = {}, 1, "all automatic"
    if paper:
        options = {"cache_size": 0, "batch_size": 4096, "block_size": BLOCK}
        n_seeds, setting = 2, "no values kept"
    head = " ".join(f"{a:>9}" for a in ALGORITHMS)
    yield f"\nTraining loss at equal time, {setting}, seeds: {n_seeds}"
    yield (
        f"{'data':>15} {'CPU s':>6} {head} {'features, ' + setting:>29} "
        f"{'halvings':>9} {'baseline':>9} {'its s':>6}"
    )
    for name in DATA:
        data = prepare(name)
        runs = [curves_of(data, loss, seed, options) for seed in range(n_seeds)]
        rows = {a: [run[a][0] for run in runs] for a in ALGORITHMS}
        seconds = min(part[-1, 0] for a in ALGORITHMS for part in rows[a])
        found = {a: [at(part, seconds) for part in rows[a]] for a in ALGORITHMS}
        values = " ".join(f"{np.mean(found[a]):9.4f}" for a in ALGORITHMS)
        used = [
            int(np.mean([np.interp(seconds, *part[:, :2].T) for part in parts]))
            for parts in rows.values()
        ]
        its, value = baseline(data, loss)
        halvings = sum(h for run in runs for _, h in run.values())
        yield (
            f"{name:>15} {seconds:6.1f} {values} "
            f"{used[0]:9d} {used[1]:9d} {used[2]:9d} {halvings:9d} "
            f"{value:9.4f} {its:6.1f}"
        )


def draw(part):
    """Draw the losses and features of a table, beside those of the direct solver."""
    import matplotlib.pyplot as plt

    text = (RESULTS / f"dsg_{part}.txt").read_text()
    clock = "clock" in text.split("Training loss")[0]
    rows = {
        cells[0]: np.array(cells[1:], dtype=float)
        for cells in (line.split() for line in text.splitlines())
        if cells and cells[0] in DATA
    }
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(7, 3.4), sharey=True, layout="constrained"
    )
    places = np.arange(len(rows))
    for i, (name, style) in enumerate(zip(ALGORITHMS, ("o", "s", "^"), strict=True)):
        losses = [row[1 + i] / row[8] for row in rows.values()]
        used = [row[4 + i] / 1000 for row in rows.values()]
        for ax, values in ((left, losses), (right, used)):
            ax.plot(values, places + 0.22 * (i - 1), style, ms=6, label=name.upper())
    for ax, value in ((left, 1.0), (right, 4 * BLOCK / 1000)):
        ax.axvline(value, color="0.4", linestyle="--", label="direct solver")
        ax.grid(axis="x", color="0.9")
        ax.set_axisbelow(True)
    loss = "logistic" if part.startswith("log") else "square"
    left.set_xlabel(f"{loss} loss / that of the direct solver")
    left.set_yticks(places, rows)
    left.invert_yaxis()
    right.set_xlabel("thousands of frequencies (log scale)")
    right.set_xscale("log")
    ticks = [1, 2, 5, 10, 20, 50, 100]
    right.set_xticks(ticks, ticks)
    right.minorticks_off()
    seconds = sorted({f"{row[0]:.0f}" for row in rows.values()})
    kind = "seconds" if clock else "seconds of CPU time"
    span = " to ".join(dict.fromkeys([seconds[0], seconds[-1]]))
    figure.suptitle(f"After {span} {kind}", size=11)
    handles, labels = left.get_legend_handles_labels()
    figure.legend(handles, labels, ncols=4, loc="outside lower center")
    figure.savefig(RESULTS / f"dsg_{part}.png", dpi=200)
    plt.close(figure)


def against_svc():
    """Yield lines: DSG with hinge loss at the time when SVC has converged."""
    yield "\nError (%) on 5000 training rows and on the test rows at the time of SVC"
    yield f"{'data':>15} {'seconds':>8} {'SVC':>13} " + " ".join(
        f"{a:>13}" for a in ALGORITHMS
    )
    for name in ("mnist", "a9a", "ijcnn1"):
        data = prepare(name)
        data = data._replace(X_train=data.X_train[:20000], y_train=data.y_train[:20000])
        sigma = median_distance(data.X_train, np.random.RandomState(0))
        svc = SVC(C=1.0, gamma=0.5 / sigma**2, cache_size=2000)
        start = time.perf_counter()
        svc.fit(data.X_train, data.y_train)
        seconds = time.perf_counter() - start
        errors = [errors_of(svc, data)]
        for algorithm in ALGORITHMS:
            model = DSGClassifier(
                "gaussian",
                algorithm=algorithm,
                n_old=1,
                loss="hinge",
                alpha=1 / 20000,  # the penalty of SVC: alpha = 1 / (C n)
                max_iter=100_000,
                n_iter_no_change=100_000,
                random_state=0,
            )
            model.set_callbacks(Stop(seconds)).fit(data.X_train, data.y_train)
            errors.append(errors_of(model, data))
        cells = " ".join(f"{a:6.2f} {b:6.2f}" for a, b in errors)
        yield f"{name:>15} {seconds:8.1f} {cells}"


def errors_of(model, data):
    """Return the errors in percent on 5000 training rows and on the test rows."""
    train = model.score(data.X_train[:5000], data.y_train[:5000])
    return 100 * (1 - train), 100 * (1 - model.score(data.X_test, data.y_test))


def test_errors():
    """Yield lines: what a user gets on Adult and MNIST."""
    yield "\nTest error, everything else automatic"
    cases = [
        ("a9a", {"kernel": "gaussian", "early_stopping": True}, 15.5),
        ("mnist", {"kernel": "laplacian", "loss": "squared_error"}, 2.0),
    ]
    for name, options, bar in cases:
        data = prepare(name)
        options = {"alpha": 1e-6} | options
        model = DSGClassifier(random_state=0, **options)
        start = time.perf_counter()
        model.fit(data.X_train, data.y_train)
        seconds = time.perf_counter() - start
        error = errors_of(model, data)[1]
        yield (
            f"{name:>8} {options}: {error:.2f} % (bar {bar}) in {seconds:.1f} s, "
            f"{model.n_iter_} epochs, {model.n_features_used_} features"
        )


def features():
    """Yield lines: errors and frequencies with blocks in turn, and with `auto`."""
    yield "\nError on at most 10 000 new rows (%, or 1 - R^2), frequencies, seconds to"
    yield "fit 5000 rows and to predict 3700, means of two draws of the training rows"
    yield f"{'data':>20}{'n_old=1':>32}{'n_old=auto':>34}"
    for name in (*IMAGES, *datasets.TARGETS, *datasets.CLASSES):
        data, line = datasets.parts(name), f"{name:>20}"
        for n_old in (1, "auto"):
            found = [_fit_features(data, n_old, seed) for seed in range(2)]
            loss, n_used, fit, predict = np.mean(found, axis=0)
            error = f"{loss:.4f}" if name in datasets.TARGETS else f"{100 * loss:.2f}"
            line += f"{error:>10}{n_used:>9.0f}{fit:>8.1f}{predict:>7.2f}"
        yield line


def _fit_features(data, n_old, seed):
    """Return the loss on new rows, the frequencies, and the seconds of fit, predict."""
    rows = np.random.RandomState(seed).permutation(len(data.X_train))[:5000]
    y, X_test = data.y_train[rows], data.X_test
    made = DSGClassifier if len(np.unique(data.y_train)) <= 20 else DSGRegressor
    model = made(n_old=n_old, random_state=seed)
    start = time.perf_counter()
    model.fit(data.X_train[rows], y)
    fitted = time.perf_counter()
    model.predict(X_test[np.arange(3700) % len(X_test)])
    end = time.perf_counter()
    loss = 1 - model.score(X_test[:10000], data.y_test[:10000])
    return loss, model.n_features_used_, fitted - start, end - fitted


def automatic():
    """Yield lines: ten epochs of every loss on every data set, in two kernels."""
    names = sorted(
        path.stem for path in Path(os.environ["EIGENKERN_DATA"]).glob("*.npz")
    )
    yield "\nTen epochs with nothing chosen: training loss over that of the constant,"
    yield "least over the epochs and last, halvings, test score (accuracy or R^2)"
    yield f"{'data':>20} {'loss':>20} {'kernel':>10} least  last halvings score"
    for name in names:
        data = load(name, standardize=True)
        classes = np.unique(data.y_train)
        made = DSGClassifier if len(classes) <= 20 else DSGRegressor
        for loss in made._losses:
            for kernel in ("gaussian", "laplacian"):
                model = made(
                    kernel,
                    loss=loss,
                    max_iter=10,
                    n_iter_no_change=10,
                    random_state=0,
                )
                model.fit(data.X_train[:5000], data.y_train[:5000])
                constant = made(kernel, loss=loss, max_iter=1, step_size=1e-12)
                constant.fit(data.X_train[:5000], data.y_train[:5000])
                curve = np.array(model.loss_curve_) / constant.loss_curve_[0]
                score = model.score(data.X_test, data.y_test)
                yield (
                    f"{name:>20} {loss:>20} {kernel:>10} {curve.min():.3f} "
                    f"{curve[-1]:.3f} {model.n_step_halvings_:8d} {score:.3f}"
                )


def stream(n):
    """Train on `n` synthetic rows in pieces; print the peak of memory in MB."""
    rng = np.random.default_rng(0)
    model = DSGRegressor(max_features=2048, random_state=0)
    for _ in range(n // 5000):
        X = rng.standard_normal((5000, 20)).astype(np.float32)
        model.partial_fit(X, np.sin(X[:, 0]) + X[:, 1])
    X = rng.standard_normal((5000, 20)).astype(np.float32)
    score = model.score(X, np.sin(X[:, 0]) + X[:, 1])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{n:>9} rows: peak {peak:.0f} MB, {model.t_} steps, R^2 {score:.3f}")


def memory():
    """Yield lines: peak of memory of two streams, each in a process of its own."""
    yield "\nPeak of memory of a stream, at most 2048 features"
    for n in (100_000, 1_000_000):
        command = [sys.executable, __file__, "--stream", str(n)]
        yield subprocess.run(
            command, capture_output=True, text=True, check=True
        ).stdout.rstrip()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parts = {}
    for loss in LOSSES:
        parts[loss] = partial(curves, loss, True)
        parts[f"{loss}_auto"] = partial(curves, loss, False)
    drawn = tuple(parts)
    parts |= {"svc": against_svc, "errors": test_errors}
    parts |= {"features": features, "auto": automatic, "memory": memory}
    parser.add_argument("part", nargs="*", help=f"of {', '.join(parts)}; default: all")
    parser.add_argument("--write", action="store_true", help="write results/dsg_*")
    parser.add_argument("--report", action="store_true", help="draw, and run nothing")
    parser.add_argument("--stream", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.stream:
        return stream(args.stream)
    if args.report:
        for part in args.part or drawn:
            draw(part)
        return None
    for part in args.part or parts:
        lines = [
            f"python benchmarks/dsg_curves.py {part}; {date.today()}; "
            f"{platform.machine()}, {processor()}, NumPy {np.__version__}"
        ]
        print(lines[0], flush=True)
        for line in parts[part]():
            print(line, flush=True)
            lines.append(line)
        if args.write:
            (RESULTS / f"dsg_{part}.txt").write_text("\n".join(lines) + "\n")
            if part in drawn:
                draw(part)
    return None


if __name__ == "__main__":
    main()
