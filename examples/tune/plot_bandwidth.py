"""
Choosing the bandwidth
======================

``bandwidth="auto"`` finds a bandwidth whose error on new rows is within 10 % of the
best on a fine grid. Here the default, the median distance between rows, is several
times too large.
"""

# %%
# A target that goes up and down several times across the data needs a bandwidth well
# below the median distance.
import matplotlib.pyplot as plt
import numpy as np

from eigenkern import NystromRegressor

rng = np.random.default_rng(0)
X = rng.uniform(-1, 1, size=(3000, 2))
y = np.sin(8 * X[:, 0]) * np.cos(8 * X[:, 1]) + 0.1 * rng.standard_normal(3000)
X, X_test, y, y_test = X[:1000], X[1000:], y[:1000], y[1000:]


def fit(bandwidth):
    """Return the model, and its root mean squared error on the test rows."""
    model = NystromRegressor(
        "gaussian", bandwidth=bandwidth, n_centers=300, alpha="path", random_state=0
    )
    model.fit(X, y)
    return model, np.sqrt(np.mean((model.predict(X_test) - y_test) ** 2))


# %%
# Three rules, and a grid. "median" is the median distance between rows, "scale" the
# bandwidth of ``SVC(gamma="scale")``; neither looks at the targets. "auto" takes the
# bandwidth with the smallest leave-one-out error on a subsample.
rules = {}
for rule in ("median", "scale", "auto"):
    model, error = fit(rule)
    rules[rule] = model.bandwidth_, error
    print(f"{rule:6}: bandwidth {model.bandwidth_:.2f}, error {error:.3f}")
grid = np.geomspace(0.03, 3, 21)
errors = [fit(bandwidth)[1] for bandwidth in grid]
print(f"grid  : bandwidth {grid[np.argmin(errors)]:.2f}, error {min(errors):.3f}")
assert rules["auto"][1] < 1.1 * min(errors)
assert rules["median"][0] > 3 * rules["auto"][0]

# %%
# A bandwidth that is too small makes a bump around every row; one that is too large
# cannot follow the target. In between there is a wide valley: a rough search is enough.
figure, ax = plt.subplots(figsize=(7, 4.5), layout="constrained")
ax.loglog(grid, errors, "k.-", label="grid")
for (rule, point), marker in zip(rules.items(), "sDo"):
    ax.loglog(*point, marker, markersize=9, label=f'bandwidth="{rule}"')
ax.axhline(0.1, color="0.6", linestyle=":", label="noise of the targets")
ax.set(xlabel="bandwidth", ylabel="root mean squared error on new rows")
ax.set_xticks([0.03, 0.1, 0.3, 1, 3], ["0.03", "0.1", "0.3", "1", "3"])
ax.set_yticks([0.1, 0.2, 0.3, 0.5], ["0.1", "0.2", "0.3", "0.5"])
ax.minorticks_off()
ax.legend()
plt.show()
