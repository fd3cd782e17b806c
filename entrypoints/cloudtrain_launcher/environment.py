"""Environment variables: those that a platform sets for a node, and those of torchrun and its ranks.

Standard library only.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any, Mapping, Match

from cloudtrain_launcher.contract import JOB, JOB_FILE, LAUNCHER_PID, PAYLOAD, RESUME_DIR, STREAM_DIR, Job, Place
from cloudtrain_launcher.host import cores

INPUT = "CLOUDTRAIN_INPUT_"

RESULT_FILE = "CLOUDTRAIN_RESULT_FILE"
TENSORBOARD_DIR = "CLOUDTRAIN_TENSORBOARD_DIR"
"""Where TensorBoard's files are to be written: where a platform looks for them while the job runs, it looks there."""
LIBRARY_PATH = "LD_LIBRARY_PATH"


def write_args(job: Job, folder: Path, environ: Mapping[str, str]) -> Path:
    """The arguments as a JSON file, types kept."""
    path = folder / "args.json"
    path.write_text(json.dumps(filled(job.values, environ), ensure_ascii=False), encoding="utf-8")
    return path


def filled(value: Any, environ: Mapping[str, str]) -> Any:
    """Arguments with `${inputs.NAME}` and `${outputs.model}` and the like replaced by the paths of this node.

    `${{inputs.NAME}}`, Azure ML's way to write it, means the same. What names no input and no output stays as it is.
    """
    if isinstance(value, str):
        return _PLACEHOLDER.sub(lambda found: environ.get(_variable(found), found[0]), value)
    if isinstance(value, dict):
        return {key: filled(item, environ) for key, item in value.items()}
    return [filled(item, environ) for item in value] if isinstance(value, list) else value


def _variable(found: Match[str]) -> str:
    """The variable that has the path: `CLOUDTRAIN_INPUT_TRAIN_SET` for `${inputs.train-set}`."""
    name = found["name"]
    return input_variable(name) if found["kind"] == "inputs" else f"CLOUDTRAIN_{_OUTPUTS.get(name, '')}_DIR"


def input_variable(name: str) -> str:
    """The variable in which a program finds an input."""
    return f"{INPUT}{re.sub('[^A-Z0-9]', '_', name.upper())}"


def input_paths(job: Job, place: Place) -> dict[str, str]:
    """Each input's folder or file. A channel that no input claims is an input of its own name."""
    if not place.channel_dir:
        return dict(place.inputs)
    claimed = {wanted["channel"] for wanted in job.inputs.values()}
    found = {name: path for name, path in place.inputs.items() if name not in claimed}
    for name, wanted in job.inputs.items():
        folder = Path(place.channel_dir, wanted["channel"])
        file = folder / wanted.get("file", "")
        found[name] = str(file if file.exists() else folder)
    return found


def job_environment(job: Job, place: Place, scratch: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of torchrun and of every rank, on top of the platform's own."""
    dropped = (*_SET_ANEW, *_LAUNCHERS_OWN)
    env = {key: value for key, value in environ.items() if key not in dropped and not key.startswith(_TORCHRUNS)}
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
        TENSORBOARD_DIR: f"{place.output_dir}/tensorboard",
        "CLOUDTRAIN_CHECKPOINT_EVERY": str(job.checkpoint_every_seconds),
        "CLOUDTRAIN_CHECKPOINT_KEEP": str(job.checkpoint_keep),
        JOB_FILE: place.job_file,
        RESULT_FILE: str(scratch / "result.json"),
        STREAM_DIR: str(scratch),
        LAUNCHER_PID: str(os.getpid()),
    }
    env |= {input_variable(name): path for name, path in input_paths(job, place).items()}
    env["CLOUDTRAIN_ARGS_FILE"] = str(write_args(job, scratch, env))
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
    for name, value in place.variables.items():
        env.setdefault(name, value)
    if place.libraries:  # last, so that the user's own come first
        env[LIBRARY_PATH] = os.pathsep.join(p for p in (env.get(LIBRARY_PATH), *place.libraries) if p)
    env.setdefault("OMP_NUM_THREADS", str(max(1, cores() // job.processes)))
    # After a restart the workers must not read the dead workers' addresses (pytorch/pytorch#135712, #167288).
    env["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    # Last, so that the user's own modules win.
    env["PYTHONPATH"] = os.pathsep.join(p for p in (env.get("PYTHONPATH"), str(PAYLOAD / "job")) if p)
    return env


_PLACEHOLDER = re.compile(r"\$\{(?P<azure>\{\s*)?(?P<kind>inputs|outputs)\.(?P<name>[A-Za-z][\w-]*)(?(azure)\s*\})\}")
_OUTPUTS = {"model": "MODEL", "output": "OUTPUT", "checkpoints": "CHECKPOINT"}

_SET_ANEW = {
    *("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK"),
    *("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE"),
    *("MASTER_ADDR", "MASTER_PORT"),
}
_LAUNCHERS_OWN = (JOB, RESUME_DIR)
"""What only the launcher needs: the ranks read the job document from its file."""

_TORCHRUNS = ("PET_", "TORCHELASTIC_")
"""What a torchrun around us, or the platform, left behind: ours or torchrun's to set."""


def text(environ: Mapping[str, str], name: str) -> str:
    """The variable's value; RuntimeError if there is none."""
    if not environ.get(name):
        raise RuntimeError(f"the variable {name} is not set")
    return environ[name]


def number(environ: Mapping[str, str], name: str) -> int:
    """The variable's value as a whole number, zero or more."""
    value = text(environ, name)
    if not value.isdecimal():
        raise RuntimeError(f"{name} is {value!r}: expected a whole number")
    return int(value)


def folders(environ: Mapping[str, str]) -> dict[str, Any]:
    """The fields of a `Place` that say where things are, as our own variables name them."""
    return {
        "output_dir": text(environ, "CLOUDTRAIN_OUTPUT_DIR"),
        "model_dir": text(environ, "CLOUDTRAIN_MODEL_DIR"),
        "checkpoint_dir": text(environ, "CLOUDTRAIN_CHECKPOINT_DIR"),
        "inputs": {key[len(INPUT) :]: value for key, value in environ.items() if key.startswith(INPUT)},
    }
