"""Exact Shapley values beside the explainers of shap and shapiq.

Run ``python benchmarks/shapley.py --write``: some minutes on two cores, with
``pip install shap shapiq``.

The values of a ridge model on 1000 centers at five test rows: seconds of the processor
per row, and the largest difference from the exact values over the largest of these. The
error of `shapley_values` is that of the sums. All have the same background, 20 training
rows; shapiq has none. At the end the time with more centers, in that of predictions.
"""

import argparse
import platform
import time
from datetime import date
from importlib.metadata import version
from pathlib import Path

import numpy as np
from datasets import parts
from kernel_product import processor

from eigenkern import NystromClassifier, NystromRegressor
from eigenkern.inspection import shapley_values

RESULTS = Path(__file__).parent / "results"
SETS = ("california_housing", "cpusmall", "a9a")
N_TRAIN, N_ROWS, N_BACKGROUND = 5000, 5, 20
# Columns up to which shap's exact explainer, with 2^d predictions, takes minutes.
MOST_EXACT = 12


def timed(function):
    """Return seconds of the processor, and a result."""
    start = time.process_time()
    result = function()
    return time.process_time() - start, result


def with_background(f, rows, background):
    """Yield name, seconds and values of each explainer with a background."""
    import shap

    explainer = shap.KernelExplainer(f, background)
    yield "shap, kernel", *timed(lambda: explainer.shap_values(rows, silent=True))
    masker = shap.maskers.Independent(background, max_samples=N_BACKGROUND)
    explainers = {"shap, permutation": shap.explainers.Permutation}
    if rows.shape[1] <= MOST_EXACT:
        explainers["shap, exact"] = shap.explainers.Exact
    for name, cls in explainers.items():
        explainer = cls(f, masker)
        explainer(rows[:1], silent=True)  # compiles
        yield name, *timed(lambda one=explainer: one(rows, silent=True).values)


def of_shapiq(model, rows):
    """Return the values of shapiq's explainer of product kernels."""
    from shapiq.explainer.product_kernel import (
        ProductKernelComputer,
        ProductKernelModel,
    )

    Z, a, d = model.centers_, model.dual_coef_[:, 0], rows.shape[1]
    converted = ProductKernelModel(Z, a, len(Z), d, gamma=0.5 / model.bandwidth_**2)
    computer = ProductKernelComputer(converted, max_order=1, index="SV")
    factors = [computer.compute_kernel_vectors(Z, x) for x in rows]
    return np.array(
        [[computer.compute_shapley_value(K, j) for j in range(d)] for K in factors]
    )


def comparison(name):
    """Yield lines about one set."""
    data = parts(name)
    X, rows = data.X_train[:N_TRAIN].astype(float), data.X_test[:N_ROWS].astype(float)
    y, background = data.y_train[:N_TRAIN], X[:N_BACKGROUND]
    model = NystromClassifier if name == "a9a" else NystromRegressor
    model = model("gaussian", n_centers=1000, random_state=0).fit(X, y)
    f = getattr(model, "decision_function", model.predict)

    def line(method, seconds, values, exact):
        error = np.abs(values - exact).max() / np.abs(exact).max()
        return (
            f"{name:20}{X.shape[1]:>7}  {method:28}{seconds / N_ROWS:9.4f}{error:9.0e}"
        )

    def ours(background):
        shapley_values(model, rows[:1])  # whatever happens once
        return timed(lambda: shapley_values(model, rows, background=background))

    seconds, exact = ours(background)
    sums = exact.base_values + exact.values.sum(axis=1) - f(rows)
    scaled = exact.values + sums[:, None]  # for the error of the sums
    yield line("shapley_values", seconds, scaled, exact.values)
    for method, *found in with_background(f, rows, background):
        yield line(method, *found, exact.values)
    seconds, exact = ours(None)
    yield line("shapley_values, no background", seconds, exact.values, exact.values)
    yield line("shapiq", *timed(lambda: of_shapiq(model, rows)), exact.values)


def sizes():
    """Yield lines about the time for many rows, relative to predictions."""
    rng = np.random.default_rng(0)
    for d in (5, 20, 100, 500):
        n, p = 2000 // d, 10_000
        X = rng.standard_normal((p, d))
        model = NystromRegressor("gaussian", n_centers=20, bandwidth=d**0.5)
        model.fit(X[:100], X[:100, 0])
        model.centers_, model.dual_coef_ = X, rng.standard_normal((p, 1)) / p
        rows = rng.standard_normal((n, d))
        seconds, result = timed(lambda m=model, x=rows: shapley_values(m, x))
        copies = np.tile(rows, (10, 1))  # one prediction is too short to time
        predicted, F = timed(lambda m=model, x=copies: m.predict(x))
        sums = result.base_values + result.values.sum(axis=1)
        error = np.abs(sums - F[:n]).max()
        yield (
            f"{d:7d}{1e3 * seconds / n:20.1f}{seconds / predicted * 10:14.0f}"
            f"{error:18.0e}"
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="write results/")
    args = parser.parse_args()
    peers = ", ".join(f"{name} {version(name)}" for name in ("shap", "shapiq"))
    lines = [
        f"python benchmarks/shapley.py; {date.today()}; {platform.machine()}, "
        f"{processor()}, NumPy {np.__version__}, {peers}",
        "Seconds of the processor, on a busy machine",
        "",
        f"{'data':20}{'columns':>7}  {'method':28}{'s / row':>9}{'error':>9}",
    ]
    print("\n".join(lines), flush=True)
    for name in SETS:
        for line in comparison(name):
            print(line, flush=True)
            lines.append(line)
    lines += [
        "",
        "10 000 centers, no background",
        f"{'columns':>7}{'ms / row':>20}{'predictions':>14}{'error of sums':>18}",
    ]
    for line in sizes():
        print(line, flush=True)
        lines.append(line)
    if args.write:
        (RESULTS / "shapley.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
