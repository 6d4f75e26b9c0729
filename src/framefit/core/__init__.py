"""Records that every engine reads and writes, each with its file format."""
