"""
How the step is chosen
======================

The step of EigenPro must suit the largest eigenvalue that the preconditioner leaves.
The subsample, which the eigenvectors come from, says that it is the next of its own
eigenvalues. That is too good to be true: the eigenvectors fit these rows, and on other
rows more is left over. So it is measured there, for several numbers of eigenvectors q.

The data are scikit-learn's 1797 handwritten digits, with a small subsample, so that the
difference is plain to see.
"""

# %%
# The two curves part where eigenvectors begin to describe the subsample and no longer
# the digits: from there on a larger q lengthens the step less than the subsample
# promises.
import matplotlib.pyplot as plt
from sklearn.datasets import load_digits

from eigenkern import ConvergenceDisplay, EigenProRegressor, SpectrumDisplay

X, y = load_digits(return_X_y=True)
common = {"kernel": "gaussian", "subsample_size": 400, "tol": 0, "random_state": 0}
common["early_stopping"] = False
model = EigenProRegressor(**common, max_iter=10).fit(X, y)
display = SpectrumDisplay.from_estimator(model, name="Digits, gaussian kernel")
plt.show()
results = model.tuning_results_
for q, step_size in zip(results["n_components"], results["step_size"]):
    print(f"q = {q:3d}: step {step_size:8.1f}")
print(f"chosen: q = {model.n_components_}, step {model.step_size_:.1f}")

# %%
# A shorter step is slower. A much longer one diverges: the guard notices, goes back and
# halves it until the residual stays bounded; bounded is not yet fast.
m, beta, eigenvalue = model.batch_size_, model.beta_, float(model.eigenvalues_[-1])
print(f"the subsample's own eigenvalue: step {2 * m / (beta + m * eigenvalue):.1f}")
steps = {
    "automatic": "auto",
    "a quarter of it": model.step_size_ / 4,
    "ten times as long": 10 * model.step_size_,
}
figure, ax = plt.subplots(layout="constrained")
for name, step_size in steps.items():
    other = EigenProRegressor(
        **common, n_components=model.n_components_, step_size=step_size, max_iter=10
    ).fit(X, y)
    ConvergenceDisplay.from_estimator(
        other, ax=ax, name=f"{name}, halved {other.n_step_halvings_} times"
    )
plt.show()
