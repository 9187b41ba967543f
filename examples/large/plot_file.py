"""
Rows in a file
==============

A Nyström model fitted to rows in a file makes the same predictions as one fitted to the
same rows in memory.
"""

# %%
# The file is written in pieces, as rows arrive. 100 000 rows of ten columns in single
# precision take 4 MB; a file may be larger than memory.
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from eigenkern import NystromRegressor

n, d, piece = 100_000, 10, 20_000
rng = np.random.default_rng(0)
folder = tempfile.TemporaryDirectory()
file = Path(folder.name) / "rows.npy"
rows = np.lib.format.open_memmap(file, mode="w+", dtype=np.float32, shape=(n, d))
for start in range(0, n, piece):
    rows[start : start + piece] = rng.random((piece, d))
rows.flush()
y = np.sin(6 * rows[:, 0]) + rows[:, 1] ** 2 + 0.1 * rng.standard_normal(n)

# %%
# ``mmap_mode="r"`` opens the file without reading it. `NystromRegressor` goes through
# it once, one block of rows at a time if they do not fit in memory. HDF5 and Zarr files
# work in the same way.
X = np.load(file, mmap_mode="r")
print(type(X).__name__, X.shape, f"{file.stat().st_size / 1e6:.0f} MB")
model = NystromRegressor(n_centers=200, random_state=0)
from_file = model.fit(X, y).predict(X[:5000])
from_memory = model.fit(np.asarray(X).copy(), y).predict(X[:5000])
assert np.array_equal(from_file, from_memory)

# %%
# A model with many centers gains from many rows, one with few centers does not.
X_test = rng.random((5000, d), dtype=np.float32)
truth = np.sin(6 * X_test[:, 0]) + X_test[:, 1] ** 2
figure, ax = plt.subplots(figsize=(7, 4.5), layout="constrained")
sizes = (1000, 5000, 20_000, 100_000)
for n_centers, marker in ((50, "o"), (200, "s"), (600, "^")):
    errors = []
    for size in sizes:
        model = NystromRegressor(n_centers=n_centers, alpha="path", random_state=0)
        model.fit(X[:size], y[:size])
        errors.append(np.sqrt(np.mean((model.predict(X_test) - truth) ** 2)))
    print(f"{n_centers:4} centers:", np.round(errors, 3))
    ax.semilogx(sizes, errors, marker + "-", label=f"{n_centers} centers")
ax.set(
    xlabel="rows of the file",
    ylabel="root mean squared error on new rows",
)
ax.set_xticks(sizes, [f"{size:,}".replace(",", " ") for size in sizes])
ax.minorticks_off()
ax.legend()
plt.show()
folder.cleanup()
