"""The wiring, one file a verb: what the command line calls, and the public Python API."""
