"""Failures in containers: the right message within the deadline, and complete removal, whatever is
killed.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from cloudtrain_wire.process_identity import ProcessIdentity
from tests.support.command_line import CommandLine
from tests.support.engine import left_of, running
from tests.support.waiting import HANG_SECONDS, eventually

if TYPE_CHECKING:
    from docker.client import DockerClient

pytestmark = [pytest.mark.docker, pytest.mark.torchrun]

GROUP = """
import os, signal, sys, time
from pathlib import Path
import torch
import torch.distributed as dist
from cloudtrain_job import emit
dist.init_process_group("gloo")
rank = dist.get_rank()
dist.all_reduce(torch.ones(1))
emit("training")
go = Path(os.environ["CLOUDTRAIN_OUTPUT_DIR"], "go")
"""
FOREVER = """
while not go.exists():
    dist.all_reduce(torch.ones(1))
    time.sleep(0.02)
"""
UNTIL_GO = """
while not go.exists():
    time.sleep(0.02)
"""
ONE_NODE = ("--set", "resources.nodes=1")
JOB = (
    "name: job\nentrypoint: train.py\nimage: {docker: '%s'}\nresources: {nodes: 2, processes: 1}\n"
)


@pytest.fixture
def cli(cli: CommandLine, image: str, docker: DockerClient) -> Iterator[CommandLine]:
    """A command line whose runs are in containers; what a failed test leaves is removed."""
    cli.env["CLOUDTRAIN_PROVIDER"] = "docker"
    cli.write(job_yaml=JOB % image, train_py="print(1)\n")
    yield cli
    for container in docker.containers.list(
        all=True, filters={"label": f"cloudtrain.data={cli.data}"}
    ):
        container.remove(force=True, v=True)
    for network in docker.networks.list(filters={"label": f"cloudtrain.data={cli.data}"}):
        network.remove()


def train(cli: CommandLine, script: str, *words: str) -> None:
    """Start run job-1 and wait until the rank of its last node trains."""
    cli.write(train_py=script)
    submitted = cli.run("submit", "--run-id", "job-1", "--detach", *words)
    assert submitted.code == 0, submitted.err
    last = 0 if words == ONE_NODE else 1
    cli.wait_for_event("job-1", lambda event: event["type"] == "training" and event["rank"] == last)


def supervisor(cli: CommandLine) -> int:
    return int((cli.run_folder("job-1") / "supervisor.lock").read_text())


def waited(cli: CommandLine) -> str:
    """Return the message at the end of the run, which comes in time."""
    began = time.monotonic()
    result = cli.run("wait", "job-1")
    assert time.monotonic() - began < HANG_SECONDS
    assert result.code == 1, result.err
    return result.err


def test_a_killed_container_is_the_cause_and_its_peer_ends(
    cli: CommandLine, docker: DockerClient
) -> None:
    train(cli, GROUP + FOREVER)
    running(docker, cli.data, "job-1")[1].kill("SIGKILL")
    assert "node 1: its container was killed by SIGKILL" in waited(cli)
    assert left_of(docker, cli.data) == []


def test_a_killed_supervisor_takes_its_containers_along(
    cli: CommandLine, docker: DockerClient
) -> None:
    train(cli, GROUP + UNTIL_GO)
    os.kill(supervisor(cli), signal.SIGKILL)
    assert "its supervisor is gone" in waited(cli)
    assert left_of(docker, cli.data) == []
    assert cli.processes() == []


def kill_all_but_the_containers(cli: CommandLine) -> None:
    """Kill as if the machine's memory had run out, without time to remove anything. Return when
    they are gone.

    A killed process keeps its locks until the kernel has taken it down, which on a busy machine may
    take seconds.
    """
    os.kill(supervisor(cli), signal.SIGSTOP)  # first, so that it does not start more of them
    pids = [supervisor(cli), *cli.processes()]
    killed = [ProcessIdentity.of(pid) for pid in pids]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    assert eventually(lambda: all(process.is_alive() is False for process in killed))


def test_what_killed_processes_leave_is_removed_at_the_next_status(
    cli: CommandLine, docker: DockerClient
) -> None:
    train(cli, GROUP + UNTIL_GO)
    kill_all_but_the_containers(cli)
    assert set(running(docker, cli.data, "job-1")) == {0, 1}
    state = cli.json("status", "job-1")
    assert state["state"] == "failed"
    assert state["reason"].endswith("2 containers that were left have been removed")
    assert left_of(docker, cli.data) == []


def test_observing_a_run_survives_the_death_of_the_engine(
    cli: CommandLine, docker: DockerClient
) -> None:
    train(cli, GROUP + UNTIL_GO, *ONE_NODE)
    kill_all_but_the_containers(cli)
    state = cli.json("status", "job-1", DOCKER_HOST="tcp://127.0.0.1:1")
    assert state["state"] == "failed"
    assert "its containers could not be looked for: no Docker engine answers" in state["reason"]
    assert set(running(docker, cli.data, "job-1")) == {0}
    assert cli.run("list", DOCKER_HOST="tcp://127.0.0.1:1").code == 0
    assert cli.json("status", "job-1") == state, "what has ended stays as it was told"
    assert left_of(docker, cli.data) == [], "but nothing of it stays"
