"""How a job ended: the cloud's word and the nodes' own last words put together. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cloudtrain.runs.state import RunState, first_cause, who


def all_told(state: RunState, nodes: int) -> bool:
    """Whether every node's launcher has said how it ended."""
    return len(state.nodes_ended) >= nodes


def ended(state: RunState, over: tuple[str, str], when: float, billing: Mapping[str, Any]) -> dict[str, Any]:
    """The event that ends a run. `over`: the state and the reason as the cloud has them.

    Where a node has told why it failed, that is the reason, and the cloud's own is kept beside it.
    """
    final, reason = over
    event: dict[str, Any] = {"type": "ended", "time": when, "state": final, "reason": reason}
    errors = [told["error"] for told in state.nodes_ended.values() if told.get("error")]
    cause = first_cause(errors)
    if final == "failed" and cause is not None:
        event |= {"error": dict(cause), "reason": f"{who(cause)} failed", "platform_reason": reason}
    event["billing"] = dict(billing)
    return event
