"""Pages of one file, for any browser: plans, timelines and reports."""
