"""Table 2 and figures 1 and 2 of the NYTRO paper, beside the paper's numbers.

``python benchmarks/nytro_tables.py --part table2`` (half an hour on two cores),
``--part figure2``, ``--part figure1``, and ``--part one_standard_error`` (NKRLS of
table 2 with both rules of selection), some minutes each. Each writes
``results/nytro_PART.txt`` and, for a figure, ``.png``.

Camoriano, Angles, Rudi, Rosasco, "NYTRO: when subsampling meets early stopping",
AISTATS 2016.
"""

import argparse
import platform
import time
from contextlib import nullcontext
from datetime import date
from pathlib import Path
from unittest.mock import patch

import numpy as np
import scipy.linalg
from datasets import load
from kernel_product import processor

from eigenkern import NystromRegressor, NytroRegressor
from eigenkern.kernels import Gaussian

RESULTS = Path(__file__).parent / "results"

# name -> (file, standardize, sigma, m, rows of the exact methods, repetitions)
DATA = {
    "Insurance": ("coil2000", True, 3.0, 2000, None, 5),
    "Adult": ("a9a", False, 6.6, 1000, 10_000, 5),
    "Ijcnn": ("ijcnn1", False, 1.0, 5000, 10_000, 2),
    "Covertype": ("covtype_sub93k", True, 1.0, 5000, 10_000, 1),
}
# The paper's RMSE: KOLS, KRLS, early stopping, NKRLS, NYTRO.
PAPER = {
    "Insurance": (5.179, 0.4651, 0.4650, 0.4651, 0.4651),
    "Adult": (1765, 0.645, 0.685, 0.6462, 0.6873),
    "Ijcnn": (730.62, 0.615, 0.457, 0.469, 0.457),
    "Covertype": (None, None, None, 1.204, 0.918),
}
METHODS = ("KOLS", "KRLS", "ES", "NKRLS", "NYTRO", "NYTRO, paper's step")


def signs(name, y):
    """Return labels of two classes as -1 and 1."""
    positive = {"coil2000": y == 1, "covtype_sub93k": y == 2}.get(name, y > 0)
    return np.where(positive, 1.0, -1.0)


def make(method, sigma, m, seed):
    """Return the estimator of a method; the paper's step is 1 / sup k(x, x) = 1."""
    options = {"kernel": "gaussian", "bandwidth": sigma, "random_state": seed}
    if method == "KOLS":
        return NystromRegressor(alpha=0, **options)
    if method == "KRLS":
        return NystromRegressor(alpha="path", **options)
    if method == "NKRLS":
        return NystromRegressor(alpha="path", n_centers=m, **options)
    if method == "ES":
        return NytroRegressor(**options)
    step = 1.0 if method.endswith("step") else "auto"
    return NytroRegressor(n_centers=m, step_size=step, **options)


def table2(names):
    """Yield the lines of table 2."""
    header = f"{'data':10} {'method':20} {'rows':>6} {'m':>5} {'seconds':>8} "
    yield header + f"{'RMSE':>16} {'paper':>8}  parameter"
    for name in names:
        file, standardize, sigma, m, n_exact, n_repeats = DATA[name]
        data = load(file, standardize=standardize)
        y, y_test = signs(file, data.y_train), signs(file, data.y_test)
        for k, method in enumerate(METHODS):
            exact = method in ("KOLS", "KRLS")
            n = n_exact if exact and n_exact else len(y)
            n_runs = n_repeats if not exact and method != "ES" else 1
            if method == "ES" and name == "Covertype":
                continue  # the paper has none either: the kernel matrix is too large
            seconds, errors, chosen = [], [], []
            for seed in range(n_runs):
                rows = np.random.default_rng(seed).permutation(len(y))[:n]
                model = make(method, sigma, m, seed)
                start = time.perf_counter()
                model.fit(data.X_train[rows], y[rows])
                seconds.append(time.perf_counter() - start)
                residual = model.predict(data.X_test) - y_test
                errors.append(np.sqrt(np.mean(residual**2)))
                chosen.append(
                    model.alpha_ if hasattr(model, "alpha_") else model.n_iter_
                )
            paper = PAPER[name][min(k, 4)]
            kind = "alpha" if hasattr(model, "alpha_") else "t"
            yield (
                f"{name:10} {method:20} {n:6} {m if 'N' in method else '-':>5} "
                f"{np.mean(seconds):8.1f} "
                f"{np.mean(errors):8.4f} +- {np.std(errors):.4f} "
                f"{'-' if paper is None else paper:>8}  {kind} = {np.mean(chosen):.3g}"
            )


def one_standard_error(names):
    """Yield the RMSE of NKRLS by the least error and by the one-standard-error rule."""
    head = (
        f"{'RMSE by least':>16} {'lambda':>9} {'one standard error':>18} {'lambda':>9}"
    )
    yield f"{'data':10} {'m':>5} {head} {'paper':>7}"
    for name in names:
        file, standardize, sigma, m, _, n_repeats = DATA[name]
        data = load(file, standardize=standardize)
        y, y_test = signs(file, data.y_train), signs(file, data.y_test)
        found = {False: [], True: []}
        for seed in range(n_repeats):
            rows = np.random.default_rng(seed).permutation(len(y))
            for rule in found:
                model = make("NKRLS", sigma, m, seed)
                model.set_params(one_standard_error=rule)
                model.fit(data.X_train[rows], y[rows])
                residual = model.predict(data.X_test) - y_test
                found[rule].append((np.sqrt(np.mean(residual**2)), model.alpha_))
        (least, alpha), (simple, larger) = (
            np.array(found[rule]).T for rule in (False, True)
        )
        yield (
            f"{name:10} {m:5} {least.mean():6.4f} +- {least.std():.4f} "
            f"{alpha.mean():9.2g} {simple.mean():8.4f} +- {simple.std():.4f} "
            f"{larger.mean():9.2g} {PAPER[name][3]:7}"
        )


def iterating():
    """Return a context in which NYTRO descends step by step, whatever is faster."""
    return patch("eigenkern.plan.of_closed_forms.factorizes", lambda *_: False)


def figure2():
    """Yield times of NKRLS and NYTRO against m on cpuSmall, and plot them."""
    data = load("cpusmall", standardize=True)
    sizes = list(range(100, 4001, 300))
    seconds = {"NKRLS": [], "NYTRO": [], "NYTRO, iterated": []}
    yield f"{'m':>5} " + " ".join(f"{name:>16}" for name in seconds)
    for m in sizes:
        for name, values in seconds.items():
            runs = []
            for seed in range(1 if name.endswith("iterated") else 3):
                model = make(name.partition(",")[0], 3.0, m, seed)
                start = time.perf_counter()
                with iterating() if name.endswith("iterated") else nullcontext():
                    model.fit(data.X_train, data.y_train)
                runs.append(time.perf_counter() - start)
            values.append(runs)
        row = " ".join(f"{np.mean(v[-1]):16.3f}" for v in seconds.values())
        yield f"{m:5} {row}"
    import matplotlib.pyplot as plt

    figure, ax = plt.subplots(layout="constrained")
    for name, runs in seconds.items():
        runs = np.asarray(runs)
        ax.errorbar(sizes, runs.mean(1), runs.std(1), marker="o", ms=3, label=name)
    ax.set(
        xlabel="centers m",
        ylabel="seconds, selection and refit",
        title=f"cpuSmall, n = {len(data.X_train)}: 100 lambdas, 500 iterations",
    )
    ax.legend()
    figure.savefig(RESULTS / "nytro_figure2.png", dpi=150)


def best_seconds(function, n=3):
    """Return the least seconds of `n` calls."""
    times = []
    for _ in range(n):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times)


def problem(n, bandwidth, rng):
    """Return K and f = K c with |f| = 1 for points of a square."""
    X = rng.random((n, 2))
    K = Gaussian(bandwidth)(X)
    c = rng.standard_normal(n)
    c /= np.sqrt(c @ K @ c)
    return K, K @ c


def least_steps(A, mu, noise, limit):
    """Return the fewest iterations whose expected risk is at most `limit`, or None.

    A (n, p) are features, gradient descent takes steps of 1 / |A|^2; the risk of t
    iterations is |(I - S_t) mu|^2 / n + noise tr(S_t^2) / n.
    """
    U, s, _ = np.linalg.svd(A, full_matrices=False)
    e = s**2 / s[0] ** 2
    parts, n = U.T @ mu, len(mu)
    outside = max(mu @ mu - parts @ parts, 0.0)
    for t in np.unique(np.logspace(0, 4, 60).astype(int)):
        keep = (1 - e) ** t
        value = (
            outside + (keep * parts) @ (keep * parts) + noise * ((1 - keep) ** 2).sum()
        )
        if value / n <= limit:
            return t
    return None


def least_risk(A, mu, noise):
    """Return the least expected risk of ridge regression on features, and lambda."""
    U, s, _ = np.linalg.svd(A, full_matrices=False)
    parts, n = U.T @ mu, len(mu)
    outside = max(mu @ mu - parts @ parts, 0.0)
    lambdas = np.logspace(-10, 1, 80)
    gain = s[:, None] ** 2 / (s[:, None] ** 2 + n * lambdas)
    values = outside + (((1 - gain) * parts[:, None]) ** 2).sum(0)
    values = (values + noise * (gain**2).sum(0)) / n
    best = values.argmin()
    return values[best], lambdas[best]


def figure1(n=2000):
    """Yield which method is fastest at the accuracy of KRLS, and plot it."""
    rng = np.random.default_rng(0)
    names = ("KRLS", "ES", "NKRLS", "NYTRO")
    rows = []
    yield "  dimension       SNR   lambda*     m  t ES t NYTRO  " + "  ".join(names)
    for bandwidth in (0.6, 0.3, 0.15, 0.08, 0.04, 0.02):
        K, f = problem(n, bandwidth, rng)
        e, V = np.linalg.eigh(K)
        root = V * np.sqrt(np.maximum(e, 0))
        mean_square = f @ f / n
        for ratio in (0.1, 1, 10, 100, 1000, 10_000):  # |f|_H^2 over the noise
            noise = 1 / ratio
            best, alpha = least_risk(root, f, noise)
            if best > 0.9 * mean_square:
                continue  # nothing can be learned: zero is as good
            limit = 1.1 * best
            dimension = n * np.max((V**2 * (e / (e + n * alpha))).sum(1))
            t_full = least_steps(root, f, noise, limit)
            m, t_sub = None, None
            for m_try in (10, 20, 40, 80, 160, 320, 640, 1280):
                centers = rng.permutation(n)[:m_try]
                lower = np.linalg.cholesky(
                    K[np.ix_(centers, centers)] + 1e-10 * np.eye(m_try)
                )
                A = scipy.linalg.solve_triangular(lower, K[:, centers].T, lower=True).T
                if least_risk(A, f, noise)[0] <= limit:
                    m, t_sub = m_try, least_steps(A, f, noise, limit)
                    break
            y = f + np.sqrt(noise) * rng.standard_normal(n)
            seconds = _seconds(K, y, alpha, t_full, m, t_sub)
            winner = names[int(np.nanargmin(seconds))]
            rows.append((dimension, ratio, winner))
            shown = "  ".join(f"{1e3 * value:8.2f}" for value in seconds)
            yield (
                f"{dimension:11.1f} {ratio:9g} {alpha:9.1e} {m or '-':>5} "
                f"{t_full or '-':>5} {t_sub or '-':>7}  {shown} ms  {winner}"
            )
    _plot_winners(rows, names, n)


def _seconds(K, y, alpha, t_full, m, t_sub):
    """Return seconds of the four methods with given parameters, nan if impossible."""
    n = len(y)

    def krls():
        A = K.copy()
        A.flat[:: n + 1] += alpha * n
        scipy.linalg.cho_solve(scipy.linalg.cho_factor(A, overwrite_a=True), y)

    def es():
        a = np.zeros(n)
        for _ in range(t_full):
            a -= (K @ a - y) / n

    def nkrls():
        K_nm, K_mm = K[:, :m], K[:m, :m]
        A = K_nm.T @ K_nm + alpha * n * K_mm
        A.flat[:: m + 1] += 1e-10
        scipy.linalg.solve(A, K_nm.T @ y, assume_a="pos")

    def nytro():
        K_nm = K[:, :m]
        lower = scipy.linalg.cholesky(K[:m, :m] + 1e-10 * np.eye(m), lower=True)
        b = np.zeros(m)
        for _ in range(t_sub):
            a = scipy.linalg.solve_triangular(lower, b, lower=True, trans=1)
            g = K_nm.T @ (K_nm @ a - y)
            b -= scipy.linalg.solve_triangular(lower, g, lower=True) / n

    possible = (True, t_full, m, m and t_sub)
    return [
        best_seconds(method) if right else np.nan
        for method, right in zip((krls, es, nkrls, nytro), possible, strict=True)
    ]


def _plot_winners(rows, names, n):
    import matplotlib.pyplot as plt

    figure, ax = plt.subplots(layout="constrained")
    for name, marker in zip(names, "osD^", strict=True):
        won = [
            (ratio, dimension) for dimension, ratio, winner in rows if winner == name
        ]
        if won:
            ax.scatter(*zip(*won, strict=True), marker=marker, s=90, label=name)
    ax.set(
        xscale="log",
        yscale="log",
        xlabel="signal to noise, $|f|_H^2 / \\sigma^2$",
        ylabel="dimension $\\tilde d(\\lambda^*)$",
        title=f"Fastest at 1.1 times the best risk of KRLS, n = {n}",
    )
    ax.legend()
    figure.savefig(RESULTS / "nytro_figure1.png", dpi=150)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--part",
        choices=("table2", "one_standard_error", "figure1", "figure2"),
        required=True,
    )
    parser.add_argument("--data", nargs="*", choices=tuple(DATA), default=list(DATA))
    args = parser.parse_args()
    lines = [
        f"{date.today()}; {platform.machine()}, {processor()}, NumPy {np.__version__}"
    ]
    print(lines[0])
    tables = {"table2": table2, "one_standard_error": one_standard_error}
    figures = {"figure1": figure1, "figure2": figure2}
    table = tables.get(args.part)
    for line in table(args.data) if table else figures[args.part]():
        print(line, flush=True)
        lines.append(line)
    if table is None or args.data == list(DATA):
        (RESULTS / f"nytro_{args.part}.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
