"""Interrupts, handlers, forks and killed workers at random moments: what they leave.

``python benchmarks/faults.py [--times 1] [--parts PART ...] [--write]`` counts, for
each part, how often it was tried and how often something was lost:

interrupts  KeyboardInterrupt during a prediction or a fit: afterwards BLAS has its
            threads again, and the model predicts as before.
handlers    a handler that predicts, called during fits and predictions: it returns, and
            predicts the same.
forks       a process forks while another of its threads fits: the child predicts and
            fits, in less than 20 seconds.
dask        a worker of a cluster, or its scheduler, is killed during a fit, half of the
            times each. Without the worker the fit ends, and predicts the same; without
            the scheduler it ends with a ConnectionError and the model as it was, and
            predicts the same when resumed on another cluster. It takes less than 150
            seconds.

Some ten minutes, eight of them for ``dask``; ``--parts`` runs only some of these.
"""

import argparse
import itertools
import logging
import os
import platform
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from datetime import date
from pathlib import Path

import dask.array as da
import distributed
import numpy as np
from kernel_product import processor
from sklearn import clone
from threadpoolctl import threadpool_info

from eigenkern import (
    Checkpoint,
    EigenProRegressor,
    FalkonLikeRegressor,
    LinearEigenProRegressor,
    NystromRegressor,
)

RESULTS = Path(__file__).parent / "results"
SECONDS_OF_CHILD = 20.0
SECONDS_OF_FIT = 150
# A scheduler that can be killed, with two workers.
CLUSTER = """
import sys
from distributed import LocalCluster
with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster:
    print(cluster.scheduler_address, flush=True)
    sys.stdin.read()
"""


def data(n):
    X = np.random.default_rng(0).standard_normal((n, 5))
    return X, X[:, 0] + np.sin(X[:, 1])


def blas_threads():
    return [
        one["num_threads"] for one in threadpool_info() if "blas" in one["user_api"]
    ]


def interrupts(times):
    """Return how many interrupts came while something ran, and how many lost what."""
    X, y = data(300)
    model = EigenProRegressor(random_state=0).fit(X, y)
    other, usual, expected = EigenProRegressor(), blas_threads(), model.predict(X)
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    n_hit = n_lost = 0
    rng = np.random.default_rng(1)
    calls = [(lambda: model.predict(X[:50]), 2500)]
    calls += [(lambda: other.fit(X[:120], y[:120]), 500)]
    for call, n in calls:
        call()
        start = time.perf_counter()
        for _ in range(20):
            call()
        longest = 1.2 * (time.perf_counter() - start) / 20
        for _ in range(n * times):
            try:
                delay = max(rng.random() * longest, 1e-6)
                signal.setitimer(signal.ITIMER_REAL, delay)
                call()
                signal.setitimer(signal.ITIMER_REAL, 0)
                time.sleep(0)
            except KeyboardInterrupt:
                n_hit += 1
                n_lost += blas_threads() != usual
    n_lost += not np.array_equal(model.predict(X), expected)
    return n_hit, n_lost


def handlers(times):
    """Return how often a handler predicted, and how often it was wrong."""
    X, y = data(2500)
    model = EigenProRegressor(random_state=0).fit(X[:500], y[:500])
    other = NystromRegressor(n_centers=300, random_state=0)
    epochs = EigenProRegressor(algorithm="eigenpro2", max_iter=1, random_state=0)
    expected, counts, usual = model.predict(X[:400]), [0, 0], blas_threads()

    def predict(*_):
        counts[0] += 1
        counts[1] += not np.array_equal(model.predict(X[:400]), expected)

    signal.signal(signal.SIGALRM, predict)
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.004)
    end = time.monotonic() + 20 * times
    while time.monotonic() < end:
        model.predict(X[:400])
        other.fit(X[:1000], y[:1000])
        epochs.fit(X, y)
    signal.setitimer(signal.ITIMER_REAL, 0)
    return counts[0], counts[1] + (blas_threads() != usual)


def forks(times):
    """Return how many processes were forked, and how many hung or failed."""
    X, y = data(1200)
    models = [
        EigenProRegressor(random_state=0),
        NystromRegressor(n_centers=200, random_state=0),
        EigenProRegressor(algorithm="eigenpro2", max_iter=2, random_state=0),
        FalkonLikeRegressor(n_centers=200, random_state=0),
        LinearEigenProRegressor(),
    ]
    fitted, over = EigenProRegressor(random_state=0).fit(X[:500], y[:500]), []

    def fit_all():
        while not over:
            for model in models:
                model.fit(X, y)

    thread = threading.Thread(target=fit_all)
    thread.start()
    rng, n, n_lost = np.random.default_rng(2), 200 * times, 0
    for k in range(n):
        time.sleep(rng.random() * 0.05)
        child = os.fork()
        if child == 0:
            status = 1
            try:
                fitted.predict(X[:300])
                models[k % len(models)].fit(X[:300], y[:300])
                status = 0
            finally:
                os._exit(status)
        n_lost += not _ends_well(child)
    over.append(True)
    thread.join()
    return n, n_lost


def _ends_well(child):
    end = time.monotonic() + SECONDS_OF_CHILD
    while time.monotonic() < end:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return status == 0
        time.sleep(0.005)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return False


class Hangs(BaseException):
    """A fit takes too long."""


def _hangs(*_):
    raise Hangs(f"more than {SECONDS_OF_FIT} seconds")


class Cluster:
    """A client of a scheduler and two workers in processes that can be killed."""

    def __init__(self):
        pipes = dict.fromkeys(("stdin", "stdout"), subprocess.PIPE)
        command = [sys.executable, "-c", CLUSTER]
        self.process = subprocess.Popen(
            command, **pipes, stderr=subprocess.DEVNULL, text=True
        )
        self.client = distributed.Client(self.process.stdout.readline().strip())

    def pids(self):
        """Return the processes of a worker and of the scheduler."""
        self.client.wait_for_workers(2, timeout=120)
        return min(self.client.run(os.getpid).values()), self.process.pid

    def close(self):
        self.client.close()
        self.process.kill()
        self.process.communicate()


def _read(chunk):
    time.sleep(0.05)  # so that many processes are killed while chunks are computed
    return chunk


def dask(times):
    """Return how many processes of a cluster were killed, and how many fits it cost."""
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    signal.signal(signal.SIGALRM, _hangs)
    X, y = data(10_000)
    # With eight targets, parts of them are so large that they are sent by `scatter`.
    Y = y[:, None] * np.arange(1.0, 9.0)
    rows, targets = (
        da.from_array(one, chunks=(1000, -1)).map_blocks(_read, dtype=one.dtype)
        for one in (X, Y)
    )
    options = {"n_centers": 300, "tol": 0.0, "random_state": 0}
    models = [
        EigenProRegressor(batch_size=1000, max_iter=4, **options),
        FalkonLikeRegressor(alpha=1e-5, max_iter=8, **options),
    ]
    rng, n, n_lost, cluster = np.random.default_rng(3), [0, 0], 0, Cluster()
    cluster.pids()
    usual = []
    for model in models:
        model.fit(rows, targets)
        start = time.perf_counter()
        usual.append((model.fit(rows, targets), time.perf_counter() - start))
    for trial in itertools.count():
        if min(n) >= 25 * times:
            break
        kind = int(n[0] > n[1])  # 0: a worker, 1: the scheduler
        usual_model, seconds = usual[trial // 2 % 2]
        model, pid = clone(usual_model), cluster.pids()[kind]
        with tempfile.TemporaryDirectory() as folder:
            checkpoint = Checkpoint(folder, seconds=0)
            delay = rng.random() * seconds
            killer = threading.Timer(delay, os.kill, [pid, signal.SIGKILL])
            signal.alarm(SECONDS_OF_FIT)
            killer.start()
            try:
                try:
                    model.fit(rows, targets, checkpoint=checkpoint)
                except ConnectionError:
                    if kind == 0 or hasattr(model, "dual_coef_"):
                        raise
                    cluster.close()
                    cluster = Cluster()
                    model.fit(rows, targets, checkpoint=checkpoint, resume=True)
                found, expected = model.predict(X[:300]), usual_model.predict(X[:300])
                fault = (
                    "" if np.allclose(found, expected, 1e-6, 1e-6) else "other model"
                )
            except (Exception, Hangs) as error:
                fault = repr(error)
            signal.alarm(0)
        n[kind] += not killer.is_alive()
        killer.cancel()
        killer.join()
        if fault:
            n_lost += 1
            print(f"{('worker', 'scheduler')[kind]} after {delay:.2f} s: {fault}")
        if fault or cluster.process.poll() is not None:
            cluster.close()
            cluster = Cluster()
    cluster.close()
    return sum(n), n_lost


PARTS = {one.__name__: one for one in (interrupts, handlers, forks, dask)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--times", type=int, default=1, help="how many times as many")
    parser.add_argument("--write", action="store_true", help="keep the results")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    path = RESULTS / "faults.txt"
    rows = dict.fromkeys(PARTS)
    for row in path.read_text().splitlines()[2:]:  # of parts that are not run
        rows[row.split()[0]] = row
    head = [
        f"{platform.machine()}, {processor()}, Python {platform.python_version()}",
        f"{'':12}{'tried':>8}{'lost':>8}",
    ]
    print("\n".join(head))
    for part in args.parts:
        n, n_lost = PARTS[part](args.times)
        rows[part] = f"{part:12}{n:8}{n_lost:8}  {date.today()}"
        print(rows[part], flush=True)
    if args.write:
        lines = head + [row for row in rows.values() if row]
        path.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
