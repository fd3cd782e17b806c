"""Failures in containers: the right message within the deadline, and complete removal, whatever is
killed.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cloudtrain_launcher.process_identity import ProcessIdentity
from tests.support.command_line import CommandLine
from tests.support.engine import left_of, running
from tests.support.limits import HANG_SECONDS
from tests.support.waiting import eventually

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


def node_process(cli: CommandLine, node: int) -> int:
    """The process beside a node's container."""
    mine = f"nodes/{node}/container.json"
    return next(pid for pid in cli.processes() if mine in Path(f"/proc/{pid}/cmdline").read_text())


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


def test_a_killed_client_loses_nothing(cli: CommandLine, docker: DockerClient) -> None:
    cli.write(train_py=GROUP + UNTIL_GO + "print('finished without you')\n")
    client = cli.start("submit", "--run-id", "job-1", *ONE_NODE)
    cli.wait_for_event("job-1", lambda event: event["type"] == "training")
    os.killpg(client.pid, signal.SIGKILL)
    client.wait()
    assert len(left_of(docker, cli.data)) == 2, "a container and a network"
    (cli.run_folder("job-1") / "output" / "go").touch()
    assert cli.run("wait", "job-1").code == 0
    assert "finished without you" in cli.run("logs", "job-1").out
    assert left_of(docker, cli.data) == []


def test_a_killed_supervisor_takes_its_containers_along(
    cli: CommandLine, docker: DockerClient
) -> None:
    train(cli, GROUP + UNTIL_GO)
    os.kill(supervisor(cli), signal.SIGKILL)
    assert "its supervisor is gone" in waited(cli)
    assert left_of(docker, cli.data) == []
    assert cli.processes() == []


def test_a_killed_node_process_ends_the_run(cli: CommandLine, docker: DockerClient) -> None:
    train(cli, GROUP + FOREVER)
    os.kill(node_process(cli, 0), signal.SIGKILL)
    assert "the launcher of node 0 was killed by SIGKILL" in waited(cli)
    assert left_of(docker, cli.data) == []


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


def test_what_killed_processes_leave_is_removed_before_the_next_submit(
    cli: CommandLine, docker: DockerClient
) -> None:
    train(cli, GROUP + UNTIL_GO, *ONE_NODE)
    kill_all_but_the_containers(cli)
    assert set(running(docker, cli.data, "job-1")) == {0}
    cli.write(train_py="print('next')\n")
    submitted = cli.run("submit", "--run-id", "next-1", *ONE_NODE)
    assert submitted.code == 0, submitted.err
    assert left_of(docker, cli.data) == []


def test_a_rank_that_hangs_after_its_peer_has_failed_is_not_waited_for(
    cli: CommandLine, docker: DockerClient
) -> None:
    hang = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nif rank == 0:\n    time.sleep(600)\n"
    fail = "while not go.exists():\n    time.sleep(0.02)\nraise ValueError('the dog ate shard 3')\n"
    train(cli, GROUP + hang + fail)
    (cli.run_folder("job-1") / "output" / "go").touch()
    result = waited(cli)
    assert "rank 1 (node 1) raised ValueError: the dog ate shard 3" in result
    assert "train.py:17" in result
    assert left_of(docker, cli.data) == []


def test_out_of_memory_in_one_rank_is_told_apart(cli: CommandLine, docker: DockerClient) -> None:
    cli.write(train_py=GROUP + "rows = [torch.ones(10_000_000) for _ in range(100)]\n")
    result = cli.run("submit", "--run-id", "job-1", *ONE_NODE, CLOUDTRAIN_DOCKER_MEMORY="1.5 GB")
    assert result.code == 1
    why = "out of host memory: its container reached the limit of 1.5 GB"
    assert f"rank 0 (node 0) was killed by SIGKILL ({why})" in result.err
    assert "hint: raise docker.memory" in result.err
    assert why in cli.run("logs", "job-1", "--node", "0").out
    assert cli.json("status", "job-1")["error"]["exception"] == "SIGKILL"
    assert left_of(docker, cli.data) == []


def test_an_image_without_python_is_told_at_once(
    cli: CommandLine, docker: DockerClient, image: str
) -> None:
    empty = f"{image}-empty"
    repository, _, tag = empty.partition(":")
    docker.api.import_image_from_data(_a_tar(), repository=repository, tag=tag)
    try:
        result = cli.run("submit", "--run-id", "job-1", "--set", f"image={empty}", *ONE_NODE)
    finally:
        docker.images.remove(empty, force=True)
    assert result.code == 1
    assert f"the image {empty} lacks what the job starts with" in result.err
    assert "hint: an image needs python3 with torch on its PATH" in result.err
    assert left_of(docker, cli.data) == []


def _a_tar() -> bytes:
    import io
    import tarfile

    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("nothing"), io.BytesIO())
    return buffer.getvalue()


def test_a_missing_image_is_refused_before_anything_starts(cli: CommandLine) -> None:
    result = cli.run("submit", "--run-id", "job-1", "--set", "image=cloudtrain-test:none")
    assert result.code == 3
    assert "there is no image cloudtrain-test:none on this machine" in result.err
    assert "hint: docker pull cloudtrain-test:none" in result.err
    assert not cli.run_folder("job-1").exists()


def test_more_gpus_than_there_are_is_refused_before_anything_starts(cli: CommandLine) -> None:
    result = cli.run("submit", "--run-id", "job-1", "--set", "resources.gpus=64")
    assert result.code == 3
    assert "GPUs, the spec asks for 128 in all" in result.err


def test_a_missing_engine_is_refused_with_a_remedy(cli: CommandLine) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        host = f"tcp://127.0.0.1:{free.getsockname()[1]}"
        result = cli.run("check", DOCKER_HOST=host)
    assert result.code == 3
    assert f"no Docker engine answers at {host}" in result.err
    assert "DOCKER_HOST" in result.err
    away = cli.run("check", DOCKER_HOST="tcp://192.0.2.1:2375")
    assert "the engine must be this machine's" in away.err


_AS_NOBODY = """
import os, sys
import docker.client, cloudtrain.providers.docker.engine
from cloudtrain.errors import CloudtrainError
from cloudtrain.providers.docker.connect import docker_engine
if os.geteuid() == 0:
    os.setegid(65534); os.seteuid(65534)
try:
    with docker_engine():
        print("let in")
except CloudtrainError as error:
    print(error.message, "|", error.hint)
"""


def test_a_missing_permission_is_reported_with_a_remedy(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as engine:
        engine.bind(str(tmp_path / "docker.sock"))
        engine.listen()
        (tmp_path / "docker.sock").chmod(0)
        env = {**os.environ, "DOCKER_HOST": f"unix://{tmp_path}/docker.sock"}
        result = subprocess.run(
            [sys.executable, "-c", _AS_NOBODY],
            env=env,
            capture_output=True,
            text=True,
            timeout=HANG_SECONDS,
        )
    message, _, hint = result.stdout.partition(" | ")
    assert message == f"this user may not use the Docker engine at unix://{tmp_path}/docker.sock", (
        result.stderr
    )
    assert "usermod -aG docker" in hint
    assert "rootless" in hint


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
