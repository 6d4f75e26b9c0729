"""Reconstructs runs from event traces that lost packets, with calibrated uncertainty."""
