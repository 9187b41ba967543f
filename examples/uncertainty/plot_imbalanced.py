"""
When one class is rare
======================

If 6 % of the rows are positive, the threshold matters: one chosen by cross-validation
has a higher F1 score on new rows than the default.
"""

# %%
# Synthetic data: offers that few of their recipients accept.
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import make_classification
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.metrics import PrecisionRecallDisplay, average_precision_score, f1_score
from sklearn.model_selection import TunedThresholdClassifierCV, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from eigenkern import EigenProClassifier

X, y = make_classification(
    9000, 8, n_informative=8, n_redundant=0, weights=[0.94], random_state=0
)
X, X_test, y, y_test = train_test_split(
    X, y, test_size=4000, stratify=y, random_state=0
)
print(f"{len(X)} rows, {y.mean():.1%} positive")

# %%
# First the order of the decision values. Average precision is the area under the curve
# of precision against recall; a random order scores the share of positive rows, the
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
ax.axhline(y_test.mean(), color="gray", linestyle=":", label="random order")
ax.set(title="", xlabel="recall", ylabel="precision")
ax.legend(loc="lower left")
plt.show()

# %%
# ``class_weight="balanced"`` does not improve the order but moves the threshold.
# ``TunedThresholdClassifierCV`` moves it to the best score, here F1, on folds of the
# training rows.
model = make_pipeline(StandardScaler(), models["EigenPro"])
tuned = TunedThresholdClassifierCV(
    model, scoring="f1", cv=3, response_method="decision_function"
).fit(X, y)
cuts = {
    "threshold 0": tuned.estimator_.predict(X_test),
    f"threshold {tuned.best_threshold_:.2f}": tuned.predict(X_test),
}
for name, predicted in cuts.items():
    print(
        f"{name:15}: {predicted.sum():4} of {len(predicted)} predicted positive, "
        f"{np.sum(predicted * y_test)} of {y_test.sum()} positive rows among them, "
        f"F1 = {f1_score(y_test, predicted):.2f}"
    )
plain, chosen = (f1_score(y_test, predicted) for predicted in cuts.values())
assert chosen > plain
