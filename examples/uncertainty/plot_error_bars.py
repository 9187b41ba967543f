"""
A table with error bars
=======================

``RFMRegressor`` is the model to try first on a table, and
``predict(X, return_std=True)`` says how far each prediction may be off: noise may be
large in one part of a table and small in another.
"""

# %%
# A table of eight columns. The target depends on three of them. Its noise depends on
# two: it grows with the target, as that of prices and counts does, and a fourth column
# says whether the row was measured with care.
import matplotlib.pyplot as plt
import numpy as np
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from eigenkern import RFMRegressor

rng = np.random.default_rng(0)
X = rng.uniform(-2, 2, (4000, 8))
truth = np.exp(np.sin(1.5 * X[:, 0]) + 0.5 * X[:, 1] * (X[:, 2] > 0))
careless = X[:, 3] > 0
deviation = 0.1 * truth * np.where(careless, 3.0, 1.0)
y = truth + deviation * rng.standard_normal(4000)
X, X_new, y, y_new = X[:1000], X[1000:], y[:1000], y[1000:]

# %%
# Plus and minus 1.645 standard deviations is an interval for 90 % of new targets: in
# the first plot nine of ten bars reach the dashed line, on which targets are as
# predicted. The second compares the standard deviations with those of the noise; they
# are larger, because the function is not known exactly.
model = make_pipeline(StandardScaler(), RFMRegressor(random_state=0)).fit(X, y)
mean, std = model.predict(X_new, return_std=True)
inside = np.abs(y_new - mean) < 1.645 * std
print(f"90 % intervals hold {inside.mean():.1%} of new targets")
assert 0.87 < inside.mean() < 0.93

some = np.argsort(mean)[::60]
figure, axes = plt.subplots(ncols=2, figsize=(9, 4), layout="constrained")
ax = axes[0]
for kind, color in ((False, "tab:blue"), (True, "tab:red")):
    rows = some[careless[1000:][some] == kind]
    ax.errorbar(mean[rows], y_new[rows], 1.645 * std[rows], fmt=".", lw=1, color=color)
    ax.plot([], [], ".-", color=color, label="careless" if kind else "with care")
ax.plot([0, mean.max()], [0, mean.max()], "k--", lw=0.8)
ax.set(title="some new rows", xlabel="prediction", ylabel="target")
ax.legend(loc="upper left", fontsize="small")

ax = axes[1]
ax.loglog(deviation[1000:], std, ".", ms=2, color="gray")
ends = np.array([deviation.min(), deviation.max()])
ax.plot(ends, ends, "k--", lw=0.8)
ax.set(title="all new rows", xlabel="true noise", ylabel="standard deviation")
plt.show()

# %%
# The same share of targets is inside in all parts of the table. With one width for all
# rows, the intervals of quiet rows would be far too wide.
width = np.quantile(np.abs(y_new - mean), 0.9)  # the best of one width
quarter = 4 * np.argsort(np.argsort(std)) // len(std)
parts = [100 * inside[quarter == q].mean() for q in range(4)]
equal = np.abs(y_new - mean) < width
others = [100 * equal[quarter == q].mean() for q in range(4)]
print("inside, by quarters of the standard deviation:", np.round(parts, 1))
print("with one width for all rows:                  ", np.round(others, 1))
assert max(parts) - min(parts) < 12 < max(others) - min(others)
density = -np.log(std) - 0.5 * ((y_new - mean) / std) ** 2
constant = np.mean((y_new - mean) ** 2) ** 0.5
gain = density.mean() - (-np.log(constant) - 0.5)
print(f"log density of new targets: {gain:.2f} more than with one width")
assert gain > 0.4

figure, ax = plt.subplots(figsize=(6, 3.5), layout="constrained")
for k, (name, values) in enumerate(
    (("return_std", parts), ("one width for all rows", others))
):
    ax.bar(np.arange(4) + 0.36 * k - 0.18, values, 0.34, label=name)
ax.axhline(90, color="k", lw=0.8)
ax.set_xticks(range(4), ["least", "second", "third", "largest"])
ax.set(xlabel="quarters of the new rows by standard deviation", ylabel="covered (%)")
ax.set_ylim(50, 112)
ax.set_yticks(range(50, 101, 10))
ax.legend(loc="upper right", ncols=2, fontsize="small")
plt.show()
