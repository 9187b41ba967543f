"""The papers' iterations, one algorithm a function.

Most return a `guard.Guarded`, an iterator with one state an epoch; `falkon`, `newton`
and `conjugate_gradient` are generators; `direct` solves at once. `guard` (go back and
halve the step) and `step_search` (races and trials of steps) run around the epochs, and
`projection` is a part of the steps: these are no solvers themselves.
"""
