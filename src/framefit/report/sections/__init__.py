"""One file a kind of result: what it says, for terminal and page."""
