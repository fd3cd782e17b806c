"""Bad input of every kind ends in a message one can act on, the right exit code, and never in a
traceback.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from shlex import quote

import pytest

import cloudtrain
from cloudtrain_wire.events import StopRequested
from tests.golden.messages import Case, enter, read_cases
from tests.support.command_line import CommandResult
from tests.support.in_process import call
from tests.support.waiting import HANG_SECONDS


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Provide a job folder as the working folder, and a data folder with two finished runs."""
    enter(Case(job=None, runs=True), tmp_path, monkeypatch)
    return tmp_path / "job"


def assert_told(result: CommandResult, code: int, *shown: str) -> None:
    assert "Traceback" not in result.out + result.err
    assert "bug in cloudtrain" not in result.err
    missing = [fragment for fragment in shown if fragment not in result.err]
    assert (missing, result.code, result.out) == ([], code, ""), result.err


@pytest.mark.parametrize("kind", ["unknown key", "deep nesting", "ambiguous run"])
def test_the_console_script_prints_what_a_call_prints(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = read_cases()[f"mistakes of every kind: {kind}"]
    enter(case, tmp_path, monkeypatch)
    process = subprocess.run(
        [sys.executable, "-m", "cloudtrain", *case.words],
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        check=False,
    )
    result = CommandResult(process.returncode, process.stdout, process.stderr)
    assert result == call(*case.words)


def test_likely_secrets_in_the_source_are_named_by_check_and_plan(place: Path) -> None:
    for name in ("train.py", ".env", "server.pem"):
        (place / name).touch()
    (place / "job.yaml").write_text("entrypoint: train.py\n")
    note = (
        "left out of the source, as likely to hold secrets: .env, server.pem (`secrets:` in the"
        " spec"
    )
    assert note in call("check").err
    shown = call("plan").out
    assert note in shown
    assert "2 files," in shown  # the spec and the program
    (place / ".cloudtrainignore").write_text("!.env\n!*.pem\n")
    assert "likely to hold" not in call("plan").out


def test_check_prints_the_errors_first_and_then_what_else_there_is_to_know(place: Path) -> None:
    (place / ".env").touch()
    (place / "job.yaml").write_text("args: {task: no-such-task}\n")
    result = call("check")
    error = result.err.find("the shared trainer says:")
    note = result.err.find("note: left out of the source")
    assert (result.code, 0 <= error < note) == (2, True), result.err
    document = json.loads(call("check", "--json").out)
    assert "the shared trainer says:" in document["error"]["mistakes"][0]["message"]
    assert ["left out of the source" in text for text in document["warnings"]] == [True]


MANY = read_cases()["mistakes of every kind: many at once"].job or ""


def test_with_json_the_same_mistakes_are_structured(place: Path) -> None:
    (place / "job.yaml").write_text(MANY)
    result = call("check", "--json")
    error = json.loads(result.out)["error"]
    assert (result.code, error["exit_code"], len(error["mistakes"])) == (2, 2, 14)
    assert error["mistakes"][0]["where"] == "job.yaml:1:1"


@pytest.mark.parametrize("words", ["list --json --state lost", "top --json", "check a b --json"])
def test_wrong_usage_with_json_prints_one_document(place: Path, words: str) -> None:
    result = call(*words.split())
    assert (result.code, json.loads(result.out)["error"]["exit_code"]) == (2, 2)


def test_json_among_the_arguments_of_a_program_is_not_for_us(place: Path) -> None:
    assert_told(call("submit", "lost.py", "--", "--json"), 2, "no such file")


def test_next_commands_repeat_the_data_folder(place: Path) -> None:
    folder = str(place.parent / "data")
    result = call("--data-dir", folder, "status", "digits-aaaa")
    assert f"logs        cloudtrain --data-dir {quote(folder)} logs digits-aaaa" in result.out


@pytest.mark.parametrize(
    ("name", "ours"), [("cancel", "stop"), ("resume", "rerun"), ("ps", "list")]
)
def test_names_of_other_tools_are_commands_too(name: str, ours: str) -> None:
    assert call(name, "--help").out.replace(f" {name} ", f" {ours} ") == call(ours, "--help").out


@pytest.mark.parametrize("words", ["list", "submit train.py", "status"])
def test_a_current_folder_that_was_removed_is_reported(
    place: Path, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "gone").mkdir()
    monkeypatch.chdir(place / "gone")
    (place / "gone").rmdir()
    assert_told(call(*words.split()), 4, "the current folder was removed", "cd to another")


@pytest.mark.skipif(
    not Path("/proc/self/mem").exists(), reason="needs a file that opens and cannot be read"
)
def test_an_unreadable_job_file_is_reported(place: Path) -> None:
    # Permission bits stop nobody who is root; this file refuses everyone.
    assert_told(
        call("check", "/proc/self/mem"), 2, "/proc/self/mem: cannot be read: Input/output error"
    )


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read and write everything")
def test_a_job_file_without_read_permission_is_reported(place: Path) -> None:
    (place / "job.yaml").write_text("{}")
    (place / "job.yaml").chmod(0)
    assert_told(call("check"), 2, "job.yaml: cannot be read: Permission denied")


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A real disk of 64 kB, full but for nothing."""
    disk = tmp_path / "tiny"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)]
    if (
        shutil.which("mount") is None
        or subprocess.run(mount, capture_output=True, check=False).returncode
    ):
        pytest.skip("this user may not mount a disk")
    try:
        with pytest.raises(OSError, match="No space left"):
            (disk / "filler").write_bytes(bytes(1 << 20))
        yield disk
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_full_disk_is_told_and_nothing_is_started(place: Path, tiny_disk: Path) -> None:
    (place / "job.yaml").write_text("entrypoint: train.py\n")
    (place / "train.py").write_text("print(1)\n")
    result = call("--data-dir", str(tiny_disk), "submit", "--detach")
    assert_told(result, 4, "No space left on device", "hint: free some space there")
    assert not list(tiny_disk.glob("runs/*"))


def test_a_disk_that_fills_up_in_mid_event_is_reported(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(file: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    folder = cloudtrain.find_run("digits-aaaa").folder
    monkeypatch.setattr(os, "write", full)
    with pytest.raises(cloudtrain.CloudtrainError, match="No space left on device") as caught:
        folder.append(StopRequested(time=1.0))
    assert (caught.value.exit_code, "free some space" in (caught.value.hint or "")) == (4, True)


@pytest.mark.parametrize("field", ["args: {x: %s}", "args: [%s]", "env: {X: %s}", "tags: {x: %s}"])
@pytest.mark.parametrize(
    "digits", ["0x" + "f" * 5000, "9" * 5000, "0o" + "7" * 9000], ids=["0xf…", "9…", "0o7…"]
)
def test_a_number_of_thousands_of_digits_arrives_as_it_was_typed(
    place: Path, field: str, digits: str
) -> None:
    (place / "job.yaml").write_text("entrypoint: train.py\n" + field % digits + "\n")
    (place / "train.py").write_text("")
    result = call("plan", "--json")
    assert (result.code, digits in result.out or field.startswith("tags")) == (0, True), result.err


@pytest.mark.parametrize("words", ["check", "plan", "submit", "check --as aws", "doctor local"])
def test_no_command_executes_a_program_that_a_file_beside_it_names(place: Path, words: str) -> None:
    """A repository that was cloned to be looked at has both."""
    python = place / "bin" / "python3"
    python.parent.mkdir()
    python.write_text("#!/bin/sh\ntouch $(dirname $0)/executed\n")
    python.chmod(0o755)
    (place / "cloudtrain.toml").write_text(f"python = '{python}'\n")
    account = "aws: {role: 'arn:aws:iam::123456789012:role/t', bucket: b1b}\n"
    (place / "job.yaml").write_text(f"entrypoint: train.py\n{account}")
    (place / "train.py").write_text("")
    for name in ("sitecustomize", "argparse", "torch", "json"):
        (place / f"{name}.py").write_text(f"open({str(place / 'bin' / 'executed')!r}, 'w')\n")
    result = call(*words.split())
    assert "bug in cloudtrain" not in result.err
    assert not (place / "bin" / "executed").exists()
