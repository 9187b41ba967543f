"""
Intervals for new targets
=========================

``NystromRegressor.predict(X, return_std=True)`` gives intervals whose width depends on
the row: easy and hard rows are covered about equally often. Split-conformal intervals
are right for all rows together, but cover easy rows too often and hard ones too rarely.
"""

# %%
# A function of one variable, with a gap in the data. The standard deviation is that of
# a new target, its noise included: plus and minus 1.645 of them is a 90 % interval. In
# the gap, and beyond the data, the intervals widen.
import matplotlib.pyplot as plt
import numpy as np
from sklearn.base import clone
from sklearn.model_selection import train_test_split

from eigenkern import EigenProRegressor, NystromRegressor

rng = np.random.default_rng(0)


def draw(n):
    x = rng.uniform(-3, 3, 2 * n)
    x = x[(x < -0.3) | (x > 1.2)][:n]
    return x[:, None], np.sin(2 * x) + 0.2 * rng.standard_normal(n)


X, y = draw(300)
model = NystromRegressor("matern52", bandwidth=1.0, alpha="path", selection="loo")
model.fit(X, y)
grid = np.linspace(-4.5, 4.5, 400)[:, None]
mean, std = model.predict(grid, return_std=True)


# %%
# Split-conformal intervals: fit to part of the rows, and take the quantile of the
# absolute residuals on the others. If new rows are drawn like these, 90 % of their
# targets are inside, whatever the model. All intervals are equally wide, even in the
# gap.
def split_conformal(model, X, y, level=0.9):
    """Return a fitted model and half the width of its intervals."""
    X_fit, X_rest, y_fit, y_rest = train_test_split(
        X, y, test_size=0.25, random_state=0
    )
    residuals = np.sort(np.abs(y_rest - model.fit(X_fit, y_fit).predict(X_rest)))
    return model, residuals[int(np.ceil((len(residuals) + 1) * level)) - 1]


other, width = split_conformal(clone(model), X, y)
figure, axes = plt.subplots(ncols=2, figsize=(8, 4), layout="constrained", sharey=True)
for ax, name, center, half in (
    (axes[0], "predict(X, return_std=True)", mean, 1.645 * std),
    (axes[1], "split conformal", other.predict(grid), width),
):
    ax.plot(X, y, ".", color="gray", ms=3)
    ax.plot(grid, np.sin(2 * grid), "k--", lw=0.8, label="truth")
    ax.plot(grid, center, label="prediction")
    ax.fill_between(grid[:, 0], center - half, center + half, alpha=0.3, label="90 %")
    ax.set(title=name, xlabel="x", ylim=(-3, 3))
axes[0].set_ylabel("y")
axes[1].legend(loc="lower left", fontsize="small")
plt.show()

# %%
# Where there are data, both have the right coverage.
X_new, y_new = draw(5000)
mean, std = model.predict(X_new, return_std=True)
inside = np.mean(np.abs(y_new - mean) < 1.645 * std)
inside_other = np.mean(np.abs(y_new - other.predict(X_new)) <= width)
print(f"of 90 % intervals hold: {inside:.1%}; split conformal {inside_other:.1%}")
assert 0.87 < inside < 0.93
assert 0.85 < inside_other < 0.95

# %%
# There are ten variables, of which five matter. Half of the rows are near the middle of
# the cube, where a row has neighbors and is easier to predict. The rows are sorted into
# quarters by their predicted standard deviation.
X = rng.uniform(size=(5000, 10))
X[::2] = 0.5 + 0.3 * (X[::2] - 0.5)
y = 10 * np.sin(np.pi * X[:, 0] * X[:, 1]) + 20 * (X[:, 2] - 0.5) ** 2
y = y + 10 * X[:, 3] + 5 * X[:, 4] + 0.3 * rng.standard_normal(5000)
X, X_new, y, y_new = X[:1000], X[1000:], y[:1000], y[1000:]

model = NystromRegressor("gaussian", alpha="path", random_state=0).fit(X, y)
mean, std = model.predict(X_new, return_std=True)
covered = {"return_std": np.abs(y_new - mean) < 1.645 * std}
widths = {"return_std": 2 * 1.645 * std.mean()}
for name, regressor in (
    ("conformal, the same model", clone(model)),
    ("conformal, EigenPro", EigenProRegressor("gaussian", random_state=0)),
):
    regressor, half = split_conformal(regressor, X, y)
    covered[name] = np.abs(y_new - regressor.predict(X_new)) <= half
    widths[name] = 2 * half

quarter = 4 * np.argsort(np.argsort(std)) // len(std)
figure, ax = plt.subplots(figsize=(7, 4), layout="constrained")
for k, (name, inside) in enumerate(covered.items()):
    parts = [100 * inside[quarter == q].mean() for q in range(4)]
    label = f"{name}: mean width {widths[name]:.2f}"
    ax.bar(np.arange(4) + 0.27 * (k - 1), parts, 0.25, label=label)
    print(f"{name:26}: {inside.mean():.1%}, by quarters {np.round(parts, 1)}")
    spread = max(parts) - min(parts)
    assert spread < 5 if name == "return_std" else spread > 15
ax.axhline(90, color="k", lw=0.8, label="90 %")
ax.set_xticks(range(4), ["least", "second", "third", "largest"])
ax.set(xlabel="quarters of the new rows by standard deviation", ylabel="covered (%)")
ax.set_ylim(50, 118)
ax.set_yticks(range(50, 101, 10))
ax.legend(loc="upper right", fontsize="small")
plt.show()
