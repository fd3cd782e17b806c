"""Determine how a local run ended, from the exit codes and reports of its nodes. Pure."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence

from cloudtrain.providers.local.node import Node
from cloudtrain.providers.local.processes import STOPPED
from cloudtrain.runs.failure import failed_process, first_cause
from cloudtrain_launcher.events import Ended


def run_outcome(
    nodes: Sequence[Node],
    *,
    stop_reason: str,
    signalled_at: float,
    first_failed: Node | None,
    finished_ranks: Mapping[int, tuple[int, float]],
) -> Ended:
    """Return the event that ends the run, without its time. All nodes must have ended.

    `stop_reason`: why the supervisor stopped the run; empty if it did not. `signalled_at`: Unix
    timestamp at which it first signalled the nodes. `finished_ranks`: rank -> node and Unix
    timestamp, of ranks that ended with 0.
    """
    errors = [node.error for node in nodes if node.error]
    if nodes and all(node.exit_code == 0 for node in nodes):
        stopped = next((node for node in nodes if node.stopped), None)
        return (
            Ended(state="stopped", reason=stop_reason or stopped.stop_reason)
            if stopped
            else Ended(state="succeeded")
        )
    first_stopped = _first_stopped_from_outside(nodes, signalled_at)
    if (
        first_stopped
        and not stop_reason
        and all(error.time > first_stopped.stop_requested_at for error in errors)
    ):
        return Ended(state="stopped", reason=first_stopped.stop_reason)
    if errors:
        cause = first_cause(errors, finished_ranks)
        if cause is None:
            return Ended(state="failed", reason="")
        return Ended(state="failed", reason=f"{failed_process(cause)} failed", error=cause)
    if stop_reason:
        forced = any(node.forced or node.exit_code == -signal.SIGKILL for node in nodes)
        return Ended(
            state="stopped",
            reason=stop_reason + (" (by force, after the grace period)" if forced else ""),
        )
    return _unexplained(first_failed)


def _first_stopped_from_outside(nodes: Sequence[Node], signalled_at: float) -> Node | None:
    """Return the node that was first stopped from outside.

    Later errors of its peers are consequences.
    """
    stopped = [node for node in nodes if node.stopped and 0 < node.stop_requested_at < signalled_at]
    return min(stopped, key=lambda node: node.stop_requested_at, default=None)


def _unexplained(node: Node | None) -> Ended:
    """Return the outcome if the first failed launcher reported no cause.

    Raise RuntimeError if no launcher failed.
    """
    if node is None or node.exit_code is None:
        raise RuntimeError("no launcher failed or stopped, but not all succeeded")
    code = node.exit_code
    if code == STOPPED:
        return Ended(state="stopped", reason=node.stop_reason)
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
    return Ended(state="failed", reason=f"the launcher of node {node.rank} {how}; see its log")
