"""How a job ended: the cloud's final state combined with what the nodes' launchers reported. Pure."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeVar

from cloudtrain.runs.failure import failed_process, first_cause
from cloudtrain.runs.state import RunState
from cloudtrain_launcher.events import Billing, Ended, Kept

E = TypeVar("E", Ended, Kept)


class FinalState(NamedTuple):
    """The state in which a job ended, and why, as the cloud reports it."""

    state: Literal["succeeded", "failed", "stopped"]
    reason: str
    """In words; empty where the job simply succeeded."""


def all_nodes_reported(state: RunState, nodes: int) -> bool:
    """Whether the launcher of every node has reported how the node ended."""
    return len(state.nodes_ended) >= nodes


def incomplete_shutdown(state: RunState, hint: str = "") -> str:
    """A note in parentheses on nodes that were killed or did not report; empty if every node ended
    in order.
    """
    reports = state.nodes_ended
    forced = [str(node) for node in sorted(reports) if reports[node].forced]
    logs_were_read = (
        state.started and not state.log_unread
    )  # else a report may be in the log, unread
    missing = (
        [str(node) for node in range(state.nodes) if node not in reports] if logs_were_read else []
    )
    if not forced and not missing:
        return ""
    nodes, how = (
        (forced, "ended by force") if forced else (missing, "cut off before telling how it ended")
    )
    step = state.checkpoint.step if state.checkpoint else None
    saved = (
        "no checkpoint was told of" if step is None else f"the last one told of is of step {step}"
    )
    words = (
        f"{'nodes' if len(nodes) > 1 else 'node'} {', '.join(nodes)} {how}: what it was saving may"
        f" be lost; {saved}"
    )
    return f" ({words}{'; ' if hint else ''}{hint})"


def ended_event(
    state: RunState, final: FinalState, when: float, billing: Billing | None = None
) -> Ended:
    """The event that ends a run at `when`, a Unix timestamp.

    If a node reported why it failed, that is the reason, and the cloud's own is kept as
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
    """The event with what was billed; the event as it is if that is None, not known."""
    return event if billing is None else event.replace(billing=billing)
