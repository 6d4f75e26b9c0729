"""How plans, runs and searches look, made from ``core`` records only: terminal, pages, pictures, files for viewers."""
