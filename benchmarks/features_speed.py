"""Time of RandomFourierFeatures.transform against scikit-learn's RBFSampler.

20000 rows, 2000 gaussian features, in one process, in turns. Run ::

    python benchmarks/features_speed.py             # the table, half a minute
    python benchmarks/features_speed.py --write     # and keep it in results/

The last column is the time to fill an array of the size of the features with zeros:
memory that is touched for the first time is what no transformer can do without.
"""

import argparse
import platform
import time
from datetime import date
from pathlib import Path

import numpy as np
import sklearn
from kernel_product import processor
from sklearn.kernel_approximation import RBFSampler

from eigenkern import RandomFourierFeatures
from eigenkern.arrays.threads import n_blas_threads

N, D = 20000, 2000
FEATURES = (20, 100, 784)
RESULTS = Path(__file__).parent / "results" / "features_speed.txt"


def measure(d, dtype, repeats):
    """Return the least seconds of ours, of RBFSampler, and of filling the memory."""
    X = np.random.default_rng(0).standard_normal((N, d)).astype(dtype)
    sigma = np.sqrt(2 * d)  # the median distance
    ours = RandomFourierFeatures(bandwidth=sigma, n_components=D, random_state=0)
    peer = RBFSampler(gamma=0.5 / sigma**2, n_components=D, random_state=0)
    functions = (
        ours.fit(X).transform,
        peer.fit(X).transform,
        lambda X: np.full((N, D), 0, dtype),
    )
    times = np.full((repeats, len(functions)), np.inf)
    for round_of_times in times:
        for i, function in enumerate(functions):
            time.sleep(0.1)  # until the threads of BLAS no longer spin
            start = time.perf_counter()
            function(X)
            round_of_times[i] = time.perf_counter() - start
    return times.min(axis=0)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="keep the results")
    parser.add_argument("--repeats", type=int, default=8)
    args = parser.parse_args()
    lines = [
        f"RandomFourierFeatures.transform and RBFSampler's, n = {N}, D = {D}; "
        f"{date.today()}; {platform.machine()}, {processor()}, {n_blas_threads()} "
        f"threads, NumPy {np.__version__}, scikit-learn {sklearn.__version__}",
        "",
        f"{'dtype':>8} {'d':>5} {'ours ms':>8} {'sampler ms':>11} {'ratio':>6} "
        f"{'memory ms':>10}",
    ]
    print("\n".join(lines))
    for dtype in (np.float32, np.float64):
        for d in FEATURES:
            ours, peer, memory = measure(d, dtype, args.repeats)
            line = (
                f"{np.dtype(dtype).name:>8} {d:>5} {1e3 * ours:>8.1f} "
                f"{1e3 * peer:>11.1f} {ours / peer:>6.2f} {1e3 * memory:>10.1f}"
            )
            lines.append(line)
            print(line, flush=True)
    if args.write:
        RESULTS.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
