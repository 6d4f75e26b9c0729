"""Zeros where the hardware rewards them: layer databases, one problem, many solvers, gates."""
