"""Models that are too large for the file of their task, and their stages and blocks."""
