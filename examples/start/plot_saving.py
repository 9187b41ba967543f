"""
Save a model and load it
========================

A model that is saved and loaded predicts the same as before, to the last bit.
"""

# %%
# ``joblib`` saves every model of this package. Loading such a file can run code that
# someone put into it, so load only files that you trust. (:ref:`persistence` shows
# skops, whose files run no code.)
import tempfile
from pathlib import Path

import joblib
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import make_friedman1
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from eigenkern import NystromRegressor

X, y = make_friedman1(3000, noise=0.5, random_state=0)
X, X_test, y = X[:2000], X[2000:], y[:2000]


def save_and_load(model):
    """Return the model as it was loaded, and the size of its file in MB."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.joblib"
        joblib.dump(model, file)
        return joblib.load(file), file.stat().st_size / 1e6


# %%
# A scaler and a model are saved in one file.
model = make_pipeline(StandardScaler(), NystromRegressor(n_centers=300, random_state=0))
model.fit(X[:1000], y[:1000])
loaded, megabytes = save_and_load(model)
print(f"the file has {megabytes:.1f} MB")
assert np.array_equal(loaded.predict(X_test), model.predict(X_test))

# %%
# A model stores its centers, not the rows: with a fixed number of centers the file does
# not grow with the data. `NystromRegressor` also stores a matrix of all pairs of
# centers, for ``predict(X, return_std=True)``, so its files are large if there are many
# centers.
rows = (500, 1000, 2000)
sizes = {}
for label, n_centers in (("300 centers", 300), ("all rows are centers", None)):
    sizes[label] = []
    for n in rows:
        model = NystromRegressor(n_centers=n_centers, random_state=0).fit(X[:n], y[:n])
        sizes[label].append(save_and_load(model)[1])
figure, ax = plt.subplots(figsize=(7, 4), layout="constrained")
for label, curve in sizes.items():
    ax.plot(rows, curve, "o-", label=label)
ax.set(xlabel="training rows", ylabel="size of the file (MB)", ylim=(0, None))
ax.legend()
plt.show()
