"""Several signs show whether a supervisor lives; only processes that are proven ours are signalled."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from cloudtrain.errors import StorageError
from cloudtrain.providers.local.processes import (
    RUN_DIR_VARIABLE,
    SupervisorState,
    end_orphans,
    send_stop_signal,
    supervisor_state,
)
from cloudtrain.providers.local.provider import LocalProvider
from cloudtrain.runs.fold import fold
from cloudtrain.runs.folder import RunFolder
from cloudtrain.runs.history import History
from cloudtrain.runs.paths import RunPaths
from cloudtrain.runs.state import RunState
from cloudtrain.runs.store import RunStore
from cloudtrain_wire.events import StopRequested, Submitting
from cloudtrain_wire.file_locks import FileLock, acquire
from cloudtrain_wire.process_identity import ProcessIdentity
from tests.support.samples import born, events_of
from tests.support.waiting import HANG_SECONDS


@pytest.fixture
def run(store: RunStore) -> RunFolder:
    """A run that some supervisor has taken on."""
    folder = born(store, "a-1", {"type": "node_started", "time": 101.0, "node": 0})
    (folder.path / "supervisor.lock").write_text("4711")
    return folder


@pytest.fixture
def sleeper(run: RunFolder) -> Iterator[subprocess.Popen[bytes]]:
    """Start a process of the run that runs until it is killed."""
    code = "import sys; print(flush=True); sys.stdin.read()"
    env = {**os.environ, RUN_DIR_VARIABLE: str(run.path)}
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=pipe, stdout=pipe, env=env
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


def is_supervised_by(run: RunFolder, who: ProcessIdentity, *, silent_for: float = 0) -> None:
    file = run.path / "supervisor.json"
    file.write_text(json.dumps(who.to_json()))
    os.utime(file, (time.time() - silent_for,) * 2)


def look(run: RunFolder) -> RunState:
    history = History(run)
    history.take(LocalProvider().observe(run, history.read()))
    return history.state


KNOWS_AGES = pytest.mark.linux("when a process began, in /proc")
MINE = ProcessIdentity.of(os.getpid())
ELSEWHERE = replace(MINE, host="elsewhere 1234", boot="another", pid_namespace="pid:[1]")
NEXT_DOOR = replace(MINE, host="container 1234", pid_namespace="pid:[1]")
BEFORE = replace(MINE, boot="the one before")


def test_silent_remote_supervisor_is_reported_and_not_given_up(
    run: RunFolder, sleeper: subprocess.Popen[bytes]
) -> None:
    before = time.time()
    is_supervised_by(run, ELSEWHERE, silent_for=600)
    after = time.time()
    state = look(run)
    assert (state.state, state.phase) == (
        "running",
        "no sign of life of its supervisor on elsewhere",
    )
    assert before - 601 <= state.phase_since <= after - 599
    assert len(events_of(run)) == len((look(run), events_of(run))[1]), "it is said once"
    is_supervised_by(run, ELSEWHERE)
    assert look(run).phase == ""
    assert sleeper.poll() is None


def test_a_silent_supervisor_of_another_machine_that_answers_no_stop_is_given_up(
    run: RunFolder, sleeper: subprocess.Popen[bytes]
) -> None:
    is_supervised_by(run, ELSEWHERE, silent_for=600)
    assert LocalProvider().stop(run, RunState(run_id="a-1"), History(run).record)
    assert look(run).state == "running", "it has a minute to answer in"
    os.utime(run.path / "stop", (time.time() - 70,) * 2)
    state = look(run)
    assert (state.state, "on elsewhere" in state.reason) == ("failed", True)
    assert sleeper.poll() is None, "what is not proven ours is not killed"


@pytest.mark.parametrize(
    ("who", "silent_for", "life"),
    [
        (MINE, 9999, SupervisorState.ALIVE),
        pytest.param(replace(MINE, start="1"), 0, SupervisorState.DEAD, marks=KNOWS_AGES),
        (ELSEWHERE, 1, SupervisorState.ALIVE),
        (ELSEWHERE, 600, SupervisorState.UNKNOWN),
        (NEXT_DOOR, 1, SupervisorState.ALIVE),
        pytest.param(
            NEXT_DOOR, 600, SupervisorState.DEAD, marks=pytest.mark.linux("the id of a boot")
        ),
        (BEFORE, 1, SupervisorState.ALIVE),
        (BEFORE, 600, SupervisorState.DEAD),
    ],
    ids=[
        "this process",
        "its number is another process's now",
        "another host, heard of",
        "another host, silent",
        "another container, heard of",
        "another container, silent and its lock free",
        "before a restart, but heard of",
        "before a restart",
    ],
)
def test_the_signs_together_tell_life_from_death(
    run: RunFolder, who: ProcessIdentity, silent_for: float, life: SupervisorState
) -> None:
    is_supervised_by(run, who, silent_for=silent_for)
    assert supervisor_state(run.path) is life


@KNOWS_AGES
def test_a_lock_that_is_held_is_enough(run: RunFolder) -> None:
    is_supervised_by(run, replace(MINE, start="1"), silent_for=9999)
    with (run.path / "supervisor.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert supervisor_state(run.path) is SupervisorState.ALIVE
    assert supervisor_state(run.path) is SupervisorState.DEAD


@KNOWS_AGES
def test_a_stop_signals_nobody_who_only_has_the_number_of_the_supervisor(
    run: RunFolder, sleeper: subprocess.Popen[bytes]
) -> None:
    its = ProcessIdentity.of(sleeper.pid)
    for who in (
        replace(its, start="1"),
        replace(its, pid_namespace="pid:[1]"),
        replace(its, boot="another"),
        replace(its, host="another"),
    ):
        is_supervised_by(run, who)
        with (run.path / "supervisor.lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            send_stop_signal(run.path)
    is_supervised_by(run, its)
    send_stop_signal(run.path)  # a copy of the folder: nobody holds its lock
    assert sleeper.poll() is None
    with (run.path / "supervisor.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        send_stop_signal(run.path)
    assert sleeper.wait(HANG_SECONDS) == -15


@pytest.mark.linux("the state of a process, in /proc")
def test_a_process_that_was_not_collected_yet_counts_as_gone(run: RunFolder) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE
    ) as process:
        is_supervised_by(run, ProcessIdentity.of(process.pid))
        assert supervisor_state(run.path) is SupervisorState.ALIVE
        assert process.stdin is not None
        process.stdin.close()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # over, and still a zombie
        assert supervisor_state(run.path) is SupervisorState.DEAD


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "{}", '{"host": 1}', "[" * 9999, '{"pid": -1}'],
    ids=lambda text: text[:9],
)
def test_an_identity_that_is_damaged_is_none(run: RunFolder, text: str) -> None:
    (run.path / "supervisor.json").write_text(text)
    assert supervisor_state(run.path) is SupervisorState.DEAD, "the lock alone is left to go by"


@KNOWS_AGES
def test_supervisor_that_died_at_its_start_is_known_by_its_process(
    store: RunStore,
) -> None:
    folder = born(store, "b-1")
    assert supervisor_state(folder.path, MINE) is SupervisorState.ALIVE
    assert supervisor_state(folder.path, replace(MINE, start="1")) is SupervisorState.DEAD
    assert supervisor_state(folder.path, ELSEWHERE) is SupervisorState.NOT_STARTED


@pytest.mark.linux("the environment and the root of a process, in /proc")
def test_a_process_that_sees_another_folder_under_the_same_path_is_not_of_the_run(
    run: RunFolder,
    sleeper: subprocess.Popen[bytes],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As in a container with a separate home: /proc/PID/root leads to its files."""
    root = tmp_path / "root"
    (root / run.path.relative_to("/")).mkdir(parents=True)
    truediv = Path.__truediv__
    proc = Path(f"/proc/{sleeper.pid}")
    monkeypatch.setattr(
        Path, "__truediv__", lambda a, b: root if (a, b) == (proc, "root") else truediv(a, b)
    )
    assert end_orphans(run.path) == 0
    assert sleeper.poll() is None
    monkeypatch.undo()
    monkeypatch.setattr("time.monotonic", count(step=100).__next__)  # a machine that stands still
    assert end_orphans(run.path) == 1


def test_remote_submission_is_not_called_dead_while_it_may_be_running(
    store: RunStore,
) -> None:
    held: list[FileLock] = []
    folder = store.create("b-1", {"plan.json": "{}"}, StopRequested(time=1.0), held)
    assert folder.is_being_submitted()
    held[0].release()
    assert not folder.is_being_submitted(), "this very process has let go of it"
    lock = folder.path / "submit.lock"
    lock.write_text(json.dumps(ELSEWHERE.to_json()))
    assert folder.is_being_submitted()
    os.utime(lock, (time.time() - 9999,) * 2)
    assert not folder.is_being_submitted()


def test_a_look_at_a_run_whose_folder_was_removed_says_so(run: RunFolder) -> None:
    state = fold(run.run_id, run.events())
    shutil.rmtree(run.path)
    with pytest.raises(StorageError, match="its folder was removed"):
        LocalProvider().observe(run, state)


def test_a_submission_that_was_killed_ends_at_once_and_a_late_supervisor_gives_up(
    store: RunStore,
) -> None:
    held: list[FileLock] = []
    first = Submitting(
        time=time.time(), name="b", provider="local", contract="plain", nodes=1, processes=1
    )
    folder = store.create("b-1", {"plan.json": "{}"}, first, held)
    assert not look(folder).has_ended, "the process that submits it is alive"
    held[0].release()
    look(folder)
    assert not look(folder).has_ended, (
        "it lives, and may have started the job without a record of it"
    )
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as killed:
        identity = ProcessIdentity.of(killed.pid)
        killed.kill()
    (folder.path / "submit.lock").write_text(json.dumps(identity.to_json()))
    starting = acquire(RunPaths(folder.path).lock)
    assert starting is not None
    assert not look(folder).has_ended, "its supervisor is just starting"
    starting.release()
    look(folder)
    state = look(folder)
    assert (state.state, state.reason) == (
        "failed",
        "submit was interrupted before anything started",
    )
    supervisor = [
        sys.executable,
        "-m",
        "cloudtrain.providers.local.supervisor",
        str(folder.path),
        "source.tar.gz",
    ]
    assert subprocess.run(supervisor, timeout=HANG_SECONDS).returncode == 1
    assert [event["type"] for event in events_of(folder)] == ["submitting", "ended"]


def test_a_released_lock_is_free_although_a_child_has_its_file_open(tmp_path: Path) -> None:
    """A process that another thread forks has all open files until it runs its program."""
    lock = acquire(tmp_path / "lock")
    assert lock is not None
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, pass_fds=[lock.file]):
        lock.release()
        again = acquire(tmp_path / "lock", wait=False)
        assert again is not None
        again.release()
