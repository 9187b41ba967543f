"""What eigenkern does on a GPU: it is checked and timed in one call.

``python benchmarks/gpu.py [PART ...] [--write]`` on a machine with a CUDA device and
CuPy (the extras ``cuda12`` and ``cuda13`` install it); a table comes last. Parts:

check    every estimator on CuPy arrays, and on host arrays with ``device="cuda"``,
         against NumPy: the largest relative difference of the predictions.
product  K(X, Z) A of 8192 rows, 65536 centers and 10 columns over the bare product of
         the same shapes, for some numbers of features and sizes of tiles.
data     seconds to 1.3, 10 and 50 % test error on MNIST, Fashion-MNIST and CIFAR-10
         (gray).
epoch    one epoch of EigenPro 2 in the shapes of TIMIT (10^6 x 440, 144 outputs) and
         of ImageNet's features (1.28 x 10^6 x 1536, 1000 outputs), synthetic.
stream   one epoch of EigenPro 4 over 5 x 10^6 x 1280 rows on the host, for 64000,
         256000 and 10^6 centers, synthetic.
shards   the product on one device as two logical shards, and on all devices there are.
tf32     what TF32 would do to the accuracy, on the CPU: kernel matrix and test error on
         MNIST with the factors of the product inside the distance rounded to 10 bits.

``--device cpu --scale 0.01`` runs everything on NumPy in small, to see that it works.
"""

import os

os.environ.setdefault("SCIPY_ARRAY_API", "1")  # before SciPy is imported

import argparse
import platform
import threading
import time
import traceback
from contextlib import nullcontext
from datetime import date
from functools import partial
from pathlib import Path

import numpy as np
from callbacks import Timed
from datasets import load
from kernel_product import processor
from sklearn import config_context

from eigenkern import (
    DSGRegressor,
    EigenProClassifier,
    EigenProRegressor,
    FalkonLikeRegressor,
    LinearEigenProRegressor,
    NystromRegressor,
    NytroRegressor,
)
from eigenkern.arrays import memory
from eigenkern.arrays.array import namespace
from eigenkern.kernels import Gaussian, Laplacian
from eigenkern.operators.sharded import kernel_operator
from eigenkern.operators.tiled import TiledKernel

RESULTS = Path(__file__).parent / "results"


class Machine:
    """Where the benchmark runs: the array library and its clock and memory.

    Parameters
    ----------
    device : {"cuda", "cpu"}
    scale : float
        Factor of the numbers of rows and centers.
    """

    def __init__(self, device, scale):
        self.device, self.scale = device, scale
        self.cupy = None
        if device == "cuda":
            import cupy

            self.cupy = cupy
        self.xp = namespace((self.cupy or np).empty(0))
        self.place = self.xp, self.cupy.cuda.Device(0) if self.cupy else "cpu"

    def rows(self, n):
        """Return a number of rows to scale."""
        return max(int(n * self.scale), 200)

    def name(self):
        """Return the name of the device."""
        if self.cupy is None:
            return f"{platform.machine()}, {processor()}"
        return self.cupy.cuda.runtime.getDeviceProperties(0)["name"].decode()

    def normal(self, *shape):
        """Return standard normal numbers in float32 on the device."""
        rng = (self.cupy or np).random.default_rng(0)
        return rng.standard_normal(shape, dtype=np.float32)

    def seconds(self, function, n=5):
        """Return the median of the seconds of a call, after two that don't count."""
        times = []
        for _ in range(n + 2):
            start = time.perf_counter()
            function()
            self.wait()
            times.append(time.perf_counter() - start)
        return float(np.median(times[2:]))

    def wait(self):
        """Wait until the device has done its work."""
        if self.cupy is not None:
            self.cupy.cuda.Device().synchronize()

    def used(self):
        """Return the bytes of the device's memory that are in use."""
        if self.cupy is None:
            return 0
        free, total = self.cupy.cuda.runtime.memGetInfo()
        return total - free

    def dispatch(self):
        """Return the context in which scikit-learn takes the device's arrays."""
        on = self.cupy is not None
        return config_context(array_api_dispatch=True) if on else nullcontext()


class Peak:
    """Context that notes the peak of the device's memory, looking every 5 ms."""

    def __init__(self, machine):
        self._machine, self._over = machine, threading.Event()

    def __enter__(self):
        self._before = self._peak = self._machine.used()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def _watch(self):
        while not self._over.wait(0.005):
            self._peak = max(self._peak, self._machine.used())

    def __exit__(self, *exc_info):
        self._over.set()
        self._thread.join()
        self.bytes = self._peak - self._before


class Epochs(Timed):
    """Callback that notes the seconds at which each epoch ends, and its test error.

    Stops the fit when the error is at most `target`.
    """

    def __init__(self, X=None, y=None, target=None):
        self.X, self.y, self.target = X, y, target
        self.own, self.rows = 0.0, []

    def on_fit_task_end(self, estimator, context, *, fitted_estimator=None):
        if context.task_name != "epoch":
            return False
        now = time.perf_counter()
        seconds, error = now - self.start - self.own, np.nan
        if self.X is not None:
            error = 100 * (1 - fitted_estimator.score(self.X, self.y))
        self.own += time.perf_counter() - now
        self.rows.append((seconds, error))
        return self.target is not None and error <= self.target


def check(machine):
    """Yield the largest difference from NumPy of every estimator."""
    rng = np.random.default_rng(0)
    X, X_test = rng.standard_normal((3000, 6)), rng.standard_normal((500, 6))
    y = np.sin(X).sum(axis=1)
    models = [
        EigenProRegressor(max_iter=3, step_size=100.0, n_components=50, batch_size=256),
        EigenProRegressor(n_centers=300, max_iter=3, n_components=50, batch_size=256),
        LinearEigenProRegressor(max_iter=3, batch_size=256),
        NystromRegressor(alpha="path", n_centers=300),
        NytroRegressor(n_centers=300),
        FalkonLikeRegressor(n_centers=300),
        DSGRegressor(max_iter=2, batch_size=256),
    ]
    xp = machine.xp
    yield f"{'difference from NumPy':28} {'float32':>17} {'float64':>17}"
    yield f"{'rows on':28} {'device':>8} {'host':>8} {'device':>8} {'host':>8}"
    for model in models:
        cells = []
        for dtype in (np.float32, np.float64):
            rows, targets, tests = (part.astype(dtype) for part in (X, y, X_test))
            model.set_params(random_state=0, device="auto")
            expected = model.fit(rows, targets).predict(tests)
            with machine.dispatch():
                model.fit(*(xp.asarray(part) for part in (rows, targets)))
                there = model.predict(xp.asarray(tests))
            there = there.get() if machine.cupy else there
            model.set_params(device=machine.device)
            streamed = model.fit(rows, targets).predict(tests)
            for found in (there, streamed):
                cells.append(np.abs(found - expected).max() / np.abs(expected).max())
        name = type(model).__name__ + (
            ", centers" if getattr(model, "n_centers", None) else ""
        )
        yield f"{name:28} " + " ".join(f"{cell:8.0e}" for cell in cells)


def product(machine):
    """Yield the time of a kernel product over that of the bare product."""
    m, p, n_columns = machine.rows(8192), machine.rows(65536), 10
    tiles = (64, 128, 256, 512, 1024)
    yield f"K A, {m} x {p}, {n_columns} columns, over the bare product; tiles of MB:"
    head = " ".join(f"{size:6}" for size in tiles)
    yield f"{'kernel':>10} {'d':>5} {'bare ms':>8} {'Tflop/s':>8} {head}"
    A = machine.normal(p, n_columns)
    for d in (32, 128, 784, 1536):
        X, Z = machine.normal(m, d), machine.normal(p, d)
        out = machine.xp.empty((m, p), dtype=X.dtype)
        bare = machine.seconds(partial(machine.xp.matmul, X, Z.T, out=out))
        out = None
        for kernel in (Gaussian(d**0.5), Laplacian(d**0.5)):
            ratios = []
            for size in tiles:
                operator = TiledKernel(kernel, Z, X, tile_memory=float(size))
                ratios.append(machine.seconds(partial(operator.product, A)) / bare)
            cells = " ".join(f"{ratio:6.2f}" for ratio in ratios)
            rate = 2e-12 * m * p * d / bare
            name = type(kernel).__name__.lower()
            yield f"{name:>10} {d:5} {1e3 * bare:8.2f} {rate:8.1f} {cells}"


def data(machine):
    """Yield seconds to a test error on images."""
    yield f"{'data':>15} {'target %':>9} {'seconds':>8} {'setup s':>8} {'error %':>8}"
    cases = [
        ("mnist", {"kernel": "gaussian", "bandwidth": 5.0}, 1.3),
        ("fashion_mnist", {"kernel": "laplacian", "bandwidth": 10.0}, 10.0),
        ("cifar10_gray", {"kernel": "laplacian", "bandwidth": 10.0}, 50.0),
    ]
    for name, options, target in cases:
        part = load(name)
        n = machine.rows(len(part.y_train))
        warm = EigenProClassifier(
            **options, algorithm="eigenpro2", device=machine.device, max_iter=1
        )
        warm.fit(part.X_train[:2000], part.y_train[:2000])
        callback = Epochs(part.X_test, part.y_test, target)
        model = EigenProClassifier(**options, device=machine.device, random_state=0)
        model.set_callbacks(callback).fit(part.X_train[:n], part.y_train[:n])
        seconds, error = callback.rows[-1]
        first = callback.rows[0][0]
        # The first epoch's time less that of the second, if there is one.
        setup = 2 * first - callback.rows[1][0] if len(callback.rows) > 1 else np.nan
        shown = f"{seconds:8.2f}" if error <= target else f"{'never':>8}"
        yield f"{name:>15} {target:9.1f} {shown} {setup:8.2f} {error:8.2f}"


def teacher(n, d, n_outputs):
    """Return rows on the host and targets that are smooth in some of their features."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, d), dtype=np.float32)
    W = rng.standard_normal((8, n_outputs), dtype=np.float32)
    return X, np.sin(X[:, :8] @ W)


def epoch(machine):
    """Yield seconds and memory of an epoch of large kernel machines."""
    yield (
        f"{'n':>8} {'d':>5} {'l':>5} {'m':>6} {'q':>4} {'seconds':>8} {'peak MB':>8} "
        f"{'free MB':>8}"
    )
    for n, d, n_outputs in ((1_000_000, 440, 144), (1_280_000, 1536, 1000)):
        n = machine.rows(n)
        X, Y = teacher(n, d, n_outputs)
        model = EigenProRegressor(
            "laplacian", bandwidth=d**0.5, device=machine.device, max_iter=1
        )
        cost = cost_of_fit(machine, model, X, Y)
        yield (
            f"{n:8} {d:5} {n_outputs:5} {model.batch_size_:6} {model.n_components_:4} "
            f"{cost}"
        )


def stream(machine):
    """Yield seconds and memory of an epoch of EigenPro 4 over rows on the host."""
    n, d, n_outputs = machine.rows(5_000_000), 1280, 10
    X, Y = teacher(n, d, n_outputs)
    yield (
        f"{n} x {d} rows, {n_outputs} outputs; the paper's A100: 271, 406, 1268 s\n"
        f"{'p':>8} {'m':>6} {'loss':>8} {'seconds':>8} {'peak MB':>8} {'free MB':>8}"
    )
    for p in (64_000, 256_000, 1_000_000):
        p = machine.rows(p)
        model = EigenProRegressor(
            "laplacian",
            bandwidth=d**0.5,
            algorithm="eigenpro4",
            n_centers=p,
            device=machine.device,
            max_iter=1,
            random_state=0,
        )
        cost = cost_of_fit(machine, model, X, Y)
        yield f"{p:8} {model.batch_size_:6} {model.loss_curve_[0]:8.4f} {cost}"


def cost_of_fit(machine, model, X, Y):
    """Fit a model; return seconds, peak of memory and what was free, to print."""
    free = memory.available(*machine.place)
    with Peak(machine) as peak:
        start = time.perf_counter()
        model.fit(X, Y)
        seconds = time.perf_counter() - start
    return f"{seconds:8.1f} {peak.bytes / 1e6:8.0f} {free / 1e6:8.0f}"


def shards(machine):
    """Yield times of a product on shards over that on one device."""
    m, p, d = machine.rows(8192), machine.rows(65536), 784
    X, Z, A = machine.normal(m, d), machine.normal(p, d), machine.normal(p, 10)
    one = kernel_operator(Gaussian(d**0.5), Z, [machine.place], X)
    expected, seconds = one @ A, machine.seconds(partial(one.product, A))
    cases = {"two shards of one device": [machine.place] * 2}
    if machine.cupy is not None:
        n = machine.cupy.cuda.runtime.getDeviceCount()
        devices = [machine.cupy.cuda.Device(i) for i in range(n)]
        cases[f"{n} device(s)"] = [(machine.xp, device) for device in devices]
    for name, places in cases.items():
        several = kernel_operator(Gaussian(d**0.5), Z, places, X)
        ratio = machine.seconds(partial(several.product, A)) / seconds
        difference = float(abs(several @ A - expected).max() / abs(expected).max())
        yield f"{name}: {ratio:.2f} of the time of one, differs by {difference:.0e}"


def tf32(machine):
    """Yield the effect of a product in TF32, emulated: it needs no GPU."""
    part = load("mnist")
    X, y = part.X_train[:20000], part.y_train[:20000]
    yield (
        f"{'kernel':>10} {'largest':>9} {'mean':>9}   (difference of K from float64)  "
        "test error %: float32, TF32"
    )
    for kernel, rounded in (
        (Gaussian(5.0), RoundedGaussian(5.0)),
        (Laplacian(10.0), RoundedLaplacian(10.0)),
    ):
        K = kernel(X[:3000].astype(np.float64))
        difference = np.abs(rounded(X[:3000]) - K)
        errors = []
        for used in (kernel, rounded):
            model = EigenProClassifier(used, max_iter=4, random_state=0)
            score = model.fit(X, y).score(part.X_test, part.y_test)
            errors.append(100 * (1 - score))
        yield (
            f"{type(kernel).__name__.lower():>10} {difference.max():9.1e} "
            f"{difference.mean():9.1e} {errors[0]:8.2f} {errors[1]:8.2f}"
        )


class InTF32:
    """Kernel whose product has factors with 10 bits after the point."""

    def evaluate(self, xp, left, right, out=None):
        return super().evaluate(xp, _rounded(left), _rounded(right), out)


class RoundedGaussian(InTF32, Gaussian):
    pass


class RoundedLaplacian(InTF32, Laplacian):
    pass


def _rounded(X):
    """Return float32 numbers rounded to 10 of their 23 bits."""
    bits = np.ascontiguousarray(X, dtype=np.float32).view(np.uint32)
    kept = np.uint32(0xFFFFE000)
    return ((bits + np.uint32(0x1000)) & kept).view(np.float32)


PARTS = {
    part.__name__: part for part in (check, product, data, epoch, stream, shards, tf32)
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--write", action="store_true", help="results/gpu_PART.txt")
    args = parser.parse_args()
    for part in args.parts:
        if part not in PARTS:
            parser.error(f"PART must be one of {', '.join(PARTS)}; got {part!r}")
    try:
        machine = Machine(args.device, args.scale)
    except ImportError as error:
        parser.error(f"--device cuda needs CuPy: {error}")
    head = f"{date.today()}; {machine.name()}, NumPy {np.__version__}"
    table = [head]
    for name in args.parts or PARTS:
        print(f"\n{name}", flush=True)
        lines = []
        try:
            for line in PARTS[name](machine):
                print(line, flush=True)
                lines.append(line)
        except Exception:  # the other parts go on
            lines.append(traceback.format_exc())
            print(lines[-1], flush=True)
        table += ["", name, *lines]
        if args.write:
            text = "\n".join([head, *lines])
            (RESULTS / f"gpu_{name}.txt").write_text(text + "\n")
    print("\n".join(["", "-" * 60, *table]))


if __name__ == "__main__":
    main()
