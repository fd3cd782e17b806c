"""Launchers started as on Azure ML: one world, whatever the program does; stops by file, time limit
and preemption.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from cloudtrain_launcher.host import free_port
from tests.entrypoints.launchers import Launcher, events, finish
from tests.entrypoints.platforms import SECRET, TOKEN, folders, serving, start_node

STOP_FILE = "output/.cloudtrain-stop"

ONE_WORLD = """
import json, os
from pathlib import Path
import torch
import torch.distributed as dist
from cloudtrain_job import emit

dist.init_process_group("gloo")
total = torch.tensor([float(dist.get_rank())])
dist.all_reduce(total)
seen = {name: value for name, value in os.environ.items() if name.startswith(("CLOUDTRAIN_", "PET_", "GLOO_", "NODE_"))}
emit("seen", world=dist.get_world_size(), total=total.item(), cwd=os.path.basename(os.getcwd()), env=seen,
     job=json.loads(Path(os.environ["CLOUDTRAIN_JOB_FILE"]).read_text())["run_id"],
     data=Path(os.environ["CLOUDTRAIN_INPUT_TRAIN"], "x.txt").read_text(),
     restored=Path(os.environ["CLOUDTRAIN_CHECKPOINT_DIR"], "step-1").read_text(), secret=os.environ["HF_TOKEN"][:5])
dist.destroy_process_group()
"""

ORDINARY = """
import os, shutil, sys, time
from pathlib import Path
import torch
import torch.distributed as dist
from cloudtrain_job import emit

dist.init_process_group("gloo")
rank, folder = dist.get_rank(), Path(os.environ["CLOUDTRAIN_CHECKPOINT_DIR"])
steps = sorted(int(path.name[5:]) for path in folder.glob("step-*"))
begun = steps[-1] if steps else 0
last = (folder / f"step-{begun}" / "model.txt").read_text() if steps else ""
emit("begun", step=begun, model=last, steps=steps)
everybodys = [torch.zeros(1) for _ in range(2)]
dist.all_gather(everybodys, torch.tensor([float(begun)]))
if everybodys[0] != everybodys[1]:
    sys.exit(f"the ranks go on from steps {everybodys}")
for step in range(begun + 1, 7):
    dist.barrier()
    if rank == 0:
        (folder / "writing").mkdir()
        (folder / "writing" / "model.txt").write_text(f"of step {step}")
        (folder / "writing").rename(folder / f"step-{step}")
        if step > 2:
            shutil.rmtree(folder / f"step-{step - 2}")
    dist.barrier()
    if step == 4 and begun == 0 and rank == 1:
        sys.exit("the dog ate step 4")
dist.destroy_process_group()
"""
"""As most programs do it: rank 0 saves and deletes, all ranks load."""


SAVES_ON_SIGTERM = """
import os, signal, sys, time
from pathlib import Path
from cloudtrain_job import emit

def leave(*_):
    Path(os.environ["CLOUDTRAIN_CHECKPOINT_DIR"], "rank-" + os.environ["RANK"]).write_text("saved")
    sys.exit(0)

signal.signal(signal.SIGTERM, leave)
emit("ready")
time.sleep(600)
"""


def read_until(process: Launcher, kind: str) -> str:
    """The launcher's output up to the first event of this type."""
    assert process.stdout is not None
    output = ""
    for line in process.stdout:
        output += line
        if f'"type":"{kind}"' in line:
            return output

    raise AssertionError(f"no {kind} in:\n{output}")


@pytest.mark.torchrun
def test_two_nodes_of_two_ranks_are_one_world_with_inputs_checkpoints_and_secrets(
    tmp_path: Path,
) -> None:
    pytest.importorskip("cryptography")
    paths = folders(tmp_path)
    Path(paths["CLOUDTRAIN_INPUT_TRAIN"], "x.txt").write_text("input data")
    Path(paths["CLOUDTRAIN_RESUME_DIR"], "step-1").write_text("an earlier run's")
    port = free_port()
    with serving(tmp_path) as vault:
        vault.answers["/msi"] = [(200, {"access_token": TOKEN})]
        vault.answers["/secrets/hf-token"] = [(200, {"value": SECRET})]
        job = {"nodes": 2, "processes": 2, "secrets": {"HF_TOKEN": vault.reference("hf-token")}}
        environ = vault.environ(no_proxy="*")
        program = {"train": ONE_WORLD}
        nodes = [
            start_node(tmp_path, rank, 2, port, program, job, new_process=rank == 0, **environ)
            for rank in range(2)
        ]
        texts = [finish(node) for node in nodes]

    assert [node.returncode for node in nodes] == [0, 0], texts
    assert not [text for text in texts if SECRET in text or TOKEN in text]
    ranks = {
        event["rank"]: event for text in texts for event in events(text) if event["type"] == "seen"
    }
    assert sorted(ranks) == [0, 1, 2, 3]
    for rank, event in ranks.items():
        assert (event["world"], event["total"]) == (4, 6.0)
        assert (event["node"], event["cwd"]) == (rank // 2, f"node-{rank // 2}")
        assert (event["job"], event["data"], event["secret"]) == ("job-1", "input data", SECRET[:5])
        assert event["restored"] == "an earlier run's"
        env = event["env"]
        assert (
            env.items()
            >= {
                "CLOUDTRAIN_PLATFORM": "azureml",
                "CLOUDTRAIN_NODE_RANK": str(rank // 2),
                "CLOUDTRAIN_NODES": "2",
                "PET_NNODES": "2",
                "PET_MASTER_PORT": str(port),
                "GLOO_SOCKET_IFNAME": "lo",
            }.items()
        )
        assert not {"CLOUDTRAIN_JOB", "CLOUDTRAIN_RESUME_DIR"} & set(env)
        assert not Path(env["CLOUDTRAIN_JOB_FILE"]).exists(), "it went with the scratch folder"


@pytest.mark.torchrun
def test_the_stop_file_stops_all_nodes_and_one_that_is_restarted(tmp_path: Path) -> None:
    port = free_port()
    programs = {"train": SAVES_ON_SIGTERM}
    job = {"nodes": 2}
    nodes = [start_node(tmp_path, rank, 2, port, programs, job) for rank in range(2)]
    before = [read_until(node, "ready") for node in nodes]
    (tmp_path / STOP_FILE).touch()
    texts = [output + finish(node) for output, node in zip(before, nodes, strict=True)]
    assert [node.returncode for node in nodes] == [
        0,
        0,
    ], texts  # with another the platform would end the job for the peers
    for text in texts:
        end = events(text)[-1]
        assert (end["outcome"], end["why"], end["forced"], end["error"]) == (
            "stopped",
            "stop_file",
            False,
            None,
        )
        assert "a stop was requested: stopping with a checkpoint" in text
        assert "Traceback" not in text

    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == [
        "rank-0",
        "rank-1",
    ]
    assert (tmp_path / STOP_FILE).exists()
    restarted = start_node(tmp_path, 1, 2, port, programs, job)
    text = finish(restarted)
    assert restarted.returncode == 0
    types = [event["type"] for event in events(text) if event["type"] not in ("activity", "usage")]
    assert types == ["node_started", "node_ended"]


@pytest.mark.torchrun
def test_all_nodes_resume_from_the_first_nodes_checkpoint_after_restart(
    tmp_path: Path,
) -> None:
    port = free_port()
    job = {"nodes": 2, "restarts": 1}
    nodes = [start_node(tmp_path, rank, 2, port, {"train": ORDINARY}, job) for rank in range(2)]
    texts = [finish(node) for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], texts
    begun = [[e for e in events(text) if e["type"] == "begun"] for text in texts]
    assert [[e["step"] for e in one] for one in begun] == [[0, 4], [0, 4]], texts
    assert [(one[1]["model"], one[1]["steps"]) for one in begun] == [("of step 4", [3, 4])] * 2
    stored = {
        path.name: (path / "model.txt").read_text() for path in (tmp_path / "checkpoints").iterdir()
    }
    assert stored == {
        "step-5": "of step 5",
        "step-6": "of step 6",
    }, "two are kept, as the program does"


@pytest.mark.torchrun
def test_a_model_sharded_over_the_nodes_resumes_after_a_restart_in_place(tmp_path: Path) -> None:
    port = free_port()
    argv = [
        "--task",
        "digits",
        "--strategy",
        "fsdp",
        "--epochs",
        "3000",
        "--checkpoint-every-steps",
        "5",
    ]
    job = {
        "nodes": 2,
        "restarts": 1,
        "kind": "trainer",
        "target": "",
        "argv": argv,
        "checkpoint_keep": 2,
    }
    nodes = [start_node(tmp_path, rank, 2, port, {}, job) for rank in range(2)]
    output = [
        read_until(node, kind)
        for node, kind in zip(nodes, ("checkpoint", "rank_started"), strict=True)
    ]
    pid = next(event["pid"] for event in events(output[1]) if event["type"] == "rank_started")
    os.kill(pid, signal.SIGKILL)
    output[0] += read_until(nodes[0], "resumed")
    (tmp_path / STOP_FILE).touch()
    texts = [text + finish(node) for text, node in zip(output, nodes, strict=True)]
    assert [node.returncode for node in nodes] == [0, 0], texts
    assert next(event["step"] for event in events(texts[0]) if event["type"] == "resumed") >= 5
    assert all("checkpoint files from other nodes" in text for text in texts)
    newest = max((tmp_path / "checkpoints").glob("step-*"))
    parts = {"__0_0.distcp", "__1_0.distcp", ".metadata"}
    assert {path.name for path in (newest / "weights-0").iterdir()} == parts
    assert len(list((tmp_path / "checkpoints").glob("step-*"))) == 2
