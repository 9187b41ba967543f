"""
Principal components of a kernel
================================

Two rings, which no line separates, fall apart in the first component of a Gaussian
kernel. 30 000 rows would have a kernel matrix of 7 GB; 300 of them span the components
up to an angle of less than a millionth.
"""

# %%
# The components of :class:`~eigenkern.KernelPCA` are functions of the kernel's values
# at 300 of the rows, the best ones for all 30 000.
import matplotlib.pyplot as plt
from scipy.linalg import subspace_angles
from sklearn.datasets import make_circles
from sklearn.decomposition import PCA

from eigenkern import KernelPCA

X, y = make_circles(30_000, factor=0.3, noise=0.05, random_state=0)
pca = KernelPCA(2, bandwidth=0.5, n_centers=300, random_state=0)
scores = pca.fit_transform(X)

# The first component alone tells the rings apart.
assert ((scores[:, 0] > 0) == (y == (scores[y == 1, 0].mean() > 0))).all()

# %%
# How many centers that takes: on 2000 rows all of them can be centers, and then the
# components are exact. Right: the largest angle between the two planes.
few, numbers = X[:2000], [10, 20, 40, 80, 160, 320]
exact = KernelPCA(2, bandwidth=0.5).fit_transform(few)
angles = []
for n_centers in numbers:
    pca.set_params(n_centers=n_centers)
    angles.append(subspace_angles(exact, pca.fit_transform(few))[0])
assert angles[-1] < 1e-6 < angles[0]

figure, axes = plt.subplots(1, 3, figsize=(11, 3.6), layout="constrained")
shown = slice(3000)
for ax, values, title in (
    (axes[0], PCA(2).fit_transform(X), "principal components"),
    (axes[1], scores, "of a Gaussian kernel, 300 centers"),
):
    ax.scatter(*values[shown].T, c=y[shown], s=3, cmap="coolwarm")
    ax.set(xlabel="first", ylabel="second", title=title)
axes[2].loglog(numbers, angles, "o-")
axes[2].set(xlabel="centers", ylabel="angle", title="to the exact plane, 2000 rows")
plt.show()

# %%
# The rings are smooth in two dimensions, so few centers suffice. For images it takes
# thousands; see :doc:`../../user_guide/kernel_pca`.
