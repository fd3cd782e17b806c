"""The launcher without the client: started as on any platform, by one process, a few variables and
a job document.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cloudtrain_launcher.host import free_port
from cloudtrain_launcher.processes import process_state
from tests.entrypoints.warm_launchers import ForkedLauncher
from tests.support.waiting import HANG_SECONDS

ENTRYPOINTS = Path(__file__).resolve().parents[2] / "entrypoints"
Launcher = subprocess.Popen[str] | ForkedLauncher


def document(**changes: Any) -> dict[str, Any]:
    return {
        "run_id": "job-1",
        "name": "job",
        "kind": "script",
        "target": "train.py",
        "argv": [],
        "values": {},
        "nodes": 1,
        "processes": 1,
        "gpus": 0,
        "restarts": 0,
        "grace_seconds": 20,
        "checkpoint_every_seconds": 600,
        "checkpoint_keep": 3,
        "a_field_of_a_later_version": True,
    } | changes


def start(
    folder: Path,
    script: str,
    *,
    new_process: bool = False,
    node: int = 0,
    port: int = 0,
    **changes: Any,
) -> Launcher:
    """Start a launcher: as a fork, which has imported torch, or as a new process. `port`: of the
    first node.
    """
    (folder / "train.py").write_text(script)
    (folder / "job.json").write_text(json.dumps(document(**changes)))
    env = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("CLOUDTRAIN_", "PET_"))
    }
    env |= {
        "CLOUDTRAIN_JOB_FILE": str(folder / "job.json"),
        "CLOUDTRAIN_NODE_RANK": str(node),
        "CLOUDTRAIN_NODES": str(changes.get("nodes", 1)),
        "CLOUDTRAIN_MASTER_ADDR": "127.0.0.1",
        "CLOUDTRAIN_MASTER_PORT": str(port or free_port()),
        "CLOUDTRAIN_OUTPUT_DIR": str(folder / "output"),
        "CLOUDTRAIN_MODEL_DIR": str(folder / "model"),
        "CLOUDTRAIN_CHECKPOINT_DIR": str(folder / "checkpoints"),
        "CLOUDTRAIN_PUBLISHED": str(folder / "published"),
        "RANK": "17",
        "WORLD_SIZE": "99",
    }
    if changes.get("nodes", 1) > 1 and sys.platform == "linux":
        env["CLOUDTRAIN_NODE_ADDR"] = f"127.0.0.{101 + node}"  # c10d orders the nodes by it
    if not new_process and sys.platform == "linux":
        return ForkedLauncher(ENTRYPOINTS, folder, env)
    return subprocess.Popen(
        [sys.executable, str(ENTRYPOINTS)],
        cwd=folder,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )


def events(text: str) -> list[dict[str, Any]]:
    marker = "::cloudtrain:: "
    return [
        json.loads(line[len(marker) :]) for line in text.splitlines() if line.startswith(marker)
    ]


def output_until(process: Launcher, text: str) -> str:
    """The output up to the first line with the text, or all of it."""
    assert process.stdout is not None
    output = ""
    for line in process.stdout:
        output += line
        if text in line:
            break
    return output


def finish(process: Launcher) -> str:
    try:
        return process.communicate(timeout=HANG_SECONDS)[0]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise


@pytest.mark.torchrun
def test_output_of_ranks_is_written_in_whole_marked_lines(tmp_path: Path) -> None:
    script = (
        "import os, sys\nsys.stdout.write('half '); sys.stdout.flush(); sys.stdout.write('and"
        " half\\n')\nos.write(2, b'step 1\\rstep 2\\rstep 3\\n'); os.write(1, b'\\xff raw\\n');"
        " os.write(1, b'no end')\n"
    )
    text = finish(start(tmp_path, script))
    lines = [line for line in text.splitlines() if line.startswith("[rank 0]")]
    assert lines == [
        "[rank 0] half and half",
        "[rank 0] step 3",
        "[rank 0] � raw",
        "[rank 0] no end",
    ]


@pytest.mark.torchrun
def test_a_program_that_saves_and_exits_on_sigterm_counts_as_stopped(tmp_path: Path) -> None:
    script = (
        "import signal, sys, time\nfrom cloudtrain_job import emit\n"
        "def leave(*_):\n    print('saved'); sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, leave)\nemit('ready')\n"
        "while True: time.sleep(0.05)\n"  # a signal just before one long sleep would wake nobody
    )
    process = start(tmp_path, script, new_process=True)
    output = output_until(process, '"type":"ready"')
    process.send_signal(signal.SIGTERM)
    output += finish(process)
    assert process.returncode == 5
    assert "[rank 0] saved" in output
    assert "Traceback" not in output


@pytest.mark.torchrun
def test_a_forced_stop_ends_processes_in_sessions_of_their_own(tmp_path: Path) -> None:
    script = (
        "import signal, subprocess, time\nfrom cloudtrain_job import emit\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "child = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        "orphan = subprocess.check_output(['sh', '-c', 'setsid sleep 600 >&- & echo $!'])\n"
        "emit('ready', pids=[child.pid, int(orphan)])\n"
        "while True: time.sleep(600)\n"
    )
    process = start(tmp_path, script, new_process=True, grace_seconds=1)
    output = output_until(process, '"type":"ready"')
    pids = events(output)[-1]["pids"]
    assert all(process_state(pid) for pid in pids)
    process.send_signal(signal.SIGTERM)
    end = events(finish(process))[-1]
    assert end["forced"]
    assert [process_state(pid) for pid in pids] == ["", ""]


@pytest.mark.torchrun
def test_a_rank_that_leaves_its_peers_by_os_exit_is_the_cause(tmp_path: Path) -> None:
    script = (
        "import os, torch\nimport torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "dist.barrier()\n"
        "if dist.get_rank() == 1: os._exit(0)\n"
        "while True: dist.all_reduce(torch.ones(1))\n"
    )
    end = events(finish(start(tmp_path, script, processes=2)))[-1]
    assert end["error"]["rank"] == 1
    assert "exit code 0" in end["error"]["message"]


WAITING_AGENT = """
import signal, sys
from types import SimpleNamespace
from torch.distributed import TCPStore
from torch.distributed.elastic.agent.server.api import SimpleElasticAgent
from cloudtrain_launcher import agent

store = TCPStore("127.0.0.1", 0, is_master=True)
print(store.port, flush=True)
signal.signal(signal.SIGTERM, lambda *_: None)
with open("output", "wb") as output:
    agent.leave_quickly_and_quietly(output)
    group = SimpleNamespace(state="SUCCEEDED", group_world_size=2)
    SimpleElasticAgent._exit_barrier(SimpleNamespace(_store=store, _worker_group=group, _exit_barrier_timeout=600))
"""
"""torchrun's agent of a node whose ranks have ended well, as it waits for those of a second node,
in C++ code.
"""


@pytest.mark.torchrun
def test_stopped_node_with_ended_ranks_does_not_wait_for_a_missing_peer(
    tmp_path: Path,
) -> None:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]
    from torch.distributed.elastic.agent.server.api import _TERMINAL_STATE_SYNC_ID

    env = os.environ | {"PYTHONPATH": f"{ENTRYPOINTS}{os.pathsep}{ENTRYPOINTS / 'job'}"}
    command = [sys.executable, "-c", WAITING_AGENT]
    with subprocess.Popen(
        command, cwd=tmp_path, env=env, stdout=subprocess.PIPE, text=True
    ) as agent:
        try:
            assert agent.stdout is not None
            peer = TCPStore("127.0.0.1", int(agent.stdout.readline()))
            peer.wait([f"{_TERMINAL_STATE_SYNC_ID}/num_members"])
            agent.send_signal(signal.SIGTERM)
            assert agent.wait(HANG_SECONDS) == 143
        finally:
            agent.kill()


def test_too_few_gpus_are_refused_before_torchrun_starts(tmp_path: Path) -> None:
    process = start(tmp_path, "print('never')", gpus=64)
    text = finish(process)
    assert process.returncode == 1
    assert "the plan says 64" in events(text)[-1]["error"]["message"]
    assert "never" not in text


def test_a_world_of_the_wrong_size_is_refused_in_the_rank_itself(tmp_path: Path) -> None:
    (tmp_path / "job.json").write_text(json.dumps(document(nodes=2, processes=2)))
    (tmp_path / "train.py").write_text("print('never')")
    os.mkfifo(tmp_path / "rank-0")
    reader = os.open(tmp_path / "rank-0", os.O_RDWR | os.O_NONBLOCK)
    env = {
        **os.environ,
        "CLOUDTRAIN_JOB_FILE": str(tmp_path / "job.json"),
        "CLOUDTRAIN_STREAM_DIR": str(tmp_path),
    }
    env |= {"LOCAL_RANK": "0", "RANK": "0", "WORLD_SIZE": "2"}
    process = subprocess.run(
        [sys.executable, str(ENTRYPOINTS / "cloudtrain_launcher" / "worker.py")],
        cwd=tmp_path,
        env=env,
        timeout=HANG_SECONDS,
        check=False,
    )
    output = os.read(reader, 65536).decode()
    os.close(reader)
    assert process.returncode == 1
    assert "the world has 2 ranks, the plan says 2 nodes x 2 processes = 4" in output
    assert "never" not in output


@pytest.mark.torchrun
def test_exit_handlers_run_after_a_failure_but_not_for_ever(tmp_path: Path) -> None:
    script = (
        "import atexit, time\natexit.register(time.sleep, 600)\natexit.register(print,"
        " 'goodbye')\nraise OSError('x')\n"
    )
    process = start(tmp_path, script)
    text = finish(process)
    assert process.returncode == 1
    assert "[rank 0] goodbye" in text
    assert events(text)[-1]["error"]["exception"] == "OSError"


@pytest.mark.torchrun
def test_sys_exit_with_a_message_is_a_failure(tmp_path: Path) -> None:
    process = start(tmp_path, "import sys; sys.exit('no data today')")
    text = finish(process)
    assert process.returncode == 1
    assert "[rank 0] no data today" in text


@pytest.mark.torchrun
def test_without_torch_the_reason_is_reported(tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise ImportError('broken on purpose')")
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = str(tmp_path)
    try:
        process = start(tmp_path, "print('never')", new_process=True)
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before
    text = finish(process)
    assert process.returncode == 1
    assert "torch cannot be imported" in events(text)[-1]["error"]["message"]
