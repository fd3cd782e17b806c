"""Launchers started as on Azure ML: a stop by file, and a restart in place."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from cloudtrain_wire.ports import free_port
from tests.entrypoints.launcher.platforms import start_node
from tests.entrypoints.launchers import Launcher, events, finish
from tests.support.waiting import HANG_SECONDS

STOP_FILE = "output/.cloudtrain-stop"

SAVES_ON_SIGTERM = """
import os, signal, sys, time
from pathlib import Path
from cloudtrain_job import emit

def leave(*_):
    Path(os.environ["CLOUDTRAIN_CHECKPOINT_DIR"], "rank-" + os.environ["RANK"]).write_text("saved")
    sys.exit(0)

signal.signal(signal.SIGTERM, leave)
emit("ready")
while True:
    time.sleep(0.05)  # a signal just before one long sleep would wake nobody
"""


def read_until(process: Launcher, kind: str) -> str:
    """The launcher's output up to the first event of this type."""
    assert process.stdout is not None
    output = ""
    for line in process.stdout:
        output += line
        if f'"type":"{kind}"' in line:
            return output

    raise AssertionError(f"no {kind} in:\n{output}")


@pytest.mark.torchrun
def test_the_stop_file_stops_all_nodes_and_one_that_is_restarted(tmp_path: Path) -> None:
    port = free_port()
    programs = {"train": SAVES_ON_SIGTERM}
    job = {"nodes": 2, "grace_seconds": HANG_SECONDS}
    nodes = [start_node(tmp_path, rank, 2, port, programs, job) for rank in range(2)]
    before = [read_until(node, "ready") for node in nodes]
    (tmp_path / STOP_FILE).touch()
    texts = [output + finish(node) for output, node in zip(before, nodes, strict=True)]
    assert [node.returncode for node in nodes] == [
        0,
        0,
    ], texts  # with another the platform would end the job for the peers
    for text in texts:
        end = events(text)[-1]
        assert (end["outcome"], end["why"], end["forced"], end["error"]) == (
            "stopped",
            "stop_file",
            False,
            None,
        )
        assert "a stop was requested: stopping with a checkpoint" in text
        assert "Traceback" not in text

    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == [
        "rank-0",
        "rank-1",
    ]
    assert (tmp_path / STOP_FILE).exists()
    restarted = start_node(tmp_path, 1, 2, port, programs, job)
    text = finish(restarted)
    assert restarted.returncode == 0
    types = [event["type"] for event in events(text) if event["type"] not in ("activity", "usage")]
    assert types == ["node_started", "node_ended"]


@pytest.mark.torchrun
def test_a_training_on_two_nodes_resumes_after_a_restart_in_place(tmp_path: Path) -> None:
    port = free_port()
    argv = [
        "--task",
        "digits",
        "--epochs",
        "3000",
        "--checkpoint-every-steps",
        "5",
    ]
    job = {
        "nodes": 2,
        "restarts": 1,
        "kind": "trainer",
        "target": "",
        "argv": argv,
        "checkpoint_keep": 2,
    }
    nodes = [start_node(tmp_path, rank, 2, port, {}, job) for rank in range(2)]
    output = [
        read_until(node, kind)
        for node, kind in zip(nodes, ("checkpoint", "rank_started"), strict=True)
    ]
    pid = next(event["pid"] for event in events(output[1]) if event["type"] == "rank_started")
    os.kill(pid, signal.SIGKILL)
    output[0] += read_until(nodes[0], "resumed")
    (tmp_path / STOP_FILE).touch()
    texts = [text + finish(node) for text, node in zip(output, nodes, strict=True)]
    assert [node.returncode for node in nodes] == [0, 0], texts
    assert next(event["step"] for event in events(texts[0]) if event["type"] == "resumed") >= 5
    assert all("checkpoint files from other nodes" in text for text in texts)
    newest = max((tmp_path / "checkpoints").glob("step-*"))
    assert {path.name for path in newest.glob("rank-*")} == {"rank-0.pt", "rank-1.pt"}
    assert (newest / "weights-0" / "tensors-0.pt").exists()
    assert len(list((tmp_path / "checkpoints").glob("step-*"))) == 2
