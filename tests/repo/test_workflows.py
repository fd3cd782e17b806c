"""The workflows, ours and those to copy: valid, least rights, pinned actions, no text of others in
a shell.
"""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from cloudtrain_wire.requirement_files import normalised
from tests.repo.tools import ROOT, tool
from tests.support.waiting import HANG_SECONDS

OURS = sorted((ROOT / ".github/workflows").glob("*.yml"))
TO_COPY = sorted((ROOT / "examples/github-actions").glob("*.yml"))
ACTIONS = sorted((ROOT / ".github/actions").glob("*/action.yml"))
STARTING_JOBS = [path for path in TO_COPY if path.stem.startswith("train-on-")]
WORKFLOWS = [*OURS, *TO_COPY]
PINNED = re.compile(
    r"actions/(checkout|cache|setup-python)@[0-9a-f]{40}|\$/\.github/.+|OWNER/cloudtrain/.+@0{40}"
)
"""No actions of third parties: only GitHub's own, this repository at the same commit, and parts
that a reader fills in.
"""


def run(*argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        argv, cwd=ROOT, capture_output=True, text=True, timeout=HANG_SECONDS, check=False
    )


@pytest.fixture(params=WORKFLOWS, ids=lambda path: path.name)
def workflow(request: pytest.FixtureRequest) -> dict[str, Any]:
    return read(request.param)


def read(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load(path.read_text())
    return document


def steps(workflow: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the steps of a workflow's jobs or of an action; empty for a job that calls another
    workflow.
    """
    jobs = workflow["jobs"].values() if "jobs" in workflow else [workflow["runs"]]
    return [step for job in jobs for step in job.get("steps", ())]


def test_zizmor_finds_nothing() -> None:
    process = run(
        tool("zizmor"),
        "--offline",
        "--quiet",
        "--persona",
        "pedantic",
        ".github",
        *map(str, TO_COPY),
    )
    assert process.returncode == 0, process.stdout + process.stderr


def test_github_accepts_the_workflows() -> None:
    files = {"vendor.github-workflows": WORKFLOWS, "vendor.github-actions": ACTIONS}
    files["vendor.dependabot"] = [ROOT / ".github/dependabot.yml"]
    for schema, paths in files.items():
        process = run(tool("check-jsonschema"), "--builtin-schema", schema, *map(str, paths))
        assert process.returncode == 0, process.stdout + process.stderr


def test_nothing_is_permitted_but_what_a_job_needs(workflow: dict[str, Any]) -> None:
    assert workflow["permissions"] == {}
    for job in workflow["jobs"].values():
        rights = job["permissions"]
        assert (
            rights.items()
            <= {"contents": "read", "id-token": "write", "pull-requests": "write"}.items()
        )
        if "uses" in job:  # the called workflow asks for its rights, a subset of these
            continue
        assert ("id-token" in rights) == ("environment" in job), "an environment names who vouches"
        assert job["timeout-minutes"] <= 60


def test_the_code_of_a_pull_request_runs_without_the_right_to_write() -> None:
    jobs = read(ROOT / ".github/workflows/train.yml")["jobs"]
    writing = {name for name, job in jobs.items() if "pull-requests" in job["permissions"]}
    training = {
        name
        for name, job in jobs.items()
        if any("submit" in step.get("run", "") for step in job["steps"])
    }
    assert (writing, training) == ({"plan"}, {"rehearse", "submit"})


def test_actions_are_pinned_by_their_commit_and_keep_no_credentials(
    workflow: dict[str, Any],
) -> None:
    for step in [*steps(workflow), *workflow["jobs"].values()]:
        if "uses" in step:
            assert PINNED.fullmatch(step["uses"])
            assert "checkout" not in step["uses"] or step["with"]["persist-credentials"] is False


@pytest.mark.parametrize(
    "path", [*WORKFLOWS, *ACTIONS], ids=lambda path: path.relative_to(ROOT).as_posix()
)
def test_scripts_are_shell_that_shellcheck_likes(path: Path, tmp_path: Path) -> None:
    for step in steps(read(path)):
        if "run" in step:
            script = tmp_path / "step.sh"
            script.write_text(f"#!/bin/bash -e\n{step['run']}")
            # The environment that GitHub gives is not assigned in the script.
            process = run(tool("shellcheck"), "--exclude", "SC2154", str(script))
            assert process.returncode == 0, process.stdout
            assert "${{" not in step["run"]


def test_scripts_of_actions_are_shell_that_shellcheck_likes() -> None:
    scripts = sorted((ROOT / ".github/actions").glob("*/*.sh"))
    assert scripts
    process = run(tool("shellcheck"), *map(str, scripts))
    assert process.returncode == 0, process.stdout


def test_a_job_that_may_ask_for_a_token_installs_by_the_setup_action_alone() -> None:
    for path in WORKFLOWS:
        for job in read(path)["jobs"].values():
            if "id-token" not in job["permissions"] or "uses" in job:
                continue
            actions = [step["uses"].partition("@")[0] for step in job["steps"] if "uses" in step]
            assert actions[-1].endswith("/.github/actions/setup")
            assert "install" not in "".join(step.get("run", "") for step in job["steps"])


def test_the_setup_action_installs_files_with_known_hashes_alone(tmp_path: Path) -> None:
    (step,) = steps(read(ROOT / ".github/actions/setup/action.yml"))
    pip = f'#!/bin/sh\necho "$*" >>"{tmp_path}/installs"\n'
    venv = '#!/bin/sh\nmkdir -p "$3/bin" && cp "${0%/*}/pip" "$3/bin/pip"\n'
    for name, script in {"pip": pip, "python3": venv}.items():
        (tmp_path / name).write_text(script)
        (tmp_path / name).chmod(0o755)
    env = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "RUNNER_TEMP": str(tmp_path / "runner"),
        "GITHUB_PATH": str(tmp_path / "path"),
        "GITHUB_ACTION_PATH": str(ROOT / ".github/actions/setup"),
        "EXTRAS": "aws,azure",
    }
    subprocess.run(["bash", "-e", "-c", step["run"]], env=env, check=True, timeout=HANG_SECONDS)

    here = ROOT / ".github/actions/setup"
    assert (tmp_path / "installs").read_text().splitlines() == [
        "install --quiet --only-binary :all: --require-hashes"
        f" -r {here}/aws.txt -r {here}/azure.txt",
        f"install --quiet --no-index --no-deps --no-build-isolation {ROOT}",
    ]


@pytest.mark.parametrize("extra", ["aws", "azure", "docker", "train"])
def test_the_files_of_the_setup_action_pin_what_was_tested(extra: str) -> None:
    pins = re.compile(r"^([\w.-]+)==([^\s;]+)", re.MULTILINE)
    constraints = pins.findall((ROOT / "constraints.txt").read_text())
    tested = {normalised(name): version for name, version in constraints}
    text = (ROOT / f".github/actions/setup/{extra}.txt").read_text()
    pinned = dict(pins.findall(text))
    assert pinned == {name: tested.get(name) for name in pinned}
    assert text.count("--hash=sha256:") >= len(pinned)

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"][extra], "hatchling"]
    torch = pins.findall((ROOT / "docker/torch-cpu.txt").read_text()) if extra == "train" else []
    names = {re.split(r"[<>=\[]", text)[0] for text in wanted}
    assert names <= pinned.keys() | dict(torch).keys()


@pytest.mark.parametrize("path", STARTING_JOBS, ids=lambda path: path.name)
def test_the_token_reaches_the_clouds_sdk_in_a_file_of_its_own(path: Path, tmp_path: Path) -> None:
    workflow = yaml.safe_load(path.read_text())
    submit = steps(workflow)[-1]
    stubs = {
        "curl": 'printf "%s\\n" "$@" > "$RUNNER_TEMP/asked"; printf \'{"value": "the-token"}\'',
        "cloudtrain": 'printf "%s\\n" "$@" > "$RUNNER_TEMP/arguments"',
    }
    for name, script in stubs.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    environment = {
        "RUNNER_TEMP": str(tmp_path),
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "JOB": "my job.yaml",
    }
    environment |= {
        "ACTIONS_ID_TOKEN_REQUEST_TOKEN": "bearer",
        "ACTIONS_ID_TOKEN_REQUEST_URL": "https://github/?v=1",
    }
    named = [name for name in submit["env"] if name.endswith("TOKEN_FILE")]
    environment |= {"SET": "args.epochs=3; echo no", named[0]: str(tmp_path / "token")}
    process = subprocess.run(
        ["bash", "-e", "-c", submit["run"]],
        env=environment,
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
    )
    assert process.returncode == 0, process.stderr
    assert (tmp_path / "token").read_text() == "the-token"
    assert (tmp_path / "token").stat().st_mode & 0o077 == 0
    audience = {
        "AWS_WEB_IDENTITY_TOKEN_FILE": "sts.amazonaws.com",
        "AZURE_FEDERATED_TOKEN_FILE": "api://AzureADTokenExchange",
    }
    assert (
        f"https://github/?v=1&audience={audience[named[0]]}"
        in (tmp_path / "asked").read_text().splitlines()
    )
    provider = path.stem.rpartition("-")[2]
    expected = [
        "submit",
        "my job.yaml",
        "--provider",
        provider,
        "--detach",
        "--set",
        "args.epochs=3; echo no",
    ]
    assert (tmp_path / "arguments").read_text().splitlines() == expected


def test_ci_runs_what_a_person_runs() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    commands = [
        step["run"] for step in steps(read(ROOT / ".github/workflows/ci.yml")) if "run" in step
    ]
    for command in commands:
        program, target, *_ = command.split()
        assert (program == "make" and target in targets) or (ROOT / program).is_file(), command
