"""What ``run``, ``simulate`` and a ``Runner`` share: a plan's jobs, faults, ladder and folder."""
