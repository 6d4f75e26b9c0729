"""Replaces layers by decision trees: quantising, fitting, running and exporting them."""
