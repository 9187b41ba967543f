"""The memory of a fit in closed form, and the blocks that keep it within its plan."""

from dataclasses import dataclass

# Bytes of a block of rows, or of a part of a path: thousands of rows for 1000 centers,
# enough for fast products, and little compared with the matrices.
BLOCK_BYTES = 64e6


def blocks(n, width, *, least=16):
    """Yield slices that cover n rows (or candidates), each of `BLOCK_BYTES`.

    Parameters
    ----------
    n : int
    width : int
        Numbers in float64 per row.
    least : int, default=16
        Fewest rows of a block.
    """
    size = max(int(BLOCK_BYTES // (8 * width)), least)
    for start in range(0, n, size):
        yield slice(start, min(start + size, n))


@dataclass(frozen=True)
class NystromPlan:
    """The memory that a fit takes in addition to its rows, in float64.

    With p centers, k matrices of p x p numbers at a time, blocks of b rows, and c other
    stored numbers, such as the candidates of a path, it is ::

        8 (k p^2 + 3 b p + c) + 2 BLOCK_BYTES <= free memory

    Attributes
    ----------
    bytes : int
        The left-hand side.
    work : float
        The time of the linear algebra, in multiply-adds of large float64 products.
    size : int
        p.
    bytes_of_squares : int
        8 k p^2.
    n_centers : int or None
        p; None for the full kernel.
    """

    bytes: int
    work: float
    size: int
    bytes_of_squares: int
    n_centers: int | None

    #: k. The matrices are K_mm or its factor, R, sums over the training rows (and over
    #: the validation rows and both), whitened sums, eigenvectors and their workspace.
    SQUARES = {
        "ridge": 5,
        "path": 7,
        "full ridge": 3,
        "full path": 6,
        "falkon": 7,
        "logistic": 8,
        "full logistic": 8,
        "falkon logistic": 8,
    }
    #: Work divided by p^3, in addition to n p^2 / 2 for sums over the rows: factors,
    #: whitening, eigenvectors of the training rows and of all rows. Seconds on two
    #: cores of an AMD EPYC, and those predicted at the rate of `arrays.machine`:
    #: 27 000 rows with 5000 and 8400 centers 12 and 45 s (15 and 53 s), a path with
    #: 5000 centers 29 s (30 s), 12 000 rows of the full kernel 9 s (14 s), a path of
    #: 7300 rows, by factors, 5 s (10 s); with all eigenvectors the last one takes three
    #: times as long as predicted.
    CUBES = {
        "ridge": 2,
        "path": 7,
        "full ridge": 1 / 3,
        "full path": 1,
        "falkon": 2,
        "logistic": 15,
        "full logistic": 15,
        "falkon logistic": 15,
    }
    #: How often the sums over the rows are computed. In logistic regression some Newton
    #: steps compute them again; the others only compute a factor.
    SUMS = {"ridge": 1, "path": 1, "logistic": 10}

    @classmethod
    def make(cls, kind, n_centers, n_rows, *, validated=False, n_stored=0):
        """Return the plan of a fit.

        Parameters
        ----------
        kind : str
            A key of `SQUARES`.
        n_centers, n_rows : int
        validated : bool, default=False
            Whether sums over validation rows are kept.
        n_stored : int, default=0
            c.
        """
        n_squares = cls.SQUARES[kind] + 2 * validated
        n_block = min(int(BLOCK_BYTES // (8 * n_centers)) + 16, n_rows)
        squares = 8 * n_squares * n_centers**2
        needed = squares + 8 * (3 * n_block * n_centers + n_stored) + 2 * BLOCK_BYTES
        work = cls.CUBES[kind] * n_centers**3
        work += cls.SUMS.get(kind, 0) * n_rows * n_centers**2 / 2
        full = kind.startswith("full")
        shown = None if full else n_centers
        return cls(int(needed), work, n_centers, squares, shown)
