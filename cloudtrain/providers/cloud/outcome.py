"""How a job ended: the cloud's word and the nodes' own last words put together. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cloudtrain.runs.failure import failed_process, first_cause
from cloudtrain.runs.state import RunState


def all_nodes_reported(state: RunState, nodes: int) -> bool:
    """Whether every node's launcher has said how it ended."""
    return len(state.nodes_ended) >= nodes


def cut_short(state: RunState, remedy: str = "") -> str:
    """What is to be said of a stop that was not a good one; nothing if every node came to its end by itself."""
    told = state.nodes_ended
    forced = [str(node) for node in sorted(told) if told[node].forced]
    heard = state.started and not state.log_unread  # else their last words may be there, unread
    missing = [str(node) for node in range(state.nodes) if node not in told] if heard else []
    if not forced and not missing:
        return ""
    nodes, how = (forced, "ended by force") if forced else (missing, "cut off before telling how it ended")
    step = state.checkpoint.step if state.checkpoint else None
    saved = "no checkpoint was told of" if step is None else f"the last one told of is of step {step}"
    words = f"{'nodes' if len(nodes) > 1 else 'node'} {', '.join(nodes)} {how}: what it was saving may be lost; {saved}"
    return f" ({words}{'; ' if remedy else ''}{remedy})"


def ended_event(state: RunState, over: tuple[str, str], when: float, billing: Mapping[str, Any]) -> dict[str, Any]:
    """The event that ends a run. `over`: the state and the reason as the cloud has them.

    Where a node has told why it failed, that is the reason, and the cloud's own is kept beside it.
    """
    final, reason = over
    event: dict[str, Any] = {"type": "ended", "time": when, "state": final, "reason": reason}
    errors = [told.error for told in state.nodes_ended.values() if told.error]
    cause = first_cause(errors, state.finished_ranks)
    if final == "failed" and cause is not None:
        event |= {"error": cause.to_json(), "reason": f"{failed_process(cause)} failed", "platform_reason": reason}
    event["billing"] = dict(billing)
    return event
