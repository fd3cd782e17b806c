"""Successful rehearsals of a plan's request on this machine, and their differences from it.

Each rehearsal adds a line to the data folder with the digest of its request, without run ids, times
and the tags that identify jobs.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from cloudtrain.errors import StorageError
from cloudtrain.planning.launch import TAG_PREFIX, Request, unfolded
from cloudtrain.planning.plan import Plan, Rehearsal, json_digest
from cloudtrain.runs.files import append_lines
from cloudtrain.runs.folder import JOB, REQUEST, RunFolder
from cloudtrain_wire.bounded_files import read_regular_text
from cloudtrain_wire.events import Ended

FILE = "rehearsals.jsonl"
"""File in the data folder with a line per rehearsal, written at its start."""

MAX_LOOKED_AT = 50
"""Maximum number of recent rehearsals of a job to look at."""

_PLACEHOLDERS = ("not-set-yet", "00000000-0000-0000-0000-000000000000")
"""Placeholders for missing account settings in a rehearsed request, ignored in differences."""
_VALUES = "job.values."
_WORDS = "job.argv["
"""Prefixes of the program's arguments, by name and as words of the command line."""
_MAX_VALUE = 40

_PLANNED = f"{TAG_PREFIX}planned"


def record_rehearsal(plan: Plan, request: Request) -> None:
    """Record the digest of a rehearsal's request. Raise StorageError if the disk refuses."""
    line = {
        "name": plan.spec.name,
        "provider": plan.target.provider,
        "run": plan.run_id,
        "digest": json_digest(
            _comparable(_documents(request), plan.run_id, plan.context.source.digest)
        ),
        "source": plan.context.source.digest,
        "time": time.time(),
    }
    append_lines(Path(plan.context.data_dir) / FILE, json.dumps(line) + "\n", durable=False)


def with_rehearsal(plan: Plan) -> Plan:
    """Return the plan with its newest successful rehearsal, of the same request if possible."""
    if plan.is_rehearsal or plan.target.contract == "plain" or plan.target.placeholders:
        return plan

    rehearsals = list(_succeeded(plan))
    if not rehearsals:
        return plan

    request = _documents(plan.request)
    comparable = _comparable(request, plan.run_id, plan.context.source.digest)
    digest = json_digest(comparable)
    for line in rehearsals:
        if (line["digest"], line["source"]) == (digest, _source(plan)):
            return _rehearsed(plan, line, ())

    line = rehearsals[0]
    return _rehearsed(plan, line, tuple(_changes(plan, line, comparable)))


def _rehearsed(plan: Plan, line: Mapping[str, Any], changes: tuple[str, ...]) -> Plan:
    rehearsal = Rehearsal(run=line["run"], time=line["time"], changes=changes)
    return replace(plan, context=replace(plan.context, rehearsal=rehearsal))


def _source(plan: Plan) -> str:
    return plan.context.source.digest


def _succeeded(plan: Plan) -> Iterator[dict[str, Any]]:
    """Yield the successful rehearsals of this job for this provider, newest first."""
    data_dir = Path(plan.context.data_dir)
    try:
        lines = read_regular_text(data_dir / FILE).splitlines()
    except (OSError, UnicodeDecodeError):
        return

    name = f'"name": {json.dumps(plan.spec.name)}'
    provider = f'"provider": {json.dumps(plan.target.provider)}'
    matches = [text for text in lines if name in text and provider in text]
    for text in reversed(matches[-MAX_LOOKED_AT:]):
        try:
            line = json.loads(text)
            ended = RunFolder(data_dir / "runs" / line["run"]).last_event(Ended)
        except (ValueError, KeyError, TypeError, StorageError):
            continue  # a line of another version, or a run that cannot be read

        if ended is not None and ended.state == "succeeded":
            yield line


def _changes(plan: Plan, line: Mapping[str, Any], comparable: Any) -> Iterator[str]:
    """Yield the differences of the plan's request from a rehearsal, a short text each."""
    folder = RunFolder(Path(plan.context.data_dir) / "runs" / line["run"])
    if line["source"] != _source(plan):
        yield f"the source (sha256:{line['source'][:8]}… → {_source(plan)[:8]}…)"

    try:
        request = unfolded(folder.document(REQUEST))
        documents = {"request": request, "job": folder.document(JOB)}
    except StorageError:
        yield f"its {REQUEST} cannot be read"
        return

    before = dict(_leaves(_comparable(documents, line["run"], line["source"])))
    current = dict(_leaves(comparable))
    paths = sorted(before.keys() | current.keys())
    differing = [path for path in paths if before.get(path) != current.get(path)]

    # Values by name make the words of the command line redundant.
    if any(path.startswith(_VALUES) for path in differing):
        differing = [path for path in differing if not path.startswith(_WORDS)]

    for path in differing:
        if not any(text in str(before.get(path)) for text in _PLACEHOLDERS):
            yield f"{path}: {_shown(before, path)} → {_shown(current, path)}"


def _documents(request: Request) -> dict[str, Any]:
    return {"request": unfolded(request.document), "job": request.job.to_json()}


def _comparable(documents: Mapping[str, Any], run_id: str, source: str) -> Any:
    """Return plain JSON without run id, time, our tags and the source."""
    named = json.loads(json.dumps(documents).replace(source, "{source}"))
    return without_tags(without_varying(named, run_id), lambda name: name.startswith(TAG_PREFIX))


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every single value with its dotted path."""
    if isinstance(value, dict):
        for key, item in value.items():
            if path:
                yield from _leaves(item, f"{path}.{key}")
            else:
                yield from _leaves(item, key)
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from _leaves(item, f"{path}[{number}]")
    else:
        yield path, value


def _shown(values: Mapping[str, Any], path: str) -> str:
    if path not in values:
        return "nothing"

    text = json.dumps(values[path], ensure_ascii=False)
    if len(text) <= _MAX_VALUE:
        return text

    return f"{text[:_MAX_VALUE]}…"


def without_varying(document: Any, run_id: str) -> Any:
    """Return plain JSON without run id, digest of the job document and time of planning.

    `run_id`: empty if unknown. It may be a short word: keys and parts of other words stay.
    """
    text = json.dumps(document)
    if run_id:
        text = re.sub(rf'(?<![A-Za-z0-9]){re.escape(run_id)}(?![A-Za-z0-9]|": )', "{run}", text)

    return without_tags(
        json.loads(re.sub(r"/job/[0-9a-f]{16}/", "/job/…/", text)), lambda name: name == _PLANNED
    )


def without_tags(value: Any, is_left_out: Callable[[str], bool]) -> Any:
    """Return plain JSON without these tags, in mappings and in AWS lists of Key and Value."""
    if isinstance(value, dict):
        kept = {key: item for key, item in value.items() if not is_left_out(key)}
        return {key: without_tags(item, is_left_out) for key, item in kept.items()}

    if isinstance(value, list):
        return [without_tags(item, is_left_out) for item in value if not is_left_out(_key_of(item))]
    return value


def _key_of(item: Any) -> str:
    if not isinstance(item, dict):
        return ""

    return str(item.get("Key", ""))
