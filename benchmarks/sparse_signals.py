"""Functions of a few among many features: what a second start of `RFM*` finds.

Run ::

    python benchmarks/sparse_signals.py > benchmarks/results/sparse_signals.txt
    python benchmarks/sparse_signals.py --rows 4000 --seeds 3 --noise 0.1

Features are normal, 32 of them, of which two to four matter; targets have deviation 1
before the noise. Labels are whether a target is above the median. Models are fitted to
some rows and judged on 2000 others: by the RMSE to the function without noise, over its
deviation, or by the % of wrong labels, noise included. Means over the seeds.

plain      ``EigenProRegressor()`` or ``EigenProClassifier()``
one start  ``RFM*()`` without its second start
RFM        ``RFM*()``
boosting   ``HistGradientBoosting*()``
fits       models that ``RFM*()`` fits
time       seconds of its fit, over those of plain (processor time)

The constants of the second start were chosen on other functions: sin(2 a) sin(2 b) and
a b c.
"""

import argparse
import time
import warnings
from datetime import date
from unittest import mock

import numpy as np
from kernel_product import processor
from sklearn.ensemble import (
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
)

import eigenkern
from eigenkern.plan import of_rounds

FUNCTIONS = {
    "cos(3 a) b + |c|": lambda a, b, c, d: np.cos(3 * a) * b + abs(c),
    "a exp(-b^2) + cos(2 c)": lambda a, b, c, d: a * np.exp(-(b**2)) + np.cos(2 * c),
    "sign(a b) + c d": lambda a, b, c, d: np.sign(a * b) + c * d,
    "sin(a b) + cos(3 c) / 2": lambda a, b, c, d: np.sin(a * b) + np.cos(3 * c) / 2,
    "max(a, b) c": lambda a, b, c, d: np.maximum(a, b) * c,
    "sign(a b c)": lambda a, b, c, d: np.sign(a * b * c),
    "(a^2 - 1) b": lambda a, b, c, d: (a**2 - 1) * b,
    "cos(2 a) cos(2 b)": lambda a, b, c, d: np.cos(2 * a) * np.cos(2 * b),
    "sin(2 a) b c": lambda a, b, c, d: np.sin(2 * a) * b * c,
    "tanh(2 a b c)": lambda a, b, c, d: np.tanh(2 * a * b * c),
}
N_FEATURES, N_TEST = 32, 2000


def drawn(function, noise, labels, n, seed):
    """Return X, y, X_test, y_test."""
    rng = np.random.RandomState(seed)
    X = rng.standard_normal((n + N_TEST, N_FEATURES)).astype(np.float32)
    f = function(*X[:, :4].T.astype(float))
    f = (f - f.mean()) / f.std()
    y = f + noise * rng.standard_normal(len(f))
    if labels:
        y = f = (y > np.median(y)).astype(int)
    return X[:n], y[:n], X[n:], f[n:]


def error(model, X, y, labels):
    if labels:
        return 100 * np.mean(model.predict(X) != y)
    return np.mean((model.predict(X) - y) ** 2) ** 0.5 / y.std()


def measured(X, y, X_test, y_test, labels):
    """Return the numbers of a line."""
    kind = "Classifier" if labels else "Regressor"
    plain, rfm = (getattr(eigenkern, name + kind) for name in ("EigenPro", "RFM"))
    boosting = (
        HistGradientBoostingClassifier if labels else HistGradientBoostingRegressor
    )
    errors, seconds, fits, fit = [], [], [], plain.fit

    def counted(model, *data):
        fits[-1] += 1
        return fit(model, *data)

    for make, n_weak in ((plain, 5), (rfm, 0), (rfm, 5), (boosting, 5)):
        fits.append(0)
        with (
            mock.patch.object(of_rounds, "_WEAK_ROUNDS", n_weak),
            mock.patch.object(plain, "fit", counted),
        ):
            start = time.process_time()
            model = make(random_state=0).fit(X, y)
            seconds.append(time.process_time() - start)
        errors.append(error(model, X_test, y_test, labels))
    return [*errors, fits[2], seconds[2] / seconds[0]]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1500)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--noise", type=float, nargs="+", default=[0.5])
    parser.add_argument("--functions", nargs="+", default=list(FUNCTIONS))
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    drawn_are = f"{options.rows} rows, {options.seeds} draw(s)"
    print(f"{date.today()}, {processor()}, {drawn_are}")
    names = "function, noise", "plain", "one start", "RFM", "boosting", "fits", "time"
    print("{:<32}{:>9}{:>11}{:>9}{:>10}{:>6}{:>7}".format(*names), flush=True)
    for labels in (False, True):
        for name in options.functions:
            for noise in options.noise:
                lines = []
                for seed in range(options.seeds):
                    rows = drawn(FUNCTIONS[name], noise, labels, options.rows, seed)
                    lines.append(measured(*rows, labels))
                numbers = np.mean(lines, axis=0)
                form = "{:<32}{:>9.3f}{:>11.3f}{:>9.3f}{:>10.3f}{:>6.0f}{:>7.1f}"
                form = form.replace(".3f", ".1f") if labels else form
                what = f"{name}, {noise:g}" + (", classes" if labels else "")
                print(form.format(what, *numbers), flush=True)


if __name__ == "__main__":
    main()
