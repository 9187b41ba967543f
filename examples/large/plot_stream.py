"""
Learning from a stream
======================

``DSGClassifier`` learns from rows that come in pieces, and keeps at most 2000 of them.
After 60 000 rows of two interleaved spirals, each seen once, it misclassifies fewer
than 3 % of new rows.
"""

# %%
# The pieces are drawn as they are needed.
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
for _ in range(60):
    X, y = spirals(1000)
    model.partial_fit(X, y, classes=[0, 1])
    errors.append(100 * (1 - model.score(X_test, y_test)))
print(f"{model.n_features_used_} features, test error {errors[-1]:.1f} %")
assert errors[-1] < 3

# %%
# The error falls as more rows are seen. Between the spirals the probability is close to
# one half.
figure, (left, right) = plt.subplots(ncols=2, figsize=(8, 3.8), layout="constrained")
left.loglog(1000 * np.arange(1, 61), errors)
left.set(xlabel="rows seen", ylabel="test error (%)")
left.set_xticks([1000, 3000, 10_000, 60_000], ["1000", "3000", "10 000", "60 000"])
left.set_yticks([1, 2, 3, 4], ["1", "2", "3", "4"])
left.minorticks_off()
grid = np.linspace(-11, 11, 120, dtype=np.float32)
points = np.stack(np.meshgrid(grid, grid), axis=-1).reshape(-1, 2)
P = model.predict_proba(points)[:, 1].reshape(120, 120)
image = right.imshow(P, extent=(-11, 11, -11, 11), origin="lower", cmap="RdBu")
for label, color in ((0, "darkred"), (1, "navy")):
    shown = X_test[:400][y_test[:400] == label]
    right.scatter(*shown.T, s=4, color=color, label=f"spiral {label + 1}")
right.set(xlabel="first feature", ylabel="second feature")
right.legend(loc="upper left", fontsize="small")
figure.colorbar(image, ax=right, label="probability of the second spiral")
plt.show()
