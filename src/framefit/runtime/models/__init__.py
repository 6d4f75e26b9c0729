"""Models of a workload, wired to streams, compiled, and with all that a launch needs."""
