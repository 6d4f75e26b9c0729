"""Frames: where they come from, and how they become a model's inputs."""
