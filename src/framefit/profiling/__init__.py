"""What really happened: runs rebuilt from event traces that lost packets, with calibrated uncertainty."""
