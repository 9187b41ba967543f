"""
Rows on the workers of a cluster
================================

Pass a Dask array instead of a NumPy array: its chunks stay on the workers, and the
model is the same up to rounding.
"""

# %%
# The cluster is this computer; for another one pass the address of its scheduler to
# ``Client``. Chunk along the rows only; on a real cluster use chunks of about 100 MB.
import dask.array as da
import joblib
import matplotlib.pyplot as plt
import numpy as np
from dask.distributed import Client, LocalCluster
from sklearn.model_selection import GridSearchCV

from eigenkern import NystromRegressor

cluster = LocalCluster(
    n_workers=1, threads_per_worker=2, processes=False, dashboard_address=":0"
)
client = Client(cluster)
random = da.random.default_rng(0)
X = random.uniform(-3, 3, size=(20_000, 2), chunks=(5000, 2)).persist()
y = da.sin(X[:, 0] * X[:, 1]) + 0.1 * random.normal(size=20_000, chunks=5000)
y = y.persist()

# %%
# A model on centers: each worker multiplies the kernel matrix of its own rows. The
# predictions are a Dask array, computed on demand.
options = {"bandwidth": "median", "random_state": 0}
model = NystromRegressor(n_centers=300, **options).fit(X, y)
predicted = model.predict(X)
print(predicted)
local = NystromRegressor(n_centers=300, **options).fit(X.compute(), y.compute())
difference = np.abs(predicted.compute() - local.predict(X.compute())).max()
print(f"largest difference to the model of the NumPy array: {difference:.1e}")
assert difference < 1e-6

# %%
# The workers also run the fits of a grid search, through joblib. Each fit needs its
# rows in one place, so the search gets a sample as NumPy arrays.
sample, targets = X[:3000].compute(), y[:3000].compute()
search = GridSearchCV(
    NystromRegressor(random_state=0), {"n_centers": [20, 50, 100, 200, 500]}, cv=3
)
with joblib.parallel_config(backend="dask"):
    search.fit(sample, targets)

# %%
results = search.cv_results_
n_centers = [p["n_centers"] for p in results["params"]]
figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3.8), layout="constrained")
left.errorbar(
    n_centers, results["mean_test_score"], results["std_test_score"], marker="o"
)
left.set(xscale="log", xlabel="centers", ylabel="R² in cross-validation")
left.set_xticks(n_centers, [str(n) for n in n_centers])
left.minorticks_off()
grid = np.stack(np.meshgrid(*2 * [np.linspace(-3, 3, 120)]), axis=-1).reshape(-1, 2)
image = model.predict(grid).reshape(120, 120)
shown = right.imshow(image, extent=(-3, 3, -3, 3), origin="lower", cmap="coolwarm")
right.set(
    xlabel="first feature", ylabel="second feature", title="the model of all rows"
)
figure.colorbar(shown, ax=right, label="prediction")
plt.show()

client.close()
cluster.close()
