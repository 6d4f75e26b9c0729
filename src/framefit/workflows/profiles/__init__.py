"""What profiling shares: a trace read and rebuilt, its folder, the latency table that it updates."""
