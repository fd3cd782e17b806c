"""`--provider local --as aws`: SageMaker's own request, executed here by real processes, and
nothing asked of AWS.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.rehearsals import MY_TOKEN, TRAINING, Rehearsal, cli_fixture, leaves_no_secret
from tests.support.command_line import CommandLine, CommandResult

__all__ = ["cli_fixture"]

pytestmark = [pytest.mark.torchrun]

DIGITS = (
    TRAINING
    + """
aws: {region: us-east-1, role: "arn:aws:iam::123456789012:role/train", bucket: my-bucket}
"""
)
SCRIPT = """
import json, os, socket, sys
from pathlib import Path
from typing import Any
from cloudtrain_job import emit
here = Path(os.environ.get("SAGEMAKER_BASE_DIR", "/opt/ml"))
config = json.loads((here / "input/config/resourceconfig.json").read_text())
emit("seen", argv=sys.argv[1:], train=os.environ["CLOUDTRAIN_INPUT_TRAIN"],
     hosts=config["hosts"], here=config["current_host"], host=socket.gethostname(),
     base=str(here), job=os.environ["TRAINING_JOB_NAME"], platform=os.environ["CLOUDTRAIN_PLATFORM"],
     data=(Path(os.environ["CLOUDTRAIN_INPUT_TRAIN"]) / "x.txt").read_text(),
     table=Path(os.environ["CLOUDTRAIN_INPUT_TABLE"]).read_text(), secret=os.environ["TOKEN"][:5],
     model=os.environ["CLOUDTRAIN_MODEL_DIR"], pid=os.getpid(),
     threads=os.environ["OMP_NUM_THREADS"])
if os.environ["LOCAL_RANK"] == "0":
    Path(os.environ["CLOUDTRAIN_MODEL_DIR"], f"from-{config['current_host']}").write_text("weights")
    Path(os.environ["CLOUDTRAIN_OUTPUT_DIR"], f"notes-{config['current_host']}").write_text("notes")
    Path(os.environ["CLOUDTRAIN_MODEL_DIR"], f"best-{config['current_host']}").symlink_to(
        Path(os.environ["CLOUDTRAIN_MODEL_DIR"], f"from-{config['current_host']}"))
    Path(os.environ["CLOUDTRAIN_MODEL_DIR"], "out").symlink_to("/etc/passwd")
"""
JOB = """
name: seen
entrypoint: train.py
args: ["it's", "a b", "$HOME", "", "${inputs.train}/x.txt"]
resources: {nodes: 2, processes: 1}
inputs: {train: {aws: "s3://my-data/train/", local: ../data}, table: {aws: "s3://my-data/t.csv", local: ../data/t.csv}}
secrets: {TOKEN: {aws: "secretsmanager:token", local: "env:MY_TOKEN"}}
"""


@pytest.fixture(scope="module")
def digits(cli: CommandLine) -> CommandResult:
    cli.write(job_yaml=DIGITS)
    return cli.run("submit", "--as", "aws", "--run-id", "digits-1")


class TestAsSageMaker(Rehearsal):
    cloud = "aws"
    platform = "SageMaker"
    contract = "sagemaker"
    job = DIGITS

    def without_changing_tags(self, document: dict[str, Any]) -> dict[str, Any]:
        changing = ("cloudtrain-planned", "cloudtrain-rehearsed")
        return {**document, "Tags": [tag for tag in document["Tags"] if tag["Key"] not in changing]}


def reports_of(cli: CommandLine, run: str) -> dict[int, dict[str, object]]:
    return {event["rank"]: event for event in cli.events(run) if event["type"] == "seen"}


@pytest.mark.parametrize("namespaces", ["1", "0"])
def test_a_script_finds_what_sagemaker_promises(cli: CommandLine, namespaces: str) -> None:
    cli.write(job_yaml=JOB, train_py=SCRIPT)
    run = f"seen-{namespaces}"
    result = cli.run(
        "submit",
        "--as",
        "aws",
        "--run-id",
        run,
        MY_TOKEN=MY_TOKEN,
        CLOUDTRAIN_NAMESPACES=namespaces,
    )
    assert result.code == 0, result.err
    assert (
        "aws.role, aws.bucket not set" in result.err
        or "aws.region, aws.role, aws.bucket not set" in result.err
    )
    ranks = reports_of(cli, run)
    assert [ranks[rank]["here"] for rank in (0, 1)] == ["algo-1", "algo-2"]
    for rank in ranks.values():
        assert rank["argv"] == ["it's", "a b", "$HOME", "", f"{rank['train']}/x.txt"]
        assert (rank["job"], rank["platform"]) == (run, "sagemaker")
        assert rank["threads"] == str(max(1, len(os.sched_getaffinity(0)) // 2)), (
            "both nodes are on this machine"
        )
        assert (rank["data"], rank["table"], rank["secret"]) == ("input data", "a,b", MY_TOKEN[:5])
    if namespaces == "1" and ranks[0]["base"] == "/opt/ml":
        assert [ranks[rank]["host"] for rank in (0, 1)] == ["algo-1", "algo-2"]
    model = cli.run_folder(run) / "model"
    names = ["best-algo-1", "best-algo-2", "from-algo-1", "from-algo-2"]
    assert sorted(path.name for path in model.iterdir()) == names
    assert (
        "model/out was left out: a link that leads out of what the job left (/etc/passwd)"
        in cli.run("logs", run).out
    )
    assert cli.run("fetch", run, str(cli.folder / f"fetched-{run}")).code == 0
    fetched = cli.folder / f"fetched-{run}" / "model"
    assert sorted(path.name for path in fetched.iterdir()) == names
    assert fetched.joinpath("best-algo-2").readlink() == Path("from-algo-2")
    assert sorted(path.name for path in (cli.run_folder(run) / "output").iterdir()) == [
        "notes-algo-1",
        "notes-algo-2",
    ]
    leaves_no_secret(cli, run)
    assert cli.processes() == []


AWS_SCRIPT = """
import argparse, json, os
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int)
parser.add_argument("--hosts", type=list, default=json.loads(os.environ["SM_HOSTS"]))
parser.add_argument("--current-host", default=os.environ["SM_CURRENT_HOST"])
parser.add_argument("--model-dir", default=os.environ["SM_MODEL_DIR"])
parser.add_argument("--output-data-dir", default=os.environ["SM_OUTPUT_DATA_DIR"])
parser.add_argument("--train", default=os.environ["SM_CHANNEL_TRAIN"])
parser.add_argument("--num-gpus", type=int, default=os.environ["SM_NUM_GPUS"])
args = parser.parse_args()
assert args.epochs == json.loads(os.environ["SM_HPS"])["epochs"] == int(os.environ["SM_HP_EPOCHS"])
assert json.loads(os.environ["SM_USER_ARGS"]) == ["--epochs", "3"]
assert json.loads(os.environ["SM_TRAINING_ENV"])["is_master"] == (args.current_host == "algo-1")
assert os.environ["SM_CHANNELS"] == '["train"]'
data = Path(args.train, "x.txt").read_text()
Path(args.model_dir, f"model-of-{args.current_host}").write_text(data)
Path(args.output_data_dir, f"nodes-{args.current_host}").write_text(str(len(args.hosts)))
"""
AWS_JOB = """
name: aws-script
entrypoint: train.py
args: {epochs: 3}
resources: {nodes: 2, processes: 1}
inputs: {train: {aws: "s3://my-data/train/", local: ../data}}
"""


def test_a_script_for_awss_own_containers_runs_as_it_is(cli: CommandLine) -> None:
    cli.write(job_yaml=AWS_JOB, train_py=AWS_SCRIPT)
    result = cli.run("submit", "--as", "aws", "--run-id", "aws-script")
    assert result.code == 0, result.err
    assert cli.run("fetch", "aws-script", str(cli.folder / "fetched")).code == 0
    fetched = cli.folder / "fetched"
    for host in ("algo-1", "algo-2"):
        assert (fetched / "model" / f"model-of-{host}").read_text() == "input data"
        assert (fetched / "output" / f"nodes-{host}").read_text() == "2"
