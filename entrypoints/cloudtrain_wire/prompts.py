"""Names of a rank's requests for a line of the terminal. Standard library only."""

from __future__ import annotations

AT_PROMPT = "waiting at a prompt"
"""Activity of a rank whose program waits for a line."""

KEYBOARD_FILE = "keyboard"
"""Named pipe in the run's folder, which the client that follows keeps open and writes to."""
