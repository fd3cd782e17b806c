"""Time limit of a wait in a test."""

HANG_SECONDS = 300
"""How long a test waits for one thing before it calls it a hang. Below the limit of a whole test."""
