"""Interrupts, forks, killed workers, little memory, forged files: what they leave.

``python benchmarks/faults.py [--times 1] [--parts PART ...] [--write]`` counts, for
each part, how often it was tried, how often something was lost, and how often it is
unclear, because the call or the fit ended before what was to happen to it:

interrupts  KeyboardInterrupt during a prediction or a fit: afterwards BLAS has its
            threads again, and the model predicts as before.
handlers    a handler that predicts, or makes random features, called during fits and
            predictions: it returns, and finds the same.
forks       a process forks while another of its threads fits: the child predicts and
            fits, in less than 20 seconds.
kills       a process that fits with a checkpoint is killed: the fit continues bit for
            bit in another one.
dask        a worker of a cluster, or its scheduler, is killed during a fit, half of the
            times each. Without the worker the fit ends, and predicts the same; without
            the scheduler it ends with a ConnectionError and the model as it was, and
            predicts the same when resumed on another cluster. It takes less than 150
            seconds.
limits      fits with little address space: each ends, with a model that predicts, or
            with a MemoryError or ValueError and the model as it was, in 150 seconds.
forged      resuming from a checkpoint, in half of the trials of an unfinished fit, one
            of whose values or bytes was replaced, with checksums to match, or one of
            whose files is of another kind: it ends in less than 150 seconds and 1 GB,
            with a ValueError or a model.

Some fourteen minutes, eight of them for ``dask``; ``--parts`` runs only some of these.
"""

import argparse
import hashlib
import itertools
import json
import logging
import os
import platform
import resource
import shutil
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
import joblib
import numpy as np
import psutil
from kernel_product import processor
from sklearn import clone
from sklearn.base import is_classifier
from threadpoolctl import threadpool_info

from eigenkern import (
    Checkpoint,
    DSGRegressor,
    EigenProClassifier,
    EigenProRegressor,
    FalkonLikeRegressor,
    LinearEigenProRegressor,
    NystromRegressor,
    NytroRegressor,
    RandomFourierFeatures,
    RFMRegressor,
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
    """Return how many interrupts came while something ran, how many lost what, and
    how many came too late.
    """
    X, y = data(300)
    model = EigenProRegressor(random_state=0).fit(X, y)
    other, usual, expected = EigenProRegressor(), blas_threads(), model.predict(X)
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    n_hit = n_lost = n_late = 0
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
                n_late += 1
            except KeyboardInterrupt:
                n_hit += 1
                n_lost += blas_threads() != usual
    n_lost += not np.array_equal(model.predict(X), expected)
    return n_hit, n_lost, n_late


def handlers(times):
    """Return how often a handler predicted, and how often it was wrong."""
    X, y = data(2500)
    model = EigenProRegressor(random_state=0).fit(X[:500], y[:500])
    other = NystromRegressor(n_centers=300, random_state=0)
    epochs = EigenProRegressor(algorithm="eigenpro2", max_iter=1, random_state=0)
    features = RandomFourierFeatures(n_components=100, random_state=0).fit(X)
    calls = [lambda: model.predict(X[:400]), lambda: features.transform(X[:400])]
    expected, counts, usual = [call() for call in calls], [0, 0], blas_threads()

    def predict(*_):
        one = counts[0] % 2
        counts[0] += 1
        counts[1] += not np.array_equal(calls[one](), expected[one])
        signal.setitimer(signal.ITIMER_REAL, 0.004)

    signal.signal(signal.SIGALRM, predict)
    signal.setitimer(signal.ITIMER_REAL, 0.001)
    end = time.monotonic() + 20 * times
    while time.monotonic() < end:
        model.predict(X[:400])
        features.transform(X)
        other.fit(X[:1000], y[:1000])
        epochs.fit(X, y)
    signal.setitimer(signal.ITIMER_REAL, 0)
    return counts[0], counts[1] + (blas_threads() != usual), 0


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
    return n, n_lost, 0


def _ends_well(child, seconds=SECONDS_OF_CHILD):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return status == 0
        time.sleep(0.005)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return False


def _half_done(model, X, y, folder, delay=0.0):
    """Kill a fit in another process once it has written an epoch; whether it ended."""
    child = os.fork()
    if child == 0:
        try:
            clone(model).fit(X, y, checkpoint=Checkpoint(folder, seconds=0))
        finally:
            os._exit(0)
    while not os.waitpid(child, os.WNOHANG)[0]:
        if list(Path(folder).glob("state-*.npz")):
            time.sleep(delay)
            os.kill(child, signal.SIGKILL)
            return os.waitpid(child, 0)[1] == 0
    return True


def kills(times):
    """Return how many fits were killed, how many lost, and how many ended first."""
    X, y = data(600)
    options = {"max_iter": 60, "tol": 0.0, "random_state": 0}
    more = {"n_iter_no_change": 60}
    models = [
        EigenProRegressor(algorithm="eigenpro2", batch_size=50, **options, **more),
        EigenProRegressor(algorithm="eigenpro4", n_centers=100, **options, **more),
        FalkonLikeRegressor(n_centers=100, kernel="laplacian", **options),
        DSGRegressor(**options | {"max_iter": 8}, **more),
        RFMRegressor(max_rounds=3, random_state=0),
    ]
    expected = [clone(model).fit(X, y).predict(X) for model in models]
    rng, n, n_lost, n_ended = np.random.default_rng(6), 0, 0, 0
    for k in range(100 * times):
        model = clone(models[k % len(models)])
        with tempfile.TemporaryDirectory() as folder:
            if _half_done(model, X, y, folder, 0.3 * rng.random() ** 2):
                n_ended += 1
                continue
            n += 1
            try:
                model.fit(X, y, checkpoint=folder, resume=True)
                fault = "" if np.array_equal(model.predict(X), expected[k % 5]) else "?"
            except Exception as error:
                fault = repr(error)
            if fault:
                n_lost += 1
                print(f"{model}: {fault}")
    return n, n_lost, n_ended


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
    """Return how many processes of a cluster were killed, how many fits it cost, and
    how many fits ended first.
    """
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
    rng, n, n_lost, n_ended = np.random.default_rng(3), [0, 0], 0, 0
    cluster = Cluster()
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
        n_ended += killer.is_alive()
        killer.cancel()
        killer.join()
        if fault:
            n_lost += 1
            print(f"{('worker', 'scheduler')[kind]} after {delay:.2f} s: {fault}")
        if fault or cluster.process.poll() is not None:
            cluster.close()
            cluster = Cluster()
    cluster.close()
    return sum(n), n_lost, n_ended


def _in_a_child(attempt, megabytes):
    """Run a function in a process with little address space; whether it ended well."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            used = psutil.Process().memory_info().vms
            limit = used + int(megabytes * 1e6), resource.RLIM_INFINITY
            resource.setrlimit(resource.RLIMIT_AS, limit)
            attempt()
            status = 0
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", flush=True)
        finally:
            os._exit(status)
    return _ends_well(child, SECONDS_OF_FIT)


def limits(times):
    """Return how many fits had little memory, and how many ended otherwise."""
    X, y = data(4000)
    labels = y > 0
    models = [
        EigenProRegressor(),
        EigenProClassifier(n_centers=800),
        EigenProRegressor(algorithm="eigenpro2", max_iter=2),
        LinearEigenProRegressor(),
        NystromRegressor(n_centers=1000),
        NytroRegressor(),
        FalkonLikeRegressor(n_centers=1000),
        DSGRegressor(max_iter=2),
        RFMRegressor(max_rounds=1),
    ]
    rng, n, n_lost = np.random.default_rng(4), 150 * times, 0
    for k in range(n):
        model = clone(models[k % len(models)]).set_params(random_state=0)
        targets = labels if is_classifier(model) else y
        megabytes = float(np.exp(rng.uniform(np.log(4.0), np.log(400.0))))

        def fit(model=model, targets=targets):
            before = dict(vars(model))
            try:
                model.fit(X, targets)
            except (MemoryError, ValueError):
                if vars(model) != before:
                    raise
            else:
                if not model.score(X, targets) > 0.3:
                    raise ArithmeticError("nothing was learned")

        if not _in_a_child(fit, megabytes):
            print(f"{model} with {megabytes:.0f} MB")
            n_lost += 1
    return n, n_lost, 0


ODD = (
    None,
    True,
    -1,
    0,
    10**9,
    2**70,
    1e400,
    float("nan"),
    "",
    "../x",
    "/dev/zero",
    [],
)
ODD += ([[]], {}, {"a": 1}, [1] * 1000, "state-9.npz", -0.5)


def _forge_value(path, rng):
    """Replace one value of a manifest, at any depth, and make its checksum right."""
    manifest = json.loads(path.read_text())
    del manifest["checksum"]
    entry = manifest
    while True:
        keys = list(entry) if isinstance(entry, dict) else list(range(len(entry)))
        key = keys[rng.integers(len(keys))]
        below = entry[key]
        if not isinstance(below, dict | list) or not below or rng.random() < 0.1:
            break
        entry = below
    entry[key] = ODD[rng.integers(len(ODD))]
    manifest["checksum"] = joblib.hash(json.dumps(manifest))
    path.write_text(json.dumps(manifest))
    return f"{key} = {entry[key]!r}"


def _forge_bytes(path, rng):
    """Replace some bytes of the arrays, and make both checksums right."""
    arrays = next(path.parent.glob("*.npz"))
    content = bytearray(arrays.read_bytes())
    place = rng.integers(len(content), size=4)
    for i in place:
        content[i] = rng.integers(256)
    arrays.write_bytes(content)
    manifest = json.loads(path.read_text())
    del manifest["checksum"]
    with open(arrays, "rb") as file:
        digest = hashlib.file_digest(file, "blake2b").hexdigest()
    manifest["state"]["checksum"] = digest
    manifest["checksum"] = joblib.hash(json.dumps(manifest))
    path.write_text(json.dumps(manifest))
    return f"bytes {sorted(place.tolist())} of {arrays.name}"


def _forge_kind(path, rng):
    """Make one of the files a device, a pipe, a folder or a link."""
    one = [path, next(path.parent.glob("*.npz"))][rng.integers(2)]
    one.unlink()
    kind = rng.integers(4)
    if kind == 0:
        one.symlink_to("/dev/zero")
    elif kind == 1:
        os.mkfifo(one)
    elif kind == 2:
        one.mkdir()
    else:
        one.symlink_to(one.name)
    return f"{one.name} is of kind {kind}"


def forged(times):
    """Return how many forged checkpoints were resumed, and how many ended badly."""
    X, y = data(300)
    models = [
        EigenProRegressor(algorithm="eigenpro2", max_iter=3, random_state=0),
        FalkonLikeRegressor(n_centers=60, max_iter=3, random_state=0),
        DSGRegressor(max_iter=2, random_state=0),
        RFMRegressor(max_rounds=1, random_state=0),
    ]
    rng, n, n_lost = np.random.default_rng(5), 200 * times, 0
    with tempfile.TemporaryDirectory() as folder:
        saved = []
        for k, model in enumerate(models):
            saved.append(Path(folder) / str(k))
            checkpoint = Checkpoint(saved[-1], seconds=0)
            clone(model).fit(X, y, checkpoint=checkpoint)
            while _half_done(model, X, y, half := Path(folder) / f"half {k}", 0.05):
                shutil.rmtree(half)
            saved.append(half)
        for trial in range(n):
            copy, kind = Path(folder) / "forged", trial % len(saved)
            model = clone(models[kind // 2])
            shutil.copytree(saved[kind], copy)
            forge = rng.choice(
                [_forge_value, _forge_bytes, _forge_kind], p=[0.7, 0.2, 0.1]
            )
            what = forge(copy / "manifest.json", rng)

            def resume(model=model, copy=copy):
                try:
                    model.fit(X, y, checkpoint=copy, resume=True)
                except (ValueError, OSError):
                    return
                model.predict(X)

            if not _in_a_child(resume, 1000):
                print(f"{model}: {what}")
                n_lost += 1
            shutil.rmtree(copy)
    return n, n_lost, 0


PARTS = (interrupts, handlers, forks, kills, dask, limits, forged)
PARTS = {one.__name__: one for one in PARTS}


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
        f"{'':12}{'tried':>8}{'lost':>8}{'unclear':>9}",
    ]
    print("\n".join(head))
    for part in args.parts:
        n, n_lost, n_unclear = PARTS[part](args.times)
        rows[part] = f"{part:12}{n:8}{n_lost:8}{n_unclear:9}  {date.today()}"
        print(rows[part], flush=True)
    if args.write:
        lines = head + [row for row in rows.values() if row]
        path.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
