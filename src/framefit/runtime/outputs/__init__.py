"""Where outputs go."""
