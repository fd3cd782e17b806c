"""`--as aws` and `--as azure`: real processes execute a cloud's own request here, and ask nothing of
the cloud.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.support.command_line import CommandLine

pytestmark = [pytest.mark.torchrun]

MY_TOKEN = "hunter2-never-write-this-down"
TRAINING = """
name: digits
{program}
resources: {{nodes: 2, processes: 1}}
checkpoints: {{every: 1 s, keep: 2}}
limits: {{max_runtime: 1 h}}
{account}
"""
TRAINER = "args: {task: digits, strategy: ddp, epochs: 1}"


class Rehearsed(NamedTuple):
    """Name of a cloud here, and an account of it."""

    platform: str
    contract: str
    account: str


CLOUDS = {
    "aws": Rehearsed(
        "SageMaker",
        "sagemaker",
        'aws: {region: us-east-1, role: "arn:aws:iam::123456789012:role/train", bucket: my-bucket}',
    ),
    "azure": Rehearsed(
        "Azure ML",
        "azureml",
        "azure: {subscription: 00000000-0000-0000-0000-000000000000, resource_group: rg,"
        " workspace: ws1, location: eastus}",
    ),
}


@pytest.fixture(scope="module")
def cli(cli_with_inputs: CommandLine) -> CommandLine:
    return cli_with_inputs


def lasting(request: Any) -> Any:
    """Return a request less the tags that say when it was planned, and that it was rehearsed."""
    changing = {"cloudtrain-planned", "cloudtrain-rehearsed"}
    if isinstance(request, dict):
        return {key: lasting(value) for key, value in request.items() if key not in changing}
    if isinstance(request, list):
        return [
            lasting(item)
            for item in request
            if not (isinstance(item, dict) and item.get("Key") in changing)
        ]
    return request


@pytest.mark.parametrize("cloud", CLOUDS)
def test_it_executes_the_very_request_that_the_cloud_would_get(
    cli: CommandLine, cloud: str
) -> None:
    run = f"digits-{cloud}"
    platform, contract, account = CLOUDS[cloud]
    cli.write(job_yaml=TRAINING.format(program=TRAINER, account=account))
    planned = cli.run("plan", "--as", cloud, CLOUDTRAIN_PROVIDER=cloud)
    assert f"on this machine, as {platform} would run it" in planned.out
    assert "nothing: it runs here" in planned.out, "whatever the settings say"
    result = cli.run("submit", "--as", cloud, "--run-id", run)
    assert result.code == 0, result.err
    assert f"on this machine, as {platform} would run it" in result.err
    assert f"or pay: cloudtrain rerun {run} --provider {cloud}" in result.err

    status = cli.json("status", run)
    assert status["contract"] == contract
    for place in ("model", "checkpoints"):
        assert any(Path(status["results"][place]).iterdir())
    for_cloud = cli.json("submit", "--provider", cloud, "--run-id", run, "--dry-run")
    assert lasting(cli.document(run, "request.json")) == lasting(for_cloud)
    assert "cloudtrain-rehearsed" in json.dumps(for_cloud), "a submit knows its rehearsal"


# A script finds all that a platform promises.

SCRIPT = """
import os, socket, sys
from pathlib import Path
from cloudtrain_job import emit
aws = os.environ["CLOUDTRAIN_PLATFORM"] == "sagemaker"
place = os.environ["CLOUDTRAIN_NODE_RANK"]
emit("seen", argv=sys.argv[1:], platform=os.environ["CLOUDTRAIN_PLATFORM"], place=place, cwd=os.getcwd(),
     run=os.environ["TRAINING_JOB_NAME" if aws else "AZUREML_RUN_ID"], host=socket.gethostname(),
     train=os.environ["CLOUDTRAIN_INPUT_TRAIN"], data=Path(os.environ["CLOUDTRAIN_INPUT_TRAIN"], "x.txt").read_text(),
     table=Path(os.environ["CLOUDTRAIN_INPUT_MY_TABLE"]).read_text(), secret=os.environ["TOKEN"][:5],
     threads=os.environ["OMP_NUM_THREADS"], foreign=sorted(name for name in os.environ if name.startswith("MY_")))
if aws:
    import json
    base = os.environ.get("SAGEMAKER_BASE_DIR", "/opt/ml")
    hosts = json.loads(Path(base, "input/config/resourceconfig.json").read_text())
    emit("hosts", here=hosts["current_host"], base=base)
if os.environ["LOCAL_RANK"] == "0":
    model = Path(os.environ["CLOUDTRAIN_MODEL_DIR"])
    (model / f"from-{place}").write_text("weights")
    Path(os.environ["CLOUDTRAIN_OUTPUT_DIR"], f"from-{place}").write_text("notes")
    (model / f"best-from-{place}").symlink_to(model / f"from-{place}")
    (model / "out").symlink_to("/etc/passwd")
    for folder in ("outputs", "logs"):
        Path(folder, "deep").mkdir(parents=True)
        Path(folder, "deep", f"from-{place}").write_text("beside the code")
"""
JOB = """
name: seen
entrypoint: train.py
args: ["it's", "a b", "", "${{HOME}} $HOME", "${inputs.train}", "${outputs.model}"]
resources: {nodes: 2, processes: 1}
inputs:
  train: {aws: "s3://d/train/", azure: "azureml://datastores/workspaceblobstore/paths/train/", local: ../data}
  my-table: {aws: "s3://d/t.csv", azure: "azureml://datastores/workspaceblobstore/paths/t.csv", local: ../data/t.csv}
secrets: {TOKEN: {aws: "secretsmanager:token", azure: "keyvault:my-vault/token", local: "env:MY_TOKEN"}}
limits: {max_runtime: 1 h}
"""
NAMES = ["best-from-0", "best-from-1", "from-0", "from-1"]


@pytest.mark.parametrize("way", ["aws", "aws without namespaces", "azure"])
def test_a_script_finds_what_the_cloud_promises_and_nothing_of_the_persons_shell(
    cli: CommandLine, way: str
) -> None:
    cloud = way.split()[0]
    namespaces = "0" if "without" in way else "1"
    run = f"seen-{cloud}-{namespaces}"
    cli.write(job_yaml=JOB, train_py=SCRIPT)
    variables = {"MY_TOKEN": MY_TOKEN, "CLOUDTRAIN_NAMESPACES": namespaces}
    result = cli.run("submit", "--as", cloud, "--run-id", run, **variables)
    assert result.code == 0, result.err
    assert {"aws": "aws.bucket not set", "azure": "azure.workspace not set"}[cloud] in result.err

    folder = cli.run_folder(run)
    for rank in cli.by_rank(run, "seen").values():
        assert rank["argv"][:5] == ["it's", "a b", "", "${{HOME}} $HOME", rank["train"]]
        assert (rank["run"], rank["platform"]) == (run, CLOUDS[cloud].contract)
        assert (rank["place"], rank["foreign"]) == (str(rank["rank"]), [])
        assert (rank["data"], rank["table"], rank["secret"]) == ("input data", "a,b", MY_TOKEN[:5])
        cores = len(os.sched_getaffinity(0))
        assert rank["threads"] == str(max(1, cores // 2)), "both nodes are on this machine"
        if cloud == "azure":
            working_folder = folder / "nodes" / rank["place"] / "wd"
            assert rank["cwd"] == str(working_folder / "code")
            assert rank["train"] == str(cli.folder / "data")
            assert rank["argv"][5] == f"{working_folder}/kept/model"
    if cloud == "aws":
        hosts = cli.by_rank(run, "hosts")
        assert [hosts[rank]["here"] for rank in (0, 1)] == ["algo-1", "algo-2"]
        if namespaces == "1" and hosts[0]["base"] == "/opt/ml":
            machines = cli.by_rank(run, "seen")
            assert [machines[rank]["host"] for rank in (0, 1)] == ["algo-1", "algo-2"]
    check_results(cli, run, cloud)
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            assert MY_TOKEN.encode() not in path.read_bytes(), path
    assert cli.processes() == []


def check_results(cli: CommandLine, run: str, cloud: str) -> None:
    """Files of both nodes are in the run folder, and come back; a link that leads out does not."""
    folder = cli.run_folder(run)
    stored = sorted(path.name for path in (folder / "model").iterdir())
    as_links = [f"{name}.cloudtrain-link" for name in NAMES[:2]]
    expected = {"aws": NAMES, "azure": [*as_links, *NAMES[2:], "out.cloudtrain-link"]}
    assert stored == expected[cloud]
    output = sorted(path.name for path in (folder / "output").iterdir())
    assert output == (NAMES[2:] if cloud == "aws" else [*NAMES[2:], "logs", "outputs"])
    for name in ("outputs", "logs") if cloud == "azure" else ():
        kept = (folder / "output" / name / "deep").iterdir()
        assert sorted(path.name for path in kept) == NAMES[2:]

    result = cli.run("fetch", run, str(cli.folder / f"fetched-{run}"))
    told = result.err + cli.run("logs", run).out
    outside = "a link that leads out of what the job left (/etc/passwd)"
    assert f"model/out was left out: {outside}" in told
    fetched = cli.folder / f"fetched-{run}" / "model"
    assert sorted(path.name for path in fetched.iterdir()) == NAMES
    assert fetched.joinpath("best-from-1").readlink() == Path("from-1")


def test_a_key_vault_secret_in_a_rehearsal_is_refused_before_anything_starts(
    cli: CommandLine,
) -> None:
    job = "limits: {max_runtime: 1 h}\nsecrets: {TOKEN: {azure: 'keyvault:my-vault/token'}}\n"
    cli.write(job_yaml=job)
    result = cli.run("check", "--as", "azure")
    assert result.code == 3
    assert "secret TOKEN: a Key Vault is asked by the job's identity" in result.err
    assert "local: 'env:TOKEN'" in result.err


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
