"""
Kernel logistic regression on a stream
======================================

Doubly stochastic gradients need neither the rows that they have seen nor a number of
features that is chosen beforehand. Here rows of two interleaved spirals come in pieces,
and a kernel logistic regression learns from each piece once.
"""

# %%
# The pieces are drawn as they are needed; nothing is kept of them but the model.
import matplotlib.pyplot as plt
import numpy as np

from eigenkern import DSGClassifier

rng = np.random.default_rng(0)


def spirals(n):
    """Return points on two spirals, with noise, and which spiral they are on."""
    label = rng.integers(0, 2, n)
    angle = 3 * np.pi * np.sqrt(rng.random(n))
    radius = angle * np.where(label, 1, -1)
    X = radius[:, None] * np.column_stack([np.cos(angle), np.sin(angle)])
    return (X + 0.6 * rng.standard_normal((n, 2))).astype(np.float32), label


X_test, y_test = spirals(5000)
model = DSGClassifier("gaussian", bandwidth=1.0, max_features=2048, random_state=0)
errors = []
for _ in range(100):
    X, y = spirals(1000)
    model.partial_fit(X, y, classes=[0, 1])
    errors.append(1 - model.score(X_test, y_test))
print(
    f"{model.t_} steps, {model.n_features_used_} features: "
    f"test error {100 * errors[-1]:.1f} %"
)

# %%
# The error falls with the rows seen; the probabilities know where the classes overlap.
figure, (left, right) = plt.subplots(ncols=2, figsize=(9, 4), layout="constrained")
left.loglog(1000 * np.arange(1, 101), errors)
left.set(xlabel="rows seen", ylabel="test error")
grid = np.linspace(-11, 11, 120, dtype=np.float32)
points = np.stack(np.meshgrid(grid, grid), axis=-1).reshape(-1, 2)
P = model.predict_proba(points)[:, 1].reshape(120, 120)
image = right.imshow(P, extent=(-11, 11, -11, 11), origin="lower", cmap="RdBu")
right.scatter(*X_test[:400].T, c=y_test[:400], s=4, cmap="gray")
figure.colorbar(image, ax=right, label="probability of the second spiral")
plt.show()
