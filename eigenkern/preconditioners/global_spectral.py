"""EigenPro 1's preconditioner: it lives on all rows."""

from dataclasses import dataclass, replace
from typing import Any

from ..arrays import memory
from ..arrays.array import namespace, slices
from ..arrays.linalg import eigh, large_product, right_singular_vectors
from .spectral import Spectral, TopEigenvectors, n_above_rounding


@dataclass(frozen=True)
class GlobalSpectral(TopEigenvectors):
    """EigenPro 1's preconditioner: approximate eigenvectors of K(X, X) on all n rows.

    With V (n, q), approximately eigenvectors of K = K(X, X), and p(x) = V' K(X, x)::

        k_P(x, z) = k(x, z) - p(x)' D p(z),  D_j = (1 - tau L_{q+1} / L_j) / L_j

    The eigenvectors come from a subsample of s rows: extended to all rows by the
    Nystrom method, or as right singular vectors of K(X_s, X). They are then made
    orthogonal in the geometry of the kernel too, V' K V = diag(L_1 .. L_q), by one pass
    over K of n^2 (d + q) multiply-adds: this makes the preconditioner positive
    definite, however inexact they are. With weights W of the rows they belong to
    W^1/2 K W^1/2. `eigenvalues` has L_j / n; the last one is that of the subsample.
    The rows of the `images` K V (n, q) are p(x_i): a step then costs no more than n q l
    multiply-adds.

    References
    ----------
    Ma and Belkin, "Diving into the shallows: a computational perspective on large-scale
    shallow learning", NIPS 2017: table 2 and appendix A.
    """

    images: Any

    is_of_rows = True

    @classmethod
    def of(
        cls,
        operator,
        subsample_size,
        n_components,
        *,
        weights=None,
        damping=1.0,
        svd_solver,
        rng,
    ):
        """Return the preconditioner of K(X, X), with at most `n_components` vectors.

        `svd_solver` is "nystrom" or "randomized"; only the latter uses `rng`.
        """
        xp, n, s = operator.xp, operator.shape[0], subsample_size
        _check_memory(operator, s, n_components, svd_solver)
        root = xp.ones((n, 1), dtype=operator.dtype, device=operator.device)
        if weights is not None:
            root = weights[:, None] ** 0.5
        if svd_solver == "nystrom":
            top = Spectral.of(operator, s, n_components, weights=weights)
            level = float(top.eigenvalues[-1])
            blocks = [top.features(operator, b.start, b.stop) for b in slices(n)]
            V = root * xp.concat(blocks)
            if V.shape[1]:
                V = xp.linalg.qr(V / xp.linalg.vector_norm(V, axis=0))[0]
        else:
            A = root[:s, :] * operator.block(0, s) * root[:, 0]
            singular, V = right_singular_vectors(
                lambda B: large_product(A, B),
                lambda B: large_product(A.T, B),
                (s, n),
                n_components + 1,
                root,
                rng,
            )
            del A
            V, level = V[:, :n_components], float(singular[-1]) * (n / s) ** 0.5 / n
        if V.shape[1] == 0:
            return cls(V, xp.full_like(root[:1, 0], level), damping, V)
        V = root * V
        images = operator @ V
        gram = sum(
            large_product(
                xp.astype(V[rows, :], xp.float64).T,
                xp.astype(images[rows, :], xp.float64),
            )
            for rows in slices(n)
        )
        values, R = eigh(0.5 * (gram + gram.T))
        values = xp.flip(values)
        # The level is only an estimate: it must not exceed the values before it, and
        # like them must be above rounding.
        levels = xp.full_like(values[:1], n * level)
        m, dtype = min(n, 1000), operator.dtype
        entry = float(xp.max(xp.abs(xp.linalg.diagonal(operator.block(0, m, 0, m)))))
        q = n_above_rounding(values, n, entry, dtype)
        if q and not n_above_rounding(levels, n, entry, dtype):
            q -= 1
            levels = values[q : q + 1]
        levels = xp.minimum(levels, values[max(q - 1, 0) : max(q, 1)])
        R = xp.astype(xp.flip(R, axis=1)[:, :q], dtype)
        values = xp.astype(xp.concat([values[:q], levels]) / n, dtype)
        return cls(large_product(V, R), values, damping, large_product(images, R))

    def truncate(self, q):
        """Return a copy with the first `q` eigenvectors."""
        xp, short = namespace(self.vectors), super().truncate(q)
        parts = [
            xp.asarray(part[:, :q], copy=True) for part in (short.vectors, self.images)
        ]
        return replace(short, vectors=parts[0], images=parts[1])

    def features(self, operator, start, stop):
        """Return p(x) of some rows, shape (m, q)."""
        return self.images[start:stop, :]

    def features_of_batch(self, b, _K_bs):
        """Return p(x) of a batch of rows b."""
        return self.images[b, :]

    def correction(self, b, G):
        """Return V D V' K(X, X_b) G = V D p(X_b)' G of a batch of rows."""
        image = self.images[b, :].T @ G
        return large_product(self.vectors, self.scales[:, None] * image)


def bytes_of_vectors(operator, s, q, svd_solver):
    """Return the bytes that computing q eigenvectors of all rows from s rows takes."""
    # V, K V and their rotations; s rows of K, and their weighted copy.
    n_columns = 4.0 * q + (2.0 * s if svd_solver == "randomized" else 0.0)
    return operator.itemsize * operator.shape[0] * n_columns


def _check_memory(operator, s, q, svd_solver):
    """Raise a ValueError unless the free memory holds eigenvectors of all rows."""
    n, needed = operator.shape[0], bytes_of_vectors(operator, s, q, svd_solver)
    remedy = "a smaller n_components"
    if svd_solver == "randomized":
        remedy += ", a smaller subsample_size or svd_solver='nystrom'"
    needs = f"n_components={q} eigenvectors of {n} rows with svd_solver={svd_solver!r} "
    needs += f"need {needed / 1e6:.0f} MB"
    memory.check(needed, operator.xp, operator.device, needs, f"pass {remedy}")
