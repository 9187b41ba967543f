"""
Intervals as wide as they have to be
====================================

``DSGRegressor(loss="pinball")`` predicts several quantiles in one fit. Here the noise
depends on the row: hour by hour, the coverage of their intervals is less than 60 % as
far off as that of intervals of one width.
"""

# %%
# Synthetic data of a town: hour of the day, temperature and bicycles hired.
import matplotlib.pyplot as plt
import numpy as np
from sklearn.preprocessing import StandardScaler

from eigenkern import DSGRegressor

rng = np.random.default_rng(0)
hours, warmth = rng.integers(0, 24, 3500), rng.uniform(0, 1, 3500)
mean = 300 * (0.3 + warmth) * np.exp(-(((hours - 16) / 5) ** 2)) + 5
y = mean * rng.gamma(6, 1 / 6, 3500)
X = StandardScaler().fit_transform(np.column_stack([hours, warmth]))
X, X_test, y, y_test, hours = X[:1500], X[1500:], y[:1500], y[1500:], hours[1500:]

# %%
# Three quantiles in one fit. Early stopping keeps the epoch with the best pinball loss
# on held-out rows, and shifts the quantiles so that they are right there.
options = {"early_stopping": True, "validation_fraction": 0.2, "random_state": 0}
model = DSGRegressor(loss="pinball", quantile=[0.1, 0.5, 0.9], **options)
low, median, high = model.fit(X, y).predict(X_test).T
inside = (low <= y_test) & (y_test <= high)
print(f"{100 * inside.mean():.0f} % of new rows are between the quantiles 0.1 and 0.9")

# %%
# For comparison: the mean, fitted with the squared loss, plus and minus the error that
# 80 % of other rows do not exceed.
square = DSGRegressor(**options).fit(X[:1200], y[:1200])
error = np.quantile(np.abs(y[1200:] - square.predict(X[1200:])), 0.8)
near = np.abs(y_test - square.predict(X_test)) <= error
print(f"{100 * near.mean():.0f} % of new rows are within {error:.0f} of the mean")

# %%
# Both cover about 80 % on average. By hour, the one width is too wide at night and too
# narrow by day; the quantiles are closer, though too wide in the early hours.
by_hour = [hours == hour for hour in range(24)]
covered = np.array([[part[rows].mean() for rows in by_hour] for part in (inside, near)])
off = np.abs(covered - 0.8).mean(axis=1)
print(f"coverage by hours is off by {100 * off[0]:.0f} and {100 * off[1]:.0f} points")
assert abs(inside.mean() - 0.8) < 0.05
assert off[0] < 0.6 * off[1]

figure, (left, right) = plt.subplots(ncols=2, figsize=(8, 4.2), layout="constrained")
left.scatter(hours + 0.3, y_test, s=3, color="0.6", label="new rows")
for values, style, name in (
    (low, "C0--", "quantile 0.1"),
    (median, "C0-", "quantile 0.5"),
    (high, "C0:", "quantile 0.9"),
):
    means = [values[rows].mean() for rows in by_hour]
    left.plot(range(24), means, style, label=name)
left.set(xlabel="hour of the day", ylabel="bicycles hired")
left.legend(fontsize="small", loc="upper left")
right.plot(range(24), 100 * covered[0], "o-", label="between the quantiles")
right.plot(range(24), 100 * covered[1], "s:", label="mean and one error for all")
right.axhline(80, color="0.6", label="80 %")
right.set(xlabel="hour of the day", ylabel="new rows covered (%)", ylim=(0, 105))
right.legend(fontsize="small", loc="lower right")
plt.show()
