"""First cause of a failure among the reports of all nodes, in one line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from cloudtrain.runs.state import RunState
from cloudtrain_launcher.events import Cause


def first_cause(
    causes: Iterable[Cause], finished_ranks: Mapping[int, tuple[int, float]] = MappingProxyType({})
) -> Cause | None:
    """Return the earliest cause that is not a consequence of another, or None.

    `finished_ranks`: ranks that ended with 0, each with its node and Unix timestamp. If the only
    cause is a missing peer, blame the rank that ended while the others still waited for it.
    """
    cause = min(causes, key=lambda cause: (cause.consequence, cause.time), default=None)
    if cause is None or not cause.consequence or cause.exception == "SIGTERM":
        return cause
    early = [
        (when, rank, node) for rank, (node, when) in finished_ranks.items() if when <= cause.time
    ]
    if not early:
        return cause
    when, rank, node = min(early)
    message = f"ended with exit code 0 while {failed_process(cause)} still waited for it"
    return Cause(rank=rank, node=node, time=when, exception="exit", message=message)


def failed_process(cause: Cause) -> str:
    """Return `rank 3 (node 1)`, or `node 0` without a rank."""
    return f"rank {cause.rank} (node {cause.node})" if cause.rank >= 0 else f"node {cause.node}"


def explain(state: RunState) -> str:
    """Return why a run ended, in one line: the first failing rank and its error. "" on success."""
    cause = state.error
    if cause is None:
        return state.reason
    if cause.rank < 0:
        return f"{failed_process(cause)}: {cause.message}"
    return f"{failed_process(cause)} {_what_it_did(cause)}"


def _what_it_did(cause: Cause) -> str:
    if cause.traceback:
        return f"raised {cause.exception}" + (f": {cause.message}" if cause.message.strip() else "")
    if cause.exception == "SystemExit" and not cause.message.startswith("exited with code"):
        return f"ended by sys.exit: {cause.message}"
    return cause.message
