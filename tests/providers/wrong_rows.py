"""Rows of the tables of wrong requests: a job.yaml, the line to blame, and the expected message."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace


@dataclass(frozen=True)
class Row:
    """One wrong job."""

    id: str
    messages: tuple[str, ...]
    job: str
    env: Mapping[str, str] = field(default_factory=dict)
    run_id: str = ""
    is_limit: bool = False
    """Rows of the service model alone: an older model must not refuse a request that a newer
    service accepts.
    """


def row(id: str, at: str, *messages: str, job: str, run_id: str = "", **env: str) -> Row:
    """A mistake at a place: `2:3` of job.yaml, or the words of another origin."""
    where = f"job.yaml:{at}: " if at[:1].isdigit() else at
    return Row(id, (where, *messages), job, env, run_id)


def limit(id: str, at: str, *messages: str, job: str) -> Row:
    """A value that the service model at hand does not know or allow, at a place."""
    return replace(row(id, at, *messages, job=job), is_limit=True)


def many(count: int, line: str) -> str:
    """Return a block mapping of `count` entries; `#` in the line becomes its number."""
    return "".join(f"  {line.replace('#', str(number))}\n" for number in range(count))
