"""
What a kernel looks at
======================

A recursive feature machine that tells a 3 from an 8, or a 4 from a 9, looks at few
pixels: ten of 64 hold more than 60 % of the squared gradients.
"""

# %%
# Handwritten digits. Pixels share a unit and are not standardized.
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from eigenkern import EigenProClassifier, MetricDisplay, RFMClassifier

X, y = load_digits(return_X_y=True)
X, shape = (X / 16).astype(np.float32), (8, 8)

# %%
# Left and middle: the mean images. Right: the share of each pixel in the squared
# gradients of the model. The kernel looks where the means differ: in its top ten pixels
# the difference is more than twice the average.
figure, axes = plt.subplots(2, 3, figsize=(8, 5), layout="constrained")
for row, pair in zip(axes, ((3, 8), (4, 9))):
    chosen = np.isin(y, pair)
    X_train, X_test, y_train, y_test = train_test_split(
        X[chosen], y[chosen], train_size=0.75, random_state=0, stratify=y[chosen]
    )
    model = RFMClassifier(metric="full", scaling=None, random_state=0)
    model.fit(X_train, y_train)
    for ax, digit in zip(row, pair):
        ax.imshow(X_train[y_train == digit].mean(axis=0).reshape(shape), cmap="Greys")
        ax.set(xticks=[], yticks=[], title=f"mean of the {digit}s")
    MetricDisplay(
        values=model.feature_importances_,
        kind="image",
        shape=shape,
        name=f"{pair[0]} or {pair[1]}",
    ).plot(row[2])
    importances = np.sort(model.feature_importances_)[::-1]
    print(f"the first ten pixels hold {importances[:10].sum() / importances.sum():.0%}")
    assert importances[:10].sum() > 0.6 * importances.sum()
    means = [X_train[y_train == digit].mean(axis=0) for digit in pair]
    difference = np.abs(means[0] - means[1])
    first = np.argsort(-model.feature_importances_)[:10]
    assert difference[first].mean() > 2 * difference.mean()
    plain = EigenProClassifier(random_state=0).fit(X_train, y_train)
    print(
        f"{pair[0]} or {pair[1]}, {len(y_train)} images: test error "
        f"{100 * (1 - model.score(X_test, y_test)):.1f} %, "
        f"of the plain kernel {100 * (1 - plain.score(X_test, y_test)):.1f} %"
    )
plt.show()

# %%
# Here the plain kernel is hardly worse: the difference is at most one test image. A
# learned metric helps more on :ref:`tables
# <sphx_glr_auto_examples_tables_plot_learned_metric.py>`.
