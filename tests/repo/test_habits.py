"""A contributor's checks agree, the suite is the same everywhere, and the wheel is whole."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.repo.tools import ROOT
from tests.support import machine
from tests.support.waiting import HANG_SECONDS

# A contributor's checks agree: the hooks before a commit, the make targets, and CONTRIBUTING.

MAKEFILE = (ROOT / "Makefile").read_text()


def recipe(target: str) -> list[str]:
    """The commands of a target, with the folder of its programs written out."""
    match = re.search(rf"^{target}:.*\n((?:\t.*\n)+)", MAKEFILE, re.MULTILINE)
    assert match, f"target {target} is missing"
    return [line.strip().replace("$(BIN)", ".venv/bin") for line in match[1].splitlines()]


def hooks() -> list[dict[str, Any]]:
    (local,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert local["repo"] == "local", "a hook of another repository would be fetched"
    local_hooks: list[dict[str, Any]] = local["hooks"]
    return local_hooks


def test_the_hooks_run_the_commands_of_make_and_fetch_nothing() -> None:
    assert [hook["entry"] for hook in hooks()] == [
        *recipe("lint"),
        *recipe("types"),
        *recipe("imports"),
    ]
    assert {hook["language"] for hook in hooks()} == {"system"}, (
        "another language would install packages"
    )
    assert not any(hook["pass_filenames"] for hook in hooks()), (
        "they look at all files, as make does"
    )


def test_quick_is_what_check_runs_first_and_the_fast_tests() -> None:
    assert re.search(r"^check: lint types imports test$", MAKEFILE, re.MULTILINE)
    assert re.search(r"^quick: lint types imports$", MAKEFILE, re.MULTILINE)
    (quick,) = recipe("quick")
    (test,) = recipe("test")
    assert quick.split()[-2:] == ["tests/unit", "tests/golden"]
    assert quick.split()[:-2] == test.split()[:-1], "with the same arguments otherwise"


def test_every_target_and_page_that_contributing_names_is_there() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    targets = set(re.findall(r"\bmake ([a-z]+)", text))
    assert {"quick", "test", "check", "coverage"} <= targets
    assert targets <= set(re.findall(r"^([a-z]+):", MAKEFILE, re.MULTILINE))
    pages = re.findall(r"\]\(([^)#]+)", text)
    assert pages
    assert [page for page in pages if not (ROOT / page).is_file()] == []


# The suite itself: ids of tests are the same everywhere, and only container tests see an engine.


def test_only_container_tests_see_the_engine_of_the_machine(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert os.environ["DOCKER_HOST"] == machine.NO_ENGINE
    assert "DOCKER_CONTEXT" not in os.environ

    monkeypatch.setattr(machine, "MACHINE_VARIABLES", {"DOCKER_HOST": "unix:///run/an-engine.sock"})
    request.node.add_marker("docker")
    machine.show_engine(request.node)
    assert os.environ["DOCKER_HOST"] == "unix:///run/an-engine.sock"


# Every benchmark starts as `make bench` and its README start it: by its path alone.

BENCHES = sorted((ROOT / "tests" / "bench").glob("bench_*.py"))


@pytest.mark.parametrize("bench", BENCHES, ids=lambda path: path.stem)
def test_a_benchmark_starts_by_its_path(bench: Path, tmp_path: Path) -> None:
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    result = subprocess.run(
        [sys.executable, str(bench), "--help"],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert "--json" in result.stdout


# The wheel: it carries the launcher and the trainer inside the package, and works without the
# checkout.


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    argv = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(argv, cwd=ROOT, check=True, capture_output=True, timeout=HANG_SECONDS)
    return next(folder.glob("*.whl"))


def test_the_wheel_carries_what_travels_with_a_job_inside_the_package(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    for name in (
        "cloudtrain_launcher/launch.py",
        "job/cloudtrain_job.py",
        "cloudtrain_trainer/tasks/digits.py",
    ):
        assert f"cloudtrain/_bundle/entrypoints/{name}" in names
    assert "cloudtrain/_bundle/infra/azure/template.json" in names
    for name in (
        "Dockerfile",
        ".dockerignore",
        "train",
        "torch-cuda.txt",
        "torch-cpu.txt",
        "requirements.txt",
    ):
        assert f"cloudtrain/_bundle/docker/{name}" in names, (
            "the image can be built from an installed package"
        )
    assert {name.split("/")[0] for name in names if ".dist-info" not in name} == {
        "cloudtrain",
        "cloudtrain_job.py",
        "cloudtrain_launcher",
        "cloudtrain_trainer",
        "cloudtrain_wire",
    }
    assert "cloudtrain/catalog/aws.csv" in names
    assert "cloudtrain/cli/starter/job.yaml" in names
    assert "cloudtrain/pages/templates/run_page.html" in names


def test_an_installed_wheel_finds_its_payload_without_the_checkout(
    wheel: Path, tmp_path: Path
) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path)
    code = "from cloudtrain.bundle import payload_files\nfiles = payload_files()\n"
    code += "print(files['cloudtrain_launcher/launch.py'], len(files))"
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    process = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        check=True,
        timeout=HANG_SECONDS,
    )
    assert process.stdout.startswith(
        str(
            tmp_path
            / "cloudtrain"
            / "_bundle"
            / "entrypoints"
            / "cloudtrain_launcher"
            / "launch.py"
        )
    )
    assert int(process.stdout.split()[-1]) > 15
