"""
A kernel machine that learns from augmented data
================================================

Images of clothes stay what they are when they are shifted by a pixel or turned around,
or with a little noise; and between two of them should be what is between their labels
(mix-up). A model whose centers are the original images can learn from as many changed
ones as there is time for: its size stays the same.
"""

# %%
# Fashion-MNIST if the folder named by ``EIGENKERN_DATA`` has it, or else the digits of
# scikit-learn (shifted only: a mirrored 2 is no digit).
import os
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits

from eigenkern import EigenProClassifier
from eigenkern.kernels import Laplacian

file = Path(os.environ.get("EIGENKERN_DATA", "")) / "fashion_mnist.npz"
if file.is_file():
    with np.load(file) as arrays:
        X = arrays["X_train"][:2000].reshape(2000, -1) / np.float32(255)
        y = arrays["y_train"][:2000]
        X_test = arrays["X_test"][:5000].reshape(5000, -1) / np.float32(255)
        y_test = arrays["y_test"][:5000]
    side, bandwidth, mirror = 28, 10.0, True
else:
    X, y = load_digits(return_X_y=True)
    X = (X / 16).astype(np.float32)
    X, X_test, y, y_test = X[:1000], X[1000:], y[:1000], y[1000:]
    side, bandwidth, mirror = 8, 3.0, False


def shifted(X, y, rng):
    """Return the images, shifted by up to a pixel, half of them mirrored."""
    images = X.reshape(-1, side, side).copy()
    for image, shift in zip(images, rng.integers(-1, 2, (len(X), 2)), strict=True):
        image[:] = np.roll(image, shift, axis=(0, 1))
    if mirror:
        turned = rng.random(len(X)) < 0.5
        images[turned] = images[turned, :, ::-1]
    return images.reshape(len(X), -1), y


def noisy(X, y, rng):
    """Return the images with gaussian noise."""
    return X + rng.normal(scale=0.1, size=X.shape).astype(X.dtype), y


def mixed(X, y, rng):
    """Return means of two images, once with either label, weighted as in the mean."""
    other, part = rng.permutation(len(X)), rng.beta(0.2, 0.2, len(X)).astype(X.dtype)
    Z = part[:, None] * X + (1 - part)[:, None] * X[other]
    weights = np.concatenate([part, 1 - part])
    return np.concatenate([Z, Z]), np.concatenate([y, y[other]]), weights


def pieces(change, n_passes):
    """Yield the images changed, in quarters; `n_passes` times all."""
    rng = np.random.default_rng(0)
    for _ in range(n_passes):
        for rows in np.array_split(rng.permutation(len(X)), 4):
            yield change(X[rows], y[rows], rng)


# %%
# The generator is read once; the original images are the centers in every model.
kernel = Laplacian(bandwidth)
plain = EigenProClassifier(kernel, random_state=0).fit(X, y)
passes, errors = (3, 10, 30, 100), {}
for change in (shifted, noisy, mixed):
    errors[change.__name__] = []
    for n_passes in passes:
        model = EigenProClassifier(kernel, centers=X, random_state=0)
        model.fit_batches(pieces(change, n_passes), classes=np.unique(y))
        errors[change.__name__].append(100 * (1 - model.score(X_test, y_test)))

# %%
# On Fashion-MNIST shifted images are behind for long: one epoch over few copies is less
# than a whole fit. With a hundred copies of every image they are ahead. Noise and
# mix-up change next to nothing here.
figure, ax = plt.subplots(layout="constrained")
for name, curve in errors.items():
    ax.semilogx(passes, curve, "o-", label=f"{name} images")
ax.axhline(
    100 * (1 - plain.score(X_test, y_test)),
    color="black",
    ls="--",
    label="original images (EigenPro 2)",
)
ax.set(xlabel="changed copies of every image", ylabel="test error (%)")
ax.set_xticks(passes, [str(n) for n in passes])
ax.minorticks_off()
ax.legend()
plt.show()
