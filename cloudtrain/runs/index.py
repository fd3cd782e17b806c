"""Index of ended runs, so that a list opens one file: a line per run, which is read when it is shown.

It is a cache: run folders decide. A line is a JSON array. Its first values, the head, tell what a list
knows of a run that it does not show.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import Any, NoReturn

from cloudtrain.runs.files import encode_json, strict_json
from cloudtrain.runs.state_names import ENDED
from cloudtrain_wire.bounded_files import read_regular_file
from cloudtrain_wire.file_locks import locked

FILE = "index.jsonl"

MAX_BYTES = 1 << 28
"""Limit of the index: lines of more than a million runs."""

_MAX_TIMESTAMP = 253_402_300_800
"""The year 10,000, as a Unix timestamp."""

_TEXT = (str,)
_COUNT = (int,)
_MAPPING = (dict,)
_TIME = (int, float)
_NUMBER_OR_NONE = (int, float, type(None))
FIELDS: dict[str, tuple[type, ...]] = {
    "run": _TEXT,
    "name": _TEXT,
    "state": _TEXT,
    "reason": _TEXT,
    "cause": _TEXT,
    "provider": _TEXT,
    "contract": _TEXT,
    "nodes": _COUNT,
    "processes": _COUNT,
    "created": _TIME,
    "started": _NUMBER_OR_NONE,
    "ended": _NUMBER_OR_NONE,
    "owner": _TEXT,
    "submitted": (bool,),
    "kept_until": _NUMBER_OR_NONE,
    "billed_seconds": _NUMBER_OR_NONE,
    "usd": _NUMBER_OR_NONE,
    "arguments": _MAPPING,
    "tags": _MAPPING,
    "metrics": _MAPPING,
    "best": _MAPPING,
    "bytes": _COUNT,
}
"""Fields of a summary in their order, with the types that JSON gives them."""

_HEAD = ("created", "kept_until", "submitted", "run")
_COLUMNS = (*_HEAD, *(field for field in FIELDS if field not in _HEAD))
"""Fields in the order of a line."""
_IN_ORDER = itemgetter(*map(_COLUMNS.index, FIELDS))


_LINE = re.compile(r'(\[([0-9.e+-]+),(null|[0-9.e+-]+),(true|false),"([^"\\]+)",.*)\n')

Line = tuple[float, bool, str]
"""When a run was created, whether a list that leaves it out has nothing to say of it, and its text."""


def read(data_dir: Path) -> dict[str, Line]:
    """Return the lines of the index by run. If one has no head, remove the index and return none."""
    try:
        text = read_regular_file(data_dir / FILE, MAX_BYTES).decode()
    except OSError:
        return {}
    except ValueError:
        text = "\n"

    heads = _LINE.findall(text)
    if len(heads) < text.count("\n"):
        remove(data_dir)
        return {}

    lines = {}
    try:
        for line, created, kept_until, submitted, run in heads:
            is_settled = kept_until == "null" and submitted == "true"
            lines[run] = (float(created), is_settled, line)
    except ValueError:  # such as 1.2.3
        remove(data_dir)
        return {}

    return lines


def summaries(data_dir: Path, lines: Iterable[Line]) -> list[dict[str, Any]] | None:
    """Return the summaries in these lines.

    If one is damaged or of an earlier version, remove the index and return None.
    """
    try:
        return _summaries([text for _, _, text in lines])
    except (ValueError, TypeError, RecursionError):
        remove(data_dir)
        return None


def append(data_dir: Path, summaries: Iterable[Mapping[str, Any]]) -> None:
    """Add summaries of ended runs. Disk errors are ignored."""
    text = ""
    for summary in summaries:
        values = [summary[field] for field in _COLUMNS]
        if _is_plain(summary["run"]):
            text += strict_json(values, separators=(",", ":")) + "\n"

    with suppress(OSError), locked(data_dir / FILE, flags=os.O_WRONLY | os.O_APPEND) as file:
        os.write(file, encode_json(text))


def has_run(data_dir: Path, run_id: str) -> bool:
    """Return whether the index has a line for this run. May raise OSError."""
    return f',"{run_id}",'.encode() in read_regular_file(data_dir / FILE, MAX_BYTES)


def remove(data_dir: Path) -> None:
    """Delete the index, such as when an ended run continues. It is written again, if the disk allows."""
    with suppress(OSError):
        (data_dir / FILE).unlink()


def _is_plain(run: str) -> bool:
    """Return whether JSON text has the name of a run as it is. Others are not in the index."""
    return run.isprintable() and '"' not in run and "\\" not in run


def _summaries(lines: Sequence[str]) -> list[dict[str, Any]]:
    """Raise ValueError, TypeError or RecursionError for a line that no ended run has."""
    rows = json.loads(f"[{','.join(lines)}]", parse_constant=_refuse)
    if not rows:
        return []

    for field, values in zip(_COLUMNS, zip(*rows, strict=True), strict=True):
        if not _are_possible(field, values):
            raise ValueError(field)

    return [dict(zip(FIELDS, _IN_ORDER(row), strict=True)) for row in rows]


def _refuse(constant: str) -> NoReturn:
    """Raise ValueError for NaN and infinities, which JSON lacks."""
    raise ValueError(constant)


def _are_possible(field: str, values: Sequence[Any]) -> bool:
    """Return whether ended runs can have these values of a field."""
    if not set(map(type, values)) <= set(FIELDS[field]):
        return False
    if field in ("created", "started", "ended", "kept_until"):
        times: list[float] = [0, *filter(None, values)]
        return min(times) >= 0 and max(times) < _MAX_TIMESTAMP
    if field in ("metrics", "best"):
        numbers = chain.from_iterable(map(dict.values, values))
        return set(map(type, numbers)) <= set(_NUMBER_OR_NONE)

    return field != "state" or set(values) <= set(ENDED)
