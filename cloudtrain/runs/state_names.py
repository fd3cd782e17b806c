"""Names of the states of a run."""

from __future__ import annotations

ENDED = ("succeeded", "failed", "stopped")
"""Final states. A run that counts as not started leaves them if its job appears."""

STATES = ("submitting", "pending", "running", "stopping", *ENDED)

WAITING = "waiting for capacity"
"""Phase of a job without a machine yet, on every cloud."""

DAMAGED = "damaged"
"""Listed state of an unreadable run."""

NOT_ASKED = "not asked"
"""Prefix of the reason of a listed state that is the last seen one: its provider does not answer."""
