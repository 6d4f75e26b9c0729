"""The simulated accelerator: its cycle model, and units that cannot be preempted, in virtual or real time."""
