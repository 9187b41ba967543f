"""
How the step is chosen
======================

The step of EigenPro must suit the largest eigenvalue that the preconditioner leaves.
Measured on rows outside the subsample, that eigenvalue is more than twice what the
subsample suggests, and the step is shorter by the same factor.
"""

# %%
# The eigenvectors come from a subsample, here a small one, so that the difference is
# easy to see. On these rows q eigenvectors leave the next eigenvalue of the subsample,
# the lower curve. On other rows a larger eigenvalue is left, the upper curve; the gap
# widens as q grows.
import matplotlib.pyplot as plt
from sklearn.datasets import load_digits

from eigenkern import ConvergenceDisplay, EigenProRegressor, SpectrumDisplay

X, y = load_digits(return_X_y=True)
common = {"kernel": "gaussian", "subsample_size": 400, "tol": 0, "random_state": 0}
common["alpha"] = 0.0
model = EigenProRegressor(**common, max_iter=10).fit(X, y)
display = SpectrumDisplay.from_estimator(model, name="Digits, gaussian kernel")
plt.show()
results = model.tuning_results_
m, beta = model.batch_size_, model.beta_
for q, step_size in zip(results["n_components"], results["step_size"]):
    print(f"q = {q:3d}: step {step_size:8.1f}")
promised = 2 * m / (beta + m * float(model.eigenvalues_[-1]))
print(f"step in use {model.step_size_:.1f}, q = {model.n_components_}")
print(f"the subsample promises {promised:.1f}")
assert results["top_eigenvalue"][-1] > 2 * results["in_sample_eigenvalue"][-1]
assert model.step_size_ < promised / 1.5

# %%
# A quarter of the step is slower. Ten times the step diverges at once: the guard
# notices, goes back and halves it, here until it is close to the automatic one, and the
# fit ends with about the same loss.
steps = {
    "automatic": "auto",
    "a quarter of it": model.step_size_ / 4,
    "ten times as long": 10 * model.step_size_,
}
losses = {}
figure, ax = plt.subplots(figsize=(7, 4.5), layout="constrained")
for name, step_size in steps.items():
    other = EigenProRegressor(
        **common, n_components=model.n_components_, step_size=step_size, max_iter=10
    ).fit(X, y)
    losses[name] = other.loss_curve_[-1]
    name = f"{name}, halved {other.n_step_halvings_} times"
    ConvergenceDisplay.from_estimator(other, ax=ax, name=name)
ax.set(ylabel="mean squared residual", ylim=(0.1, 10))
plt.show()
halved = other.step_size_ / 2**other.n_step_halvings_
print(f"ten times the step, halved: {halved:.1f}")
assert losses["a quarter of it"] > 1.5 * losses["automatic"]
assert other.n_step_halvings_ > 0
