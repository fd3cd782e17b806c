"""The docker provider: one container per node on this machine.

Only `engine` and `container` import Docker's SDK.
"""
