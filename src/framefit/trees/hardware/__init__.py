"""Circuits of trees: construction, simulation, and synthesis to count their look-up tables."""

from framefit.errors import needs_extra

with needs_extra("amaranth", "hw"):
    import amaranth  # noqa: F401 - the modules of this folder import from it
