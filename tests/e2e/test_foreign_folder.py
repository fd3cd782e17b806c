"""`plan`, `check` and `list` end with a message in a folder whose files never end, or never begin."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.test_bad_input import place
from tests.support.in_process import call

__all__ = ["place"]

Trap = Callable[[Path], None]
HUGE_BYTES = 1 << 42
SPARE_MEMORY_BYTES = 3 << 30
"""Memory that a command may take in addition to the tests."""


def fifo(path: Path) -> None:
    os.mkfifo(path)


def endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def huge(path: Path) -> None:
    """A file without any block on the disk."""
    with path.open("wb") as file:
        file.truncate(HUGE_BYTES)


def loop(path: Path) -> None:
    path.symlink_to(path.name)


@pytest.fixture(autouse=True)
def bounded_memory() -> Iterator[None]:
    """A command that reads without a bound fails by itself, before the machine does."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + SPARE_MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.fixture
def job(place: Path) -> Path:
    """A job that is right, until a trap is laid beside it."""
    (place / "job.yaml").write_text("entrypoint: train.py\n")
    (place / "train.py").write_text("import a\n")
    return place


def assert_ends(*words: str, code: int | None = None, shown: str = "") -> None:
    result = call(*words)
    assert "Traceback" not in result.out + result.err
    assert "bug in cloudtrain" not in result.err
    assert code in (None, result.code), result.err
    assert shown in result.err, result.err


@pytest.mark.linux("/dev/zero and /proc")
@pytest.mark.parametrize("command", ["plan", "check"])
@pytest.mark.parametrize("lay", [fifo, endless])
@pytest.mark.parametrize("name", ["job.yaml", "cloudtrain.toml"])
def test_a_spec_or_settings_that_are_not_a_file_are_a_mistake(
    job: Path, name: str, lay: Trap, command: str
) -> None:
    (job / name).unlink(missing_ok=True)
    lay(job / name)
    assert_ends(command, "job.yaml", code=2, shown=f"{name}: cannot be read")


@pytest.mark.linux("/dev/zero and /proc")
@pytest.mark.parametrize(
    "text",
    ["-r /dev/zero\n", "-c /dev/zero\n", "-r more.txt\n", "-r huge.txt\n"],
    ids=["device", "constraint", "FIFO", "huge"],
)
def test_requirements_include_only_regular_files_up_to_a_limit(job: Path, text: str) -> None:
    (job / "requirements.txt").write_text(text)
    (job / ".cloudtrainignore").write_text("more.txt\nhuge.txt\n")
    fifo(job / "more.txt")
    huge(job / "huge.txt")
    for command in ("plan", "check"):
        assert_ends(command, code=2, shown="requirements.txt:1: ")


@pytest.mark.parametrize(("width", "depth"), [(10, 8), (1, 50)], ids=["wide", "deep"])
def test_includes_that_multiply_are_refused(job: Path, width: int, depth: int) -> None:
    for number in range(depth):
        (job / f"r{number}.txt").write_text(f"-r r{number + 1}.txt\n" * width)
    (job / f"r{depth}.txt").write_text("numpy\n")
    (job / "requirements.txt").write_text("-r r0.txt\n")
    assert_ends("plan", code=2, shown="requirements.txt")


@pytest.mark.linux("/dev/zero and /proc")
@pytest.mark.parametrize("lay", [fifo, endless, huge, loop])
@pytest.mark.parametrize(
    ("name", "spec"),
    [
        (".gitignore", ""),
        (".cloudtrainignore", ""),
        ("a.py", ""),
        ("pyproject.toml", ""),
        ("uv.lock", ""),
        ("requirements.txt", ""),
        ("Dockerfile", "image: {build: Dockerfile}\n"),
        (".dockerignore", "image: {build: Dockerfile}\n"),
        (".git", ""),
        ("note.ipynb", "entrypoint: note.ipynb\n"),
        ("train.py", ""),
        ("data", "inputs: {a: ./data}\n"),
    ],
)
def test_any_file_of_the_source_may_be_a_trap(job: Path, name: str, spec: str, lay: Trap) -> None:
    (job / "Dockerfile").write_text("FROM scratch\n")
    (job / name).unlink(missing_ok=True)
    lay(job / name)
    if spec:
        program = "" if "entrypoint" in spec else "entrypoint: train.py\n"
        (job / "job.yaml").write_text(program + spec)
    for words in (["plan"], ["plan", name], ["check"], ["plan", "--provider", "docker"], ["list"]):
        assert_ends(*words)


@pytest.mark.linux("/dev/zero and /proc")
@pytest.mark.parametrize("lay", [fifo, endless, huge, loop])
@pytest.mark.parametrize(
    ("variable", "name"),
    [
        ("CLOUDTRAIN_PRICES", ""),
        ("AWS_CONFIG_FILE", ""),
        ("AWS_SHARED_CREDENTIALS_FILE", ""),
        ("AZURE_CONFIG_DIR", "config"),
        ("AZURE_CONFIG_DIR", "azureProfile.json"),
        ("DOCKER_CONFIG", "config.json"),
        ("XDG_CONFIG_HOME", "cloudtrain/config.toml"),
    ],
)
def test_a_file_that_settings_name_may_be_a_trap(
    job: Path, variable: str, name: str, lay: Trap, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    trap = tmp_path / "trap" / name if name else tmp_path / "trap"
    trap.parent.mkdir(parents=True, exist_ok=True)
    lay(trap)
    monkeypatch.setenv(variable, str(tmp_path / "trap"))
    monkeypatch.setenv("AWS_PROFILE", "me")
    for provider in ("aws", "azure", "docker"):
        assert_ends("plan", "--provider", provider)
