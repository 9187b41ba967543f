"""The papers' iterations, one function per algorithm.

Most return a `guard.Guarded`, an iterator with one state per epoch; `falkon`, `newton`
and `conjugate_gradient` are generators; `direct` solves without iterating. Four modules
are not solvers: `guard` (goes back and halves the step) and `step_search` (races and
trials of steps) run around the epochs, `projection` and `row_steps` (shorter steps on
outliers) are parts of a step.
"""
