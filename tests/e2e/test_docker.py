"""`--provider docker` with a real engine: one world of two containers, under each contract, and the
same parameters.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.command_line import CommandLine, CommandResult
from tests.support.engine import left_of, running

if TYPE_CHECKING:
    from docker.client import DockerClient

pytestmark = [pytest.mark.docker, pytest.mark.torchrun]

MY_TOKEN = "hunter2-never-write-this-down"
SCRIPT = """
import hashlib, os, signal, socket, sys, time
from pathlib import Path
from cloudtrain_job import emit

kept = Path(os.environ["CLOUDTRAIN_CHECKPOINT_DIR"], "step")
if kept.exists():
    emit("resumed", step=int(kept.read_text()), epoch=0)
elif "UNTIL_STOPPED" in os.environ:
    step, stop = 0, []
    signal.signal(signal.SIGTERM, lambda *_: stop.append(1))
    print("begins", flush=True)
    while not stop:
        step += 1
        time.sleep(0.05)
    if os.environ["RANK"] == "0":
        kept.write_text(str(step))
        emit("checkpoint", step=step, path=str(kept))
    sys.exit()

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(rank)
model = DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(5):
    loss = model(torch.randn(8, 4)).square().mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()
table = Path(os.environ["CLOUDTRAIN_INPUT_TABLE"])
seen = dict(
    argv=sys.argv[1:], digest=digest, torch=torch.__version__, world=dist.get_world_size(), host=socket.gethostname(),
    platform=os.environ["CLOUDTRAIN_PLATFORM"], place=os.environ["CLOUDTRAIN_NODE_RANK"], cwd=os.getcwd(),
    secret=os.environ["TOKEN"][:7], greeting=os.environ["GREETING"], table=table.name + " " + table.read_text(),
    data=Path(os.environ["CLOUDTRAIN_INPUT_MY_DATA"], "x.txt").read_text(),
    foreign=sorted(n for n in os.environ if n.startswith(("MY_", "CLOUDTRAIN_SECRET", "CLOUDTRAIN_RUN_DIR"))),
)
emit("seen", **seen)
print(f"hello from {rank}", flush=True)
out = Path(os.environ["CLOUDTRAIN_OUTPUT_DIR"], f"notes-{rank}")
out.write_text("notes")
Path("left").mkdir()
Path("left", "here.txt").write_text(f"by rank {rank}")
Path(os.environ["CLOUDTRAIN_MODEL_DIR"], f"model-{rank}").write_text("weights")
dist.barrier()
dist.destroy_process_group()
"""
JOB = """
name: pair
entrypoint: train.py
args: ["it's", "a b", "$HOME", "", "${inputs.my-data}"]
image: {docker: "%s"}
resources: {nodes: 2, processes: 1}
inputs:
  my-data: {local: ../data, aws: "s3://my-data/", azure: "azureml://datastores/workspaceblobstore/paths/d/"}
  table: {local: ../data/t.csv, aws: "s3://my-data/t.csv", azure: "azureml://datastores/workspaceblobstore/paths/t.csv"}
env: {GREETING: "007"}
secrets: {TOKEN: {local: "env:MY_TOKEN", aws: "secretsmanager:token", azure: "keyvault:my-vault/token"}}
limits: {max_runtime: 1 h}
keep: [left/]
"""
WAYS = {
    "plain": ("--provider", "docker"),
    "sagemaker": ("--provider", "docker", "--as", "aws"),
    "azureml": ("--provider", "docker", "--as", "azure"),
}
INSIDE = ("plain", "sagemaker", "azureml")


@pytest.fixture(scope="module")
def cli(cli_with_inputs: CommandLine) -> CommandLine:
    return cli_with_inputs


@dataclass(frozen=True)
class Job:
    """One way's job: a run that was stopped as soon as its lines came, and its rerun to the end."""

    submitted: CommandResult
    lines: set[str]
    """Output of the first run while it ran."""
    nodes: set[int]
    """Those whose containers ran then."""
    stopped: CommandResult
    left: list[str]
    """The containers and networks after the stop."""
    step: int
    """Step of the checkpoint at the stop."""
    run: str
    """The rerun."""
    ended: CommandResult
    """Last output of the run."""


@pytest.fixture(scope="module")
def runs(cli: CommandLine, docker_with_image: tuple[DockerClient, str]) -> dict[str, Job]:
    """The same job under each contract, in containers."""
    docker, image = docker_with_image
    cli.write(job_yaml=JOB % image, train_py=SCRIPT)
    return {way: stop_and_go_on(cli, docker, way) for way in INSIDE}


def stop_and_go_on(cli: CommandLine, docker: DockerClient, way: str) -> Job:
    """Submit, follow, stop, rerun and wait. The first run has a second node under one contract
    only.
    """
    run = f"live-{way}"
    nodes = 2 if way == "plain" else 1
    words = ("--detach", "--set", "env.UNTIL_STOPPED=yes", "--set", f"resources.nodes={nodes}")
    submitted = cli.run("submit", *WAYS[way], "--run-id", run, *words, MY_TOKEN=MY_TOKEN)
    assert submitted.code == 0, submitted.err
    follower = cli.start("logs", run, "-f", "--grep", "begins")
    assert follower.stdout is not None
    lines = {follower.stdout.readline() for _ in range(nodes)}
    containers = set(running(docker, cli.data, run))
    stopped = cli.run("stop", run)
    leftovers = left_of(docker, cli.data)
    step = cli.json("status", run)["checkpoint"]["step"]
    rerun = cli.run("rerun", run, "--detach", "--set", "resources.nodes=2", MY_TOKEN=MY_TOKEN)
    ended = cli.run("wait", rerun.out.strip())
    return Job(submitted, lines, containers, stopped, leftovers, step, rerun.out.strip(), ended)


@pytest.fixture(scope="module")
def local(cli: CommandLine, runs: dict[str, Job]) -> dict[str, Any]:
    """Return the facts of the first rank of the same job outside of containers."""
    result = cli.run("submit", "--provider", "local", "--run-id", "run-local", MY_TOKEN=MY_TOKEN)
    assert result.code == 0, result.err
    return cli.by_rank("run-local")[0]


@pytest.mark.parametrize("way", INSIDE)
def test_lines_are_live_and_a_stop_leaves_a_checkpoint_from_which_a_rerun_goes_on(
    cli: CommandLine, runs: dict[str, Job], way: str
) -> None:
    job = runs[way]
    assert job.lines == {f"[rank {node}] begins\n" for node in job.nodes}
    assert job.nodes == ({0, 1} if way == "plain" else {0})
    assert (job.stopped.code, "by force" in job.stopped.err) == (0, False), job.stopped.err
    assert job.left == []
    assert {event["step"] for event in cli.events(job.run) if event["type"] == "resumed"} == {
        job.step
    }
    assert Path(cli.json("status", job.run)["results"]["checkpoints"], "step").exists()


@pytest.mark.parametrize("way", INSIDE)
def test_two_containers_form_one_process_group_under_the_contract(
    cli: CommandLine, runs: dict[str, Job], way: str
) -> None:
    assert runs[way].ended.code == 0, runs[way].ended.err
    ranks = cli.by_rank(runs[way].run)
    assert {rank: event["place"] for rank, event in ranks.items()} == {0: "0", 1: "1"}
    for rank in ranks.values():
        assert (rank["world"], rank["platform"], rank["greeting"]) == (2, way, "007")
        assert (rank["secret"], rank["table"], rank["data"]) == (
            MY_TOKEN[:7],
            "t.csv a,b",
            "input data",
        )
        assert rank["argv"][:4] == ["it's", "a b", "$HOME", ""]
        assert rank["argv"][4].endswith("/my-data" if way != "azureml" else "/my_data")
        assert rank["foreign"] == []
        assert str(cli.folder) not in str(rank)


def test_each_contract_gives_its_own_host_names_and_folders(
    cli: CommandLine, runs: dict[str, Job]
) -> None:
    hosts = {
        way: [event["host"] for _, event in sorted(cli.by_rank(runs[way].run).items())]
        for way in INSIDE
    }
    nodes = ["node-00", "node-01"]
    assert hosts == {"plain": nodes, "sagemaker": ["algo-1", "algo-2"], "azureml": nodes}
    folders = {way: cli.by_rank(runs[way].run)[1]["cwd"] for way in INSIDE}
    assert folders == {
        "plain": "/cloudtrain/source",
        "sagemaker": "/opt/ml/code",
        "azureml": "/mnt/azureml/wd/code",
    }


@pytest.mark.parametrize("way", INSIDE)
def test_the_parameters_are_those_of_the_local_run(
    cli: CommandLine, runs: dict[str, Job], local: dict[str, Any], way: str
) -> None:
    reports = cli.by_rank(runs[way].run)
    if local["torch"] != reports[0]["torch"]:
        pytest.skip(f"torch is {local['torch']} here and {reports[0]['torch']} in the image")
    assert {event["digest"] for event in reports.values()} == {local["digest"]}


@pytest.mark.parametrize("way", INSIDE)
def test_what_both_nodes_wrote_is_where_people_look_and_belongs_to_them(
    cli: CommandLine, runs: dict[str, Job], way: str
) -> None:
    folder = cli.run_folder(runs[way].run)
    for name, file in (("model", "model"), ("output", "notes")):
        assert sorted(path.name for path in (folder / name).glob(f"{file}-*")) == [
            f"{file}-0",
            f"{file}-1",
        ]
    labels = {
        path.parent.relative_to(folder).as_posix(): path.read_text()
        for path in folder.glob("output/**/here.txt")
    }
    assert labels == {"output/left": "by rank 0", "output/node-1/left": "by rank 1"}
    assert {path.stat().st_uid for path in folder.rglob("*")} == {os.getuid()}


def test_nothing_of_them_is_left(
    cli: CommandLine, runs: dict[str, Job], docker: DockerClient
) -> None:
    assert left_of(docker, cli.data) == []
    assert cli.processes() == []
