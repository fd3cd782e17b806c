"""What a job may rely on, on every platform: the job document that comes in, the variables that go out.

The one place in the job that reads the job document and that names the `CLOUDTRAIN_*` and `PET_*` variables.
Standard library only.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Mapping

JOB_FILE = "CLOUDTRAIN_JOB_FILE"
STREAM_DIR = "CLOUDTRAIN_STREAM_DIR"
RESULT_FILE = "CLOUDTRAIN_RESULT_FILE"
LAUNCHER_PID = "CLOUDTRAIN_LAUNCHER_PID"

PAYLOAD = Path(__file__).resolve().parent
"""The folder that the launcher, the worker and the shared trainer lie in, wherever the source was unpacked."""


@dataclass(frozen=True)
class Job:
    """The job document: the part of the plan that the job itself needs, the same on every platform."""

    run_id: str
    name: str
    kind: str
    """script, module, notebook or trainer."""
    target: str
    """The script's or notebook's path below the working folder, or the module's name; empty for the trainer."""
    argv: list[str]
    values: Any
    """The arguments with their types kept: a mapping, or a list where the spec gave a list."""
    nodes: int
    processes: int
    """Per node."""
    gpus: int
    """Per node; 0 on CPU."""
    restarts: int
    grace_seconds: int
    """From the platform's SIGTERM to its SIGKILL."""
    checkpoint_every_seconds: int
    checkpoint_keep: int


@dataclass(frozen=True)
class Place:
    """Where this node stands in the job, as its platform tells."""

    platform: str
    node_rank: int
    nodes: int
    master_addr: str
    master_port: int
    address: str
    """This node's own address, as its peers reach it."""
    interface: str
    """Network interface between the nodes; empty: let the libraries choose."""
    output_dir: str
    model_dir: str
    checkpoint_dir: str
    inputs: Mapping[str, str]
    failure_file: str
    """Where the platform looks for the reason of a failure; empty: nowhere."""


def read_job(path: str | os.PathLike[str]) -> Job:
    """The job document at `path`. Unknown fields are ignored, so that an older launcher reads a newer document."""
    document = json.loads(Path(path).read_text(encoding="utf-8"))
    return Job(**{name: document[name] for name in Job.__dataclass_fields__})


def write_args(job: Job, folder: Path) -> Path:
    """The arguments as a JSON file, types kept."""
    path = folder / "args.json"
    path.write_text(json.dumps(job.values, ensure_ascii=False), encoding="utf-8")
    return path


def job_environment(job: Job, place: Place, scratch: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of torchrun and of every rank, on top of the platform's own."""
    env = {key: value for key, value in environ.items() if key not in _SET_ANEW and not key.startswith(_TORCHRUNS)}
    env |= {
        "CLOUDTRAIN_RUN_ID": job.run_id,
        "CLOUDTRAIN_JOB_NAME": job.name,
        "CLOUDTRAIN_PLATFORM": place.platform,
        "CLOUDTRAIN_NODE_RANK": str(place.node_rank),
        "CLOUDTRAIN_NODES": str(place.nodes),
        "CLOUDTRAIN_PROCESSES": str(job.processes),
        "CLOUDTRAIN_OUTPUT_DIR": place.output_dir,
        "CLOUDTRAIN_MODEL_DIR": place.model_dir,
        "CLOUDTRAIN_CHECKPOINT_DIR": place.checkpoint_dir,
        "CLOUDTRAIN_CHECKPOINT_EVERY": str(job.checkpoint_every_seconds),
        "CLOUDTRAIN_CHECKPOINT_KEEP": str(job.checkpoint_keep),
        "CLOUDTRAIN_ARGS_FILE": str(write_args(job, scratch)),
        JOB_FILE: environ[JOB_FILE],
        RESULT_FILE: str(scratch / "result.json"),
        STREAM_DIR: str(scratch),
        LAUNCHER_PID: str(os.getpid()),
    }
    env |= {f"CLOUDTRAIN_INPUT_{name.upper().replace('-', '_')}": path for name, path in place.inputs.items()}
    # A bare `torchrun train.py` inside the job takes these as its defaults, and so joins the right world.
    env |= {
        "PET_NNODES": str(place.nodes),
        "PET_NODE_RANK": str(place.node_rank),
        "PET_NPROC_PER_NODE": str(job.processes),
        "PET_MASTER_ADDR": place.master_addr,
        "PET_MASTER_PORT": str(place.master_port),
    }
    if place.interface:
        env.setdefault("GLOO_SOCKET_IFNAME", place.interface)
        env.setdefault("NCCL_SOCKET_IFNAME", place.interface)
    env.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // job.processes)))
    # After a restart the workers must not read the dead workers' addresses (pytorch/pytorch#135712, #167288).
    env["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    # Last, so that the user's own modules win.
    env["PYTHONPATH"] = os.pathsep.join(p for p in (env.get("PYTHONPATH"), str(PAYLOAD / "job")) if p)
    return env


_SET_ANEW = {
    *("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK"),
    *("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE"),
    *("MASTER_ADDR", "MASTER_PORT"),
}
_TORCHRUNS = ("PET_", "TORCHELASTIC_")
"""What a torchrun around us, or the platform, left behind: ours or torchrun's to set."""
