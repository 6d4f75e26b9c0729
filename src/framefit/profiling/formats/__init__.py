"""Reads trace formats; each format is one file."""
