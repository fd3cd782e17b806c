"""One run on two nodes, watched, and resumed after a kill."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.command_line import CommandLine, CommandResult
from tests.support.waiting import HANG_SECONDS

# One run on two nodes with two processes each: one world, equal parameters, and everything where it
# was promised.

pytestmark = [pytest.mark.torchrun]

SECRET = "hunter2-never-write-this-down"
ARGS = json.loads(
    """["it's", "1.10", "007", "a=b", "ünï cödé", "--flag", "two words", "", "-x", "$HOME", "*", "a\\tb"]"""
)

SCRIPT = """
import hashlib, json, os, sys
from pathlib import Path
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from cloudtrain_job import emit, log_metrics

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(rank)
model = DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(5):
    loss = model(torch.randn(8, 4)).square().mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    log_metrics(step=step, loss=loss.item())
digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()
names = [n for n in os.environ if n.startswith(("CLOUDTRAIN_", "PET_")) or n in ("RANK", "LOCAL_RANK", "WORLD_SIZE")]
emit("seen", argv=sys.argv, digest=digest, world=dist.get_world_size(), secret=os.environ["TOKEN"][:7],
     greeting=os.environ["GREETING"], cwd=os.getcwd(),
     env={n: os.environ[n] for n in names if not n.endswith(("DIR", "FILE"))},
     values=json.loads(Path(os.environ["CLOUDTRAIN_ARGS_FILE"]).read_text()),
     data=Path(os.environ["CLOUDTRAIN_INPUT_MY_DATA"], "x.txt").read_text())
print(f"hello from {rank}", flush=True)
print("by mistake:", os.environ["TOKEN"], flush=True)
emit("mistake", token=os.environ["TOKEN"])
if rank == 0:
    Path(os.environ["CLOUDTRAIN_MODEL_DIR"], "model.txt").write_text("weights")
    Path(os.environ["CLOUDTRAIN_OUTPUT_DIR"], "notes.txt").write_text("notes")
dist.barrier(); dist.destroy_process_group()
"""

JOB = f"""
name: pair
entrypoint: deep/train.py
args: {json.dumps(ARGS)}
resources: {{nodes: 2, processes: 2}}
inputs: {{my-data: ../data}}
env: {{GREETING: "007"}}
secrets: {{TOKEN: {{local: "env:MY_TOKEN"}}}}
"""


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[CommandLine, CommandResult]]:
    """The command line with the finished run, and the result of submit."""
    cli = CommandLine(tmp_path_factory.mktemp("two") / "a folder with spaces")
    cli.write(job_yaml=JOB, deep__train_py=SCRIPT)
    (cli.folder / "data").mkdir()
    (cli.folder / "data" / "x.txt").write_text("input data")
    result = cli.run("submit", "--run-id", "pair-1", MY_TOKEN=SECRET)
    yield cli, result
    cli.close()


Pair = tuple[CommandLine, CommandResult]


def test_all_four_ranks_form_one_process_group_under_the_contract(pair: Pair) -> None:
    cli, result = pair
    assert result.code == 0, result.err
    ranks = cli.by_rank("pair-1")
    assert sorted(ranks) == [0, 1, 2, 3]
    assert len({event["digest"] for event in ranks.values()}) == 1, "equal parameters"
    folders = {event["node"]: event["cwd"] for event in ranks.values()}
    assert len(set(folders.values())) == 2, "each node works in a copy of its own"
    for rank, event in ranks.items():
        assert (event["argv"], event["values"]) == (["deep/train.py", *ARGS], ARGS)
        assert (event["world"], event["greeting"], event["data"]) == (4, "007", "input data")
        expected = {
            "CLOUDTRAIN_RUN_ID": "pair-1",
            "CLOUDTRAIN_JOB_NAME": "pair",
            "CLOUDTRAIN_PLATFORM": "plain",
            "CLOUDTRAIN_NODE_RANK": str(rank // 2),
            "CLOUDTRAIN_NODES": "2",
            "CLOUDTRAIN_PROCESSES": "2",
            "PET_MASTER_ADDR": "127.0.0.101",
            "PET_NNODES": "2",
            "PET_NODE_RANK": str(rank // 2),
            "PET_NPROC_PER_NODE": "2",
            "RANK": str(rank),
            "LOCAL_RANK": str(rank % 2),
            "WORLD_SIZE": "4",
        }
        assert expected.items() <= event["env"].items()
        assert int(event["env"]["PET_MASTER_PORT"]) > 0
    metrics = [event for event in cli.events("pair-1") if event["type"] == "metrics"]
    counted = [(event["rank"], event["step"]) for event in metrics]
    assert counted == [(0, step) for step in range(5)], "once, by rank zero"
    assert cli.processes() == []


def test_stored_files_are_private_and_programs_have_the_users_umask(pair: Pair) -> None:
    cli, _ = pair
    run = cli.run_folder("pair-1")
    assert (run / "nodes/0/source/deep/train.py").stat().st_mode & 0o777 == 0o600
    umask = os.umask(0)
    os.umask(umask)
    assert (run / "model" / "model.txt").stat().st_mode & 0o777 == 0o666 & ~umask


def test_logs_are_read_together_and_apart(pair: Pair) -> None:
    cli, _ = pair
    together = cli.run("logs", "pair-1", "--grep", "hello").out.splitlines()
    assert sorted(together) == [f"[rank {rank}] hello from {rank}" for rank in range(4)]
    assert cli.run("logs", "pair-1", "--rank", "3", "--grep", "hello").out == "hello from 3\n"
    node = cli.json("logs", "pair-1", "--node", "1", "--grep", "hello", "--tail", "1")
    assert node["node"] == 1
    assert node["rank"] in (2, 3)
    assert len(cli.run("logs", "last", "--tail", "2").out.splitlines()) == 2
    assert cli.run("logs", "last", "--since", "2001-01-01").out == cli.run("logs", "last", "-f").out
    assert cli.run("logs", "last", "--since", "3000-01-01").out == ""


def test_plan_finds_no_difference_to_the_run_it_made_and_one_to_a_changed_spec(pair: Pair) -> None:
    cli, _ = pair
    assert "the same request" in cli.run("plan", "--diff", "last", MY_TOKEN=SECRET).out
    changed = cli.run("plan", "--diff", "last", "--set", "env.GREETING=bye", MY_TOKEN=SECRET).out
    assert '"GREETING": "bye"' in changed


# One real run of an own script, watched: attach, logs with and without metrics, wait.

WATCHED_JOB = "name: own\nentrypoint: train.py\nresources: {processes: 1}\n"

TRAIN = """
import os, time
from pathlib import Path
from cloudtrain_job import activity, log_metrics, log_progress

with activity("reading"):
    print("begin", flush=True)
log_progress(step=1, steps=4, epoch=1, epochs=2, loss=1.0)
go_on = Path(os.environ["CLOUDTRAIN_OUTPUT_DIR"], "go-on")
while not go_on.exists():
    time.sleep(0.05)
for step in (2, 3, 4):
    log_metrics(step=step, loss=1 / step)
print("end", flush=True)
"""


@pytest.fixture
def cloudtrain(tmp_path: Path) -> CommandLine:
    line = CommandLine(tmp_path, modules=("warm_jobs",))
    line.write(job_yaml=WATCHED_JOB, train_py=TRAIN)
    return line


@pytest.mark.torchrun
def test_an_own_script_is_watched(cloudtrain: CommandLine) -> None:
    run = cloudtrain.run("submit", "--detach").out.strip()
    try:
        cloudtrain.wait_for_event(run, lambda event: event["type"] == "progress")
        attached = cloudtrain.start("attach", run)
        assert attached.stderr is not None
        first = attached.stderr.readline()
        assert first == "  begin\n", "it shows the lines that were there, and then what comes"
        (cloudtrain.run_folder(run) / "output" / "go-on").write_text("")
        remaining = attached.communicate(timeout=HANG_SECONDS)[1]
    finally:
        (cloudtrain.run_folder(run) / "output" / "go-on").write_text("")
        cloudtrain.run("wait", run)
        cloudtrain.close()
    assert attached.returncode == 0
    assert {"  step 2  loss 0.5", "  end"} <= set(remaining.splitlines())
    assert "succeeded in" in remaining
    logs = cloudtrain.run("logs", run).out.splitlines()
    assert logs[:2] == ["[rank 0] begin", "[rank 0] epoch 1/2  step 1/4  loss 1"]
    assert logs[2:6] == [
        *(f"[rank 0] step {step}  loss {1 / step:.4g}" for step in (2, 3, 4)),
        "[rank 0] end",
    ]
    printed = cloudtrain.run("logs", run, "--no-metrics", "--rank", "0").out.splitlines()
    assert printed == ["begin", "end"]
    activities = [
        event["activity"] for event in cloudtrain.events(run) if event["type"] == "activity"
    ]
    assert activities == ["reading", ""]


def test_rerun_resumes_from_copied_checkpoints_unless_the_run_succeeded(
    cli: CommandLine,
) -> None:
    cli.write(
        job_yaml="name: mine\nentrypoint: train.py\nargs: [1]\n",
        train_py="import os, sys\nfrom pathlib import Path\n"
        "folder = Path(os.environ['CLOUDTRAIN_CHECKPOINT_DIR'])\nfile = folder / 'latest.pt'\n"
        "print('found', file.read_text() if file.exists() else None)\n"
        "with file.open('w') as out:\n    out.write(os.environ['CLOUDTRAIN_RUN_ID'])\n"
        "if not (folder / 'link').is_symlink():\n    (folder / 'link').symlink_to('gone')\n"
        "sys.exit(int(sys.argv[1]))\n",
    )
    cli.run("submit", "--run-id", "mine-1")
    rerun = cli.run("rerun", "mine-1", "--set", "args=[0]")
    assert "found mine-1" in rerun.err
    assert (cli.run_folder("mine-1") / "checkpoints" / "latest.pt").read_text() == "mine-1"
    afresh = cli.run("rerun", "last")
    assert (rerun.code, afresh.code) == (0, 0)
    assert "found None" in afresh.err
    refused = cli.run("rerun", "mine-1", "--provider", "gcp")
    assert refused.code == 2
    assert "unknown provider 'gcp'" in refused.err
