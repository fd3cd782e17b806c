"""Conformance suite for pytest: a test for each promise that a provider has to keep.

    from contextlib import contextmanager
    from cloudtrain.testing.conformance import Platform, ProviderConformance

    class TestMine(ProviderConformance):
        @classmethod
        @contextmanager
        def platform(cls, folder):
            yield Platform(provider="mine", job={"mine": {"host": "here"}})

Each failure shows the behavior of the provider and the promise of the protocol.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from cloudtrain.api.jobs import plan as make_plan
from cloudtrain.api.jobs import render
from cloudtrain.declaration import Declaration, declaration_of
from cloudtrain.errors import Issue, SpecError
from cloudtrain.planning.launch import JobDocument, Request
from cloudtrain.runs.store import RunStore
from cloudtrain.testing.bench import (
    GREETING,
    GREETING_FILE,
    SECRET,
    Bench,
    Checks,
    Effects,
    Platform,
    must,
    recorded,
)
from cloudtrain.testing.run_checks import RunChecks

__all__ = ["GREETING", "GREETING_FILE", "SECRET", "Platform", "ProviderConformance"]


class PlanningChecks(Checks):
    """Checks of a provider's values."""

    def test_its_declaration_is_complete(self, bench: Bench) -> None:
        declared = declaration_of(bench.name)
        must(
            isinstance(bench.provider.declaration, Declaration)
            and bench.provider.declaration.name == bench.name,
            f"its declaration names it {bench.provider.declaration.name!r}, and it is found as"
            f" {bench.name!r}",
            "declaration.name is the name of the entry point, the value of --provider, the key in"
            " job.yaml",
        )
        must(bool(declared.label), "its label is empty", "declaration.label is what people call it")
        must(
            _scheme(declared.input_example) in declared.input_schemes,
            f"its input_example {declared.input_example!r} does not begin with one of the input_schemes"
            f" {declared.input_schemes}",
            "declaration.input_example is an input that it can read",
        )

    def test_what_its_declaration_shows_can_be_written_in_a_job(self, bench: Bench) -> None:
        declared = declaration_of(bench.name)
        locations = [f"{store}:{form}" for store, form in declared.secret_stores.items()]
        document = dict(bench.platform.job)
        document["secrets"] = {
            f"S{number}": {bench.name: location} for number, location in enumerate(locations)
        }
        document["inputs"] = {"data": {bench.name: declared.input_example}}
        problems = _problems(bench, document)
        promise = (
            "declaration.input_example and secret_stores are what messages tell users to write"
        )
        must(not problems, f"a job with its own examples is refused: {_lines(problems)}", promise)

    def test_an_unknown_key_of_its_section_is_refused_at_its_line(self, bench: Bench) -> None:
        problems = _problems(bench, {bench.name: {"no_such_key": 1}})
        path: tuple[str, ...] = (bench.name,)
        place = "job.yaml:2:1"

        if declaration_of(bench.name).section is not None:
            path = (bench.name, "no_such_key")
            place = "job.yaml:3:3"

        must(
            any(issue.path == path and issue.origin.endswith(place) for issue in problems),
            f"a key that it does not know is answered with: {_lines(problems) or 'nothing'}",
            f"an unknown key of its section is refused, at {place}",
        )

    def test_planning_starts_no_process_and_opens_no_connection(self, bench: Bench) -> None:
        runs = RunStore(bench.data_dir)
        before = set(runs.ids())
        errors: list[Issue] = []

        with recorded(is_forbidden=True) as effects, suppress(PermissionError):
            plan = bench.plan("succeed")
            render(plan)
            errors = [issue for issue in plan.issues if issue.is_error]

        must(
            not effects.processes + effects.connections,
            f"target, render or rules did more than compute: {_shown(effects)}",
            "up to `render` all is pure; `rules` may read the disk; what takes a process or a"
            " network is in `checks`",
        )

        must(
            not errors,
            f"it refuses the suite's job: {_lines(errors)}",
            "rules refuse what cannot run there",
        )
        must(set(runs.ids()) == before, "planning wrote a run", "a plan is a value")

    def test_one_plan_makes_one_request_of_plain_json(self, bench: Bench) -> None:
        plan = bench.plan("succeed")
        before = json.dumps(plan.to_json())
        first = render(plan)
        second = bench.provider.render(plan)
        must(isinstance(first, Request), f"render returned {first!r}", "render returns a Request")
        must(
            isinstance(first.job, JobDocument),
            f"its job document is {first.job!r}",
            "Request.job is a JobDocument",
        )

        must(
            first == second,
            "two renders of one plan differ",
            "render is a function of the plan alone",
        )

        must(
            json.dumps(plan.to_json()) == before,
            "render changed the plan",
            "nothing changes a plan",
        )

        must(
            first.provider == bench.name,
            f"the request is of {first.provider!r}",
            "Request.provider is its name",
        )
        for name, document in (("document", first.document), ("job", first.job.to_json())):
            must(
                json.loads(json.dumps(document)) == document,
                f"Request.{name} is another thing when it is read back",
                "a request is plain JSON: text, numbers, lists, mappings",
            )

    def test_a_plan_keeps_its_config_when_it_is_stored(self, bench: Bench) -> None:
        config = bench.plan("succeed").target.config
        must(
            dataclasses.is_dataclass(config),
            f"its config is {config!r}",
            "a ProviderConfig is a frozen dataclass",
        )
        stored = json.loads(json.dumps(config.to_json()))
        must(
            type(config).from_json(stored) == config,
            f"its config is {config!r}, and from plan.json {type(config).from_json(stored)!r}",
            "ProviderConfig.from_json reads what to_json gave: later looks at a run go by it",
        )

    def test_neither_plan_nor_request_holds_the_value_of_a_secret(self, bench: Bench) -> None:
        plan = bench.plan("succeed")
        request = render(plan)
        for name, document in (
            ("plan", plan.to_json()),
            ("request", [request.document, request.job.to_json()]),
        ):
            must(
                SECRET not in json.dumps(document),
                f"its {name} holds the value of a secret",
                "a spec names where a secret is kept; its value is looked up when the job starts,"
                " on its machine",
            )

    def test_more_nodes_than_it_runs_are_refused_at_their_line(self, bench: Bench) -> None:
        if bench.plan("succeed").target.max_nodes >= 1000:
            return

        problems = _problems(bench, {"resources": {"nodes": 1000}, **bench.platform.job})
        lines = [issue.origin for issue in problems if issue.path == ("resources", "nodes")]
        must(
            any("job.yaml:3:3" in line for line in lines),
            f"1000 nodes are answered with: {_lines(problems) or 'nothing'}",
            "target.max_nodes is how many it runs at once; more are refused at the line that"
            " says so",
        )


def _problems(bench: Bench, document: Mapping[str, Any]) -> list[Issue]:
    """Return the issues of loading and planning a job."""
    try:
        make_plan(bench.load(document), bench.name)
    except SpecError as error:
        return list(error.issues)

    return []


def _lines(issues: list[Issue]) -> str:
    return "; ".join(issue.line() for issue in issues)


def _shown(effects: Effects) -> str:
    return "; ".join(effects.processes + effects.connections)[:1000]


def _scheme(place: str) -> str:
    if "://" not in place:
        return ""

    return place.partition("://")[0]


# pytest runs the tests of the last base first
class ProviderConformance(RunChecks, PlanningChecks):
    """The whole suite. Subclass it as `Test…` and implement `platform`.

    `timeout_seconds`: maximum duration of a job, including its wait for a machine.
    """
