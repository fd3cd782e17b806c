"""Answers of a cloud with a member dropped, null, of another type, or new: never a Python error."""

from __future__ import annotations

import copy
import json
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

import cloudtrain
from cloudtrain.errors import CloudtrainError
from cloudtrain.providers import get_provider
from cloudtrain.providers.discovered_run import KnownRuns
from cloudtrain.settings import load_settings
from tests.fakes.messages import Call, Request, Response
from tests.providers.sites import CREATE_TIMEOUT, NEW_JOB, Site
from tests.support.native_sweeps import PLANNED, begin

pytestmark = [
    pytest.mark.once,
    pytest.mark.usefixtures("site_folder"),
]
SHARE = 150
"""One of so many changes is tried; with `--thorough` all of them."""
Keys = tuple[str | int, ...]
FOUND: set[tuple[str, Keys, str]] = {
    ("Search", ("Results", 0, "TrainingJob", "InputDataConfig", 0), "drop"),
    ("GetRunDetails", ("inputDatasets",), "type"),
    ("GetJob", ("properties", "parameters"), "type"),
    ("ListChildren", ("value", 0, "createdUtc"), "type"),
    ("ListUsages", ("value", 0, "limit"), "type"),
    ("ListUsages", ("value", 0, "name"), "type"),
}
"""Changes that were Python errors once. They are always tried."""
_ERRORS: tuple[Any, ...] = (
    *({}, [], "text", None, {"error": None}, {"error": "text"}, {"error": []}, {"error": {}}),
    {"error": {"code": 5, "message": []}},
    {"error": {"code": None, "message": None, "details": None, "additionalInfo": None}},
    {"error": {"code": "UserError", "message": "m", "details": "text", "innererror": []}},
    {"error": {"code": "UserError", "message": "m", "details": [None, {}, {"message": 5}]}},
    *({"__type": 5}, {"__type": None, "Message": []}, {"__type": "a#b:c", "message": {"a": 1}}),
)
"""Bodies of errors that no service documents."""


class Change(NamedTuple):
    """A changed member of an answer."""

    call: Call
    path: Keys
    kind: str

    def applied(self, document: Any) -> Any:
        """Return the answer with the change."""
        changed = copy.deepcopy(document)
        parent = changed
        for step in self.path[:-1]:
            parent = parent[step]
        last = self.path[-1]
        if self.kind == "drop":
            del parent[last]
        elif self.kind == "null":
            parent[last] = None
        elif self.kind == "new" and isinstance(parent, dict):
            parent["brandNew"] = {"a": [1]}
        else:
            parent[last] = _other_type(parent[last])
        return changed


def _other_type(value: Any) -> Any:
    """Return a value of another type; for some texts, an unknown one."""
    match value:
        case str():
            return {"a": 1} if len(value) % 2 else "BrandNew"
        case dict():
            return "text"
        case list():
            return {"a": "b"}
    return "text"


def changes(call: Call, document: Any, path: Keys = ()) -> Iterator[Change]:
    """Yield changes of every member; of lists, of their first item."""
    members: list[tuple[str | int, Any]] = []
    if isinstance(document, dict):
        members = list(document.items())
    elif isinstance(document, list):
        members = [(0, document[0])] if document else []
    for name, value in members:
        for kind in ("drop", "null", "type", "new"):
            yield Change(call, (*path, name), kind)
        yield from changes(call, value, (*path, name))


class Answers:
    """Answers of an imitated cloud, changed on their way to the client."""

    def __init__(self, site: Site, patch: pytest.MonkeyPatch) -> None:
        self.seen: dict[Call, Any] = {}
        self.change: Change | None = None
        self.error: tuple[Call, bytes] | None = None
        execute = site.cloud.endpoint.execute

        def answer(request: Request, call: Call | None) -> Response:
            response: Response = execute(request, call)
            if self.error is not None and self.error[0] == call:
                headers = [item for item in response.headers if item[0].lower() != "content-length"]
                return Response(400, headers, self.error[1])
            try:
                document = json.loads(response.body)
            except ValueError:
                return response
            if call is None or response.status >= 300:
                return response
            self.seen[call] = document
            if self.change is None or self.change.call != call:
                return response
            try:
                document = self.change.applied(document)
            except (LookupError, TypeError):  # this answer has another form
                return response
            headers = [item for item in response.headers if item[0].lower() != "content-length"]
            return Response(response.status, headers, json.dumps(document).encode())

        patch.setattr(site.cloud.endpoint, "execute", answer)


def operations(site: Site) -> dict[str, Callable[[], object]]:
    """Return what the client does with a job and with a sweep of the cloud's own service."""
    provider = get_provider(site.provider)
    run = site.submit(f"changed-{time.time_ns()}")
    site.start_job(run.id)
    site.write_log(run.id, 0, "a line")
    sweep = begin(
        cloudtrain.plan(
            cloudtrain.load(yaml.safe_load(PLANNED)),
            site.provider,
            run_id=f"sweep-{time.time_ns()}",
        )
    )

    def submit() -> None:
        name = f"again-{time.time_ns()}"
        try:
            site.submit(name)
        finally:
            site.forget_job(name)

    return {
        "observe": lambda: list(provider.observe(run.folder, run.cached_status())),
        "discover": lambda: provider.discover_runs(load_settings(Path.cwd()), None, KnownRuns()),
        "sweep": lambda: provider.native_sweeps().observe(
            sweep.folder, sweep.state, lambda _: None
        ),
        "submit": submit,
    }


def python_error(do: Callable[[], object]) -> str:
    """Return the Python error of an operation with its place; empty for none."""
    try:
        do()
    except CloudtrainError:
        return ""
    except Exception as error:  # noqa: BLE001  (what must not happen)
        frames = traceback.extract_tb(error.__traceback__)[-4:]
        place = " < ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in frames)
        return f"{type(error).__name__}: {error} ({place})"
    return ""


@pytest.fixture
def answers(site: Site, monkeypatch: pytest.MonkeyPatch) -> Answers:
    monkeypatch.setattr(CREATE_TIMEOUT, 0.01)
    monkeypatch.setattr(NEW_JOB, 0)
    return Answers(site, monkeypatch)


def test_no_change_of_an_answer_is_a_python_error(
    site: Site, answers: Answers, thorough: bool
) -> None:
    problems = []
    number = 0
    for name, do in operations(site).items():
        answers.change = None
        answers.seen.clear()
        site.reconnect()
        do()
        for call, document in dict(answers.seen).items():
            for change in changes(call, document):
                number += 1
                is_found = (call.operation, change.path, change.kind) in FOUND
                if number % SHARE and not (thorough or is_found):
                    continue
                answers.change = change
                site.reconnect()
                problem = python_error(do)
                if problem:
                    problems.append(f"{name} {change}: {problem}")
    assert number > 200
    assert not problems, "\n".join(problems)


def test_no_body_of_an_error_is_a_python_error(
    site: Site, answers: Answers, thorough: bool
) -> None:
    problems = []
    actions = operations(site)
    for number, (name, do) in enumerate(actions.items()):
        answers.error = None
        answers.seen.clear()
        site.reconnect()
        do()
        call = [call for call in answers.seen if call.service in ("sagemaker", "arm", "history")][
            -1
        ]
        for body in _ERRORS if thorough else _ERRORS[number :: len(actions)]:
            answers.error = call, json.dumps(body).encode()
            site.reconnect()
            problem = python_error(do)
            if problem:
                problems.append(f"{name} {call} {body}: {problem}")
    assert not problems, "\n".join(problems)
