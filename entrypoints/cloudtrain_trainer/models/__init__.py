"""Models that are too large for the file of their task, and what cuts them into stages. One small file each."""
