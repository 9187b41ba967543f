"""Time of K(X, Z) @ A over that of the bare matrix product X @ Z.T, in one process.

Beside it stands the plain NumPy expression of the same kernel product. Run ::

    python benchmarks/kernel_product.py             # the table, some 25 minutes
    python benchmarks/kernel_product.py --quick     # gaussian and laplacian, l = 10
    python benchmarks/kernel_product.py --features 10 22   # a part of the table
    python benchmarks/kernel_product.py --write NAME       # and write results/NAME.txt

The bare product is written into a buffer that exists. All times are the best of
several calls in a row, after a pause: the threads of the BLAS library go on spinning
for a while after a call, on the cores that the next one wants.
"""

import argparse
import platform
import time
from datetime import date
from pathlib import Path

import numpy as np

from eigenkern import kernels
from eigenkern.operators.tiled import TiledKernel

M, P = 2000, 20000
FEATURES, COLUMNS = (10, 22, 100, 784, 1024), (1, 10, 100)
# Bars: (kernel, d) -> ratio, for float32 and l = 10.
BARS = {
    ("gaussian", 784): 1.25,
    ("gaussian", 100): 1.35,
    ("gaussian", 22): 2.2,
    ("laplacian", 784): 1.35,
    ("laplacian", 100): 1.8,
    ("laplacian", 22): 3.0,
}


def all_kernels(sigma):
    return {
        "gaussian": kernels.Gaussian(sigma),
        "laplacian": kernels.Laplacian(sigma),
        "cauchy": kernels.Cauchy(sigma),
        "matern32": kernels.Matern(sigma, nu=1.5),
        "matern52": kernels.Matern(sigma, nu=2.5),
        "polynomial": kernels.Polynomial(sigma),
        "linear": kernels.Linear(),
    }


def plain(name, X, Z, A, sigma):
    """The kernel product as one writes it in NumPy."""
    if name == "linear":
        return (X @ Z.T) @ A
    if name == "polynomial":
        return (X @ Z.T / sigma**2 + 1) ** 3 @ A
    r2 = (X * X).sum(1)[:, None] + (Z * Z).sum(1)[None, :] - 2 * (X @ Z.T)
    if name == "gaussian":
        return np.exp(-r2 / (2 * sigma**2)) @ A
    if name == "cauchy":
        return (1 / (1 + r2 / sigma**2)) @ A
    r = np.sqrt(np.maximum(r2, 0))
    if name == "laplacian":
        return np.exp(-r / sigma) @ A
    u = np.sqrt(3.0 if name == "matern32" else 5.0).astype(X.dtype) * r / sigma
    if name == "matern32":
        return ((1 + u) * np.exp(-u)) @ A
    return ((1 + u + u * u / 3) * np.exp(-u)) @ A


def best_of(function, repeats):
    """Best time of several calls; the first only warms up."""
    time.sleep(0.1)
    function()
    best = np.inf
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        best = min(best, time.perf_counter() - start)
    return best


def measure(name, d, n_columns, dtype, repeats):
    """Return seconds of (eigenkern, bare product, plain expression)."""
    rng = np.random.default_rng(0)
    X, Z = (rng.standard_normal((k, d)).astype(dtype) for k in (M, P))
    A = rng.standard_normal((P, n_columns)).astype(dtype)
    sigma = np.asarray(np.sqrt(2 * d), dtype=dtype)  # the median distance
    operator = TiledKernel(all_kernels(float(sigma))[name], Z, X)
    buffer = np.empty((M, P), dtype)
    bare = best_of(lambda: np.matmul(X, Z.T, out=buffer), repeats)
    ours = best_of(lambda: operator @ A, repeats)
    bare = min(bare, best_of(lambda: np.matmul(X, Z.T, out=buffer), repeats))
    naive = best_of(lambda: plain(name, X, Z, A, sigma), max(1, repeats // 4))
    return ours, bare, naive


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--features", type=int, nargs="+", default=FEATURES)
    parser.add_argument("--write", metavar="NAME")
    parser.add_argument("--repeats", type=int, default=8)
    args = parser.parse_args()
    names = ("gaussian", "laplacian") if args.quick else tuple(all_kernels(1.0))
    columns = (10,) if args.quick else COLUMNS
    lines = [
        f"K(X, Z) @ A over X @ Z.T, m = {M}, p = {P}; {date.today()}; "
        f"{platform.machine()}, {processor()}, NumPy {np.__version__}",
        "",
        f"{'kernel':>11} {'dtype':>8} {'d':>5} {'l':>4} {'ratio':>6} {'bar':>5} "
        f"{'plain':>6} {'bare ms':>8}",
    ]
    print("\n".join(lines))
    for dtype in (np.float32,) if args.quick else (np.float32, np.float64):
        for d in args.features:
            for n_columns in columns:
                for name in names:
                    ours, bare, naive = measure(name, d, n_columns, dtype, args.repeats)
                    key = (name, d)
                    barred = dtype == np.float32 and n_columns == 10 and key in BARS
                    line = (
                        f"{name:>11} {np.dtype(dtype).name:>8} {d:>5} {n_columns:>4} "
                        f"{ours / bare:>6.2f} {BARS[key] if barred else '':>5} "
                        f"{naive / bare:>6.2f} {1e3 * bare:>8.1f}"
                    )
                    lines.append(line)
                    print(line, flush=True)
    if args.write:
        path = Path(__file__).parent / "results" / f"{args.write}.txt"
        path.parent.mkdir(exist_ok=True)
        path.write_text("\n".join(lines) + "\n")


def processor():
    """The processor's name, where the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.split(":")[1].strip() for line in lines if "model name" in line]
    return f"{len(names)} x {names[0]}" if names else platform.processor()


if __name__ == "__main__":
    main()
