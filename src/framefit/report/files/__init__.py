"""Traces, logs and tables in the forms that other programs read."""
