"""Models on centers over the workers of a cluster: overhead, scaling, a cost model.

Run ``python benchmarks/scaling.py`` on a quiet machine (some 4 minutes on two cores):

- the fit of `EigenProRegressor` on one worker process of one thread, over that of the
  same fit in one process on one thread;
- strong scaling: the same rows on one worker and on two; weak scaling: twice the rows
  and twice the batch on two;
- the processor time of the scheduler, a process of its own, in a step with 10000
  centers, and the time that a step takes beside its products: a step on a tiny model;
- such a step with the centers split over the workers instead of the rows;
- what `step_seconds` says of each of these steps, from rates measured in the same run,
  and for clusters that are not there.

What clusters that are not there would take goes to ``scaling_projected.txt``.

``--files`` fits rows that stay in a memory map, in HDF5 and in Zarr (some 3 minutes).
``--zarr`` streams 10 million rows of a Zarr array through `NystromRegressor` with 2000
centers and tells the largest memory of the process (some 15 minutes more).
"""

import argparse
import itertools
import os
import platform
import subprocess
import sys
import tempfile
import time
import warnings
from dataclasses import dataclass
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
from eigenkern.arrays.linalg import solve_triangular
from eigenkern.arrays.machine import GPU
from eigenkern.estimators import eigenpro_fit
from eigenkern.kernels import Laplacian
from eigenkern.operators.cached import CachedTriangle
from eigenkern.operators.tiled import TiledKernel
from eigenkern.rows.dask_rows import (
    DaskRows,
    Workers,
    reuse_freed_memory,
    rows_of_chunks,
)

RESULTS = Path(__file__).parent / "results"
N, D, P, M = 200_000, 100, 5000, 4000
BARS = {
    "overhead": 1.15,
    "weak": 0.85,
    "messages": 0.05,
    "scheduler": 0.05,
    "model": 0.25,
    "GB": 2.0,
}


def data(n, d=D, seed=0):
    """Return rows and targets in single precision."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)).astype(np.float32)
    y = np.sin(X[:, 0]) + 0.5 * X[:, 1] * X[:, 2] + 0.1 * rng.normal(size=n)
    return X, y.astype(np.float32)


def model(p, m):
    """Return a model whose steps are all alike: no trials, no early end."""
    return EigenProRegressor(
        bandwidth=10.0,
        n_centers=p,
        batch_size=m,
        max_iter=1,
        tol=0,
        alpha=0.0,
        cache_size=1000,  # for the factor of K(Z, Z), not for K(X, Z)
        algorithm="eigenpro3",
        random_state=0,
    )


def fitted(X, y, p, m, note=lambda: None):
    """Return the seconds of a fit on one thread of this process, and of a step.

    Of the steps the median: the first one opens connections. With rows on workers also
    the mean of the largest part of a batch that is on one of them. ``note()`` is called
    before the first step and after the last.
    """
    projected, ends, parts = eigenpro_fit.projected, [], []

    def timed(next_epoch, *args, **options):
        def marked():
            note()
            for batch in next_epoch():
                ends.append(time.perf_counter())
                yield batch
                groups = getattr(batch.rows, "groups", [])
                sizes = [len(group.position) for group in groups] or [1]
                parts.append(max(sizes) / sum(sizes))
            ends.append(time.perf_counter())
            note()

        return projected(marked, *args, **options)

    start = time.perf_counter()
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with mock.patch.object(eigenpro_fit, "projected", timed):
            model(p, m).fit(X, y)
    return time.perf_counter() - start, np.median(np.diff(ends)), np.mean(parts)


@dataclass
class Rates:
    """What machines do: rates of a worker's thread, of this process, of messages.

    Attributes
    ----------
    entry, adjoint : float
        Seconds of an entry of K that is computed, multiplied by one column and kept,
        and of one of K' in a product by a column.
    row : float
        Seconds of a number of the rows of a batch, which are taken from chunks.
    solve, kept : float
        Seconds of an entry of K(Z, Z) here: in a triangular solve, over p^2, and in a
        product by a column.
    message, byte : float
        Seconds of a message to every worker and back, and of a byte.
    """

    entry: float
    adjoint: float
    row: float
    solve: float
    kept: float
    message: float
    byte: float

    @classmethod
    def measured(cls, client, X):
        """Return the rates of this machine, of the slowest worker where all compute."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Dask would rather have a file
            rows = DaskRows(lazily(X), X.dtype)
        some = np.random.default_rng(0).permutation(len(X))[: 2000 * rows.n_machines]
        found = rows.cluster.gather(rows.take(some).run(worker_rates))
        row, entry, adjoint = np.max(found, axis=0)
        places, value = list(client.nthreads()), np.zeros(2_500_000, dtype=np.float32)

        def on_workers():
            options = [{"workers": [place], "pure": False} for place in places]
            client.gather([client.submit(sum, (1,), **own) for own in options])

        (message,) = in_turn(on_workers, n=25)
        (large,) = in_turn(lambda: client.scatter(value, broadcast=True, hash=False))
        with threadpool_limits(1):
            L = np.tril(np.ones((P, P))) + P * np.eye(P)
            K = CachedTriangle(TiledKernel(Laplacian(10.0), X[: 2 * P]))
            solve, kept = in_turn(
                lambda: solve_triangular(L, np.ones((P, 1))),
                lambda: K @ np.ones((2 * P, 1), dtype=np.float32),
            )
        byte = max(large - message, 0.0) / value.nbytes
        solve, kept = solve / P**2, kept / (2 * P) ** 2
        return cls(entry, adjoint, row, solve, kept, message, byte)


def worker_rates(places, *chunks):
    """Return `row`, `entry` and `adjoint` of `Rates`, measured in this process.

    K of 2000 rows is larger than what the C library keeps when it is freed: its memory
    is new each time, as in a step.
    """
    reuse_freed_memory()
    X = rows_of_chunks(places, *chunks)
    a = np.ones((P, 1), dtype=np.float32)
    local = TiledKernel(Laplacian(10.0), data(P)[0])
    K = local.rows(X).evaluated(a)[1]
    seconds = in_turn(
        lambda: rows_of_chunks(places, *chunks),
        lambda: local.rows(X).evaluated(a),
        lambda: K.adjoint(a[: len(X)]),
    )
    return seconds / (len(X) * np.array([D, P, P]))


def in_turn(*functions, n=7):
    """Return the medians of the seconds of functions.

    They are called in turn, so that each finds in the cache what others left there, as
    in a step; and medians, because a step is slow at times, too.
    """
    found = np.empty((n, len(functions)))
    for times in found:
        for i, function in enumerate(functions):
            start = time.perf_counter()
            function()
            times[i] = time.perf_counter() - start
    return np.median(found, axis=0)


# Products with K(Z, Z) of a projection without a factor: three or four, mostly four, in
# the fit with 10000 centers below.
N_PRODUCTS = 4


def step_seconds(rates, *, m, p, n_workers, part, factor, n_levels=0):
    """Return what a step of one output takes: on the workers, here, and on the way.

    Of a batch of m rows each worker takes its own from its chunks, evaluates their rows
    of K and multiplies them twice; the largest `part` on one of them counts, 1 / W if
    all have as many. One message to each worker and back has all
    that it needs: p coefficients go there, and as many come back, or are added up by a
    tree of `n_levels`; m targets and errors pass. The projection is two triangular
    solves with a `factor` of K(Z, Z), or some products with it.
    """
    on_workers = m * part * (p * (rates.entry + rates.adjoint) + D * rates.row)
    here = p**2 * (2 * rates.solve if factor else N_PRODUCTS * rates.kept)
    n_bytes = 4 * (p * (n_workers + (n_levels or n_workers)) + 2 * m)
    on_the_way = rates.message * (1 + n_levels) + rates.byte * n_bytes
    return on_workers, here, on_the_way


def with_workers(n_workers, *, apart=False):
    """Return a cluster of worker processes of one thread each.

    The scheduler is in this process or, if `apart`, a process of its own.
    """
    from distributed import Client, LocalCluster, SubprocessCluster

    kind = SubprocessCluster if apart else LocalCluster
    cluster = kind(n_workers=n_workers, threads_per_worker=1, dashboard_address=":0")
    client = Client(cluster)
    client.wait_for_workers(n_workers)
    return cluster, client


def scheduler_share(X, y, n_workers):
    """Return the share of the steps' time in which the scheduler's process computes.

    The batch is that of ``batch_size="auto"``. Also returns the seconds of a step.
    """
    cluster, client = with_workers(n_workers, apart=True)
    try:
        seen = []

        def note():
            busy = sum(client.run_on_scheduler(os.times)[:2])
            seen.append((busy, time.perf_counter()))

        _, seconds, _ = fitted(lazily(X), y, 2 * P, "auto", note)
        busy, took = np.diff(seen, axis=0)[0]
        return busy / took, seconds
    finally:
        client.close()
        cluster.close()


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
    plain, plain_step, _ = fitted(X, y, P, M)
    yield f"one process: {plain:.2f} s, a step {plain_step:.3f} s"
    for n_workers in (1, 2):
        cluster, client = with_workers(n_workers)
        here = f"{n_workers} worker(s)"
        try:
            rates, rows = Rates.measured(client, X), lazily(X)
            found = (f"{name} {1e9 * rate:.3g}" for name, rate in vars(rates).items())
            yield f"{here}, rates in ns: {', '.join(found)}"
            took, *first = fitted(rows, y, P, M)
            yield f"{here}: {took:.2f} s, a step {first[0]:.3f} s"
            if n_workers == 1:
                yield verdict("one worker over one process", took / plain, "overhead")
            _, *twice = fitted(rows, y, P, 2 * M)
            _, tiny, _ = fitted(lazily(X[:16_000, :1]), y[:16_000], 10, 1000)
            _, *long = fitted(lazily(X[:40_000]), y[:40_000], 2 * P, M)
            steps[n_workers], steps["twice"] = first[0], twice[0]
            yield verdict(
                f"{here}, a tiny step ({1e3 * tiny:.1f} ms) over one with 10000 "
                f"centers ({1e3 * long[0]:.0f} ms)",
                tiny / long[0],
                "messages",
            )
            with mock.patch.object(Workers, "is_too_large", lambda *_: True):
                _, split, _ = fitted(lazily(X[:40_000]), y[:40_000], 2 * P, M)
            yield (
                f"{here}, 10000 centers split over the workers: a step "
                f"{split:.3f} s, {split / long[0]:.2f} times that with the rows split"
            )
            for label, m, p, found in (
                ("5000 centers", M, P, first),
                ("5000 centers, twice the batch", 2 * M, P, twice),
                ("10000 centers", M, 2 * P, long),
            ):
                yield f"cost model, {here}, {label}, " + compared(
                    rates, m, p, n_workers, *found
                )
        finally:
            client.close()
            cluster.close()
        share, seconds = scheduler_share(X, y, n_workers)
        yield verdict(
            f"{here}, processor time of the scheduler, a process of its own, over the "
            "time of steps with 10000 centers and the automatic batch "
            f"({seconds:.3f} s)",
            share,
            "scheduler",
        )
    yield f"strong scaling, a step on one worker over two: {steps[1] / steps[2]:.2f}"
    yield verdict(
        "weak scaling: a step of one worker over one of two with twice the batch",
        steps[1] / steps["twice"],
        "weak",
        at_least=True,
    )


def compared(rates, m, p, n_workers, found, part):
    """Return what the model says of a step beside the seconds that were found."""
    # A factor of 10000 centers does not fit in the cache_size of `model`.
    seconds = step_seconds(
        rates, m=m, p=p, n_workers=n_workers, part=part, factor=p == P
    )
    workers, here, messages = seconds
    return verdict(
        f"at most {part:.2f} of a batch on one: {sum(seconds):.3f} s (workers "
        f"{workers:.3f}, here {here:.3f}, messages {messages:.3f}) for {found:.3f} s, "
        "off by",
        abs(sum(seconds) / found - 1),
        "model",
    )


def verdict(label, value, bar, *, at_least=False):
    """Return a line with a value and whether it is within its bar."""
    right = value >= BARS[bar] if at_least else value <= BARS[bar]
    return f"{label}: {value:.3f} (bar {BARS[bar]}: {'yes' if right else 'no'})"


def projected():
    """Yield lines on clusters that are not there, from data sheets."""
    n, p, per_worker = 10**8, 10**6, 10_000
    tiles, number = GPU.kernel_seconds(D + 2, 4, 1), 4 / GPU.read
    gpus = Rates(
        entry=tiles + number,
        adjoint=number,
        row=2 * number,
        solve=0.0,
        kept=tiles,  # K(Z, Z) is computed anew in each product
        message=2e-3,
        byte=1e-10,
    )
    yield "seconds of an epoch of EigenPro 4: workers + messages, and of projections"
    for n_workers in (8, 16, 32, 64):
        m = per_worker * n_workers
        levels = 1 + np.ceil(np.log2(n_workers))
        on_workers, projection, messages = step_seconds(
            gpus,
            m=m,
            p=p,
            n_workers=n_workers,
            part=1 / n_workers,
            factor=False,
            n_levels=levels,
        )
        yield (
            f"{n:.0e} rows, {p:.0e} centers, {n_workers} GPUs: "
            f"{n / m * on_workers:8.0f} + {n / m * messages:.0f}; "
            f"each projection on one GPU {projection:.0f}"
        )
    yield "seconds of NystromRegressor: sums on the workers + messages + what is left"
    n, p, n_nodes = 10**9, 10**4, 100
    core = {"product": 40e9, "function": 2.5e-9}
    work = n * p * (2 * (D + p / 2) / core["product"] + core["function"])
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
                    with mock.patch("eigenkern.rows.input._fits", lambda X: False):
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
