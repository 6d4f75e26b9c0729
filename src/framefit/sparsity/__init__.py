"""Finds zeros in weights that a target rewards: layer databases, one problem, many solvers, gates."""
