"""The docker provider: one container per node on this machine. Only `engine` imports Docker's SDK."""
