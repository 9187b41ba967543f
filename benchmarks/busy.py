"""Time of fits and predictions on a busy machine over that of the same alone.

Each case runs alone, beside as many endless Python loops as there are cores, beside the
same in a session each, and beside one process that multiplies NumPy matrices on two
threads without end. Run ::

    python benchmarks/busy.py                   # the table, some 5 minutes
    python benchmarks/busy.py --cases tabular linear     # a part of it
    python benchmarks/busy.py --write           # and keep it in results/

The estimators have their default threads. With fair shares a fit on all cores takes
twice as long beside loops or products; one that runs on one thread less. Beside loops
of one session each a fair share is a third of the machine: Linux may share its cores
among sessions first (sched_autogroup_enabled). "floor" is what the scheduler leaves to
products that wait for nothing. The fit of "ridge" is mostly that of scikit-learn's
`Ridge`, on the threads of BLAS.

The rounds of a case (alone and beside the others) follow each other, and the table has
medians of three of them. The other processes are started for each and end with it, and
end themselves where this one is gone.
"""

import argparse
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from datetime import date
from pathlib import Path

import numpy as np
from kernel_product import processor
from sklearn.linear_model import Ridge
from sklearn.pipeline import make_pipeline

from eigenkern import (
    DSGRegressor,
    EigenProClassifier,
    EigenProRegressor,
    FalkonLikeRegressor,
    LinearEigenProRegressor,
    NystromRegressor,
    NytroRegressor,
    RandomFourierFeatures,
)
from eigenkern.arrays.threads import Team, n_blas_threads, n_cores, run_on_threads

RESULTS = Path(__file__).parent / "results" / "busy.txt"
# What keeps the machine busy; both end with the process that started them.
LOOP = """
import os
parent = os.getppid()
print(flush=True)
while os.getppid() == parent:
    for _ in range(1_000_000):
        pass
"""
PRODUCT = """
import os
import numpy as np
from threadpoolctl import threadpool_limits
parent = os.getppid()
A = np.ones((2000, 2000), np.float32)
with threadpool_limits(2):
    print(flush=True)
    while os.getppid() == parent:
        A @ A
"""
LOOPS = [LOOP] * n_cores()
# What runs beside a case, and whether in sessions of its own.
BUSY = {
    "alone": ([], False),
    "loops": (LOOPS, False),
    "sessions": (LOOPS, True),
    "products": ([PRODUCT], False),
}
# Seconds that the predictions of a round take alone, at least.
PREDICTED = 0.3


def digits():
    """Ten noisy classes of 784 features in [0, 1], most of them zero."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 10, 1500)
    classes, basis = rng.standard_normal((10, 30)), rng.standard_normal((30, 784))
    X = (classes[y] + 0.7 * rng.standard_normal((1500, 30))) @ basis
    return np.clip(0.1 * X, 0, 1).astype(np.float32), y


def tabular():
    """A smooth function of 12 features with noise, 6000 rows."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((6000, 12)).astype(np.float32)
    y = np.sin(X[:, 0]) + X[:, 1] * X[:, 2] + 0.1 * rng.standard_normal(6000)
    return X, y.astype(np.float32)


def features():
    """1000 random Fourier features of 3000 of these rows."""
    X, y = tabular()
    made = RandomFourierFeatures(n_components=1000, random_state=0)
    return made.fit_transform(X[:3000]), y[:3000]


class Floor:
    """Small products on all threads, none of which waits for another."""

    _A = np.ones((400, 400), np.float32)

    def fit(self, X, y):
        self._multiply(200)

    def predict(self, X):
        self._multiply(10)

    def _multiply(self, n):
        run_on_threads(Team(n_blas_threads()), lambda: self._A @ self._A, [()] * n)


# name -> (data, estimator)
CASES = {
    "floor": (lambda: (None, None), Floor()),
    "digits": (digits, EigenProClassifier(max_iter=10, random_state=0)),
    "tabular": (tabular, EigenProRegressor(max_iter=10, random_state=0)),
    "epochs": (
        tabular,
        EigenProRegressor(algorithm="eigenpro2", max_iter=10, random_state=0),
    ),
    "centers": (
        tabular,
        EigenProRegressor(
            algorithm="eigenpro4", n_centers=1000, max_iter=10, random_state=0
        ),
    ),
    "linear": (features, LinearEigenProRegressor(max_iter=20, random_state=0)),
    "nystrom": (tabular, NystromRegressor(n_centers=1000, random_state=0)),
    "nytro": (tabular, NytroRegressor(n_centers=1000, random_state=0)),
    "falkon": (tabular, FalkonLikeRegressor(n_centers=1000, random_state=0)),
    "dsg": (tabular, DSGRegressor(max_iter=5, random_state=0)),
    "ridge": (
        tabular,
        make_pipeline(
            RandomFourierFeatures(n_components=1000, random_state=0), Ridge(0.1)
        ),
    ),
}


@contextmanager
def beside(programs, in_sessions):
    """Run Python programs in processes of their own, and end them."""
    processes = []
    try:
        for program in programs:
            command = [sys.executable, "-c", program]
            # Ctrl-C is for this process, which ends them.
            group = {"start_new_session": True} if in_sessions else {"process_group": 0}
            options = {"stdout": subprocess.PIPE} | group
            processes.append(subprocess.Popen(command, **options))
        for process in processes:
            process.stdout.readline()  # it has begun
        yield
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.wait()
            process.stdout.close()


def seconds(function, n_calls=1):
    """Return the time of a call, the mean of several in a row."""
    start = time.perf_counter()
    for _ in range(n_calls):
        function()
    return (time.perf_counter() - start) / n_calls


def measure(name, n_rounds):
    """Return seconds, of shape (fit or predict, what runs beside it)."""
    make_data, estimator = CASES[name]
    X, y = make_data()
    estimator.fit(X, y)  # what is measured once a process is known, threads are started
    estimator.predict(X)
    n_calls = int(np.ceil(PREDICTED / seconds(lambda: estimator.predict(X))))
    times = np.empty((n_rounds, 2, len(BUSY)))
    for round_of_times in times:
        for j, others in enumerate(BUSY.values()):
            with beside(*others):
                round_of_times[0, j] = seconds(lambda: estimator.fit(X, y))
                round_of_times[1, j] = seconds(lambda: estimator.predict(X), n_calls)
    return np.median(times, axis=0)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", nargs="+", choices=CASES, default=CASES)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--write", action="store_true", help="keep the results")
    args = parser.parse_args()
    # Ending this process ends the others as Ctrl-C does.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    lines = [
        f"Seconds alone, and the ratio beside {n_cores()} endless loops, the same in "
        "sessions of their own, and NumPy products on two threads; "
        f"{date.today()}; {processor()}, {n_blas_threads()} threads, "
        f"NumPy {np.__version__}",
        "",
        f"{'':>10}{'fit':>8}{'':>27}{'predict':>11}",
        f"{'case':>10}"
        + 2 * (f"{'alone s':>10}{'loops':>7}{'sessions':>10}" + f"{'products':>10}"),
    ]
    print("\n".join(lines))
    for name in args.cases:
        line = f"{name:>10}"
        for alone, *busy in measure(name, args.rounds):
            loops, *others = (time / alone for time in busy)
            line += f"{alone:>10.4f}{loops:>7.2f}"
            line += "".join(f"{ratio:>10.2f}" for ratio in others)
        lines.append(line)
        print(line, flush=True)
    if args.write:
        RESULTS.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
