"""How a supervisor tells the end of a run: whose word counts, and that a full disk costs none. Its
nodes are shells.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cloudtrain.planning.launch import Launch
from cloudtrain.providers.local.provider import LocalProvider
from cloudtrain.runs.fold import fold
from cloudtrain.runs.folder import RunFolder
from cloudtrain.runs.logs import EVENT_MARK
from tests.support.events import as_json, events_of
from tests.support.limits import HANG_SECONDS

ROOT = Path(__file__).resolve().parents[2]


class Shells:
    """An emulator whose nodes are lines of shell."""

    max_runtime_seconds = None
    grace_seconds = 5
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
from tests.unit.test_supervisor_ends import Shells
run = Path(sys.argv[1])
supervisor.emulator_of = lambda _: Shells(run, tuple(sys.argv[2:]))
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


UNTIL = "trap '' TERM; while [ ! -e {0} ]; do sleep 0.05; done; "
NODES = {
    "the stopped node leaves first": (
        UNTIL.format("said") + "{failed} exit 1",
        "{stopped} touch said; exit 5",
    ),
    "its peer fails while it still saves": (
        UNTIL.format("said") + "{failed} touch gone; exit 1",
        "{stopped} touch said; " + UNTIL.format("gone") + "exit 5",
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
    """A real disk of 256 kB."""
    disk = tmp_path / "data"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk)]
    if (
        shutil.which("mount") is None
        or subprocess.run(mount, capture_output=True, check=False).returncode
    ):
        pytest.skip("this user may not mount a disk")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_an_end_that_a_full_disk_would_not_take_is_told_when_there_is_room_again(
    small_disk: Path,
) -> None:
    path = small_disk / "runs" / "run-1"
    path.mkdir(parents=True)
    (path / "supervisor.lock").write_text("4711")
    fill = "head -c 1000000 /dev/zero > filler 2>/dev/null; "
    run = supervised(path, fill + failed(0, time.time()) + "exit 1")
    assert [event for event in events_of(run) if event["type"] == "ended"] == []
    (path / "filler").unlink()
    (observation,) = LocalProvider().observe(run, fold("run-1", run.events()))
    (stored,) = map(as_json, observation.events)
    assert (stored["state"], stored["reason"]) == ("failed", "rank 0 (node 0) failed")
    assert stored["error"]["message"] == "Connection closed by peer"
