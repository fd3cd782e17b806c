"""The workflows, ours and those to copy: valid, least rights, pinned actions, no text of others in a shell."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from cloudtrain.settings import KEYS
from tests.house.tools import ROOT, tool

OURS = sorted((ROOT / ".github/workflows").glob("*.yml"))
TO_COPY = sorted((ROOT / "examples/github-actions").glob("*.yml"))
WORKFLOWS = [*OURS, *TO_COPY]


def run(*argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture(params=WORKFLOWS, ids=lambda path: path.name)
def workflow(request: pytest.FixtureRequest) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(request.param.read_text())
    return found


def steps(workflow: dict[str, Any]) -> list[dict[str, Any]]:
    return [step for job in workflow["jobs"].values() for step in job["steps"]]


def test_there_are_workflows_of_both_kinds() -> None:
    assert [path.name for path in OURS] == ["ci.yml"]
    assert [path.name for path in TO_COPY] == ["train-on-aws.yml", "train-on-azure.yml"]


def test_zizmor_finds_nothing() -> None:
    done = run(tool("zizmor"), "--offline", "--quiet", "--persona", "pedantic", ".github", *map(str, TO_COPY))
    assert done.returncode == 0, done.stdout + done.stderr


def test_github_would_take_them() -> None:
    files = {"vendor.github-workflows": WORKFLOWS, "vendor.dependabot": [ROOT / ".github/dependabot.yml"]}
    for schema, paths in files.items():
        done = run(tool("check-jsonschema"), "--builtin-schema", schema, *map(str, paths))
        assert done.returncode == 0, done.stdout + done.stderr


def test_nothing_is_permitted_but_what_a_job_needs(workflow: dict[str, Any]) -> None:
    assert workflow["permissions"] == {}
    for job in workflow["jobs"].values():
        rights = job["permissions"]
        assert rights.items() <= {"contents": "read", "id-token": "write"}.items()
        assert ("id-token" in rights) == ("environment" in job), "who vouches is said by an environment"
        assert job["timeout-minutes"] <= 60


def test_actions_are_pinned_by_their_commit_and_keep_no_credentials(workflow: dict[str, Any]) -> None:
    for step in steps(workflow):
        if "uses" in step:
            assert re.fullmatch(r"actions/checkout@[0-9a-f]{40}", step["uses"]), "no action of third parties"
            assert step["with"] == {"persist-credentials": False}


def test_scripts_are_shell_that_shellcheck_likes(workflow: dict[str, Any], tmp_path: Path) -> None:
    for step in steps(workflow):
        if "run" in step:
            script = tmp_path / "step.sh"
            script.write_text(f"#!/bin/bash -e\n{step['run']}")
            # The environment that GitHub gives is not assigned in the script.
            done = run(tool("shellcheck"), "--exclude", "SC2154", str(script))
            assert done.returncode == 0, done.stdout
            assert "${{" not in step["run"]


def test_what_they_set_are_settings() -> None:
    names = {f"CLOUDTRAIN_{key.upper().replace('.', '_')}" for key in KEYS}
    for path in TO_COPY:
        said = set(re.findall(r"\b(CLOUDTRAIN_\w+):", path.read_text()))
        assert said
        assert said <= names


def test_ci_runs_what_a_person_runs() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    commands = [step["run"] for path in OURS for step in steps(yaml.safe_load(path.read_text())) if "run" in step]
    for command in commands:
        program, target, *_ = command.split()
        assert (program == "make" and target in targets) or (ROOT / program).is_file(), command
