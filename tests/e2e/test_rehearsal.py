"""`--provider local --as aws`: SageMaker's own request, executed here by real processes, and nothing asked of AWS."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.workbench import Bench, Result

pytestmark = [pytest.mark.torchrun]

DIGITS = """
name: digits
args: {task: digits, strategy: ddp, epochs: 1}
resources: {nodes: 2, processes: 2}
checkpoints: {every: 1 s, keep: 2}
aws: {region: us-east-1, role: "arn:aws:iam::123456789012:role/train", bucket: my-bucket}
"""
SCRIPT = """
import json, os, socket, sys
from pathlib import Path
from cloudtrain_job import emit
here = Path(os.environ.get("SAGEMAKER_BASE_DIR", "/opt/ml"))
config = json.loads((here / "input/config/resourceconfig.json").read_text())
emit("seen", argv=sys.argv[1:], train=os.environ["CLOUDTRAIN_INPUT_TRAIN"],
     hosts=config["hosts"], here=config["current_host"], host=socket.gethostname(),
     base=str(here), job=os.environ["TRAINING_JOB_NAME"], platform=os.environ["CLOUDTRAIN_PLATFORM"],
     data=(Path(os.environ["CLOUDTRAIN_INPUT_TRAIN"]) / "x.txt").read_text(),
     table=Path(os.environ["CLOUDTRAIN_INPUT_TABLE"]).read_text(), secret=os.environ["TOKEN"][:5],
     model=os.environ["CLOUDTRAIN_MODEL_DIR"], pid=os.getpid())
if os.environ["LOCAL_RANK"] == "0":
    Path(os.environ["CLOUDTRAIN_MODEL_DIR"], f"from-{config['current_host']}").write_text("weights")
    Path(os.environ["CLOUDTRAIN_OUTPUT_DIR"], f"notes-{config['current_host']}").write_text("notes")
if "fail" in sys.argv:
    raise ValueError("the dog ate shard 3")
"""
JOB = """
name: seen
entrypoint: train.py
args: ["it's", "a b", "$HOME", "", "${inputs.train}/x.txt"]
resources: {nodes: 2, processes: 1}
inputs: {train: {aws: "s3://my-data/train/", local: ../data}, table: {aws: "s3://my-data/t.csv", local: ../data/t.csv}}
secrets: {TOKEN: {aws: "secretsmanager:token", local: "env:MY_TOKEN"}}
"""
MY_TOKEN = "hunter2-never-write-this-down"


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    made = Bench(tmp_path_factory.mktemp("rehearsal") / "a folder with spaces")
    (made.folder / "data").mkdir()
    (made.folder / "data" / "x.txt").write_text("input data")
    (made.folder / "data" / "t.csv").write_text("a,b")
    yield made
    made.close()


@pytest.fixture(scope="module")
def digits(bench: Bench) -> Result:
    bench.write(job_yaml=DIGITS)
    return bench.run("submit", "--as", "aws", "--run-id", "digits-1")


def seen(bench: Bench, run: str) -> dict[int, dict[str, object]]:
    return {event["rank"]: event for event in bench.events(run) if event["type"] == "seen"}


def test_it_succeeds_and_says_as_what(bench: Bench, digits: Result) -> None:
    assert digits.code == 0, digits.err
    assert "on this machine, as SageMaker would run it" in digits.err
    assert bench.json("status", "digits-1")["contract"] == "sagemaker"


def test_it_executed_the_very_request_that_aws_would_get(bench: Bench, digits: Result) -> None:
    executed = json.loads((bench.run_folder("digits-1") / "request.json").read_text())
    for_aws = bench.run("submit", "--provider", "aws", "--run-id", "digits-1", "--dry-run", "--json")
    tags = {tag["Key"]: tag for tag in json.loads(for_aws.out)["Tags"]}
    then = next(tag for tag in executed["Tags"] if tag["Key"] == "cloudtrain-planned")
    text = for_aws.out.replace(tags["cloudtrain-planned"]["Value"], then["Value"])
    assert (bench.run_folder("digits-1") / "request.json").read_text() == text


def test_it_trains_the_same_parameters_as_the_plain_local_run(bench: Bench, digits: Result) -> None:
    assert bench.run("submit", "--run-id", "plain-1", "--provider", "local").code == 0
    plain, rehearsed = (bench.json("status", run)["result"] for run in ("plain-1", "digits-1"))
    assert plain["parameters_sha256"] == rehearsed["parameters_sha256"]


def test_model_and_checkpoints_are_where_people_look(bench: Bench, digits: Result) -> None:
    places = bench.json("status", "digits-1")["results"]
    assert any(Path(places["model"]).iterdir())
    assert any(Path(places["checkpoints"]).iterdir())


@pytest.mark.parametrize("namespaces", ["1", "0"])
def test_a_script_finds_what_sagemaker_promises(bench: Bench, namespaces: str) -> None:
    bench.write(job_yaml=JOB, train_py=SCRIPT)
    run = f"seen-{namespaces}"
    said = bench.run("submit", "--as", "aws", "--run-id", run, MY_TOKEN=MY_TOKEN, CLOUDTRAIN_NAMESPACES=namespaces)
    assert said.code == 0, said.err
    assert "aws.role, aws.bucket not set" in said.err or "aws.region, aws.role, aws.bucket not set" in said.err
    ranks = seen(bench, run)
    assert [ranks[rank]["here"] for rank in (0, 1)] == ["algo-1", "algo-2"]
    for rank in ranks.values():
        assert rank["argv"] == ["it's", "a b", "$HOME", "", f"{rank['train']}/x.txt"]
        assert (rank["job"], rank["platform"]) == (run, "sagemaker")
        assert (rank["data"], rank["table"], rank["secret"]) == ("input data", "a,b", MY_TOKEN[:5])
    if namespaces == "1" and ranks[0]["base"] == "/opt/ml":
        assert [ranks[rank]["host"] for rank in (0, 1)] == ["algo-1", "algo-2"]
    model = bench.run_folder(run) / "model"
    assert sorted(path.name for path in model.iterdir()) == ["from-algo-1", "from-algo-2"]
    assert sorted(path.name for path in (bench.run_folder(run) / "output").iterdir()) == [
        "notes-algo-1",
        "notes-algo-2",
    ]
    for path in bench.run_folder(run).rglob("*"):
        if path.is_file() and not path.is_symlink():
            assert MY_TOKEN.encode() not in path.read_bytes(), path
    assert bench.processes() == []


def test_a_failure_names_the_rank_and_the_reason(bench: Bench) -> None:
    bench.write(job_yaml=JOB, train_py=SCRIPT)
    said = bench.run("submit", "--as", "aws", "--set", "args=[fail]", MY_TOKEN=MY_TOKEN)
    assert said.code == 1
    assert "raised ValueError: the dog ate shard 3" in said.err
    assert bench.processes() == []


def test_a_stop_leaves_a_checkpoint_from_which_a_rerun_goes_on(bench: Bench) -> None:
    bench.write(job_yaml=DIGITS)
    bench.run("submit", "--as", "aws", "--run-id", "long-1", "--detach", "--set", "args.epochs=3000")
    bench.await_event("long-1", lambda event: event["type"] == "progress" and event.get("epoch", 0) >= 2)
    stopped = bench.run("stop", "long-1")
    assert stopped.code == 5, stopped.err
    step = bench.json("status", "long-1")["checkpoint"]["step"]
    again = bench.run("rerun", "long-1", "--detach")
    resumed = bench.await_event(again.out.strip(), lambda event: event["type"] == "resumed")
    assert resumed["step"] == step
    assert bench.run("stop", again.out.strip()).code == 5
    assert bench.processes() == []


def test_only_a_provider_that_can_execute_a_contract_is_asked_to(bench: Bench) -> None:
    for where in ("local", "aws"):
        said = bench.run("plan", "--provider", "aws", "--as", where)
        assert said.code == 2
        assert f"the aws provider cannot rehearse a job as {where} would run it" in said.err


def test_a_rehearsal_stays_here_whatever_the_settings_say(bench: Bench) -> None:
    bench.write(job_yaml=DIGITS)
    said = bench.run("plan", "--as", "aws", CLOUDTRAIN_PROVIDER="aws")
    assert "on this machine, as SageMaker would run it" in said.out
    assert "nothing: it runs here" in said.out
