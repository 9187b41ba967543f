"""
Kernel and bandwidth by cross-validation
========================================

The estimators are scikit-learn's kind: they go into a pipeline and a grid search.
Step, batch and preconditioner are chosen anew for every kernel and bandwidth, so that
the grid holds only what the data must decide.
"""

# %%
# Bandwidths are given in multiples of the median distance of the training rows.
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import GridSearchCV, train_test_split

from eigenkern import EigenProClassifier
from eigenkern.kernels import median_distance

X, y = load_digits(return_X_y=True)
X = X.astype(np.float32) / 16
X_train, X_test, y_train, y_test = train_test_split(
    X, y, test_size=0.25, random_state=0, stratify=y
)
median = median_distance(X_train, np.random.RandomState(0))
factors = np.array([0.125, 0.25, 0.5, 1.0, 2.0, 4.0])

# %%
search = GridSearchCV(
    EigenProClassifier(early_stopping=True, random_state=0),
    {
        "kernel": ["gaussian", "laplacian", "cauchy", "matern32"],
        "bandwidth": list(median * factors),
    },
    cv=3,
).fit(X_train, y_train)
print(f"best: {search.best_params_}")
print(f"error on the test rows: {100 * (1 - search.score(X_test, y_test)):.2f} %")

# %%
# The laplacian and the Matern kernel mind their bandwidth less than the gaussian.
results = search.cv_results_
figure, axes = plt.subplots(figsize=(6, 3.8), layout="constrained")
for kernel in search.param_grid["kernel"]:
    chosen = np.asarray(results["param_kernel"] == kernel)
    error = 100 * (1 - results["mean_test_score"][chosen])
    axes.semilogx(factors, error, marker="o", markersize=4, base=2, label=kernel)
axes.set(
    xlabel="bandwidth / median distance",
    ylabel="cross-validated error in %",
    title="Digits",
)
axes.legend()
plt.show()
