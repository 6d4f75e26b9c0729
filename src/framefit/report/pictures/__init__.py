"""Runs as pictures, one row a window: SVG, and characters for a terminal."""
