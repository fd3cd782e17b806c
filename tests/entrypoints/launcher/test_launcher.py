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

from cloudtrain_wire.ports import free_port
from cloudtrain_wire.processes import process_state
from tests.entrypoints.launcher.platforms import MASTER, container, folders, variables
from tests.entrypoints.launchers import (
    ENTRYPOINTS,
    SHORT_DEADLINE,
    clean,
    document,
    events,
    finish,
    output_until,
    run_rank,
    start,
    start_launcher,
)
from tests.support.waiting import HANG_SECONDS, eventually

ALONE_OR_NOT = pytest.mark.parametrize("restarts", [0, 1], ids=["alone", "under torchrun"])
"""The only rank of a job needs torchrun for restarts alone."""


@pytest.mark.torchrun
@ALONE_OR_NOT
def test_a_program_that_saves_and_exits_on_sigterm_counts_as_stopped(
    tmp_path: Path, restarts: int
) -> None:
    script = (
        "import signal, sys, time\nfrom cloudtrain_job import emit\n"
        "def leave(*_):\n    print('saved'); sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, leave)\nemit('ready')\n"
        "while True: time.sleep(0.05)\n"  # a signal just before one long sleep would wake nobody
    )
    job = {"restarts": restarts, "grace_seconds": HANG_SECONDS}
    process = start(tmp_path, script, new_process=True, **job)
    output = output_until(process, '"type":"ready"')
    process.send_signal(signal.SIGTERM)
    output += finish(process)
    assert process.returncode == 5
    assert "[rank 0] saved" in output
    assert "Traceback" not in output


@pytest.mark.torchrun
@ALONE_OR_NOT
def test_a_forced_stop_ends_processes_in_sessions_of_their_own(
    tmp_path: Path, restarts: int
) -> None:
    script = (
        "import signal, subprocess, time\nfrom cloudtrain_job import emit\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "child = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        "orphan = subprocess.check_output(['sh', '-c', 'setsid sleep 600 >&- & echo $!'])\n"
        "emit('ready', pids=[child.pid, int(orphan)])\n"
        "while True: time.sleep(600)\n"
    )
    process = start(tmp_path, script, new_process=True, restarts=restarts, grace_seconds=1)
    output = output_until(process, '"type":"ready"')
    pids = events(output)[-1]["pids"]
    assert all(process_state(pid) for pid in pids)
    process.send_signal(signal.SIGTERM)
    end = events(finish(process))[-1]
    assert end["forced"]
    assert eventually(lambda: not any(map(process_state, pids)))


@pytest.mark.torchrun
def test_a_forced_stop_ends_what_a_command_leaves_behind(tmp_path: Path) -> None:
    script = (
        "import os, signal, time\nfrom cloudtrain_job import emit\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nemit('ready', pids=[os.getpid()])\n"
        "while True: time.sleep(600)\n"
    )
    words = ["-c", f'"{sys.executable}" train.py; echo never']
    job: dict[str, Any] = {"kind": "command", "target": "sh", "command": words}
    process = start(tmp_path, script, new_process=True, grace_seconds=1, **job)
    output = output_until(process, '"type":"ready"')
    (pid,) = events(output)[-1]["pids"]
    process.send_signal(signal.SIGTERM)
    end = events(finish(process))[-1]
    assert (end["outcome"], end["forced"]) == ("stopped", True)
    assert eventually(lambda: not process_state(pid))


STOPPED_DURING_START = """
import os, signal
from torch.distributed.elastic.multiprocessing import api
from cloudtrain_launcher.agent import stop_after_start

class Agent:
    def _start_workers(self, group):
        signal.signal(signal.SIGTERM, api._terminate_process_handler)
        os.kill(os.getpid(), signal.SIGTERM)
        self.knows_its_ranks = True

stop_after_start(api, Agent)
agent = Agent()
try:
    agent._start_workers(None)
except api.SignalException as error:
    print(error.sigval.name, agent.knows_its_ranks)
"""
"""torchrun's agent, stopped when some of its ranks have started and others have not."""


@pytest.mark.torchrun
def test_stop_during_the_start_of_the_ranks_waits_until_all_have_started(tmp_path: Path) -> None:
    env = os.environ | {"PYTHONPATH": f"{ENTRYPOINTS}{os.pathsep}{ENTRYPOINTS / 'job'}"}
    output = subprocess.check_output(
        [sys.executable, "-c", STOPPED_DURING_START], cwd=tmp_path, env=env, text=True
    )
    assert output == "SIGTERM True\n"


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


def environ_of(platform: str, folder: Path) -> dict[str, str]:
    """The variables of a node that could start, except for those of a plain platform."""
    if platform == "sagemaker":
        return container(folder)

    if platform == "azureml":
        job = json.dumps(document(nodes=3))
        return variables(CLOUDTRAIN_JOB=job, CLOUDTRAIN_NODE_ADDR=MASTER) | folders(folder)

    return {"CLOUDTRAIN_PLATFORM": "plain", "CLOUDTRAIN_NODE_RANK": "0"}


@pytest.mark.parametrize(
    ("platform", "changes", "node", "message"),
    [
        ("plain", {"CLOUDTRAIN_PLATFORM": "vax"}, 0, "is 'vax'; known: plain, sagemaker, azureml"),
        (
            "sagemaker",
            {"SAGEMAKER_BASE_DIR": "elsewhere"},
            0,
            "SageMaker's list of the job's nodes",
        ),
        ("azureml", {"NODE_RANK": "1", "WORLD_SIZE": "2"}, 1, "has 2 nodes, the plan says 3"),
    ],
)
def test_a_launcher_that_cannot_start_ends_like_any_failure(
    platform: str, changes: dict[str, str], node: int, message: str, tmp_path: Path
) -> None:
    environ = environ_of(platform, tmp_path) | changes
    command = [sys.executable, str(ENTRYPOINTS)]
    process = start_launcher(ENTRYPOINTS, tmp_path, clean(**environ), command)
    text = finish(process)
    assert process.returncode == 1
    kinds = [event["type"] for event in events(text) if event["type"] != "activity"]
    assert kinds[-2:] == ["error", "node_ended"]
    end = events(text)[-1]
    assert (end["outcome"], end["node"], end.get("why")) == ("failed", node, None)
    assert message in end["error"]["message"]
    failure = f"node {node}: {end['error']['message']}"
    assert text.splitlines()[-1] == f"[node {node}] failed: {failure}"
    failure_files = [path.read_text() for path in tmp_path.rglob("failure")]
    assert failure_files == ([failure] if platform == "sagemaker" else [])


def test_too_few_gpus_are_refused_before_torchrun_starts(tmp_path: Path) -> None:
    process = start(tmp_path, "print('never')", gpus=64)
    text = finish(process)
    assert process.returncode == 1
    assert "the plan says 64" in events(text)[-1]["error"]["message"]
    assert "never" not in text


def test_exit_handlers_run_after_a_failure_but_not_for_ever(tmp_path: Path) -> None:
    script = (
        "import atexit, time\natexit.register(time.sleep, 600)\n"
        "atexit.register(print, 'goodbye')\nraise OSError('x')\n"
    )
    rank = run_rank(tmp_path, SHORT_DEADLINE + script)
    assert rank.code == 1
    assert "goodbye" in rank.text
    assert rank.error["exception"] == "OSError"


@pytest.fixture
def without_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Launchers whose Python cannot import torch."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise ImportError('broken on purpose')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


@pytest.mark.torchrun
@pytest.mark.usefixtures("without_torch")
def test_without_torch_the_reason_is_reported(tmp_path: Path) -> None:
    process = start(tmp_path, "print('never')", new_process=True, processes=2)
    text = finish(process)
    assert process.returncode == 1
    assert "torch cannot be imported" in events(text)[-1]["error"]["message"]


@pytest.mark.usefixtures("without_torch")
def test_the_only_rank_of_a_job_needs_torch_for_its_program_alone(tmp_path: Path) -> None:
    process = start(tmp_path, "print('trained')", new_process=True)
    assert "[rank 0] trained" in finish(process)
    process = start(tmp_path, "import torch", new_process=True)
    error = events(finish(process))[-1]["error"]
    assert (error["exception"], error["message"]) == ("ImportError", "broken on purpose")


def test_children_of_the_only_rank_hear_a_stop_as_under_torchrun(tmp_path: Path) -> None:
    script = (
        "import signal, subprocess, sys\nfrom cloudtrain_job import emit\n"
        "signal.signal(signal.SIGTERM, lambda *_: None)\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "emit('ready')\n"
        "print('the child ended by', child.wait())\n"
    )
    process = start(tmp_path, script, new_process=True, grace_seconds=HANG_SECONDS)
    output = output_until(process, '"type":"ready"')
    process.send_signal(signal.SIGTERM)
    assert "the child ended by -15" in output + finish(process)


@pytest.mark.linux("processes end with their parent on Linux only")
def test_the_only_rank_ends_with_a_killed_launcher(tmp_path: Path) -> None:
    script = (
        "import os, time\nfrom cloudtrain_job import emit\n"
        "emit('ready', pid=os.getpid())\ntime.sleep(600)\n"
    )
    process = start(tmp_path, script, new_process=True)
    rank = events(output_until(process, '"type":"ready"'))[-1]["pid"]
    process.send_signal(signal.SIGKILL)
    finish(process)
    assert eventually(lambda: process_state(rank) in ("", "Z"))


OWN_RANKS = """
import os, sys
import torch
import torch.distributed as dist

def work(rank, world):
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "localhost", sys.argv[1]
    dist.init_process_group("gloo", rank=rank, world_size=world)
    total = torch.ones(1)
    dist.all_reduce(total)
    os.write(1, f"rank {rank} of its own: {total.item():.0f}\\n".encode())
    dist.destroy_process_group()

if __name__ == "__main__":
    torch.multiprocessing.start_processes(work, args=(2,), nprocs=2, join=True, start_method="fork")
    dist.init_process_group("gloo")
    print("and one of", dist.get_world_size())
"""


@pytest.mark.torchrun
@ALONE_OR_NOT
def test_ranks_of_its_own_meet_and_so_does_the_process_itself(
    tmp_path: Path, restarts: int
) -> None:
    process = start(tmp_path, OWN_RANKS, argv=[str(free_port())], restarts=restarts)
    text = finish(process)
    assert process.returncode == 0, text
    assert "[rank 0] rank 0 of its own: 2" in text
    assert "[rank 0] rank 1 of its own: 2" in text
    assert "[rank 0] and one of 1" in text
