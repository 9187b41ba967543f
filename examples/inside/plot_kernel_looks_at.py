"""
What a kernel looks at
======================

What a recursive feature machine learns from images is a picture itself: where a pixel
is bright, the model changes most. Where do kernels look that tell a 3 from an 8, and a
4 from a 9?
"""

# %%
# MNIST if the folder named by ``EIGENKERN_DATA`` has it, or else the digits of
# scikit-learn. Pixels share their unit, and are not standardised.
import os
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from eigenkern import EigenProClassifier, MetricDisplay, RFMClassifier

file = Path(os.environ.get("EIGENKERN_DATA", "")) / "mnist.npz"
if file.is_file():
    with np.load(file) as arrays:
        X = arrays["X_train"][:10_000].reshape(10_000, -1) / np.float32(255)
        y = arrays["y_train"][:10_000]
    shape = (28, 28)
else:
    X, y = load_digits(return_X_y=True)
    X, shape = (X / 16).astype(np.float32), (8, 8)

# %%
# On the left the mean images. The kernel looks at what an 8 has and a 3 has not, the
# strokes on the left; and at the stroke that closes a 9. (These are the squared
# gradients of the final model, the diagonal of what the next metric would be.
# ``MetricDisplay.from_estimator`` with ``kind="image"`` shows the metric in use, flat
# where rows held out preferred the plain kernel.)
figure, axes = plt.subplots(2, 3, figsize=(9, 5.5), layout="constrained")
for row, pair in zip(axes, ((3, 8), (4, 9))):
    chosen = np.isin(y, pair)
    X_train, X_test, y_train, y_test = train_test_split(
        X[chosen], y[chosen], train_size=0.75, random_state=0, stratify=y[chosen]
    )
    model = RFMClassifier(metric="full", random_state=0).fit(X_train, y_train)
    for ax, digit in zip(row, pair):
        ax.imshow(X_train[y_train == digit].mean(axis=0).reshape(shape), cmap="Greys")
        ax.set(xticks=[], yticks=[], title=f"mean of the {digit}s")
    MetricDisplay(
        values=model.feature_importances_,
        kind="image",
        shape=shape,
        name=f"{pair[0]} or {pair[1]}",
    ).plot(row[2])
    plain = EigenProClassifier(random_state=0).fit(X_train, y_train)
    print(
        f"{pair[0]} or {pair[1]}, {len(y_train)} images: test error "
        f"{100 * (1 - model.score(X_test, y_test)):.1f} %, "
        f"of the plain kernel {100 * (1 - plain.score(X_test, y_test)):.1f} %"
    )
plt.show()

# %%
# What is looked at is one thing, whether it helps another: here the plain kernel does
# about as well, or better, for the shape of a digit is in many pixels. It is on
# :ref:`tables <sphx_glr_auto_examples_plot_learned_metric.py>` that a learned metric
# pays.
