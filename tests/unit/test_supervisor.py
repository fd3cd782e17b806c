"""The real supervisor: whom it hears, and how it tells the end of a run."""

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
from typing import Any

import pytest

from cloudtrain.api.run import Run
from cloudtrain.planning.launch import Launch
from cloudtrain.providers.local import processes as lifeline
from cloudtrain.providers.local.processes import end_orphans, run_module
from cloudtrain.runs.fold import fold
from cloudtrain.runs.folder import RunFolder
from cloudtrain.runs.logs import EVENT_MARK
from cloudtrain.runs.store import RunStore
from cloudtrain_wire.process_identity import ProcessIdentity
from tests.support.samples import BORN, born, events_of, write_events
from tests.support.waiting import HANG_SECONDS, eventually

# The real supervisor with a program of a few lines as launcher: whom it hears, and when it ends a
# training.

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
        "grace_seconds": HANG_SECONDS,
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

    eventually(begun)
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
        assert supervisor.wait(HANG_SECONDS) == 0
    eventually(lambda: not carriers(run))
    assert not run.path.exists(), "nothing is made anew where it was"


def test_what_takes_the_place_of_a_removed_folder_stays_as_it_is(
    run: RunFolder, store: RunStore
) -> None:
    with supervise(run) as supervisor:
        run.path.rename(run.path.with_name(".gone"))
        shutil.rmtree(run.path.with_name(".gone"))
        reopened = born(store, "a-1")
        assert supervisor.wait(HANG_SECONDS) == 0
    assert events_of(reopened) == [BORN]


def test_a_run_on_a_machine_that_was_lent_to_a_process_ends_with_that_process(
    run: RunFolder,
) -> None:
    lender = subprocess.Popen(["sleep", str(HANG_SECONDS)])
    try:
        supervisor = supervise(run, tied_to=lender.pid)
    finally:
        lender.kill()
        lender.wait()
    with supervisor:
        assert supervisor.wait(HANG_SECONDS) == 0
    last = events_of(run)[-1]
    assert (last["state"], last["reason"]) == ("stopped", "the process that has started it is gone")


def test_only_the_process_that_says_so_ties_its_runs_to_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert lifeline.lifeline() == []
    assert lifeline.read_lifeline([]) is None
    monkeypatch.setattr(lifeline, "_tied", [])
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
        first.wait(HANG_SECONDS)
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
            assert namespace.wait(HANG_SECONDS) == 0
        finally:
            monkeypatch.undo()
            namespace.kill()
    assert signalled == []


# How a supervisor tells the end of a run: whose word counts, and that a full disk costs none. Its
# nodes are shells.

ROOT = Path(__file__).resolve().parents[2]


class Shells:
    """An emulator whose nodes are lines of shell."""

    max_runtime_seconds = None
    grace_seconds = HANG_SECONDS
    nodes_on_host = True

    def __init__(self, folder: Path, lines: tuple[str, ...]) -> None:
        self.folder = folder
        self.lines = lines

    def inherits(self, variable: str) -> bool:
        return variable == "PATH"

    def prepare(self, archive: Path) -> list[Launch]:
        where = str(self.folder)
        return [
            Launch(node=node, argv=("sh", "-c", line), cwd=where, env={}, secrets={})
            for node, line in enumerate(self.lines)
        ]

    def sync(self) -> None: ...

    def clean_up(self) -> None: ...

    def collect(self) -> list[str]:
        return []


SUPERVISED = """
import sys
from pathlib import Path
from cloudtrain.providers.local import supervisor
from tests.unit.test_supervisor import Shells
run = Path(sys.argv[1])
supervisor.emulator_of = lambda _: Shells(run, tuple(sys.argv[2:]))
supervisor.PEERS_SECONDS = 3600  # no node is killed, however slow the machine is
supervisor.Supervisor(run, run / "source.tar.gz", []).run()
"""


def supervised(run: Path, *lines: str) -> RunFolder:
    """A run of these nodes, from its beginning to its end."""
    (run / "logs").mkdir(parents=True, exist_ok=True)
    subprocess.run(
        [sys.executable, "-c", SUPERVISED, str(run), *lines],
        cwd=ROOT,
        check=True,
        timeout=HANG_SECONDS,
    )
    return RunFolder(run)


def event_line(kind: str, **fields: Any) -> str:
    """Return a shell command that reports an event of a node."""
    event = {"type": kind, "rank": -1, "seq": 1, **fields}
    return f"printf '%s\\n' '{EVENT_MARK.decode()}{json.dumps(event)}'; "


def stopped(node: int, requested: float) -> str:
    return event_line(
        "node_ended",
        node=node,
        time=requested + 1,
        outcome="stopped",
        error=None,
        why="sigterm",
        stop_asked=requested,
    )


def failed(node: int, at: float) -> str:
    error = {
        "rank": node,
        "node": node,
        "time": at,
        "exception": "RuntimeError",
        "message": "Connection closed by peer",
    }
    return event_line(
        "node_ended", node=node, time=at, outcome="failed", error={**error, "attempt": 0}
    )


UNTIL = "while [ ! -e {0} ]; do sleep 0.05; done; "
DEAF = "trap '' TERM; touch deaf; " + UNTIL.format("said")
"""A node that SIGTERM does not end; its peer waits until that is so."""
NODES = {
    "the stopped node leaves first": (
        DEAF + "{failed} exit 1",
        UNTIL.format("deaf") + "{stopped} touch said; exit 5",
    ),
    "its peer fails while it still saves": (
        DEAF + "{failed} touch gone; exit 1",
        UNTIL.format("deaf")
        + "trap '' TERM; {stopped} touch said; "
        + UNTIL.format("gone")
        + "exit 5",
    ),
}


@pytest.mark.parametrize("order", NODES)
@pytest.mark.parametrize("first", ["the stop", "the failure"])
def test_a_node_that_was_stopped_from_outside_does_not_blame_its_peer(
    order: str, first: str, tmp_path: Path
) -> None:
    moment = time.time()
    words = {
        "stopped": stopped(1, moment - 2),
        "failed": failed(0, moment - (1 if first == "the stop" else 3)),
    }
    run = supervised(tmp_path / "runs" / "run-1", *(line.format(**words) for line in NODES[order]))
    state = fold("run-1", run.events())
    if first == "the stop":
        assert (state.state, state.reason) == ("stopped", "node 1 was told to stop")
    else:
        assert (state.state, state.reason) == ("failed", "rank 0 (node 0) failed")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real disk of 1 MB."""
    disk = tmp_path / "data"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)]
    if (
        shutil.which("mount") is None
        or subprocess.run(mount, capture_output=True, check=False).returncode
    ):
        pytest.skip("this user may not mount a disk")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_the_end_of_a_run_is_stored_on_a_full_disk(small_disk: Path) -> None:
    path = small_disk / "runs" / "run-1"
    path.mkdir(parents=True)
    (path / "supervisor.lock").write_text("4711")
    fill = "head -c 2000000 /dev/zero > filler 2>/dev/null; "
    run = supervised(path, fill + failed(0, time.time()) + "exit 1")
    stored = events_of(run)[-1]
    assert (stored["state"], stored["reason"]) == ("failed", "rank 0 (node 0) failed")
    assert stored["error"]["message"] == "Connection closed by peer"
