"""
A whole regularization path in one fit
======================================

``NystromRegressor(alpha="path")`` compares 100 penalties in one fit. On noisy targets,
the error of the one it chooses is within a tenth of the best, judged by targets without
noise.
"""

# %%
# Handwritten digits, with the digit as a numeric target and noise added to it, so that
# there is something to regularize.
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits

from eigenkern import NystromRegressor, NytroRegressor, RegularizationPathDisplay

X, y = load_digits(return_X_y=True)
X = X / 16
clean, y = y, y + 3 * np.random.default_rng(0).standard_normal(len(y))
train, test = slice(0, 1200), slice(1200, None)
common = {"kernel": "gaussian", "n_centers": 400, "random_state": 0}


def error(model):
    """Return the mean squared error on the test rows, whose targets have no noise."""
    return np.mean((model.predict(X[test]) - clean[test]) ** 2)


# %%
# One fit for the path. Each penalty is judged by its exact leave-one-out error, which
# comes from the same factorization as the model.
path = NystromRegressor(alpha="path", selection="loo", **common)
path.fit(X[train], y[train])
print(f"{len(path.alphas_)} penalties, chosen: {path.alpha_:.1e}")

# %%
# The same with 25 fits, each with one penalty.
alphas = path.alphas_[::4]
errors = [
    error(NystromRegressor(alpha=alpha, **common).fit(X[train], y[train]))
    for alpha in alphas
]
print(f"error of the chosen model {error(path):.3f}, least error {min(errors):.3f}")
assert error(path) < 1.12 * min(errors)

# %%
# Early stopping has a path, too: `NytroRegressor` chooses the number of iterations,
# here on a fifth of the rows, which it holds out.
stopped = NytroRegressor(**common).fit(X[train], y[train])
figure, axes = plt.subplots(ncols=2, figsize=(8, 4), sharey=True, layout="constrained")
RegularizationPathDisplay.from_estimator(path, ax=axes[0], name="chosen")
RegularizationPathDisplay.from_estimator(stopped, ax=axes[1], name="chosen")
axes[0].set(title="penalty", ylabel="mean squared error, leave-one-out")
axes[1].set(title="early stopping", ylabel="mean squared error, held-out rows")
axes[0].set(xlim=(1e-8, 1), ylim=(9, 18))
plt.show()
