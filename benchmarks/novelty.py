"""KernelNoveltyDetector beside OneClassSVM and IsolationForest.

Run ``python benchmarks/novelty.py --write``: 15 minutes, most of it for OneClassSVM.

Each detector, with its defaults, learns from 5000 normal rows: one digit of MNIST, the
largest class of covtype, the common class of ijcnn1. Then it scores up to 5000 other
normal rows and 2000 of the other classes, all drawn from both parts of a set together.
Shown are the area under the curve, seconds of the processor for fit and scores, and how
many of the normal rows have p-values of at most 1, 5 and 10 %: means of ten draws, for
one draw has a standard deviation of up to a point. (The ridge and the
kernel were chosen on digits 0 to 4 and on synthetic sets.) At the end all 100 000 rows
of one set, fitted and scored.
"""

import argparse
import platform
import time
from datetime import date
from pathlib import Path

import numpy as np
import sklearn
from datasets import parts
from kernel_product import processor
from sklearn.ensemble import IsolationForest
from sklearn.metrics import roc_auc_score
from sklearn.svm import OneClassSVM

from eigenkern import KernelNoveltyDetector

RESULTS = Path(__file__).parent / "results"
N_TRAIN, N_NORMAL, N_OTHER, N_LARGE = 5000, 5000, 2000, 100_000
LEVELS, N_DRAWS = (0.01, 0.05, 0.1), 10
DETECTORS = {
    "novelty": KernelNoveltyDetector,
    "svm": OneClassSVM,
    "forest": IsolationForest,
}


def tasks():
    """Yield a name, the normal rows and the others, in random order."""
    rng = np.random.default_rng(0)
    for name in ("mnist", "covtype_sub93k", "ijcnn1"):
        data = parts(name)
        X = np.concatenate([data.X_train, data.X_test])
        y = np.concatenate([data.y_train, data.y_test])
        labels = range(10) if name == "mnist" else [np.median(y)]
        for label in labels:
            normal, other = (
                rng.permutation(X[own]) for own in (y == label, y != label)
            )
            yield name + f" {label}" * (name == "mnist"), normal, other


def seconds_and(function):
    """Return seconds of the processor, and a result."""
    start = time.process_time()
    result = function()
    return time.process_time() - start, result


def made(cls):
    return cls() if cls is OneClassSVM else cls(random_state=0)


def figures_of(normal, other):
    """Return areas and seconds of each detector, and the false alarms in %."""
    new, other = normal[N_TRAIN : N_TRAIN + N_NORMAL], other[:N_OTHER]
    X = np.concatenate([new, other])
    is_new = np.repeat([True, False], [len(new), len(other)])
    areas, times = [], []
    for cls in DETECTORS.values():
        model = made(cls)

        def run(model=model):
            return model.fit(normal[:N_TRAIN]).score_samples(X)

        seconds, scores = seconds_and(run)
        areas.append(roc_auc_score(is_new, scores))
        times.append(seconds)
    return areas, times, false_alarms(normal)


def false_alarms(normal):
    """Return the rates in % of the levels, means of some draws."""
    rng, rates = np.random.default_rng(0), []
    for _ in range(N_DRAWS):
        rows = rng.permutation(len(normal))[: N_TRAIN + N_NORMAL]
        model = made(KernelNoveltyDetector).fit(normal[rows[:N_TRAIN]])
        p = model.p_values(normal[rows[N_TRAIN:]])
        rates.append([100 * np.mean(p <= level) for level in LEVELS])
    return np.mean(rates, axis=0)


def line_of(name, areas, times, alarms):
    columns = [f"{area:9.4f}" for area in areas] + [f"{t:9.1f}" for t in times]
    return f"{name:16}" + "".join(columns + [f"{a:8.2f}" for a in alarms])


def large(normal, other):
    """Yield lines about many rows."""
    X = normal[:N_LARGE]
    X_new = np.concatenate([normal[N_LARGE:], other[: 3 * N_OTHER]])
    is_new = np.arange(len(X_new)) < len(normal) - N_LARGE
    for name in ("novelty", "forest"):
        model = made(DETECTORS[name])
        start = time.perf_counter()
        fit, _ = seconds_and(lambda m=model: m.fit(X))
        score, _ = seconds_and(lambda m=model: m.score_samples(X))
        wall = time.perf_counter() - start
        area = roc_auc_score(is_new, model.score_samples(X_new))
        yield f"{name:16}{area:9.4f}{fit:9.1f}{score:9.1f}{wall:9.1f}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="write results/")
    args = parser.parse_args()
    lines = []

    def say(line):
        print(line, flush=True)
        lines.append(line)

    say(
        f"python benchmarks/novelty.py; {date.today()}; {platform.machine()}, "
        f"{processor()}, NumPy {np.__version__}, scikit-learn {sklearn.__version__}"
    )
    say("Seconds of the processor, on a busy machine")
    say("")
    say(f"{'':16}{'area under the curve':>27}{'seconds':>27}{'false alarms, %':>24}")
    names = "".join(f"{name:>9}" for name in DETECTORS)
    levels = "".join(f"{f'{level:.0%}':>8}" for level in LEVELS)
    say(f"{'data':16}{names}{names}{levels}")
    figures = []
    for name, normal, other in tasks():
        figures.append(figures_of(normal, other))
        say(line_of(name, *figures[-1]))
    means = (np.mean(columns, axis=0) for columns in zip(*figures, strict=True))
    say(line_of("mean", *means))
    say("")
    say(f"{name}, {N_LARGE} rows fitted and scored")
    say(f"{'':16}{'area':>9}{'fit':>9}{'scores':>9}{'wall':>9}")
    for line in large(normal, other):
        say(line)
    if args.write:
        (RESULTS / "novelty.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
