"""A line of a log as `logs` prints it: for people with what it is of in front, or as JSON."""

from __future__ import annotations

from cloudtrain.cli.terminal import write_json, write_log
from cloudtrain.runs.logs import LogLine


def print_log_line(
    line: LogLine, *, as_json: bool, names_source: bool, trial: int | None = None
) -> None:
    """Print it. `names_source`: with its rank or node in front; `trial`: of a sweep, that number
    before it.
    """
    if as_json:
        told = {
            "time": line.time,
            "node": line.node,
            "rank": line.rank,
            "source": line.source,
            "kind": line.kind or "output",
            "text": line.text,
        }
        write_json(told if trial is None else {"trial": trial, **told}, indent=None)
        return
    source = f"[{line.source or f'node {line.node}'}] " if names_source else ""
    write_log(source if trial is None else f"[trial {trial}] {source}", line.text)
