"""The plan of local kernel machines: a direct solution of every part of the rows."""

from bisect import bisect_left
from math import ceil, log2

from ..methods.local import OVERLAP
from .costs import Costs


def plan_of_parts(shape, plan_of_part):
    """Return the plan of direct solutions of parts of the rows, one after the other.

    ``plan_of_part(m)`` is that of one part of m rows. Chosen besides: `n_parts`, and
    `part_rows`, the most rows of one.
    """
    fit, n, k, size = Costs(shape), shape.n, shape.n_outputs, shape.itemsize

    def is_too_large(m):
        return plan_of_part(m).method != "direct"

    # 20 rows are never divided, whatever memory holds.
    most = max(bisect_left(range(1, n + 1), True, key=is_too_large), 20)
    n_parts, part_rows = 1, n
    while part_rows > most:
        n_parts, part_rows = 2 * n_parts, ceil((0.5 + OVERLAP) * part_rows)
    fit.holds("data copy", n * shape.row_bytes)
    fit.holds("targets", n_parts * part_rows * (16 + 2 * k * size) + 16 * n * k)
    fit.finds_equal_rows()
    fit.products(n * shape.d**2 * log2(n_parts))  # the directions of the halves
    fit.includes(plan_of_part(part_rows).costs, n_parts)
    return fit.plan("direct", n_centers=n, n_parts=n_parts, part_rows=most)
