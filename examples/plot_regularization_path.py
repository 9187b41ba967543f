"""
A regularisation path in one fit
================================

A penalty and early stopping are two ways to regularise the same model on a few hundred
centers. One factorisation gives the whole path of either, so that selecting the best
model costs hardly more than fitting one.

The data are 1797 handwritten digits that scikit-learn ships; the targets are the digits
as numbers, with noise, so that there is something to regularise.
"""

# %%
# Both estimators hold a fifth of the rows out, choose, and fit the chosen model to all
# rows. The error falls, reaches a minimum and rises again: too strong a penalty or too
# few iterations miss the signal, the other ends of the paths fit the noise.
import time

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits

from eigenkern import NystromRegressor, NytroRegressor, RegularizationPathDisplay

X, y = load_digits(return_X_y=True)
X = X / 16
y = y + 3 * np.random.default_rng(0).standard_normal(len(y))
common = {"kernel": "gaussian", "n_centers": 400, "random_state": 0}
models = {
    "penalty": NystromRegressor(alpha="path", **common),
    "early stopping": NytroRegressor(**common),
}
figure, axes = plt.subplots(ncols=2, figsize=(9, 4), sharey=True, layout="constrained")
for ax, (name, model) in zip(axes, models.items()):
    start = time.perf_counter()
    model.fit(X, y)
    seconds = time.perf_counter() - start
    RegularizationPathDisplay.from_estimator(model, ax=ax, name=name)
    print(
        f"{name}: {len(model.validation_path_)} models in {seconds:.2f} s, "
        f"least error {float(min(model.validation_path_)):.2f}"
    )
plt.show()

# %%
# Rows held out are not the only judges. Generalised cross-validation and the exact
# leave-one-out error use all rows and come from the same factorisation.
for selection in ("holdout", "gcv", "loo"):
    model = NystromRegressor(alpha="path", selection=selection, **common).fit(X, y)
    print(f"{selection:7}: alpha = {model.alpha_:.2g}")
