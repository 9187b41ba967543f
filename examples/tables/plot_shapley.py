"""
Why this prediction? Shapley values
===================================

Importances say which columns a model uses. Shapley values say what each column of one
row adds to its prediction, compared with rows of a background. For the Gaussian kernel
and the Manhattan distance they are exact.
"""

# %%
# The target of this synthetic table is ``10 sin(pi x0 x1) + 20 (x2 - 0.5)^2 + 10 x3
# + 5 x4`` plus noise; the other columns do not matter. The metric must be diagonal,
# because Shapley values belong to columns and not to directions.
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import make_friedman1
from sklearn.inspection import permutation_importance

from eigenkern import EigenProRegressor, RFMRegressor
from eigenkern.inspection import shapley_values

X, y = make_friedman1(2000, n_features=8, noise=1.0, random_state=0)
X, X_test, y, y_test = X[:1000], X[1000:], y[:1000], y[1000:]
model = RFMRegressor(EigenProRegressor("gaussian"), metric="diagonal", random_state=0)
model.fit(X, y)
print(f"R^2 = {model.score(X_test, y_test):.3f}")

# %%
# Thirty training rows are the background: absent columns take their values, and the
# result is the mean over them. The values of a row and the base value add up to the
# prediction.
result = shapley_values(model, X_test[:300], background=X[:30])
predictions = model.predict(X_test[:300])
sums = result.base_values + result.values.sum(axis=1)
assert np.allclose(sums, predictions, atol=1e-6)

# %%
# One row, as steps from the base value to the prediction.
values, row = result.values[0], result.data[0]
ends = result.base_values[0] + np.cumsum(values)
figure, ax = plt.subplots(figsize=(7, 4), layout="constrained")
names = [f"{name} = {x:.2f}" for name, x in zip(result.feature_names, row)]
colors = np.where(values > 0, "tab:red", "tab:blue")
ax.barh(names, values, left=ends - values, color=colors)
ax.axvline(result.base_values[0], color="gray", linestyle=":", label="base value")
ax.axvline(predictions[0], color="black", label="prediction")
ax.invert_yaxis()
ax.set(xlabel="target", title="What each column adds to one prediction")
ax.legend()
plt.show()

# %%
# All rows: what columns 2 and 3 add, by their values. Without noise the second would be
# a line with the slope 10, which is zero at the mean of the background.
figure, axes = plt.subplots(ncols=2, figsize=(8, 4), layout="constrained", sharey=True)
for j, ax in zip((2, 3), axes):
    ax.plot(result.data[:, j], result.values[:, j], ".")
    ax.set(xlabel=result.feature_names[j], ylabel="Shapley value")
plt.show()
slope = np.polyfit(result.data[:, 3], result.values[:, 3], 1)[0]
print(f"slope of column 3: {slope:.1f}")
assert 9 < slope < 11

# %%
# Three answers to the question which columns matter: the mean size of the Shapley
# values, in units of the target; the share in the squared gradients; and what
# R^2 loses when a column is shuffled.
shuffled = permutation_importance(model, X_test, y_test, n_repeats=3, random_state=0)
answers = {
    "mean |Shapley value|": np.abs(result.values).mean(axis=0),
    "feature_importances_": model.feature_importances_,
    "permutation importance": shuffled.importances_mean,
}
figure, axes = plt.subplots(ncols=3, figsize=(9, 3.5), layout="constrained")
for (name, values), ax in zip(answers.items(), axes):
    ax.barh(result.feature_names, values)
    ax.invert_yaxis()
    ax.set(title=name)
    assert set(np.argsort(values)[-5:]) == {0, 1, 2, 3, 4}
plt.show()

# %%
# The plots of the package `shap` take the same result::
#
#     import shap
#     explanation = shap.Explanation(**vars(result))
#     shap.plots.beeswarm(explanation)
#     shap.plots.waterfall(explanation[0])
