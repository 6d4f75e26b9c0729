"""Devices: they execute compiled segments and tell how long each took."""
