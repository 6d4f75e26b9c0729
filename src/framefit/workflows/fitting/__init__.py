"""The steps of ``framefit fit``: how a workload stands, measures that may help, what they do, and the proof."""
