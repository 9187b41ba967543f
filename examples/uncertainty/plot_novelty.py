"""
Is this row like the others?
============================

A model answers for every row, also for one that is like nothing it has learned from.
``KernelNoveltyDetector`` learns what rows look like, and gives each new one a p-value:
the part of rows like the training rows that are no more usual.
"""

# %%
# Two half moons. The score is the part of a row that the training rows explain, and
# the lines are where p-values are 1 and 10 %.
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits, make_moons
from sklearn.model_selection import train_test_split

from eigenkern import KernelNoveltyDetector

X, _ = make_moons(1000, noise=0.08, random_state=0)
model = KernelNoveltyDetector(contamination=0.01, random_state=0).fit(X)
x, y = np.meshgrid(np.linspace(-2, 3, 120), np.linspace(-1.5, 2, 120))
grid = np.column_stack([x.ravel(), y.ravel()])
scores = model.score_samples(grid).reshape(x.shape)
p = model.p_values(grid).reshape(x.shape)
figure, ax = plt.subplots(figsize=(7, 4.5), layout="constrained")
shown = ax.contourf(x, y, scores, levels=20, cmap="Blues")
figure.colorbar(shown, label="score: the explained part")
ax.contour(x, y, p, levels=[0.01, 0.1], colors=["tab:red", "tab:orange"])
ax.plot(*X.T, ".", color="black", markersize=2)
ax.set(title="Training rows, and where p is 1 % (red) and 10 % (orange)")
plt.show()

# %%
# The rate of false alarms is the one that was asked for, whatever the distribution.
X_new, _ = make_moons(4000, noise=0.08, random_state=1)
p_new = model.p_values(X_new)
for level in (0.01, 0.05, 0.1):
    rate = np.mean(p_new <= level)
    print(f"p <= {level:.0%}: {rate:.1%} of new rows")
    assert abs(rate - level) < 0.03
assert np.array_equal(model.predict(X_new) == -1, p_new <= 0.01)

# %%
# Images of the digits 0 to 4, and then of all digits. They are shuffled: the last ones
# are by other writers, who are news to a model of the first ones, and of their known
# digits 18 % would be called outliers.
X, y = load_digits(return_X_y=True)
X, X_new, y, y_new = train_test_split(X, y, test_size=0.4, random_state=0)
model = KernelNoveltyDetector(contamination=0.05, random_state=0).fit(X[y < 5])
p = model.p_values(X_new)
known = y_new < 5
bins = np.linspace(0, 1, 21)
figure, ax = plt.subplots(figsize=(7, 3.5), layout="constrained")
ax.hist([p[known], p[~known]], bins, label=["digits 0 to 4", "digits 5 to 9"])
ax.axvline(0.05, color="black", linestyle=":", label="contamination")
ax.set(xlabel="p-value", ylabel="images", title="p-values of new images")
ax.legend()
plt.show()
print(f"called outliers: {np.mean(p[known] <= 0.05):.1%} of the digits 0 to 4,")
print(f"{np.mean(p[~known] <= 0.05):.1%} of the others")
assert np.mean(p[known] <= 0.05) < 0.1 and np.mean(p[~known] <= 0.05) > 0.8

# %%
# The strangest of the digits 0 to 4, and of the others the most usual, which were
# missed.
scores = model.score_samples(X_new)
strange = np.flatnonzero(known)[np.argsort(scores[known])[:6]]
usual = np.flatnonzero(~known)[np.argsort(-scores[~known])[:6]]
figure, axes = plt.subplots(2, 6, figsize=(8, 3.2), layout="constrained")
for ax, i in zip(axes.flat, [*strange, *usual]):
    ax.imshow(X_new[i].reshape(8, 8), cmap="gray_r")
    ax.set(title=f"{y_new[i]}: p = {p[i]:.3f}", xticks=[], yticks=[])
axes[0, 0].set(ylabel="strangest")
axes[1, 0].set(ylabel="missed")
plt.show()
