"""
A table where few features matter
=================================

A kernel of distances weighs all columns of a table alike, and loses to trees, which
look at the columns that matter. A recursive feature machine learns from its own
gradients which ones these are, and measures distances by them.
"""

# %%
# Bicycles hired in Washington in each hour of two years, if the folder named by
# ``EIGENKERN_DATA`` has ``bike_hour.npz`` (the UCI repository's bike sharing data), or
# else a made-up table, ten columns of which the first five matter.
import os
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import make_friedman1
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.inspection import permutation_importance
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler

from eigenkern import EigenProRegressor, MetricDisplay, RFMRegressor

file = Path(os.environ.get("EIGENKERN_DATA", "")) / "bike_hour.npz"
if file.is_file():
    with np.load(file) as arrays:
        X, y = arrays["X"], arrays["y"].astype(float)
    names = (
        "season year month hour holiday weekday workingday weather temperature "
        "felt_temperature humidity windspeed"
    ).split()
else:
    X, y = make_friedman1(6000, n_features=10, noise=1.0, random_state=0)
    names = [f"x{j}" for j in range(10)]
X, X_test, y, y_test = train_test_split(X, y, train_size=4000, random_state=0)

# %%
# Columns of unlike units are standardised: the first kernel has no other idea of them.
scaler = StandardScaler().fit(X)
X, X_test = scaler.transform(X), scaler.transform(X_test)
models = {
    "kernel machine": EigenProRegressor(random_state=0),
    "gradient boosting": HistGradientBoostingRegressor(random_state=0),
    "recursive feature machine": RFMRegressor(random_state=0),
}
for name, model in models.items():
    print(f"{name:25}: R^2 = {model.fit(X, y).score(X_test, y_test):.3f}")
rfm = models["recursive feature machine"]
print(f"chosen: {rfm.metric_kind_} metric of round {rfm.n_rounds_}")

# %%
# What the learned kernel looks at, beside what gradient boosting loses when a column is
# shuffled. The units differ: a loss of R^2 on the right, and on the left a part of the
# squared gradients: a column that the model is ten times as steep in has a hundred
# times the bar.
shuffled = permutation_importance(
    models["gradient boosting"], X_test, y_test, n_repeats=3, random_state=0
)
figure, (left, right) = plt.subplots(ncols=2, figsize=(9, 4), layout="constrained")
for ax, name, values in (
    (left, "recursive feature machine", rfm.feature_importances_),
    (right, "gradient boosting", shuffled.importances_mean),
):
    MetricDisplay(values=values, feature_names=names, name=name).plot(ax)
plt.show()

# %%
# The error falls with the first rounds. Rows held out decide where to stop, and between
# a weight for each column ("diagonal") and a metric of all directions ("full"), which
# goes on from the best of these.
scores = rfm.validation_scores_
figure, ax = plt.subplots(layout="constrained")
for metric in ("diagonal", "full"):
    errors = {}
    for kind, number, score in zip(scores["metric"], scores["round"], scores["score"]):
        if kind == metric or (metric == "diagonal" and kind is None):
            errors[number] = min(1 - score, errors.get(number, np.inf))
    ax.plot(list(errors), list(errors.values()), "o-", label=metric)
ax.set(xlabel="round", ylabel="1 - R^2 of the rows held out", ylim=(0, None))
ax.legend()
plt.show()
