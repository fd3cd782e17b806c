"""Combine the cloud's final state of a job with its launchers' reports. Pure."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeVar

from cloudtrain.runs.failure import failed_process, first_cause
from cloudtrain.runs.state import RunState
from cloudtrain_launcher.events import Billing, Ended, Kept

E = TypeVar("E", Ended, Kept)


class FinalState(NamedTuple):
    """Final state of a job and its reason, as the cloud reports it."""

    state: Literal["succeeded", "failed", "stopped"]
    reason: str
    """Description; empty if the job succeeded."""


def all_nodes_reported(state: RunState, nodes: int) -> bool:
    """Return True if the launcher of every node has reported how the node ended."""
    return len(state.nodes_ended) >= nodes


def incomplete_shutdown(state: RunState, hint: str = "") -> str:
    """Return a note on nodes that were killed or did not report; empty if all ended in order."""
    reports = state.nodes_ended
    forced = [str(node) for node in sorted(reports) if reports[node].forced]
    # an unread log may contain the missing reports
    logs_were_read = state.started and not state.log_unread
    missing = []
    if logs_were_read:
        missing = [str(node) for node in range(state.nodes) if node not in reports]
    if not forced and not missing:
        return ""
    nodes = missing
    how = "cut off before telling how it ended"
    if forced:
        nodes = forced
        how = "ended by force"
    saved = "no checkpoint was told of"
    if state.checkpoint and state.checkpoint.step is not None:
        saved = f"the last one told of is of step {state.checkpoint.step}"
    words = (
        f"{'nodes' if len(nodes) > 1 else 'node'} {', '.join(nodes)} {how}: what it was saving may"
        f" be lost; {saved}"
    )
    return f" ({words}{'; ' if hint else ''}{hint})"


def ended_event(
    state: RunState, final: FinalState, when: float, billing: Billing | None = None
) -> Ended:
    """Return the event that ends a run at `when`, a Unix timestamp.

    If a node reported why it failed, that is the reason; the cloud's reason is kept as
    `platform_reason`.
    """
    event = Ended(time=when, state=final.state, reason=final.reason)
    errors = [report.error for report in state.nodes_ended.values() if report.error]
    cause = first_cause(errors, state.finished_ranks)
    if final.state == "failed" and cause is not None:
        reason = f"{failed_process(cause)} failed"
        event = event.replace(error=cause, reason=reason, platform_reason=final.reason)
    return with_billing(event, billing)


def with_billing(event: E, billing: Billing | None) -> E:
    """Return the event with the billing; the unchanged event if the billing is unknown."""
    return event if billing is None else event.replace(billing=billing)
