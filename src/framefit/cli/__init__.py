"""The command line: one file a command; it parses, calls a workflow, prints."""
