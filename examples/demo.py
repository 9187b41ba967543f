"""Classes from a table of which few columns matter, beside SVC and gradient boosting.

Of 20 columns five matter, each in its own way, as often in tables. ``RFMClassifier``
learns which; ``EigenProClassifier`` and ``SVC`` weigh all columns alike. Three seeds
show how much the errors vary by chance. Prints what was chosen, and writes a plot.
Takes less than a minute on two cores. Run ::

    make demo                       # or: python examples/demo.py
    make demo ARGS=--no-svc
"""

import argparse
import os
import time
from pathlib import Path

import numpy as np
from sklearn.base import clone
from sklearn.datasets import make_friedman1
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.metrics import log_loss
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from eigenkern import EigenProClassifier, MetricDisplay, RFMClassifier

PLOT = Path(__file__).parent / "demo.png"
SEEDS, N_TRAIN, N_TEST, N_COLUMNS, N_MATTER = range(3), 2000, 4000, 20, 5


def load(seed):
    """Return training and test rows: a noisy target, cut into three classes."""
    X, y = make_friedman1(N_TRAIN + N_TEST, N_COLUMNS, noise=1.0, random_state=seed)
    y = np.digitize(y, np.quantile(y, [1 / 3, 2 / 3]))
    return X[:N_TRAIN], y[:N_TRAIN], X[N_TRAIN:], y[N_TRAIN:]


def compared(model, X, y, X_test, y_test):
    """Return the fitted pipeline, seconds to fit, error in percent and log loss."""
    pipeline = make_pipeline(StandardScaler(), model)
    start = time.perf_counter()
    pipeline.fit(X, y)
    seconds = time.perf_counter() - start
    loss = np.nan
    if hasattr(pipeline, "predict_proba"):
        loss = log_loss(y_test, pipeline.predict_proba(X_test))
    return pipeline, seconds, 100 * (1 - pipeline.score(X_test, y_test)), loss


def chosen(model):
    """Return rows of text: what the fit has chosen, and why."""
    inner, importances = model.estimator_, model.feature_importances_
    first = np.argsort(-importances)[:N_MATTER]
    return [
        ("metric", f"{model.metric_kind_}", "the least Brier score on held-out rows"),
        ("rounds", f"{model.n_rounds_}", "the same"),
        ("kernel", f"{inner.kernel}, {inner.bandwidth_:.3g} long", "the same"),
        ("penalty", f"{inner.alpha_:.1e}", "the least error on left-out rows"),
        (
            "columns",
            " ".join(map(str, sorted(first.tolist()))),
            f"have {100 * importances[first].sum():.0f} % of the importance",
        ),
    ]


def plot(model, results):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 4), layout="constrained")
    errors = np.array([[run[1] for run in runs] for runs in results.values()])
    left.bar(list(results), errors.mean(axis=1), yerr=errors.std(axis=1), capsize=4)
    left.set(ylabel="test error in %", title=f"Mean and spread of {len(SEEDS)} seeds")
    MetricDisplay.from_estimator(model, ax=right, name="What RFM has learned")
    figure.savefig(PLOT, dpi=120)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--no-svc", action="store_true")
    args = parser.parse_args()
    models = {
        "RFM": RFMClassifier(random_state=0, verbose=1),
        "boosting": HistGradientBoostingClassifier(random_state=0),
        "EigenPro": EigenProClassifier(random_state=0),
        "SVC(C=10)": SVC(C=10),
    }
    if args.no_svc:
        del models["SVC(C=10)"]
    print(
        f"{N_TRAIN} training rows, {N_TEST} test rows, 3 classes; "
        f"{N_COLUMNS} columns, of which the first {N_MATTER} matter\n"
    )
    results = {name: [] for name in models}
    for seed in SEEDS:
        data = load(seed)
        for name, model in models.items():
            pipeline, *run = compared(clone(model), *data)
            results[name].append(run)
            if name == "RFM" and seed == SEEDS[0]:
                shown = pipeline[-1]
                model.set_params(verbose=0)

    print("\nChosen in the first of these fits:")
    for what, value, why in chosen(shown):
        print(f"  {what:<10} {value:<22} {why}")

    print(f"\n{'':<12}{'test error':>16}{'log loss':>18}{'fit':>10}")
    for name, runs in results.items():
        (_, error, loss), spread = np.mean(runs, axis=0), np.std(runs, axis=0)
        losses = "-" if np.isnan(loss) else f"{loss:.3f} ± {spread[2]:.3f}"
        seconds = np.median([run[0] for run in runs])
        print(
            f"{name:<12}{error:>8.1f} ± {spread[1]:.1f} %{losses:>18}{seconds:>8.2f} s"
        )
    print(f"Means and standard deviations over {len(SEEDS)} data sets; median time.")
    plot(shown, results)
    print(f"\nPlot: {os.path.relpath(PLOT)}")


if __name__ == "__main__":
    main()
