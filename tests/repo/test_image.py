"""The image's files, read without an engine: its Dockerfile, its locks, and the scripts that build
and run it.
"""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from cloudtrain.providers.docker.images import CONTEXT
from tests.repo.tools import ROOT, tool
from tests.support.waiting import HANG_SECONDS

DOCKER = ROOT / "docker"
DOCKERFILE = (DOCKER / "Dockerfile").read_text()
INSTRUCTIONS = re.sub(
    r"\\\n", " ", re.sub(r"^#.*\n", "", DOCKERFILE, flags=re.MULTILINE)
).splitlines()
LOCKS = ("requirements.txt", "torch-cpu.txt", "torch-cuda.txt")
EXTRAS = ("train", "keras", "images", "watch")
"""Extras of the package that the shared trainer needs on a person's own machine."""
SCRIPTS = (".ci/engine", ".ci/install", ".ci/run", ".ci/versions")


def instructions(name: str) -> list[str]:
    return [
        line.split(None, 1)[1].strip() for line in INSTRUCTIONS if line.split(None, 1)[:1] == [name]
    ]


def pins(lock: str) -> dict[str, str]:
    versions = re.findall(r"^([a-z0-9-]+)==([^ ;\\]+)", (DOCKER / lock).read_text(), re.MULTILINE)
    return dict(versions)


def test_hadolint_finds_nothing() -> None:
    process = subprocess.run(
        [tool("hadolint"), str(DOCKER / "Dockerfile")],
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        check=False,
    )
    assert process.returncode == 0, process.stdout


def test_shellcheck_finds_nothing() -> None:
    process = subprocess.run(
        [tool("shellcheck"), *SCRIPTS],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        check=False,
    )
    assert process.returncode == 0, process.stdout
    assert all((ROOT / script).stat().st_mode & 0o111 for script in (*SCRIPTS, "docker/train"))


def test_every_builder_can_read_it() -> None:
    assert "syntax=" not in DOCKERFILE
    assert "<<" not in DOCKERFILE
    for line in INSTRUCTIONS:
        assert not re.match(
            r"(RUN|COPY|ADD|FROM)\s+--(mount|link|chmod|network|security|platform)", line
        ), line


def test_the_base_is_an_argument_with_a_version() -> None:
    base = instructions("ARG")[0]
    assert re.fullmatch(r"BASE_IMAGE=nvidia/cuda:\d+\.\d+\.\d+-base-ubuntu24\.04", base)
    stages = instructions("FROM")
    assert stages[0] == "${BASE_IMAGE} AS system"
    assert ":latest" not in DOCKERFILE
    names = [stage.rpartition(" AS ")[2] for stage in stages]
    assert [stage.partition(" AS ")[0] for stage in stages[1:]] == names[:-1], (
        "each stage builds on the last"
    )


def test_what_it_copies_is_there_and_is_all_that_the_build_sees() -> None:
    copied = [source for line in instructions("COPY") for source in line.split()[:-1]]
    names = {
        name
        for source in copied
        for name in (source.replace("${TORCH}", torch) for torch in ("cpu", "cuda"))
    }
    payload = {name for name in names if name.endswith("*")}
    assert payload == {"payload.tar*"}, "a pattern: the file exists only after packing"
    assert all((DOCKER / name).is_file() for name in names - payload)
    ignored, *included = [
        line
        for line in (DOCKER / ".dockerignore").read_text().split("\n")
        if line and line[0] != "#"
    ]
    assert ignored == "*"
    assert {line.removeprefix("!") for line in included} == {name.rstrip("*") for name in names}
    assert {*CONTEXT} == {*names - payload, "Dockerfile"}


def test_train_is_what_it_runs_and_nothing_stands_before_it() -> None:
    assert instructions("CMD") == ['["train"]']
    assert instructions("ENTRYPOINT") == ["[]"]
    assert "train payload.tar* /opt/cloudtrain/" in instructions("COPY")
    assert any(
        "mv /opt/cloudtrain/train /usr/local/bin/train" in line for line in instructions("RUN")
    )
    assert instructions("USER") == [], "SageMaker gives /opt/ml to root alone"
    assert instructions("EXPOSE") == []
    assert not re.search(r"(?i)ssh|password|secret|token|private.key", DOCKERFILE)


@pytest.mark.parametrize("lock", LOCKS)
def test_every_package_is_pinned_and_has_hashes(lock: str) -> None:
    text = (DOCKER / lock).read_text()
    packages = re.split(r"\n(?=[a-z])", text[re.search(r"^[a-z]", text, re.MULTILINE).start() :])  # type: ignore[union-attr]
    for package in packages:
        assert re.match(r"[a-z0-9-]+==[^ ]+( ;.*)? \\\n", package), package.splitlines()[0]
        assert re.findall(r"--hash=sha256:[0-9a-f]{64}\b", package), package.splitlines()[0]
    assert len(packages) == len(pins(lock))
    options = re.findall(r"^-.*$", text, re.MULTILINE)
    assert options in ([], ["--extra-index-url https://download.pytorch.org/whl/cpu"])


def test_the_image_has_what_was_tested_together() -> None:
    tested = dict(
        re.findall(r"^([\w.-]+)==(.+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    )
    tested = {name.lower().replace("_", "-"): version for name, version in tested.items()}
    for lock in LOCKS:
        for name, version in pins(lock).items():
            assert version.removesuffix("+cpu") == tested.get(name, version), (lock, name)


def test_both_torches_are_the_same_but_for_cuda() -> None:
    cpu = pins("torch-cpu.txt")
    cuda = pins("torch-cuda.txt")
    assert cpu.pop("torch") == f"{cuda.pop('torch')}+cpu"
    assert cpu.items() < cuda.items()
    assert all(
        name.startswith(("nvidia-", "cuda-")) or name == "triton"
        for name in cuda.keys() - cpu.keys()
    )
    assert not pins("requirements.txt").keys() & cuda.keys(), "one home for each package"


def test_the_image_has_what_every_task_of_the_trainer_imports() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    named = {re.split(r"[^\w.-]", line)[0] for extra in EXTRAS for line in extras[extra]}
    lines = {
        line.split()[0]
        for line in (DOCKER / "requirements.in").read_text().splitlines()
        if line[0] != "#"
    }
    assert lines == named - {"cloudtrain", "torch"} | {"boto3"}
    assert lines < pins("requirements.txt").keys()


def engine(tmp_path: Path, command: str, user: int) -> subprocess.CompletedProcess[str]:
    """Run `.ci/engine` as a user, by its id, of a machine without an engine, and trace it."""
    for name, text in {"docker": "exit 1", "apt-get": "exit 1", "id": f"echo {user}"}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    return subprocess.run(
        ["bash", "-x", ".ci/engine", command],
        cwd=ROOT,
        env={"PATH": f"{tmp_path}:/usr/bin:/bin", "CLOUDTRAIN_ENGINE_DIR": str(tmp_path / "state")},
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        check=False,
    )


def test_without_root_there_is_no_engine_and_the_reason_is_given(tmp_path: Path) -> None:
    process = engine(tmp_path, "start", 1000)
    assert process.returncode == 1
    assert "engine: none is running, and only root can start one\n" in process.stderr
    assert not (tmp_path / "state").exists()


def test_the_engine_is_found_where_the_path_has_no_sbin(tmp_path: Path) -> None:
    # Up to its search for packages on this machine: a trace shows the names.
    process = engine(tmp_path, "stop", 0)
    assert process.returncode == 0, process.stderr
    paths = re.findall(r"^\+ PATH='?(.*?)'?$", process.stderr, re.MULTILINE)
    assert paths
    assert {"/usr/sbin", "/sbin"} <= set(paths[-1].split(":"))
