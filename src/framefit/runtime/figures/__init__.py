"""Figures of a run, and why frames were missed."""
