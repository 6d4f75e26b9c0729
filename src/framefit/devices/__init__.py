"""What executes a compiled segment and says how long it took."""
