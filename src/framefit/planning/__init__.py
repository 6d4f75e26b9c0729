"""Whether and how models fit into every window: cuts, placements, timetables, and an independent check of them."""
