"""Environments of installed packages, as the launcher makes them and the client finds them."""

COMPLETE = "cloudtrain-complete.json"
"""Last file written into an environment; it lists the installed packages."""
