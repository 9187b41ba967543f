"""Models on centers over the workers of a cluster: overhead, scaling, a cost model.

Run ``python benchmarks/scaling.py`` on a quiet machine (some 10 minutes on two cores):

- the fit of `EigenProRegressor` on one worker process of one thread, over that of the
  same fit in one process on one thread;
- strong scaling: the same rows on one worker and on two; weak scaling: twice the rows
  and twice the batch on two;
- the time that a step takes beside its products: a step on a tiny model;
- what `step_seconds` says of each of these steps, from rates measured in the same run,
  and for clusters that are not there.

What clusters that are not there would take goes to ``scaling_projected.txt``.

``--files`` fits rows that stay in a memory map, in HDF5 and in Zarr (some 3 minutes).
``--zarr`` streams 10 million rows of a Zarr array through `NystromRegressor` with 2000
centers and tells the largest memory of the process (some 15 minutes more).
"""

import argparse
import itertools
import platform
import subprocess
import sys
import tempfile
import time
import warnings
from datetime import date
from pathlib import Path
from unittest import mock

import numpy as np
from kernel_product import processor
from threadpoolctl import threadpool_limits

from eigenkern import (
    EigenProRegressor,
    FalkonLikeRegressor,
    LinearEigenProRegressor,
    NystromRegressor,
)
from eigenkern.backend.linalg import solve_triangular
from eigenkern.kernels import Laplacian
from eigenkern.operators.tiled import TiledKernel
from eigenkern.solvers import projected as solver

RESULTS = Path(__file__).parent / "results"
N, D, P, M = 200_000, 100, 5000, 4000
BARS = {"overhead": 1.15, "weak": 0.85, "scheduler": 0.05, "model": 0.25, "GB": 2.0}


def data(n, d=D, seed=0):
    """Return rows and targets in single precision."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)).astype(np.float32)
    y = np.sin(X[:, 0]) + 0.5 * X[:, 1] * X[:, 2] + 0.1 * rng.normal(size=n)
    return X, y.astype(np.float32)


def model(p, m, n_epochs):
    """Return a model whose steps are all alike: no trials, no early end."""
    return EigenProRegressor(
        bandwidth=10.0,
        n_centers=p,
        batch_size=m,
        max_iter=n_epochs,
        tol=0,
        early_stopping=False,
        cache_size=1000,  # for the factor of K(Z, Z), not for K(X, Z)
        algorithm="eigenpro3",
        random_state=0,
    )


def fitted(X, y, p, m, n_epochs=1):
    """Return the seconds of a fit on one thread of this process, and of a step.

    Of the steps those of the last epoch: in the first one connections are opened.
    """
    run_epoch, found = solver.run_epoch, []

    def timed(*args):
        start = time.perf_counter()
        run_epoch(*args)
        found.append((time.perf_counter() - start) / args[7].n_batches)

    start = time.perf_counter()
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with mock.patch.object(solver, "run_epoch", timed):
            model(p, m, n_epochs).fit(X, y)
    return time.perf_counter() - start, found[-1]


class Rates:
    """What a machine does, measured: rates of a thread, and of messages.

    Attributes
    ----------
    evaluation, adjoint : float
        Seconds of an entry of K, with its product by one column, and of that of K'.
    solve : float
        Seconds of a triangular solve over p^2.
    message, byte : float
        Seconds of a message to a worker and back, and of a byte.
    """

    def __init__(self, client=None, *, p=P, d=D):
        with threadpool_limits(1):
            X, _ = data(1000, d)
            centers, _ = data(p, d, 1)
            a = np.ones((p, 1), dtype=np.float32)
            K = TiledKernel(Laplacian(10.0), centers, X)
            self.evaluation = best(lambda: K.evaluated(a)) / (1000 * p)
            K = K.block()
            self.adjoint = best(lambda: (a[:1000].T @ K).T) / (1000 * p)
            L = np.tril(np.ones((p, p))) + p * np.eye(p)
            column = np.ones((p, 1))
            self.solve = best(lambda: solve_triangular(L, column)) / p**2
        self.message = self.byte = 0.0
        if client is not None:
            value = np.zeros(2_500_000, dtype=np.float32)
            small = best(lambda: client.gather([client.submit(sum, (1,), pure=False)]))
            large = best(lambda: client.scatter(value, broadcast=True, hash=False))
            self.message, self.byte = small, max(large - small, 0.0) / value.nbytes


def best(function, n=5):
    """Return the least seconds of a few calls."""
    found = []
    for _ in range(n):
        start = time.perf_counter()
        function()
        found.append(time.perf_counter() - start)
    return min(found)


# Messages that a step waits for, one after the other: of a step with all that it needs,
# and back.
N_ROUNDS = 1


def step_seconds(rates, *, m, p, n_columns, n_workers, itemsize=4):
    """Return what a step takes: on the workers, here, and on the way.

    Of a batch of m rows each of W workers evaluates m / W rows of K and multiplies them
    twice; p l coefficients go to each worker, and as many come back; m l targets and
    errors pass. The projection is two triangular solves.
    """
    on_workers = m * p / n_workers * (rates.evaluation + rates.adjoint * n_columns)
    here = 2 * p**2 * rates.solve * n_columns
    n_bytes = itemsize * n_columns * (2 * p * n_workers + 2 * m)
    on_the_way = rates.message * N_ROUNDS + rates.byte * n_bytes
    return on_workers, here, on_the_way


def with_workers(n_workers):
    """Return a cluster of worker processes of one thread each."""
    from distributed import Client, LocalCluster

    cluster = LocalCluster(
        n_workers=n_workers, threads_per_worker=1, dashboard_address=":0"
    )
    return cluster, Client(cluster)


def lazily(X, n_chunks=8):
    import dask.array as da

    return da.from_array(X, chunks=(-(-X.shape[0] // n_chunks), X.shape[1]))


def measure():
    """Yield the lines of the report."""
    yield f"{date.today()}, {processor()}, Python {platform.python_version()}"
    yield (
        f"EigenPro 3, {N} rows, {D} features, {P} centers, batches of {M} rows, "
        "float32, one thread a process"
    )
    X, y = data(N)
    steps = {}
    plain, plain_step = fitted(X, y, P, M)
    yield f"one process: {plain:.2f} s, a step {plain_step:.3f} s"
    for n_workers in (1, 2):
        cluster, client = with_workers(n_workers)
        here = f"{n_workers} worker(s)"
        try:
            rates, rows = Rates(client), lazily(X)
            took, steps[n_workers] = fitted(rows, y, P, M)
            yield f"{here}: {took:.2f} s, a step {steps[n_workers]:.3f} s"
            if n_workers == 1:
                yield verdict("one worker over one process", took / plain, "overhead")
            steps["twice"] = fitted(rows, y, P, 2 * M)[1]
            tiny = fitted(lazily(X[:16_000, :1]), y[:16_000], 10, 1000, 2)[1]
            long = fitted(lazily(X[:40_000]), y[:40_000], 10_000, M)[1]
            yield verdict(
                f"{here}, a tiny step ({1e3 * tiny:.1f} ms) over one with 10000 "
                f"centers ({1e3 * long:.0f} ms)",
                tiny / long,
                "scheduler",
            )
            for label, m, p, found in (
                ("5000 centers", M, P, steps[n_workers]),
                ("5000 centers, twice the batch", 2 * M, P, steps["twice"]),
                ("10000 centers", M, 10_000, long),
            ):
                parts = step_seconds(rates, m=m, p=p, n_columns=1, n_workers=n_workers)
                said = sum(parts)
                yield verdict(
                    f"cost model, {here}, {label}: {said:.3f} s (workers "
                    f"{parts[0]:.3f}, here {parts[1]:.3f}, messages {parts[2]:.3f}) "
                    f"for {found:.3f} s, off by",
                    abs(said / found - 1),
                    "model",
                )
        finally:
            client.close()
            cluster.close()
    yield f"strong scaling, a step on one worker over two: {steps[1] / steps[2]:.2f}"
    yield verdict(
        "weak scaling: a step of one worker over one of two with twice the batch",
        steps[1] / steps["twice"],
        "weak",
        at_least=True,
    )


def verdict(label, value, bar, *, at_least=False):
    """Return a line with a value and whether it is within its bar."""
    right = value >= BARS[bar] if at_least else value <= BARS[bar]
    return f"{label}: {value:.3f} (bar {BARS[bar]}: {'yes' if right else 'no'})"


def projected():
    """Yield lines on clusters that are not there, from data sheets."""
    n_features, per_worker = 100, 10_000
    gpu = {"product": 40e12, "function": 4e-12}
    yield "seconds of an epoch of EigenPro 4: workers + messages, and of projections"
    for n, p, kinds in ((10**8, 10**6, (8, 16, 32, 64)),):
        for n_workers in kinds:
            entry = 2 * (n_features + 2) / gpu["product"] + gpu["function"]
            n_steps = n / (per_worker * n_workers)
            on_workers = n * p / n_workers * entry
            levels = 1 + np.ceil(np.log2(n_workers))
            n_bytes = 4 * (p * (n_workers + levels) + 2 * per_worker * n_workers)
            messages = n_steps * (2e-3 * (N_ROUNDS + levels) + 1e-10 * n_bytes)
            # Three products with K(Z, Z) each, after as many batches as cost as much.
            projection = 3 * p**2 * entry
            yield (
                f"{n:.0e} rows, {p:.0e} centers, {n_workers} GPUs: {on_workers:8.0f} + "
                f"{messages:.0f}; each projection on one GPU {projection:.0f}"
            )
    yield "seconds of NystromRegressor: sums on the workers + messages + what is left"
    n, p, n_nodes = 10**9, 10**4, 100
    core = {"product": 40e9, "function": 2.5e-9}
    work = n * p * (2 * (n_features + p / 2) / core["product"] + core["function"])
    messages = (1 + np.ceil(np.log2(n_nodes))) * (2e-3 + 1e-10 * 8 * p**2)
    here = 2 * 2 * p**3 / (32 * core["product"])
    yield (
        f"{n:.0e} rows, {p:.0e} centers, {n_nodes} nodes of 32 cores: "
        f"{work / n_nodes / 32:.0f} + {messages:.0f} + {here:.0f}"
    )


ZARR = """
import resource, sys, time
import numpy as np, zarr
from eigenkern import NystromRegressor
limit = 3_000_000_000  # a part of it is planned with
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
array = zarr.open_array(sys.argv[1], mode="r")
y = np.load(sys.argv[2])
start = time.perf_counter()
model = NystromRegressor(n_centers=2000, bandwidth=5.0, random_state=0).fit(array, y)
seconds = time.perf_counter() - start
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
print(f"{seconds:.0f} {peak:.2f} {model.score(array[:20000], y[:20000]):.4f}")
"""


def stream(n):
    """Return a line on n rows of a Zarr array, streamed in a process of its own."""
    import zarr

    with tempfile.TemporaryDirectory() as folder:
        file, targets = Path(folder) / "X.zarr", Path(folder) / "y.npy"
        kind = {"shape": (n, 20), "chunks": (100_000, 20), "dtype": "f4"}
        array, y = zarr.create_array(file, **kind), np.empty(n, dtype=np.float32)
        for start in range(0, n, 1_000_000):
            rows = slice(start, min(start + 1_000_000, n))
            array[rows], y[rows] = data(rows.stop - rows.start, 20, start)
        np.save(targets, y)
        command = [sys.executable, "-c", ZARR, str(file), str(targets)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)
    took, peak, score = done.stdout.split()
    return verdict(
        f"{n} rows x 20 features of a Zarr array, 2000 centers: {took} s, R2 {score}, "
        "largest memory in GB",
        float(peak),
        "GB",
    )


def files(n=1_000_000, d=50):
    """Yield lines on fits of rows that stay in a file, over the same in memory."""
    import h5py
    import zarr

    X, y = data(n, d)
    models = {
        "Nystrom, 1000 centers": NystromRegressor(n_centers=1000, random_state=0),
        "Falkon, 1000 centers": FalkonLikeRegressor(
            n_centers=1000, cache_size=0, max_iter=5, tol=0, random_state=0
        ),
        "EigenPro, 1000 centers": EigenProRegressor(
            n_centers=1000, max_iter=3, tol=0, cache_size=0, random_state=0
        ),
        "linear": LinearEigenProRegressor(max_iter=5, tol=0, random_state=0),
    }
    yield f"{n} rows x {d} features: seconds of a fit over those in memory, R2"
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        np.save(folder / "X.npy", X)
        stores = {"memory map": np.load(folder / "X.npy", mmap_mode="r")}
        kind = {"shape": X.shape, "chunks": (10_000, d), "dtype": "f4"}
        stores["HDF5"] = h5py.File(folder / "X.h5", "w").create_dataset("X", **kind)
        stores["Zarr"] = zarr.create_array(folder / "X.zarr", **kind)
        for name in ("HDF5", "Zarr"):
            stores[name][:] = X
        for label, estimator in models.items():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                plain = seconds_of(estimator, X, y)
                score = estimator.score(X[:9999], y[:9999])
                line = f"{label:24} {plain:6.1f} s {score:.3f}"
                for name, store in stores.items():
                    with mock.patch("eigenkern.estimators.lazy._fits", lambda X: False):
                        ratio = seconds_of(estimator, store, y) / plain
                    score = estimator.score(X[:9999], y[:9999])
                    line += f"   {name} {ratio:.2f} {score:.3f}"
            yield line


def seconds_of(estimator, X, y, short=3.0):
    """Return the seconds of a fit, of a short one the median of five."""
    found = []
    while not found or (found[0] < short and len(found) < 5):
        start = time.perf_counter()
        estimator.fit(X, y)
        found.append(time.perf_counter() - start)
    return np.median(found)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--zarr", action="store_true")
    parser.add_argument("--files", action="store_true")
    parser.add_argument("--rows", type=int, default=10_000_000, help="of --zarr")
    args = parser.parse_args()
    (RESULTS / "scaling_projected.txt").write_text("\n".join(projected()) + "\n")
    name = "_zarr" if args.zarr else "_files" if args.files else ""
    path = RESULTS / f"scaling{name}.txt"
    lines = []
    head = f"{date.today()}, {processor()}, Python {platform.python_version()}"
    if args.zarr:
        found = (head, stream(args.rows))
    else:
        found = itertools.chain([head], files()) if args.files else measure()
    for line in found:
        print(line, flush=True)
        lines.append(line)
    path.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
