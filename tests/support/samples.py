"""Starting points of tests: folders, runs, events, accounts, programs and earlier runs."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import Any, NamedTuple

import yaml

from cloudtrain.api.doctor import exit_code
from cloudtrain.checkup import Check
from cloudtrain.runs.files import strict_json
from cloudtrain.runs.fold import fold
from cloudtrain.runs.folder import RunFolder
from cloudtrain.runs.state import RunState
from cloudtrain.runs.store import RunStore
from cloudtrain_wire import events

# Starting points of several tests: a folder of files, a run that was just submitted, events,
# settings of accounts.

BORN: dict[str, Any] = {
    "type": "submitting",
    "time": 100.0,
    "name": "digits",
    "provider": "local",
    "contract": "plain",
    "nodes": 2,
    "processes": 4,
}

AWS_ACCOUNT = {
    "CLOUDTRAIN_AWS_REGION": "us-east-1",
    "CLOUDTRAIN_AWS_ROLE": "arn:aws:iam::123456789012:role/train",
    "CLOUDTRAIN_AWS_BUCKET": "my-bucket",
}
AZURE_ACCOUNT = {
    "CLOUDTRAIN_AZURE_SUBSCRIPTION": "00000000-0000-0000-0000-000000000000",
    "CLOUDTRAIN_AZURE_RESOURCE_GROUP": "my-group",
    "CLOUDTRAIN_AZURE_WORKSPACE": "my-workspace",
    "CLOUDTRAIN_AZURE_LOCATION": "eastus",
}
"""Settings of accounts that no test calls."""


def names_of_wrong(checks: Iterable[Check]) -> list[str]:
    """Return the names of the checks that report a mistake; each says what to do about it."""
    for check in checks:
        assert check.answer, check.name
        assert check.fix or not check.is_wrong, check.name
    return [check.name for check in checks if check.is_wrong]


def assert_only_wrong(checks: list[Check], name: str, message: str) -> None:
    """One check alone reports a mistake, with this message."""
    assert names_of_wrong(checks) == [name]
    (check,) = [check for check in checks if check.is_wrong]
    assert message in f"{check.answer} {check.fix}"
    assert exit_code(checks) == (4 if name == "credentials" else 2)


def born(
    store: RunStore, run_id: str, *events: dict[str, Any], created: float = 100.0
) -> RunFolder:
    """A run folder with its first events."""
    folder = store.create(run_id, {"plan.json": "{}"})
    write_events(folder, {**BORN, "time": created}, *events)
    return folder


def write_events(folder: RunFolder, *events: Mapping[str, Any]) -> None:
    """Append events to a run unchanged, one line of JSON each, valid or not."""
    with folder.events_file.open("a", encoding="utf-8", errors="surrogateescape") as file:
        file.writelines(strict_json(event) + "\n" for event in events)


def write(root: Path, files: Mapping[str, str]) -> Path:
    """A folder with these files."""
    for path, text in files.items():
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


# Events as JSON objects, the form of most tests.


def as_json(event: events.Event | Mapping[str, Any]) -> dict[str, Any]:
    """Return an event as the JSON object of a run's events.jsonl."""
    return event.to_json() if isinstance(event, events.Event) else dict(event)


def events_of(run: RunFolder) -> list[dict[str, Any]]:
    """All events of a run."""
    return [event.to_json() for event in run.events()]


def fold_json(run_id: str, documents: Iterable[Any], state: RunState | None = None) -> RunState:
    """Return the state of these JSON objects, read back as events; skip others."""
    parsed = (events.from_json(document) for document in documents)
    return fold(run_id, (event for event in parsed if event is not None), state)


def event(type: str, **fields: Any) -> events.Event:
    """An event of that type; of a program, where the type is not one of ours."""
    parsed = events.from_json({"type": type, **fields})
    assert parsed is not None, f"not a valid event: {type} {fields}"
    return parsed


# Programs of tests as executable files.


def python_program(path: Path, text: str) -> Path:
    """An executable file that runs this Python text. The path of an interpreter may have spaces,
    which `#!` cannot.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    program = path.with_name(f"{path.name}-program.py")
    program.write_text(text)
    path.write_text(f'#!/bin/sh\nexec {quote(sys.executable)} {quote(str(program))} "$@"\n')
    path.chmod(0o755)
    return path


@contextmanager
def without(*prefixes: str) -> Iterator[None]:
    """Remove a person's variables with these prefixes inside, and afterwards those of an SDK."""
    before = dict(os.environ)
    for name in [name for name in os.environ if name.startswith(prefixes)]:
        del os.environ[name]
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


# Run folders as version 0.1.0 wrote them, put where a test's client finds them.
# They were written by that version itself: two local runs, two rehearsals, and on imitations of
# both clouds a job that was still in its queue and one that had succeeded; each cloud's jobs once
# more as another machine has taken them up. What only made sense on that machine (locks, process
# ids) is left out.

STORED = Path(__file__).resolve().parents[1] / "data" / "runs_of_0_1_0"


def earlier_runs(kind: str, data_dir: Path, job: Path) -> str:
    """Put the runs of a kind (`local`, `aws`, `aws-adopted`, …) into a data folder, which is
    returned as text.

    `job`: the folder that they were submitted from; the program and the input that they name are
    made there.
    """
    shutil.copytree(STORED / kind, data_dir / "runs")
    values = {"@DATA@": str(data_dir), "@JOB@": str(job), "@PYTHON@": sys.executable}
    for file in (data_dir / "runs").rglob("*"):
        if file.is_file():
            text = file.read_text()
            for placeholder, value in values.items():
                text = text.replace(placeholder, value)
            file.write_text(text)
    (job / "data").mkdir(parents=True, exist_ok=True)
    (job / "data" / "a.txt").write_text("1\n")
    (job / "train.py").write_text("print('never run')\n")
    return str(data_dir)


# Wrong inputs, a row each, from a table in tests/data.

_REPEATED = re.compile(r"\{([^{}]+)\*(\d+)\}")


class Row(NamedTuple):
    """A wrong input and its report."""

    id: str
    job: str | None = "{}\n"
    shown: tuple[str, ...] = ()
    env: Mapping[str, str] = {}
    run_id: str = ""
    limit: bool = False


def wrong_inputs(table: str, *sections: str) -> list[Row]:
    """Return the rows of a table's sections in the words of the last one, a cloud."""
    document = yaml.safe_load((STORED.parent / table).read_text())
    rows: dict[str, Any] = {}
    for section in sections:
        rows |= document[section]
    words = document["words"][sections[-1]]
    return [_row(id, fields, words) for id, fields in rows.items()]


def _row(id: str, fields: dict[str, Any], words: Mapping[str, str]) -> Row:
    def filled(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: filled(text) for name, text in value.items()}
        if isinstance(value, list):
            return tuple(map(filled, value))
        if not isinstance(value, str):
            return value
        for word, meaning in words.items():
            value = value.replace(f"@{word}@", meaning)
        return repeated(value)

    row = filled(fields)
    shown = row.pop("shown", ())
    shown = (shown,) if isinstance(shown, str) else shown
    place = (f"job.yaml:{row.pop('at')}: ",) if "at" in row else ()
    return Row(id, shown=place + shown, **row)


def repeated(text: str) -> str:
    """Return a text with nine times x for `{x*9}`; `#` in it is the number of each."""
    return _REPEATED.sub(_repeat, text)


def _repeat(match: re.Match[str]) -> str:
    text = match[1]
    times = int(match[2])
    if "#" not in text:
        return text * times
    return "".join(text.replace("#", str(number)) for number in range(times))
