"""A line of `logs`: text with its source in front, or JSON."""

from __future__ import annotations

from cloudtrain.cli.terminal import write_json, write_log
from cloudtrain.runs.logs import LogLine


def print_log_line(
    line: LogLine, *, as_json: bool, names_source: bool, trial: int | None = None
) -> None:
    """Print a line.

    `names_source`: with its rank or node in front. `trial`: with the number of the trial too.
    """
    if as_json:
        document = {
            "time": line.time,
            "node": line.node,
            "rank": line.rank,
            "source": line.source,
            "kind": line.kind or "output",
            "text": line.text,
        }
        write_json(document if trial is None else {"trial": trial, **document}, indent=None)
        return
    source = f"[{line.source or f'node {line.node}'}] " if names_source else ""
    write_log(source if trial is None else f"[trial {trial}] {source}", line.text)
