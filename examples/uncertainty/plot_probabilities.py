"""
Probabilities that can be trusted
=================================

``predict_proba`` is calibrated on rows that the model has not seen. Its log loss on new
rows is less than 80 % of that of probabilities calibrated on the training rows, which
are overconfident.
"""

# %%
# Two synthetic classes; a fifth of the labels is drawn at random.
import matplotlib.pyplot as plt
import numpy as np
from sklearn.calibration import calibration_curve
from sklearn.datasets import make_classification
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler

from eigenkern import NystromClassifier

X, y = make_classification(
    8000, 10, n_informative=6, flip_y=0.2, class_sep=0.7, random_state=0
)
X, X_test, y, y_test = train_test_split(
    X, y, train_size=3000, test_size=5000, random_state=0
)
scaler = StandardScaler().fit(X)
X, X_test = scaler.transform(X), scaler.transform(X_test)

# %%
# One model, and two ways to turn its decision values into probabilities.
# ``predict_proba`` uses, for each of 300 training rows, the exact value of the model
# fitted without that row.
model = NystromClassifier(alpha=1e-5, random_state=0).fit(X, y)
in_sample = LogisticRegression(C=np.inf).fit(model.decision_function(X)[:, None], y)
P = {
    "values of the training rows": in_sample.predict_proba(
        model.decision_function(X_test)[:, None]
    )[:, 1],
    "predict_proba": model.predict_proba(X_test)[:, 1],
}
losses = {name: log_loss(y_test, p) for name, p in P.items()}
for name, loss in losses.items():
    print(f"{name:28}: log loss {loss:.3f}")
print(f"of new rows {100 * model.score(X_test, y_test):.1f} % are right")
assert losses["predict_proba"] < 0.8 * losses["values of the training rows"]

# %%
# Of the rows with a probability of 0.8, 80 % should be of that class. Probabilities
# calibrated on training rows are overconfident.
figure, (left, right) = plt.subplots(ncols=2, figsize=(8, 4), layout="constrained")
left.plot([0, 1], [0, 1], color="0.7", label="perfect")
gaps = {}
for name, p in P.items():
    part, mean = calibration_curve(y_test, p, n_bins=10, strategy="quantile")
    gaps[name] = np.abs(part - mean).mean()
    left.plot(mean, part, "o-", label=name)
    right.hist(p, bins=25, range=(0, 1), histtype="step", label=name)
left.set(xlabel="probability", ylabel="share of the class")
right.set(xlabel="probability", ylabel="test rows")
right.legend(fontsize="small", loc="upper center")
right.set_ylim(0, 1.3 * right.get_ylim()[1])
left.legend(fontsize="small")
assert gaps["predict_proba"] < 0.05 < gaps["values of the training rows"]
plt.show()
