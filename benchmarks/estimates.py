"""What `eigenkern.estimate` says of a fit, against what the fit takes.

Of each fit, alone in a process of its own: memory at the peak beyond that before it
(that of the data included), seconds, both as estimated in the same process before the
fit, and the ratios measured over estimated. All rows of the training part, or as many
as --rows says.

Run ``EIGENKERN_DATA=/folder/of/npz python benchmarks/estimates.py --write`` on a quiet
machine with Linux and 24 GB of memory; ``--data california_housing`` takes two minutes.
"""

import argparse
import ctypes
import json
import platform
import subprocess
import sys
import time
import warnings
from datetime import date
from pathlib import Path

import numpy as np
from datasets import TARGETS, available, load
from kernel_product import processor

import eigenkern

RESULTS = Path(__file__).parent / "results" / "estimates.txt"
DATA = "california_housing", "ijcnn1", "mnist"
# Name of the family, and parameters.
FITS = {
    "EigenPro": ("EigenPro", {}),
    "EigenPro, 2000 centers": ("EigenPro", {"n_centers": 2000}),
    "Nystrom, 1000 centers": ("Nystrom", {"n_centers": 1000}),
    "Nystrom, 2000 centers": ("Nystrom", {"n_centers": 2000}),
    "Nystrom, path, 1000": ("Nystrom", {"n_centers": 1000, "alpha": "path"}),
    "Falkon, 1000 centers": ("FalkonLike", {"n_centers": 1000}),
    "Nystrom, log loss": ("Nystrom", {"n_centers": 1000, "loss": "log_loss"}),
    "Nystrom, log loss, path": (
        "Nystrom",
        {"n_centers": 1000, "loss": "log_loss", "alpha": "path"},
    ),
    "Falkon, log loss": ("FalkonLike", {"n_centers": 1000, "loss": "log_loss"}),
}


def measured(data, name, dtype, n_rows):
    """Return a dict with what was estimated, and what a fit took."""
    X, y = load(data, standardize=data != "mnist")[:2]
    X = np.ascontiguousarray(X.reshape(len(X), -1)[:n_rows], dtype=dtype)
    y = y[:n_rows]
    family, parameters = FITS[name]
    classes = data not in TARGETS
    kind = "Classifier" if classes else "Regressor"
    model = getattr(eigenkern, family + kind)(random_state=0, **parameters)
    n_classes = len(np.unique(y)) if classes else 1
    n_outputs = 1 if n_classes <= 2 else n_classes
    told = eigenkern.estimate(model, *X.shape, n_outputs, dtype=dtype)
    seconds_told = told.seconds  # which measures this machine
    ctypes.CDLL(None).malloc_trim(0)  # what loading has left is not what a fit finds
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before, start = _megabytes("VmRSS"), time.perf_counter()
    model.fit(X, y)
    seconds = time.perf_counter() - start
    return {
        "shape": X.shape,
        "method": told.method,
        "told": [told.memory["total"], seconds_told, told.n_epochs],
        "took": [
            _megabytes("VmHWM") - before,
            seconds,
            getattr(model, "n_iter_", "-" if "loss" in parameters else 1),
        ],
    }


def _megabytes(name):
    """Return a figure of this process's memory."""
    lines = Path("/proc/self/status").read_text().splitlines()
    kilobytes = next(line.split()[1] for line in lines if line.startswith(name + ":"))
    return int(kilobytes) * 1024 / 1e6


def line(data, name, dtype, n_rows):
    """Return a line of the table."""
    call = [sys.executable, __file__, "--one", data, name, dtype, str(n_rows)]
    done = subprocess.run(call, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    (mb, seconds, epochs), (mb_took, seconds_took, epochs_took) = (
        found["told"],
        found["took"],
    )
    n, d = found["shape"]
    return (
        f"{data:18} {n:>6} x {d:<4} {dtype:8} {name:23} {found['method']:10}"
        f" {mb:8.0f} {mb_took:8.0f} {mb_took / mb:6.2f}"
        f" {seconds:8.2f} {seconds_took:8.2f} {seconds_took / seconds:6.2f}"
        f" {epochs:5} {epochs_took:>5}"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", nargs="*", default=DATA)
    parser.add_argument("--fits", nargs="*", default=list(FITS))
    parser.add_argument("--dtypes", nargs="*", default=["float32", "float64"])
    parser.add_argument("--rows", type=int, default=10**9)
    parser.add_argument("--write", action="store_true", help="keep the results")
    parser.add_argument("--one", nargs=4, help=argparse.SUPPRESS)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    if args.one:
        found = measured(*args.one[:3], int(args.one[3]))
        print(json.dumps(found))
        return
    lines = [
        f"{date.today()}; {platform.machine()}, {processor()}, NumPy {np.__version__}",
        f"{'':72} {'memory, MB':^24} {'seconds':^24} {'epochs':^11}",
        f"{'data':18} {'shape':13} {'':8} {'model':23} {'method':10}"
        + 2 * f" {'told':>8} {'took':>8} {'ratio':>6}"
        + f" {'told':>5} {'took':>5}",
    ]
    print("\n".join(lines))
    for data in filter(available, args.data):
        for name in args.fits:
            if "loss" in FITS[name][1] and data in TARGETS:
                continue
            for dtype in args.dtypes:
                lines.append(line(data, name, dtype, args.rows))
                print(lines[-1], flush=True)
    if args.write:
        RESULTS.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
