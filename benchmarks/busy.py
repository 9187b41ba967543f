"""Time of fits and predictions on a busy machine over that of the same alone.

Each case runs alone, beside as many endless Python loops as there are cores, and beside
one process that multiplies NumPy matrices on two threads without end. Run ::

    python benchmarks/busy.py                   # the table, some 3 minutes
    python benchmarks/busy.py --cases tabular linear     # a part of it
    python benchmarks/busy.py --write           # and keep it in results/

The estimators have their default threads. With fair shares a fit on all cores takes
twice as long beside either; one that runs on one thread less. The fit of "ridge" is
mostly that of scikit-learn's `Ridge`, on the threads of BLAS.

The rounds of a case (alone, loops, products) follow each other, and the table has
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
from eigenkern.backend.threads import n_blas_threads, n_cores

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
BUSY = {"alone": [], "loops": [LOOP] * n_cores(), "products": [PRODUCT]}
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


# name -> (data, estimator)
CASES = {
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
def beside(programs):
    """Run Python programs in processes of their own, and end them."""
    processes = []
    try:
        for program in programs:
            command = [sys.executable, "-c", program]
            # Ctrl-C is for this process, which ends them.
            options = {"stdout": subprocess.PIPE, "start_new_session": True}
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
        for j, programs in enumerate(BUSY.values()):
            with beside(programs):
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
        f"Seconds alone, and the ratio beside {n_cores()} endless loops and beside "
        f"NumPy products on two threads; {date.today()}; {processor()}, "
        f"{n_blas_threads()} threads, NumPy {np.__version__}",
        "",
        f"{'':>10}{'fit':>8}{'':>17}{'predict':>11}",
        f"{'case':>10}" + 2 * f"{'alone s':>10}{'loops':>7}{'products':>10}",
    ]
    print("\n".join(lines))
    for name in args.cases:
        line = f"{name:>10}"
        for alone, *busy in measure(name, args.rounds):
            line += f"{alone:>10.4f}{busy[0] / alone:>7.2f}{busy[1] / alone:>10.2f}"
        lines.append(line)
        print(line, flush=True)
    if args.write:
        RESULTS.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
