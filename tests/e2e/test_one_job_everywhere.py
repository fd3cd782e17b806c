"""One job and one sweep, untouched, on this machine, rehearsed, and in both clouds."""

from __future__ import annotations

import json
import re
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.test_cloud_life import DIGITS, POLL
from tests.fakes.aws.cloud import Cloud
from tests.fakes.azure.cloud import AzureCloud
from tests.support.aws_template import enforce
from tests.support.command_line import CommandLine

# One job.yaml, untouched, on this machine, rehearsed as either cloud, and in both clouds: the same
# parameters.

pytestmark = [pytest.mark.torchrun]

JOB = DIGITS.replace("nodes: 2", "nodes: 1") + 'env: {OMP_NUM_THREADS: "1"}\n'
"""The number of threads decides in which order sums are taken, and machines differ in their cores.
"""

HERE = {
    "local": ("--provider", "local"),
    "as-aws": ("--provider", "local", "--as", "aws"),
    "as-azure": ("--provider", "local", "--as", "azure"),
}


@pytest.mark.thorough
def test_one_job_trains_the_same_parameters_wherever_it_runs(tmp_path: Path) -> None:
    """In the clouds it is started as the end of each rehearsal says."""
    with Cloud() as aws, AzureCloud() as azure:
        env = {**aws.environment(), **azure.environment(), **POLL}
        cli = CommandLine(
            tmp_path / "workspace", env=env, modules=("cloudtrain.providers.azure.client",)
        )
        try:
            cli.write(job_yaml=JOB)
            results = {
                way: cli.run("submit", *flags, "--run-id", way) for way, flags in HERE.items()
            }
            assert {way: result.code for way, result in results.items()} == dict.fromkeys(HERE, 0)
            pay = {
                way: re.search(r"or pay: cloudtrain (.+)", results[way].err)
                for way in ("as-aws", "as-azure")
            }
            paid = [cli.json(*words[1].split())["run"] for words in pay.values() if words]
            status = [cli.json("status", run) for run in (*HERE, *paid)]
        finally:
            cli.close()
    contracts = [(entry["provider"], entry["contract"]) for entry in status]
    assert contracts == [
        ("local", "plain"),
        ("local", "sagemaker"),
        ("local", "azureml"),
        ("aws", "sagemaker"),
        ("azure", "azureml"),
    ]
    assert len({entry["result"]["parameters_sha256"] for entry in status}) == 1


PREPARED = """
name: prepared
entrypoint: train.py
args: {fail: 1}
setup:
  - echo prepared >> "$CLOUDTRAIN_OUTPUT_DIR/setup.txt"
  - test -d "$CLOUDTRAIN_MODEL_DIR" && echo both ready
limits: {restarts: 1}
"""
FAILS_ONCE = """
import os, sys
assert os.path.exists(os.environ["CLOUDTRAIN_OUTPUT_DIR"] + "/setup.txt")
sys.exit(0 if os.environ["TORCHELASTIC_RESTART_COUNT"] == "1" else 3)
"""


@pytest.mark.parametrize("way", HERE)
def test_setup_lines_run_once_per_node_and_not_at_a_restart(cli: CommandLine, way: str) -> None:
    cli.write(job_yaml=PREPARED, train_py=FAILS_ONCE)
    result = cli.run("submit", *HERE[way], "--run-id", way)
    assert result.code == 0, result.err
    assert "restart 1 of 1" in cli.run("logs", way).out
    assert "[node 0] both ready" in cli.run("logs", way).out
    assert (cli.run_folder(way) / "output" / "setup.txt").read_text() == "prepared\n"


def test_a_failed_setup_line_is_named_with_its_output(cli: CommandLine) -> None:
    lines = '["true", "echo no such compiler; exit 4", "touch never"]'
    cli.write(job_yaml=f"entrypoint: train.py\nsetup: {lines}\n", train_py=FAILS_ONCE)
    result = cli.run("submit", "--run-id", "broken", "--provider", "local")
    assert result.code == 1
    assert "'echo no such compiler; exit 4' exited with code 4" in result.out + result.err
    assert cli.json("status", "broken")["error"]["message"].endswith("code 4\nno such compiler")


EXPORTS = """
setup:
  - source lines.sh
  - activate; unset REMOVED; export API_KEY="in-the-line"
  - cd /; exit 0
env: {REMOVED: x}
"""
LINES = """
export TEXT="two
lines" HF_TOKEN=$(echo secret-value) CLOUDTRAIN_NODES=7
activate() { export PATH="$PWD/bin:$PATH"; }
export -f activate
"""
REPORT = """
import json, os
print("seen", json.dumps(dict(os.environ)), os.getcwd() == os.environ["PWD"])
"""


@pytest.mark.parametrize(
    ("way", "program"), [("local", "python report.py"), ("as-azure", "report.py")]
)
def test_the_program_has_what_setup_lines_export(cli: CommandLine, way: str, program: str) -> None:
    launcher = "none" if program.startswith("python") else "torchrun"
    job = f"launcher: {launcher}\nentrypoint: {program}\n{EXPORTS}"
    cli.write(job_yaml=job, lines_sh=LINES, report_py=REPORT)
    python = cli.folder / "job" / "bin" / "python"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\nPYTHON=own exec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    result = cli.run("submit", *HERE[way], "--run-id", way)
    assert result.code == 0, result.err

    log = cli.run("logs", way).out
    text, at_home = re.findall("seen (.+) (True|False)$", log, re.MULTILINE)[0]
    seen = json.loads(text)
    assert (seen["TEXT"], seen["PYTHON"]) == ("two\nlines", "own")
    assert (seen["CLOUDTRAIN_NODES"], at_home) == ("1", "True")
    assert not {"REMOVED", "BASH_FUNC_activate%%"} & set(seen)
    assert (seen["HF_TOKEN"], seen["API_KEY"]) == ("***", "***")
    assert not re.search("secret-value|in-the-line", log)


COMMAND = """
name: command
launcher: none
entrypoint: python describe.py --code ${outputs.output}
args: {x: 1 2}
launch: {tf_config: true, rank_variables: true}
resources: {nodes: 2}
"""
DESCRIBE = """
import json, os, sys
names = "RANK LOCAL_RANK LOCAL_WORLD_SIZE NODE_RANK WORLD_SIZE MASTER_ADDR TF_CONFIG"
names += " CLOUDTRAIN_HOSTS CLOUDTRAIN_OUTPUT_DIR"
print("seen", json.dumps([sys.argv, {name: os.environ.get(name) for name in names.split()}]))
"""


def without_torch(folder: Path) -> str:
    """Return a Python 3 in the folder that finds no installed package."""
    folder.mkdir(parents=True)
    python = folder / "python3"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')
    python.chmod(0o755)
    return str(python)


@pytest.mark.parametrize("way", HERE)
def test_a_command_runs_once_per_node_and_knows_the_cluster(cli: CommandLine, way: str) -> None:
    cli.write(job_yaml=COMMAND, describe_py=DESCRIBE)
    python = without_torch(cli.folder / "bare")
    result = cli.run("submit", *HERE[way], "--run-id", way, CLOUDTRAIN_PYTHON=python)
    assert result.code == 0, result.err

    check_cluster(cli, way)


def check_cluster(cli: CommandLine, run: str) -> None:
    """Check what the two nodes of a run have printed."""
    seen = {}
    for line in cli.run("logs", run, "--grep", "seen").out.splitlines():
        label, _, text = line.partition(" seen ")
        seen[label] = json.loads(text)

    assert seen.keys() == {"[rank 0]", "[rank 1]"}
    for rank in (0, 1):
        argv, env = seen[f"[rank {rank}]"]
        assert argv == ["describe.py", "--code", env["CLOUDTRAIN_OUTPUT_DIR"], "--x", "1 2"]
        assert (env["RANK"], env["NODE_RANK"]) == (str(rank), str(rank))
        assert (env["LOCAL_RANK"], env["LOCAL_WORLD_SIZE"], env["WORLD_SIZE"]) == ("0", "1", "2")
        hosts = env["CLOUDTRAIN_HOSTS"].split(",")
        assert hosts[0] == env["MASTER_ADDR"]
        tf_config = json.loads(env["TF_CONFIG"])
        assert tf_config["task"] == {"type": "worker", "index": rank}
        workers = tf_config["cluster"]["worker"]
        assert [worker.rpartition(":")[0] for worker in workers] == hosts
        assert len(set(workers)) == len(hosts) == 2

    assert seen["[rank 0]"][1]["CLOUDTRAIN_HOSTS"] == seen["[rank 1]"][1]["CLOUDTRAIN_HOSTS"]


STARTS_RANKS = """
import os, subprocess, sys
from cloudtrain_job import log_metrics
peers = []
if not {"RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE"} & set(os.environ):
    for rank in ("0", "1"):
        peers.append(subprocess.Popen([sys.executable, *sys.argv], env=os.environ | {"LOCAL_RANK": rank}))
log_metrics(loss=float(os.environ.get("LOCAL_RANK", "7")))
sys.exit(not peers and "LOCAL_WORLD_SIZE" in os.environ or any(peer.wait() for peer in peers))
"""


@pytest.mark.parametrize(("way", "nodes"), [("as-aws", 1), ("as-azure", 1), ("local", 2)])
def test_a_program_that_starts_its_own_ranks_is_no_rank_itself(
    cli: CommandLine, way: str, nodes: int
) -> None:
    job = f"launcher: none\nentrypoint: python train.py\nresources: {{nodes: {nodes}}}\n"
    cli.write(job_yaml=job, train_py=STARTS_RANKS)
    result = cli.run("submit", *HERE[way], "--run-id", way)
    assert result.code == 0, result.err
    reports = [event for event in cli.events(way) if event["type"] == "metrics"]
    assert sorted(event["values"]["loss"] for event in reports) == [0, 7]
    assert {event["rank"] for event in reports} == {0}


def test_a_command_runs_in_both_clouds(tmp_path: Path) -> None:
    with Cloud() as aws, AzureCloud() as azure:
        env = {**aws.environment(), **azure.environment(), **POLL}
        modules = ("cloudtrain.providers.azure.client",)
        cli = CommandLine(tmp_path / "workspace", env=env, modules=modules)
        try:
            cli.write(job_yaml=COMMAND, describe_py=DESCRIBE)
            for cloud in ("aws", "azure"):
                result = cli.run("submit", "--provider", cloud, "--run-id", cloud)
                assert result.code == 0, result.err
                check_cluster(cli, cloud)
        finally:
            cli.close()


MOUNTED = """
name: mounted
launcher: none
entrypoint: cat ${inputs.corpus}/words.txt
inputs: {corpus: {aws: "efs://fs-0123456789abcdef0/corpus/", local: ../here}}
limits: {max_runtime: 1 h}
aws: {subnets: [subnet-1], security_groups: [sg-1]}
"""


def test_a_file_system_is_mounted_by_sagemaker_and_a_folder_in_a_rehearsal(tmp_path: Path) -> None:
    with Cloud() as aws:
        cli = CommandLine(tmp_path / "workspace", env=aws.environment() | POLL)
        try:
            cli.write(job_yaml=MOUNTED)
            for place in ("here", "efs/corpus"):
                folder = cli.folder / place
                folder.mkdir(parents=True)
                (folder / "words.txt").write_text(f"words of {place}")

            aws.account.file_systems["fs-0123456789abcdef0"] = cli.folder / "efs"
            for run, words, flags in (
                ("there", "efs/corpus", ("--provider", "aws")),
                ("rehearsed", "here", HERE["as-aws"]),
            ):
                result = cli.run("submit", *flags, "--run-id", run)
                assert result.code == 0, result.err
                assert f"words of {words}" in cli.run("logs", run).out

            aws.account.file_systems.clear()
            result = cli.run("submit", "--provider", "aws", "--run-id", "lost")
            assert result.code == 1
            assert "Unable to mount file system: fs-0123456789abcdef0" in result.err
        finally:
            cli.close()


KEPT = """
launcher: none
entrypoint: [sh, -c, "echo a > '${{outputs.images}}/a'; test $CLOUDTRAIN_PLATFORM = plain || echo b > outputs/b"]
azure: {request: {outputs: {images: {type: uri_folder}}}}
"""


@pytest.mark.parametrize("way", ["local", "as-azure"])
def test_outputs_of_a_command_of_azure_ml_have_folders_here(cli: CommandLine, way: str) -> None:
    cli.write(job_yaml=KEPT)
    result = cli.run("submit", *HERE[way], "--run-id", way)
    assert result.code == 0, result.err
    files = {
        path.relative_to(cli.run_folder(way)) for path in cli.run_folder(way).glob("output/*/*")
    }
    assert files == {Path("output/images/a"), *([Path("output/outputs/b")] if "as" in way else [])}


@pytest.mark.parametrize("way", HERE)
def test_a_failed_command_is_named_by_its_node_and_exit_code(cli: CommandLine, way: str) -> None:
    script = '#!/bin/sh\n[ "$NODE_RANK" = 0 ] && exec sleep 600\nexit 3\n'
    cli.write(job_yaml=COMMAND.replace("python describe.py", "./fail.sh"), fail_sh=script)
    (cli.folder / "job" / "fail.sh").chmod(0o755)
    result = cli.run("submit", *HERE[way], "--run-id", way)
    assert result.code == 1
    error = cli.json("status", way)["error"]
    assert (error["node"], error["rank"], error["message"]) == (1, 1, "exited with code 3")
    assert cli.processes() == []


def test_a_command_that_does_not_exist_is_named(cli: CommandLine) -> None:
    cli.write(job_yaml="launcher: none\nentrypoint: [no-such-program, '&&']\n")
    result = cli.run("submit", "--run-id", "missing", "--provider", "local")
    assert result.code == 1
    assert "cannot run 'no-such-program': No such file or directory" in result.err
    assert "Traceback" not in result.err
    assert cli.json("diagnose", "missing")["failure"]["rule"] == "command-not-found"


@pytest.mark.parametrize("shell", ["bash", "sh"])
def test_a_program_that_a_shell_does_not_find_is_named(cli: CommandLine, shell: str) -> None:
    cli.write(
        job_yaml=f"launcher: none\nentrypoint: [{shell}, -c, echo start; no-such-program -n 4]\n"
    )
    result = cli.run("submit", "--run-id", "missing", "--provider", "local")
    assert result.code == 1
    message = cli.json("status", "missing")["error"]["message"]
    assert re.match("exited with code 127: .*no-such-program: (command )?not found", message)
    assert cli.json("diagnose", "missing")["failure"]["rule"] == "command-not-found"


def is_ready(node: int, event: dict[str, Any]) -> bool:
    return event["type"] == "ready" and bool(event["node"] == node)


@pytest.mark.parametrize("way", HERE)
def test_a_stop_reaches_the_programs_of_a_shell_script(cli: CommandLine, way: str) -> None:
    job = "name: shell\nlauncher: none\nentrypoint: bash run.sh\nresources: {nodes: 2}\n"
    saver = (
        "import os, signal, sys, time\nfrom pathlib import Path\n"
        "from cloudtrain_job import emit\n"
        "def leave(*_):\n"
        "    Path(os.environ['CLOUDTRAIN_CHECKPOINT_DIR'], os.environ['NODE_RANK']).write_text('x')\n"
        "    sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, leave)\nemit('ready')\n"
        "while True: time.sleep(0.05)\n"
    )
    cli.write(job_yaml=job, run_sh="python3 saver.py\necho never\n", saver_py=saver)
    cli.run("submit", *HERE[way], "--run-id", way, "--detach")
    for node in (0, 1):
        cli.wait_for_event(way, partial(is_ready, node))

    stopped = cli.run("stop", way)
    assert stopped.code == 0, stopped.err
    status = cli.json("status", way)
    assert status["state"] == "stopped"
    checkpoints = Path(status["results"]["checkpoints"])
    assert {path.name for path in checkpoints.rglob("*") if path.name in "01"} == {"0", "1"}
    assert "never" not in cli.run("logs", way).out
    assert cli.processes() == []


# One sweep on this machine, rehearsed as a cloud, and in both clouds: the same trials, the same
# values.

SWEEP_JOB = """
name: digits
args: {epochs: 1, seed: 7}
env: {OMP_NUM_THREADS: "1"}
limits: {max_runtime: 10 min}
sweep:
  objective: {metric: val_accuracy, goal: maximize}
  method: grid
  space: {lr: choice(1e-3, 1e-2)}
  parallel: 2
"""
WAYS = {
    "local": ("--provider", "local"),
    "as-aws": ("--provider", "local", "--as", "aws"),
    "aws": ("--provider", "aws"),
    "azure": ("--provider", "azure"),
}


def told_of(sweep: dict[str, Any]) -> dict[float, tuple[str, int, float]]:
    """For each learning rate: how its trial ended, how often it reported, and its last value."""
    return {
        trial["parameters"]["lr"]: (trial["state"], len(trial["curve"]), trial["value"])
        for trial in sweep["trials"]
    }


@pytest.mark.thorough
def test_a_grid_has_the_same_trials_with_the_same_values_wherever_it_runs(tmp_path: Path) -> None:
    with Cloud() as aws, AzureCloud() as azure:
        enforce(aws)
        env = {**aws.environment(), **azure.environment(), **POLL}
        cli = CommandLine(
            tmp_path / "workspace", env=env, modules=("cloudtrain.providers.azure.client",)
        )
        try:
            cli.write(job_yaml=SWEEP_JOB)
            results = {
                way: cli.run("sweep", *flags, "--sweep-id", way) for way, flags in WAYS.items()
            }
            statuses = {way: cli.json("status", way) for way in WAYS}
            listed = cli.run("list").out
        finally:
            cli.close()
    assert [(way, result.err) for way, result in results.items() if result.code] == []
    trials = {way: told_of(sweep) for way, sweep in statuses.items()}
    assert trials["local"].keys() == {1e-3, 1e-2}
    assert {state for state, *_ in trials["local"].values()} == {"completed"}
    assert all(trial == trials["local"] for trial in trials.values())
    assert statuses["aws"]["spent_usd"] > 0
    assert listed.count("2/2 trials") == len(WAYS)
