"""The nouns: plain data that every engine reads and writes, each with its file form."""
