"""What a run leaves behind: logs, fates, traces."""
