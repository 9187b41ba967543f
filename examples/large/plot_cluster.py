"""
Rows on the workers of a cluster
================================

A Dask array goes where a NumPy array does: the chunks stay on the workers, which
compute with them, and predictions are Dask arrays, computed when they are asked for.
Here the "cluster" is this computer; with the address of a scheduler in place of
``cluster`` the rest of the script stays as it is.

More centers fit a function better. A grid search over them sends its fits to the
workers of the same cluster, through joblib.
"""

# %%
# A cluster, and rows that it holds. Chunks along rows only, of some 100 MB in earnest.
import dask.array as da
import joblib
import matplotlib.pyplot as plt
import numpy as np
from dask.distributed import Client, LocalCluster
from sklearn.model_selection import GridSearchCV

from eigenkern import EigenProRegressor, NystromRegressor

cluster = LocalCluster(
    n_workers=1, threads_per_worker=2, processes=False, dashboard_address=":0"
)
client = Client(cluster)
random = da.random.default_rng(0)
X = random.uniform(-3, 3, size=(20_000, 2), chunks=(5000, 2)).persist()
y = da.sin(X[:, 0] * X[:, 1]) + 0.1 * random.normal(size=20_000, chunks=5000)
y = y.persist()

# %%
# A model on centers: each worker multiplies the kernel matrix of its own rows.
model = EigenProRegressor(n_centers=500, max_iter=5, random_state=0)
model.fit(X, y)
predicted = model.predict(X)
print(predicted)
print(f"R2 {model.score(X, y):.3f} on the training rows")

# %%
# A search among numbers of centers. Each fit is on rows that one worker has in memory,
# so X and y are a sample, as NumPy arrays.
sample, targets = X[:3000].compute(), y[:3000].compute()
search = GridSearchCV(
    NystromRegressor(random_state=0), {"n_centers": [20, 50, 100, 200, 500, 1000]}, cv=3
)
with joblib.parallel_config(backend="dask"):
    search.fit(sample, targets)

# %%
results = search.cv_results_
n_centers = [p["n_centers"] for p in results["params"]]
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.8), layout="constrained")
left.errorbar(
    n_centers, results["mean_test_score"], results["std_test_score"], marker="o"
)
left.set(xscale="log", xlabel="centers", ylabel="R² of cross-validation")
grid = np.stack(np.meshgrid(*2 * [np.linspace(-3, 3, 120)]), axis=-1).reshape(-1, 2)
image = model.predict(grid).reshape(120, 120)
shown = right.imshow(image, extent=(-3, 3, -3, 3), origin="lower", cmap="coolwarm")
right.set(xlabel="first feature", ylabel="second", title="the model of all rows")
figure.colorbar(shown)

client.close()
cluster.close()
