"""Environment variables: those that a platform sets for a node, and those of torchrun and its ranks.

Standard library only.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any, Mapping, Match

from cloudtrain_launcher.contract import (
    JOB,
    JOB_FILE,
    LAUNCHER_PID,
    PAYLOAD_DIR,
    RESUME_DIR,
    STREAM_DIR,
    Job,
    NodeContext,
)
from cloudtrain_launcher.host import available_cores

INPUT_PREFIX = "CLOUDTRAIN_INPUT_"

RESULT_FILE = "CLOUDTRAIN_RESULT_FILE"
TENSORBOARD_DIR = "CLOUDTRAIN_TENSORBOARD_DIR"
"""Where TensorBoard's files are to be written: where a platform looks for them while the job runs, it looks there."""
LIBRARY_PATH = "LD_LIBRARY_PATH"


def write_args_file(job: Job, folder: Path, environ: Mapping[str, str]) -> Path:
    """The arguments as a JSON file, types kept."""
    path = folder / "args.json"
    path.write_text(json.dumps(expand_placeholders(job.values, environ), ensure_ascii=False), encoding="utf-8")
    return path


def expand_placeholders(value: Any, environ: Mapping[str, str]) -> Any:
    """Arguments with `${inputs.NAME}` and `${outputs.model}` and the like replaced by the paths of this node.

    `${{inputs.NAME}}`, Azure ML's way to write it, means the same. What names no input and no output stays as it is.
    """
    if isinstance(value, str):
        return _PLACEHOLDER.sub(lambda found: environ.get(_placeholder_variable(found), found[0]), value)
    if isinstance(value, dict):
        return {key: expand_placeholders(item, environ) for key, item in value.items()}
    return [expand_placeholders(item, environ) for item in value] if isinstance(value, list) else value


def _placeholder_variable(found: Match[str]) -> str:
    """The variable that has the path: `CLOUDTRAIN_INPUT_TRAIN_SET` for `${inputs.train-set}`."""
    name = found["name"]
    return input_variable(name) if found["kind"] == "inputs" else f"CLOUDTRAIN_{_OUTPUTS.get(name, '')}_DIR"


def input_variable(name: str) -> str:
    """The variable in which a program finds an input."""
    return f"{INPUT_PREFIX}{re.sub('[^A-Z0-9]', '_', name.upper())}"


def input_paths(job: Job, context: NodeContext) -> dict[str, str]:
    """Each input's folder or file. A channel that no input claims is an input of its own name."""
    if not context.channel_dir:
        return dict(context.inputs)
    claimed = {wanted["channel"] for wanted in job.inputs.values()}
    found = {name: path for name, path in context.inputs.items() if name not in claimed}
    for name, wanted in job.inputs.items():
        folder = Path(context.channel_dir, wanted["channel"])
        file = folder / wanted.get("file", "")
        found[name] = str(file if file.exists() else folder)
    return found


def job_environment(job: Job, context: NodeContext, scratch: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of torchrun and of every rank, on top of the platform's own."""
    dropped = (*_RANK_VARIABLES, *_LAUNCHER_VARIABLES)
    env = {
        key: value for key, value in environ.items() if key not in dropped and not key.startswith(_TORCHRUN_PREFIXES)
    }
    env |= {
        "CLOUDTRAIN_RUN_ID": job.run_id,
        "CLOUDTRAIN_JOB_NAME": job.name,
        "CLOUDTRAIN_PLATFORM": context.platform,
        "CLOUDTRAIN_NODE_RANK": str(context.node_rank),
        "CLOUDTRAIN_NODES": str(context.nodes),
        "CLOUDTRAIN_PROCESSES": str(job.processes),
        "CLOUDTRAIN_OUTPUT_DIR": context.output_dir,
        "CLOUDTRAIN_MODEL_DIR": context.model_dir,
        "CLOUDTRAIN_CHECKPOINT_DIR": context.checkpoint_dir,
        TENSORBOARD_DIR: f"{context.output_dir}/tensorboard",
        "CLOUDTRAIN_CHECKPOINT_EVERY": str(job.checkpoint_every_seconds),
        "CLOUDTRAIN_CHECKPOINT_KEEP": str(job.checkpoint_keep),
        JOB_FILE: context.job_file,
        RESULT_FILE: str(scratch / "result.json"),
        STREAM_DIR: str(scratch),
        LAUNCHER_PID: str(os.getpid()),
    }
    env |= {input_variable(name): path for name, path in input_paths(job, context).items()}
    env["CLOUDTRAIN_ARGS_FILE"] = str(write_args_file(job, scratch, env))
    # A bare `torchrun train.py` inside the job takes these as its defaults, and so joins the right world.
    env |= {
        "PET_NNODES": str(context.nodes),
        "PET_NODE_RANK": str(context.node_rank),
        "PET_NPROC_PER_NODE": str(job.processes),
        "PET_MASTER_ADDR": context.master_addr,
        "PET_MASTER_PORT": str(context.master_port),
    }
    if context.interface:
        env.setdefault("GLOO_SOCKET_IFNAME", context.interface)
        env.setdefault("NCCL_SOCKET_IFNAME", context.interface)
    for name, value in context.variables.items():
        env.setdefault(name, value)
    if context.library_dirs:  # last, so that the user's own come first
        env[LIBRARY_PATH] = os.pathsep.join(p for p in (env.get(LIBRARY_PATH), *context.library_dirs) if p)
    env.setdefault("OMP_NUM_THREADS", str(max(1, available_cores() // job.processes)))
    # After a restart the workers must not read the dead workers' addresses (pytorch/pytorch#135712, #167288).
    env["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    # Last, so that the user's own modules win.
    env["PYTHONPATH"] = os.pathsep.join(p for p in (env.get("PYTHONPATH"), str(PAYLOAD_DIR / "job")) if p)
    return env


_PLACEHOLDER = re.compile(r"\$\{(?P<azure>\{\s*)?(?P<kind>inputs|outputs)\.(?P<name>[A-Za-z][\w-]*)(?(azure)\s*\})\}")
_OUTPUTS = {"model": "MODEL", "output": "OUTPUT", "checkpoints": "CHECKPOINT"}

_RANK_VARIABLES = {
    *("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK"),
    *("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE"),
    *("MASTER_ADDR", "MASTER_PORT"),
}
_LAUNCHER_VARIABLES = (JOB, RESUME_DIR)
"""What only the launcher needs: the ranks read the job document from its file."""

_TORCHRUN_PREFIXES = ("PET_", "TORCHELASTIC_")
"""What a torchrun around us, or the platform, left behind: ours or torchrun's to set."""


def require_text(environ: Mapping[str, str], name: str) -> str:
    """The variable's value; RuntimeError if there is none."""
    if not environ.get(name):
        raise RuntimeError(f"the variable {name} is not set")
    return environ[name]


def require_number(environ: Mapping[str, str], name: str) -> int:
    """The variable's value as a whole number, zero or more."""
    value = require_text(environ, name)
    if not value.isdecimal():
        raise RuntimeError(f"{name} is {value!r}: expected a whole number")
    return int(value)


def job_folders(environ: Mapping[str, str]) -> dict[str, Any]:
    """The fields of a `Place` that say where things are, as our own variables name them."""
    return {
        "output_dir": require_text(environ, "CLOUDTRAIN_OUTPUT_DIR"),
        "model_dir": require_text(environ, "CLOUDTRAIN_MODEL_DIR"),
        "checkpoint_dir": require_text(environ, "CLOUDTRAIN_CHECKPOINT_DIR"),
        "inputs": {key[len(INPUT_PREFIX) :]: value for key, value in environ.items() if key.startswith(INPUT_PREFIX)},
    }
