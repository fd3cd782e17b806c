"""Rehearsals that succeeded: whether one ran the very request of a plan on this machine, or in what
it differs.

Each rehearsal leaves a line in the data folder with the digest of its request. What always differs
is left out of that: run ids, times, and the tags by which jobs are found again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from cloudtrain.errors import StorageError
from cloudtrain.planning.plan import Plan, Rehearsal, json_digest
from cloudtrain.providers import Request, get_provider
from cloudtrain.providers.shared.tags import TAG_PREFIX
from cloudtrain.runs.files import append_lines
from cloudtrain.runs.folder import RunFolder
from cloudtrain.runs.record import JOB, REQUEST
from cloudtrain.submission.comparable import without_tags, without_varying
from cloudtrain_launcher.events import Ended
from cloudtrain_launcher.packages.bounded_files import read_regular_text

FILE = "rehearsals.jsonl"
"""In the data folder: a line for each rehearsal, written at its start."""

MAX_LOOKED_AT = 50
"""Of the rehearsals of a job, the newest: more than so many changes later nobody remembers one."""

_PLACEHOLDERS = ("not-set-yet", "00000000-0000-0000-0000-000000000000")
"""What stands in a rehearsed request for settings of an account that were missing: no difference to
speak of.
"""
_VALUES = "job.values."
_WORDS = "job.argv["
"""The arguments of the program by their names, and as the words of its command line."""
_MAX_VALUE = 40


def record_rehearsal(plan: Plan, request: Request) -> None:
    """Leave the digest of a rehearsal's request. StorageError when the disk refuses."""
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
    """The plan with what is known of its rehearsals: the newest that succeeded, of the same request
    if there is one.
    """
    if plan.is_rehearsal or plan.target.contract == "plain" or plan.target.placeholders:
        return plan
    found = list(_succeeded(plan))
    if not found:
        return plan
    request = _documents(get_provider(plan.target.provider).render(plan))
    own = _comparable(request, plan.run_id, plan.context.source.digest)
    digest = json_digest(own)
    line = next(
        (line for line in found if (line["digest"], line["source"]) == (digest, _source(plan))),
        None,
    )
    changes: tuple[str, ...] = ()
    if line is None:
        line = found[0]
        changes = tuple(_changes(plan, line, own))
    rehearsal = Rehearsal(run=line["run"], time=line["time"], changes=changes)
    return replace(plan, context=replace(plan.context, rehearsal=rehearsal))


def _source(plan: Plan) -> str:
    return plan.context.source.digest


def _succeeded(plan: Plan) -> Iterator[dict[str, Any]]:
    """The rehearsals of this job for this provider that have succeeded, the newest first."""
    data_dir = Path(plan.context.data_dir)
    try:
        lines = read_regular_text(data_dir / FILE).splitlines()
    except (OSError, UnicodeDecodeError):
        return
    mine = [
        f'"name": {json.dumps(plan.spec.name)}',
        f'"provider": {json.dumps(plan.target.provider)}',
    ]
    own = [text for text in lines if all(part in text for part in mine)]
    for text in reversed(own[-MAX_LOOKED_AT:]):
        try:
            line = json.loads(text)
            ended = RunFolder(data_dir / "runs" / line["run"]).last_event(Ended)
        except (ValueError, KeyError, TypeError, StorageError):
            continue  # a line of another version, or a run that cannot be read
        if ended is not None and ended.state == "succeeded":
            yield line


def _changes(plan: Plan, line: Mapping[str, Any], own: Any) -> Iterator[str]:
    """In what the plan's request differs from that of a rehearsal, a short text each."""
    folder = RunFolder(Path(plan.context.data_dir) / "runs" / line["run"])
    if line["source"] != _source(plan):
        yield f"the source (sha256:{line['source'][:8]}… → {_source(plan)[:8]}…)"
    try:
        documents = {"request": folder.document(REQUEST), "job": folder.document(JOB)}
    except StorageError:
        yield f"its {REQUEST} cannot be read"
        return
    before = dict(_leaves(_comparable(documents, line["run"], line["source"])))
    current = dict(_leaves(own))
    differing = sorted(
        path for path in {*before, *current} if before.get(path) != current.get(path)
    )
    if any(
        path.startswith(_VALUES) for path in differing
    ):  # by name; their words would say the same again
        differing = [path for path in differing if not path.startswith(_WORDS)]
    for path in differing:
        old, new = (
            _shown(values[path]) if path in values else "nothing" for values in (before, current)
        )
        if not any(text in str(before.get(path)) for text in _PLACEHOLDERS):
            yield f"{path}: {old} → {new}"


def _documents(request: Request) -> dict[str, Any]:
    return {"request": request.document, "job": request.job.to_json()}


def _comparable(documents: Mapping[str, Any], run_id: str, source: str) -> Any:
    """Plain JSON without what always differs, and without our own tags and the source, which is
    compared by itself.
    """
    named = json.loads(json.dumps(documents).replace(source, "{source}"))
    return without_tags(without_varying(named, run_id), lambda name: name.startswith(TAG_PREFIX))


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every single value with its dotted path."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _leaves(item, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from _leaves(item, f"{path}[{number}]")
    else:
        yield path, value


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _MAX_VALUE else f"{text[:_MAX_VALUE]}…"
