"""
A table as it comes: categories, gaps, any units
================================================

``RFMRegressor`` takes a data frame with text, categories and missing values, like
gradient boosting in scikit-learn, and predicts better where the target is smooth.
"""

# %%
# A made-up table of flats. The rent depends on the size, the age, the heating, the
# distance from the center, and the district, of which there are nine. Every sixth age
# is missing, and the floor does not matter.
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.model_selection import train_test_split

from eigenkern import MetricDisplay, RFMRegressor

rng = np.random.default_rng(0)
n = 2500
flats = pd.DataFrame(
    {
        "square meters": rng.lognormal(4.2, 0.4, n).round(1),
        "age": rng.uniform(0, 90, n).round(),
        "floor": rng.integers(0, 6, n),
        "lift": rng.random(n) < 0.4,
        "distance": rng.exponential(4000.0, n).round(),
        "heating": rng.choice(["gas", "oil", "heat pump"], n),
        "district": pd.Categorical([f"D{i}" for i in rng.integers(0, 9, n)]),
    }
)
of_district = rng.normal(0.0, 80.0, 9)[flats["district"].cat.codes]
rent = (
    9 * flats["square meters"]
    + 500 * np.exp(-flats["distance"] / 3000)
    + 0.06 * (flats["age"] - 45) ** 2
    + 60 * (flats["heating"] == "heat pump")
    + of_district
    + rng.normal(0.0, 25.0, n)
)
flats.loc[rng.random(n) < 1 / 6, "age"] = np.nan
X, X_test, y, y_test = train_test_split(flats, rent, train_size=1500, random_state=0)
X.head()

# %%
# Nothing is prepared by hand.
models = {
    "gradient boosting": HistGradientBoostingRegressor(
        categorical_features="from_dtype", random_state=0
    ),
    "recursive feature machine": RFMRegressor(random_state=0),
}
errors = {}
for name, model in models.items():
    # Gradient boosting wants text to be of a categorical data type.
    rows = [one.astype({"heating": "category"}) for one in (X, X_test)]
    model.fit(rows[0], y)
    errors[name] = np.mean((model.predict(rows[1]) - y_test) ** 2) ** 0.5
    print(f"{name:25}: root mean squared error {errors[name]:.0f}")
assert min(errors, key=errors.get) == "recursive feature machine"

# %%
# The model scaled the columns, in the way that suited rows that it held out. What it
# made of each column is in its ``preprocessor_``, a ``ColumnTransformer``.
rfm = models["recursive feature machine"]
print(rfm.scaling_)
print(rfm.preprocessor_.get_feature_names_out())

# %%
# The importances are those of the columns in the table, the metric is that of the
# prepared columns.
figure, (left, right) = plt.subplots(ncols=2, figsize=(10, 4), layout="constrained")
MetricDisplay.from_estimator(rfm, ax=left, name="columns")
MetricDisplay.from_estimator(rfm, kind="matrix", ax=right, name="metric")
plt.show()

# %%
# New flats may have a heating that is unknown, and no size.
new = X_test[:3].assign(heating="coal")
new["square meters"] = [np.nan, 50.0, 100.0]
print(rfm.predict(new).round())
