"""A kernel that is the user's own function of two blocks of rows."""

from collections.abc import Callable
from dataclasses import dataclass

from ..backend.array import namespace, slices
from .kernel import Kernel


@dataclass(frozen=True)
class CallableKernel(Kernel):
    """A function ``k(X, Z)`` of two blocks of rows that returns their kernel matrix."""

    function: Callable

    fused = False

    def encode(self, X):
        return X

    def left(self, E):
        return E

    def evaluate(self, xp, left, right, out=None):
        found, expected = self.function(left, right), (left.shape[0], right.shape[0])
        try:
            K = xp.asarray(found, dtype=left.dtype)
        except (TypeError, ValueError) as error:
            raise self._no_matrix(expected, type(found).__name__) from error
        if tuple(K.shape) != expected:
            raise self._no_matrix(expected, f"{tuple(K.shape)}")
        if not bool(xp.all(xp.isfinite(K))):
            raise ValueError(f"kernel={self.function!r} returned NaN or infinity")
        return K

    def _no_matrix(self, expected, found):
        """Return the error of a function whose result is no kernel matrix."""
        return ValueError(
            "kernel must be a function k(X, Z) of two blocks of rows that returns an "
            f"array of shape (len(X), len(Z)) = {expected}; got {found} from "
            f"{self.function!r}"
        )

    def diagonal(self, X):
        xp = namespace(X)
        blocks = (X[rows, :] for rows in slices(X.shape[0], 256))
        return xp.concat([xp.linalg.diagonal(self.evaluate(xp, B, B)) for B in blocks])
