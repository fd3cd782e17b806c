"""`--provider docker` with a real engine: one world of two containers, under each contract, and the same parameters."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.e2e.rehearsals import MY_TOKEN, leaves_no_secret
from tests.support.command_line import CommandLine, CommandResult
from tests.support.engine import left_of, running

if TYPE_CHECKING:
    from docker.client import DockerClient

pytestmark = [pytest.mark.docker, pytest.mark.torchrun]

SCRIPT = """
import hashlib, os, socket, sys
from pathlib import Path
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from cloudtrain_job import emit

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
    "local": ("--provider", "local"),
    "plain": ("--provider", "docker"),
    "sagemaker": ("--provider", "docker", "--as", "aws"),
    "azureml": ("--provider", "docker", "--as", "azure"),
}
INSIDE = ("plain", "sagemaker", "azureml")


@pytest.fixture(scope="module")
def cli(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandLine]:
    made = CommandLine(tmp_path_factory.mktemp("docker") / "a folder, with spaces")
    (made.folder / "data").mkdir()
    (made.folder / "data" / "x.txt").write_text("input data")
    (made.folder / "data" / "t.csv").write_text("a,b")
    yield made
    made.close()


@pytest.fixture(scope="module")
def runs(cli: CommandLine, docker_with_image: tuple[DockerClient, str]) -> dict[str, CommandResult]:
    """The same job, everywhere on this machine."""
    cli.write(job_yaml=JOB % docker_with_image[1], train_py=SCRIPT)
    return {way: cli.run("submit", *WAYS[way], "--run-id", f"run-{way}", MY_TOKEN=MY_TOKEN) for way in WAYS}


def seen(cli: CommandLine, way: str) -> dict[int, dict[str, Any]]:
    return {event["rank"]: event for event in cli.events(f"run-{way}") if event["type"] == "seen"}


@pytest.mark.parametrize("way", INSIDE)
def test_two_containers_form_one_process_group_and_the_script_finds_the_whole_contract(
    cli: CommandLine, runs: dict[str, CommandResult], way: str
) -> None:
    assert runs[way].code == 0, runs[way].err
    ranks = seen(cli, way)
    assert {rank: event["place"] for rank, event in ranks.items()} == {0: "0", 1: "1"}
    for rank in ranks.values():
        assert (rank["world"], rank["platform"], rank["greeting"]) == (2, way, "007")
        assert (rank["secret"], rank["table"], rank["data"]) == (MY_TOKEN[:7], "t.csv a,b", "input data")
        assert rank["argv"][:4] == ["it's", "a b", "$HOME", ""]
        assert rank["argv"][4].endswith("/my-data" if way != "azureml" else "/my_data")
        assert rank["foreign"] == []
        assert str(cli.folder) not in str(rank)


def test_each_contract_gives_its_own_host_names_and_folders(cli: CommandLine, runs: dict[str, CommandResult]) -> None:
    hosts = {way: [event["host"] for _, event in sorted(seen(cli, way).items())] for way in INSIDE}
    own = ["node-00", "node-01"]
    assert hosts == {"plain": own, "sagemaker": ["algo-1", "algo-2"], "azureml": own}
    folders = {way: seen(cli, way)[1]["cwd"] for way in INSIDE}
    assert folders == {"plain": "/cloudtrain/source", "sagemaker": "/opt/ml/code", "azureml": "/mnt/azureml/wd/code"}


@pytest.mark.parametrize("way", INSIDE)
def test_the_parameters_are_those_of_the_local_run(cli: CommandLine, runs: dict[str, CommandResult], way: str) -> None:
    here, there = seen(cli, "local")[0], seen(cli, way)
    if here["torch"] != there[0]["torch"]:
        pytest.skip(f"torch is {here['torch']} here and {there[0]['torch']} in the image")
    assert {event["digest"] for event in there.values()} == {here["digest"]}


@pytest.mark.parametrize("way", INSIDE)
def test_what_both_nodes_wrote_is_where_people_look_and_belongs_to_them(
    cli: CommandLine, runs: dict[str, CommandResult], way: str
) -> None:
    folder = cli.run_folder(f"run-{way}")
    for name, file in (("model", "model"), ("output", "notes")):
        assert sorted(path.name for path in (folder / name).glob(f"{file}-*")) == [f"{file}-0", f"{file}-1"]
    kept = {path.parent.relative_to(folder).as_posix(): path.read_text() for path in folder.glob("output/**/here.txt")}
    assert kept == {"output/left": "by rank 0", "output/node-1/left": "by rank 1"}
    assert {path.stat().st_uid for path in folder.rglob("*")} == {os.getuid()}


@pytest.mark.parametrize("way", INSIDE)
def test_nothing_of_it_is_left_and_no_file_holds_the_secret(
    cli: CommandLine, runs: dict[str, CommandResult], docker: DockerClient, way: str
) -> None:
    assert left_of(docker, cli.data) == []
    assert cli.processes() == []
    leaves_no_secret(cli, f"run-{way}")
    assert MY_TOKEN not in runs[way].out + runs[way].err


def test_logs_of_both_nodes_are_kept_apart(cli: CommandLine, runs: dict[str, CommandResult]) -> None:
    for way in INSIDE:
        assert cli.run("logs", f"run-{way}", "--node", "1", "--grep", "hello").out == "[rank 1] hello from 1\n"
        assert cli.json("status", f"run-{way}")["contract"] == way


def test_the_rehearsed_request_is_the_one_that_the_cloud_would_get(
    cli: CommandLine, runs: dict[str, CommandResult]
) -> None:
    for way, cloud in (("sagemaker", "aws"), ("azureml", "azure")):
        executed = cli.document(f"run-{way}", "request.json")
        for_local = cli.json("submit", "--as", cloud, "--run-id", f"run-{way}", "--dry-run", MY_TOKEN=MY_TOKEN)
        for document in (executed, for_local):
            for name in ("Tags", "tags", "properties"):  # the time of planning is in them
                document.pop(name, None)
        assert executed == for_local
    assert "rehearsed in cloudtrain-test:" in runs["sagemaker"].err
    assert "on this machine, in containers, as SageMaker would run it" in runs["sagemaker"].err


LIVE = """
import os, signal, sys, time
from pathlib import Path
from cloudtrain_job import emit
kept = Path(os.environ["CLOUDTRAIN_CHECKPOINT_DIR"], "step")
step = int(kept.read_text()) if kept.exists() else 0
if step:
    emit("resumed", step=step, epoch=0)
rank = int(os.environ["RANK"])
stop = []
signal.signal(signal.SIGTERM, lambda *_: stop.append(1))
print(f"begins at {step}", flush=True)
while not stop:
    step += 1
    time.sleep(0.05)
if rank == 0:
    kept.write_text(str(step))
    emit("checkpoint", step=step, path=str(kept))
"""


@pytest.mark.parametrize("way", INSIDE)
def test_lines_are_live_and_a_stop_leaves_a_checkpoint_from_which_a_rerun_goes_on(
    cli: CommandLine, docker: DockerClient, image: str, way: str
) -> None:
    (cli.folder / "job" / "data").mkdir(parents=True, exist_ok=True)
    cli.write(job_yaml=JOB % image, train_py=LIVE)
    run = f"live-{way}"
    submitted = cli.run("submit", *WAYS[way], "--run-id", run, "--detach", MY_TOKEN=MY_TOKEN)
    assert submitted.code == 0, submitted.err
    follower = cli.start("logs", run, "-f", "--grep", "begins")
    assert follower.stdout is not None
    assert {follower.stdout.readline() for _ in range(2)} == {"[rank 0] begins at 0\n", "[rank 1] begins at 0\n"}
    assert set(running(docker, cli.data, run)) == {0, 1}
    stopped = cli.run("stop", run)
    assert (stopped.code, "by force" in stopped.err) == (0, False), stopped.err
    step = cli.json("status", run)["checkpoint"]["step"]
    assert left_of(docker, cli.data) == []
    again = cli.run("rerun", run, "--detach", MY_TOKEN=MY_TOKEN).out.strip()
    assert cli.wait_for_event(again, lambda event: event["type"] == "resumed")["step"] == step
    assert cli.run("stop", again).code == 0
    assert left_of(docker, cli.data) == []
    assert Path(cli.json("status", again)["results"]["checkpoints"], "step").exists()
