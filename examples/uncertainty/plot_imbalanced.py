"""
When one class is rare
======================

One policy holder in seventeen buys an insurance for caravans. A classifier that never
expects one is right in 94 % of the cases, and of no use. What counts is the order of
the decision values, then the threshold.
"""

# %%
# The policies of the CoIL challenge 2000, if the folder named by ``EIGENKERN_DATA`` has
# ``coil2000.npz``, or else a made-up table with 6 % of positive rows.
import os
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import make_classification
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.metrics import PrecisionRecallDisplay, average_precision_score, f1_score
from sklearn.model_selection import TunedThresholdClassifierCV, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from eigenkern import EigenProClassifier

file = Path(os.environ.get("EIGENKERN_DATA", "")) / "coil2000.npz"
if file.is_file():
    with np.load(file) as arrays:
        X, X_test = (arrays[part].astype(float) for part in ("X_train", "X_test"))
        y, y_test = arrays["y_train"], arrays["y_test"]
else:
    X, y = make_classification(
        9000, 8, n_informative=8, n_redundant=0, weights=[0.94], random_state=0
    )
    X, X_test, y, y_test = train_test_split(
        X, y, test_size=4000, stratify=y, random_state=0
    )
print(f"{len(X)} rows, {y.mean():.1%} positive")

# %%
# Decision values of least squares tend to 2 p - 1, p the probability of a buyer: they
# order the rows by it, if a penalty keeps the model from fitting the noise in who buys.
# ``EigenProClassifier`` chooses one.
#
# Average precision is the area under the curve: the share of buyers among those who are
# asked, on the average over how many are. A random order has the share of all rows, the
# dotted line.
models = {
    "EigenPro": EigenProClassifier(random_state=0),
    "EigenPro, balanced": EigenProClassifier(class_weight="balanced", random_state=0),
    "gradient boosting": HistGradientBoostingClassifier(random_state=0),
}
figure, ax = plt.subplots(figsize=(7, 5), layout="constrained")
precision = {}
for name, model in models.items():
    values = make_pipeline(StandardScaler(), model).fit(X, y).decision_function(X_test)
    precision[name] = average_precision_score(y_test, values)
    print(f"{name:18}: average precision {precision[name]:.3f}")
    PrecisionRecallDisplay.from_predictions(y_test, values, ax=ax, name=name)
ax.axhline(y_test.mean(), color="grey", linestyle=":")
ax.legend(loc="upper right")
plt.show()
assert precision["EigenPro"] > 0.95 * precision["gradient boosting"]

# %%
# ``class_weight="balanced"`` does not improve the order. It moves the threshold, but
# that can be had without: where to cut is a question of costs. scikit-learn finds the
# threshold with the best score, here F1, on folds of the training rows.
model = make_pipeline(StandardScaler(), models["EigenPro"])
tuned = TunedThresholdClassifierCV(model, scoring="f1", cv=3).fit(X, y)
cuts = {
    "threshold 0": tuned.estimator_.predict(X_test),
    f"threshold {tuned.best_threshold_:.2f}": tuned.predict(X_test),
}
for name, asked in cuts.items():
    print(
        f"{name:15}: {asked.sum():4} of {len(asked)} are asked, "
        f"{np.sum(asked * y_test)} of {y_test.sum()} buyers among them, "
        f"F1 = {f1_score(y_test, asked):.2f}"
    )
plain, chosen = (f1_score(y_test, asked) for asked in cuts.values())
assert chosen > plain
