"""Bad input of every kind ends in a message one can act on, the right exit code, and never in a traceback."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import cloudtrain
from cloudtrain.runs.store import RunStore
from tests.e2e.bad_input_table import ROWS, Row
from tests.e2e.in_process import Said, call


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A job's folder to stand in, and a data folder with two runs that have ended."""
    store = RunStore(tmp_path / "data")
    for run_id in ("digits-aaaa", "digits-aabb"):
        folder = store.create(run_id, {"plan.json": '{"target": {"provider": "local"}}'})
        born = {"type": "submitting", "time": 1.0, "name": "digits", "provider": "local", "contract": "plain"}
        folder.append({**born, "nodes": 1, "processes": 1}, {"type": "ended", "time": 2.0, "state": "succeeded"})
    monkeypatch.setenv("CLOUDTRAIN_DATA_DIR", str(store.data_dir))
    (tmp_path / "job").mkdir()
    monkeypatch.chdir(tmp_path / "job")
    return tmp_path / "job"


def feed(place: Path, row: Row, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in row.files.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).mkdir() if name.endswith("/") else (place / name).write_text(text)
    if row.job is not None:
        (place / "job.yaml").write_bytes(row.job if isinstance(row.job, bytes) else row.job.encode())
    for name, value in row.env.items():
        monkeypatch.setenv(name, value)


def assert_told(said: Said, code: int, *shown: str) -> None:
    assert "Traceback" not in said.out + said.err
    assert "bug in cloudtrain" not in said.err
    missing = [fragment for fragment in shown if fragment not in said.err]
    assert (missing, said.code, said.out) == ([], code, ""), said.err


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_it_is_told_in_words(place: Path, row: Row, monkeypatch: pytest.MonkeyPatch) -> None:
    feed(place, row, monkeypatch)
    said = call(*row.argv)
    assert_told(said, row.code, *row.shown)
    assert "hunter2" not in said.err


@pytest.mark.parametrize(
    "row",
    [r for r in ROWS if r.id in ("unknown key", "deep nesting", "no job file", "unknown command", "ambiguous run")],
    ids=lambda row: row.id,
)
def test_the_console_tells_the_same(place: Path, row: Row, monkeypatch: pytest.MonkeyPatch) -> None:
    feed(place, row, monkeypatch)
    command = [sys.executable, "-m", "cloudtrain", *row.argv]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert_told(Said(done.returncode, done.stdout, done.stderr), row.code, *row.shown)


MANY = """\
nmae: digits
entrypoint: trian.py
resources:
  nodes: two
  gpus: -1
  gpu: A100-80
  disk: 200
limits: {max_runtime: 6 hodr, retries: many}
env: {1A: x, CLOUDTRAIN_X: y}
inputs: {a-b: ./x, a_b: ./y}
secrets: {HF: hunter2}
checkpoints: {keep: 0}
"""


def test_all_mistakes_are_told_at_once_in_the_order_of_their_lines(place: Path) -> None:
    (place / "job.yaml").write_text(MANY)
    said = call("check")
    found = re.findall(r"^job\.yaml:(\d+):(\d+): ([\w.]+): ", said.err, re.MULTILINE)
    assert [(int(line), path) for line, _, path in found] == [
        (1, "nmae"),
        (2, "entrypoint"),
        (4, "resources.nodes"),
        (5, "resources.gpus"),
        (6, "resources.gpu"),
        (7, "resources.disk"),
        (8, "limits.max_runtime"),
        (8, "limits.retries"),
        (9, "env.1A"),
        (9, "env.CLOUDTRAIN_X"),
        (10, "inputs.a_b"),
        (11, "secrets.HF"),
        (12, "checkpoints.keep"),
    ]


def test_with_json_the_same_mistakes_are_data(place: Path) -> None:
    (place / "job.yaml").write_text(MANY)
    said = call("check", "--json")
    error = json.loads(said.out)["error"]
    assert (said.code, error["exit_code"], len(error["mistakes"])) == (2, 2, 13)
    assert error["mistakes"][0]["where"] == "job.yaml:1:1"


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="needs a file that opens and cannot be read")
def test_an_unreadable_job_file_is_told(place: Path) -> None:
    # Permission bits stop nobody who is root; this file refuses everyone.
    assert_told(call("check", "/proc/self/mem"), 2, "/proc/self/mem: cannot be read: Input/output error")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read and write everything")
def test_a_job_file_of_somebody_else_is_told(place: Path) -> None:
    (place / "job.yaml").write_text("{}")
    (place / "job.yaml").chmod(0)
    assert_told(call("check"), 2, "job.yaml: cannot be read: Permission denied")


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A real disk of 64 kB, full but for nothing."""
    disk = tmp_path / "tiny"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True, check=False).returncode:
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
    said = call("--data-dir", str(tiny_disk), "submit", "--detach")
    assert_told(said, 4, "No space left on device", "hint: free some space there")
    assert not list(tiny_disk.glob("runs/*"))


def test_a_disk_that_fills_up_in_mid_event_is_told(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(file: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    folder = cloudtrain.find_run("digits-aaaa").folder
    monkeypatch.setattr(os, "write", full)
    with pytest.raises(cloudtrain.CloudtrainError, match="No space left on device") as caught:
        folder.append({"type": "x"})
    assert (caught.value.exit_code, "free some space" in (caught.value.hint or "")) == (4, True)


def test_a_second_submit_of_the_same_id_starts_nothing(place: Path) -> None:
    (place / "job.yaml").write_text("entrypoint: train.py\n")
    (place / "train.py").write_text("print(1)\n")
    first = call("submit", "--detach", "--run-id", "twice")
    try:
        second = call("submit", "--detach", "--run-id", "twice")
    finally:
        state = cloudtrain.find_run("twice").wait(timeout=100)
    assert (first.code, first.out.strip(), state.state) == (0, "twice", "succeeded")
    assert_told(second, 3, "run twice exists already; nothing was started", "hint: cloudtrain status twice")
