"""`--provider local --as azure`: real processes execute Azure ML's request here, without asking
Azure.
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
azure: {subscription: 00000000-0000-0000-0000-000000000000, resource_group: rg, workspace: ws1, location: eastus}
"""
)
SCRIPT = """
import os, sys
from pathlib import Path
from typing import Any
from cloudtrain_job import emit
emit("seen", argv=sys.argv[1:], run=os.environ["AZUREML_RUN_ID"], platform=os.environ["CLOUDTRAIN_PLATFORM"],
     place=os.environ["CLOUDTRAIN_NODE_RANK"], data=(Path(sys.argv[4]) / "x.txt").read_text(),
     table=Path(os.environ["CLOUDTRAIN_INPUT_MY_TABLE"]).read_text(), secret=os.environ["TOKEN"][:5],
     model=sys.argv[5], cwd=os.getcwd(), threads=os.environ["OMP_NUM_THREADS"],
     foreign=sorted(name for name in os.environ if name.startswith("MY_")))
if os.environ["LOCAL_RANK"] == "0":
    name = f"from-{os.environ['CLOUDTRAIN_NODE_RANK']}"
    Path(os.environ["CLOUDTRAIN_MODEL_DIR"], name).write_text("weights")
    Path(os.environ["CLOUDTRAIN_OUTPUT_DIR"], name).write_text("notes")
    Path(os.environ["CLOUDTRAIN_MODEL_DIR"], f"best-{name}").symlink_to(Path(os.environ["CLOUDTRAIN_MODEL_DIR"], name))
    Path(os.environ["CLOUDTRAIN_MODEL_DIR"], "out").symlink_to("/etc/passwd")
    for folder in ("outputs", "logs"):
        Path(folder, "deep").mkdir(parents=True)
        Path(folder, "deep", name).write_text("beside the code")
"""
JOB = """
name: seen
entrypoint: train.py
args: ["it's", "a b", "${{HOME}} $HOME", "${inputs.train}", "${outputs.model}"]
resources: {nodes: 2, processes: 1}
inputs:
  train: {azure: "azureml://datastores/workspaceblobstore/paths/train/", local: ../data}
  my-table: {azure: "azureml://datastores/workspaceblobstore/paths/t.csv", local: ../data/t.csv}
secrets: {TOKEN: {azure: "keyvault:my-vault/token", local: "env:MY_TOKEN"}}
limits: {max_runtime: 1 h}
"""


@pytest.fixture(scope="module")
def digits(cli: CommandLine) -> CommandResult:
    cli.write(job_yaml=DIGITS)
    return cli.run("submit", "--as", "azure", "--run-id", "digits-1")


class TestAsAzureML(Rehearsal):
    cloud = "azure"
    platform = "Azure ML"
    contract = "azureml"
    job = DIGITS

    def without_changing_tags(self, document: dict[str, Any]) -> dict[str, Any]:
        less = {"cloudtrain-planned": "", "cloudtrain-rehearsed": ""}
        return {
            **document,
            "tags": document["tags"] | less,
            "properties": document["properties"] | less,
        }


def test_a_script_finds_what_azure_promises_and_nothing_of_the_persons_shell(
    cli: CommandLine,
) -> None:
    cli.write(job_yaml=JOB, train_py=SCRIPT)
    result = cli.run("submit", "--as", "azure", "--run-id", "seen-1", MY_TOKEN=MY_TOKEN)
    assert result.code == 0, result.err
    assert "azure.subscription, azure.resource_group, azure.workspace not set" in result.err
    ranks = {event["rank"]: event for event in cli.events("seen-1") if event["type"] == "seen"}
    folder = cli.run_folder("seen-1")
    for rank, report in ranks.items():
        working_folder = folder / "nodes" / str(rank) / "wd"
        assert report["cwd"] == str(working_folder / "code")
        assert report["argv"] == [
            "it's",
            "a b",
            "${{HOME}} $HOME",
            str(cli.folder / "data"),
            f"{working_folder}/kept/model",
        ]
        assert (report["run"], report["platform"], report["place"]) == (
            "seen-1",
            "azureml",
            str(rank),
        )
        assert (report["data"], report["table"], report["secret"]) == (
            "input data",
            "a,b",
            MY_TOKEN[:5],
        )
        assert report["threads"] == str(max(1, len(os.sched_getaffinity(0)) // 2)), (
            "both nodes are on this machine"
        )
        assert report["foreign"] == []
    names = ["from-0", "from-1"]
    stored = [
        "best-from-0.cloudtrain-link",
        "best-from-1.cloudtrain-link",
        *names,
        "out.cloudtrain-link",
    ]
    assert sorted(path.name for path in (folder / "model").iterdir()) == stored
    result = cli.run("fetch", "seen-1", str(cli.folder / "fetched"))
    assert (
        "note: model/out was left out: a link that leads out of what the job left (/etc/passwd)"
        in result.err
    )
    fetched = cli.folder / "fetched" / "model"
    assert sorted(path.name for path in fetched.iterdir()) == ["best-from-0", "best-from-1", *names]
    assert fetched.joinpath("best-from-1").readlink() == Path("from-1")
    assert sorted(path.name for path in (folder / "output").iterdir()) == [
        *names,
        "logs",
        "outputs",
    ]
    for name in ("outputs", "logs"):
        assert sorted(path.name for path in (folder / "output" / name / "deep").iterdir()) == names
    leaves_no_secret(cli, "seen-1")
    assert cli.processes() == []


def test_a_key_vault_secret_in_a_rehearsal_is_refused_before_anything_starts(
    cli: CommandLine,
) -> None:
    job = "limits: {max_runtime: 1 h}\nsecrets: {TOKEN: {azure: 'keyvault:my-vault/token'}}\n"
    cli.write(job_yaml=job)
    result = cli.run("check", "--as", "azure")
    assert result.code == 3
    assert "secret TOKEN: a Key Vault is asked by the job's identity" in result.err
    assert "local: 'env:TOKEN'" in result.err
