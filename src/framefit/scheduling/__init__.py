"""From measured costs to a timetable, its bounds, and an independent check of it."""
