"""
A table where few features matter
=================================

A kernel of the distance weighs all columns of a table equally. If half of the columns
do not matter, ``RFMRegressor`` finds out which, and predicts better than a plain kernel
machine and gradient boosting.
"""

# %%
# A synthetic table of ten columns, of which the first five matter.
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import make_friedman1
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.inspection import permutation_importance
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler

from eigenkern import EigenProRegressor, MetricDisplay, RFMRegressor

X, y = make_friedman1(4000, n_features=10, noise=1.0, random_state=0)
names = [f"x{j}" for j in range(10)]
X, X_test, y, y_test = train_test_split(X, y, train_size=2000, random_state=0)

# %%
# Standardize columns with different units: the first kernel weighs them by their
# spread.
scaler = StandardScaler().fit(X)
X, X_test = scaler.transform(X), scaler.transform(X_test)
models = {
    "kernel machine": EigenProRegressor(random_state=0),
    "gradient boosting": HistGradientBoostingRegressor(random_state=0),
    "recursive feature machine": RFMRegressor(random_state=0),
}
scores = {}
for name, model in models.items():
    scores[name] = model.fit(X, y).score(X_test, y_test)
    print(f"{name:25}: R^2 = {scores[name]:.3f}")
rfm = models["recursive feature machine"]
assert max(scores, key=scores.get) == "recursive feature machine"
assert set(rfm.feature_importances_.argsort()[-5:]) == {0, 1, 2, 3, 4}
print(f"chosen: {rfm.metric_kind_} metric of round {rfm.n_rounds_}")

# %%
# The importances of the learned kernel, next to what gradient boosting loses when a
# column is shuffled. The units differ: on the left is the share of a column in the
# squared gradients, on the right the loss in R^2.
shuffled = permutation_importance(
    models["gradient boosting"], X_test, y_test, n_repeats=3, random_state=0
)
figure, (left, right) = plt.subplots(ncols=2, figsize=(8, 4), layout="constrained")
for ax, name, values in (
    (left, "recursive feature machine", rfm.feature_importances_),
    (right, "gradient boosting", shuffled.importances_mean),
):
    MetricDisplay(values=values, feature_names=names, name=name).plot(ax)
plt.show()

# %%
# The error falls in the first rounds. Held-out rows decide how many rounds to keep, and
# choose between a weight for each column ("diagonal") and a full matrix ("full"), which
# starts from the best diagonal one.
scores = rfm.validation_scores_
figure, ax = plt.subplots(figsize=(7, 4), layout="constrained")
for metric in ("diagonal", "full"):
    errors = {}
    for kind, number, score in zip(scores["metric"], scores["round"], scores["score"]):
        if kind == metric or (metric == "diagonal" and kind is None):
            errors[number] = min(1 - score, errors.get(number, np.inf))
    ax.plot(list(errors), list(errors.values()), "o-", label=metric)
ax.set(xlabel="round", ylabel="1 - R² on held-out rows", ylim=(0, None))
ax.legend()
plt.show()
