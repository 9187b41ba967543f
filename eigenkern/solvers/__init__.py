"""Solvers: one generator a paper, which yields its state once an epoch."""
