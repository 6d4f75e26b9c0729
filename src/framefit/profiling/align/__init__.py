"""Assigns packets to events of launches where some packets were lost."""
