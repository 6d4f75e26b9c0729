"""Verbs on a user's own board over ssh: agent, files by hash, jobs."""
