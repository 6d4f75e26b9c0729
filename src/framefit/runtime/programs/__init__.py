"""A program's own loop: frames handed over, results asked for."""
