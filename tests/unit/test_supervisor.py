"""The real supervisor with a program of a few lines as launcher: whom it hears, and when it ends a
training.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cloudtrain.providers.local import processes as lifeline
from cloudtrain.providers.local.processes import run_module
from cloudtrain.providers.local.supervisor_status import end_orphans
from cloudtrain.runs.folder import RunFolder
from cloudtrain.runs.store import RunStore
from cloudtrain.submission.run import Run
from cloudtrain_launcher.process_identity import ProcessIdentity
from tests.support.events import events_of
from tests.support.limits import HANG_SECONDS
from tests.support.samples import BORN, born, write_events
from tests.support.waiting import eventually

PATIENCE_SECONDS = 100
LAUNCHER = """
import os, sys, time
print('::cloudtrain:: {"type": "node_started", "time": 1, "node": 0, "rank": -1, "scratch": "", "seq": 1}', flush=True)
parent = os.getppid()
while os.getppid() == parent:
    time.sleep(0.02)
"""
"""Runs until it is killed or orphaned: SIGTERM ends it, as it has no handler."""


@pytest.fixture
def run(store: RunStore, tmp_path: Path) -> Iterator[RunFolder]:
    """Provide a run folder for a supervisor, and remove everything afterwards."""
    launch = {
        "node": 0,
        "argv": [sys.executable, "-c", LAUNCHER],
        "cwd": str(tmp_path),
        "env": {},
        "secrets": {},
    }
    request = {
        "launches": [launch],
        "max_runtime_seconds": 9999,
        "grace_seconds": 5,
        "resume_from": None,
    }
    plan = {"provider": "local", "target": {"contract": "plain"}}
    documents = {"plan.json": json.dumps(plan), "request.json": json.dumps(request)}
    with tarfile.open(tmp_path / "source.tar.gz", "w:gz"):
        pass
    folder = store.create("a-1", documents)
    write_events(folder, {**BORN, "time": time.time()})
    yield folder
    end_orphans(folder.path)


def supervise(run: RunFolder, *before: str, tied_to: int = 0) -> subprocess.Popen[bytes]:
    """Start the supervisor and wait until its node runs. `tied_to`: a process that the run ends
    with.
    """
    python, flag, script, *more = run_module("local.supervisor")
    argv = [
        *before,
        python,
        flag,
        script,
        *more,
        str(run.path),
        str(run.path.parents[2] / "source.tar.gz"),
    ]
    argv += [json.dumps(ProcessIdentity.of(tied_to).to_json())] if tied_to else []
    process = subprocess.Popen(
        argv, cwd=run.path.parents[2], stdin=subprocess.DEVNULL, start_new_session=True
    )

    def begun() -> bool:
        assert process.poll() is None, "it ended before its node ran"
        return any(event["type"] == "node_started" for event in events_of(run))

    eventually(begun, PATIENCE_SECONDS)
    return process


@pytest.fixture
def inside() -> list[str]:
    """Return the prefix that runs a command in a new PID namespace, as in a container."""
    words = ["unshare", "-Urpf", "--mount-proc", "--kill-child"]
    if (
        shutil.which("unshare") is None
        or subprocess.run([*words, "true"], capture_output=True, check=False).returncode
    ):
        pytest.skip("this user may not make namespaces")
    return words


def carriers(run: RunFolder) -> list[str]:
    mark = f"CLOUDTRAIN_RUN_DIR={run.path}".encode()
    events_of_attempt = []
    for file in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark in file.read_bytes().split(b"\0"):
                events_of_attempt.append(file.parent.name)
        except OSError:
            continue
    return events_of_attempt


@pytest.mark.linux("the environment of a process, in /proc")
def test_a_folder_that_is_removed_ends_the_training(run: RunFolder) -> None:
    with supervise(run) as supervisor:
        assert carriers(run)
        shutil.rmtree(run.path)
        assert supervisor.wait(PATIENCE_SECONDS) == 0
    assert carriers(run) == []
    assert not run.path.exists(), "nothing is made anew where it was"


def test_what_takes_the_place_of_a_removed_folder_stays_as_it_is(
    run: RunFolder, store: RunStore
) -> None:
    with supervise(run) as supervisor:
        run.path.rename(run.path.with_name(".gone"))
        shutil.rmtree(run.path.with_name(".gone"))
        reopened = born(store, "a-1")
        assert supervisor.wait(PATIENCE_SECONDS) == 0
    assert events_of(reopened) == [BORN]


def test_a_stop_is_a_file_that_the_supervisor_reads(run: RunFolder) -> None:
    with supervise(run) as supervisor:
        (run.path / "stop").touch()
        assert supervisor.wait(PATIENCE_SECONDS) == 0
    assert events_of(run)[-1]["state"] == "stopped"


def test_a_run_on_a_machine_that_was_lent_to_a_process_ends_with_that_process(
    run: RunFolder,
) -> None:
    lender = subprocess.Popen(["sleep", str(HANG_SECONDS)])
    with supervise(run, tied_to=lender.pid) as supervisor:
        lender.kill()
        lender.wait()
        assert supervisor.wait(PATIENCE_SECONDS) == 0
    last = events_of(run)[-1]
    assert (last["state"], last["reason"]) == ("stopped", "the process that has started it is gone")


def test_only_the_process_that_says_so_ties_its_runs_to_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lifeline, "_tied", [])
    assert lifeline.lifeline() == []
    assert lifeline.read_lifeline([]) is None
    lifeline.end_runs_with_this_process()
    assert lifeline.read_lifeline(lifeline.lifeline()) == ProcessIdentity.of(os.getpid())
    monkeypatch.setattr(os, "getpid", lambda: -1)  # in a fork
    assert lifeline.lifeline() == []


def test_a_second_supervisor_leaves_the_run_to_the_first(run: RunFolder) -> None:
    with supervise(run) as first:
        try:
            argv = [*run_module("local.supervisor"), str(run.path), "-"]
            second = subprocess.run(argv, timeout=HANG_SECONDS, check=False)
            assert (second.returncode, first.poll()) == (1, None)
        finally:
            first.send_signal(signal.SIGTERM)
        first.wait(PATIENCE_SECONDS)
    assert [event["type"] for event in events_of(run)].count("node_started") == 1


def test_stop_reaches_a_supervisor_in_another_pid_namespace_alone(
    run: RunFolder, inside: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    signalled: list[int] = []
    with supervise(run, *inside) as namespace:
        try:
            its = json.loads((run.path / "supervisor.json").read_text())
            assert its["pid"] < 10, "here that number is another's"
            monkeypatch.setattr(os, "kill", lambda pid, *_: signalled.append(pid))
            monkeypatch.setattr(os, "pidfd_open", lambda pid: signalled.append(pid))
            loaded = Run(run)
            assert loaded.status().state == "running"
            assert loaded.stop().state == "stopped"
            assert namespace.wait(PATIENCE_SECONDS) == 0
        finally:
            monkeypatch.undo()
            namespace.kill()
    assert signalled == []
