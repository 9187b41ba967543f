"""
Learning from shifted copies
============================

A model that learns from shifted copies of its images recognizes shifted images: at the
same size, it makes less than a third of the errors that a model trained on the original
images makes on them.
"""

# %%
# Handwritten digits. Pixels shifted beyond the edge are lost.
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits

from eigenkern import EigenProClassifier
from eigenkern.kernels import Laplacian

X, y = load_digits(return_X_y=True)
X = (X / 16).astype(np.float32)
X, X_test, y, y_test = X[:1000], X[1000:], y[:1000], y[1000:]


def shifted(X, rng):
    """Return the images, each shifted by up to a pixel in both directions."""
    images = np.pad(X.reshape(-1, 8, 8), ((0, 0), (1, 1), (1, 1)))
    corners = rng.integers(0, 3, (len(X), 2))
    return np.stack(
        [image[i : i + 8, j : j + 8] for image, (i, j) in zip(images, corners)]
    ).reshape(len(X), -1)


def pieces(n_copies):
    """Yield all images, `n_copies` times, each time shifted anew."""
    rng = np.random.default_rng(0)
    for _ in range(n_copies):
        for rows in np.array_split(rng.permutation(len(X)), 4):
            yield shifted(X[rows], rng), y[rows]


# %%
# The original images are the centers of every model, and the generator is read once.
tests = {
    "shifted test images": shifted(X_test, np.random.default_rng(1)),
    "test images as they are": X_test,
}


def errors(model):
    """Return the percent of errors on both kinds of test images."""
    return [100 * (1 - model.score(images, y_test)) for images in tests.values()]


kernel = Laplacian(3.0)
plain = errors(EigenProClassifier(kernel, random_state=0).fit(X, y))
copies, augmented = (2, 5, 10, 20), []
for n_copies in copies:
    model = EigenProClassifier(kernel, centers=X, random_state=0)
    model.fit_batches(pieces(n_copies), classes=np.unique(y))
    augmented.append(errors(model))
print("original images:", np.round(plain, 1))
print("shifted copies: ", np.round(augmented[-1], 1))
assert augmented[-1][0] < plain[0] / 3

# %%
# The original digits are all centered in their frames. On these the copies do not help,
# because they teach something that is not tested.
figure, ax = plt.subplots(figsize=(7, 4.5), layout="constrained")
for name, color, curve, level in zip(tests, ("C1", "C0"), zip(*augmented), plain):
    ax.semilogx(copies, curve, "o-", color=color, label=f"{name}: model of copies")
    ax.axhline(level, color=color, ls="--", label=f"{name}: model of originals")
ax.set(xlabel="shifted copies of every image", ylabel="errors (%)")
ax.set_xticks(copies, [str(n) for n in copies])
ax.minorticks_off()
ax.legend()
plt.show()
