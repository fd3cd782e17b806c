"""Search for good settings: sweeps, their trials as ordinary runs, and their suggestions."""
