"""Latency of layers and networks: measured where only start and end are seen, and estimated from tables."""
