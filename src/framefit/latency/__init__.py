"""What layers and networks cost: measured where only start and end are seen, and estimated from tables."""
