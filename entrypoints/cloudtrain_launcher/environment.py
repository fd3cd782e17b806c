"""Environment variables of a node, of torchrun and of its ranks. Standard library only."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from re import Match
from typing import Any, NamedTuple

from cloudtrain_launcher.contract import (
    COMMAND,
    JOB,
    JOB_FILE,
    LAUNCHER_PID,
    PAYLOAD_DIR,
    PUBLISHED,
    RESUME_DIR,
    STREAM_DIR,
    Job,
    NodeContext,
)
from cloudtrain_launcher.devices import has_accelerator
from cloudtrain_launcher.toolkit_variables import toolkit_variables
from cloudtrain_wire.cores import available_cores
from cloudtrain_wire.ports import free_port
from cloudtrain_wire.rank_variables import RANK_VARIABLES, is_set_by_torchrun

INPUT_PREFIX = "CLOUDTRAIN_INPUT_"
HOSTS = "CLOUDTRAIN_HOSTS"
"""Variable with the hosts of a command's nodes, by rank, separated by commas."""

RESULT_FILE = "CLOUDTRAIN_RESULT_FILE"
TENSORBOARD_DIR = "CLOUDTRAIN_TENSORBOARD_DIR"
"""Folder for TensorBoard's files, which a platform shows while the job runs."""
LIBRARY_PATH = "LD_LIBRARY_PATH"

_LAUNCHER_VARIABLES = (JOB, PUBLISHED, RESUME_DIR)
"""Variables for the launcher only: the ranks read the job document from a file."""

_PLACEHOLDER = re.compile(
    r"\$\{(?P<azure>\{\s*)?(?P<kind>inputs|outputs)\.(?P<name>[A-Za-z][\w-]*)(?(azure)\s*\})\}"
)
_OUTPUTS = {"model": "MODEL", "output": "OUTPUT", "checkpoints": "CHECKPOINT"}


def job_environment(
    job: Job, context: NodeContext, scratch: Path, environ: Mapping[str, str]
) -> dict[str, str]:
    """Return the environment of torchrun and every rank, based on the launcher's `environ`.

    Write the arguments as a JSON file into the folder `scratch`. Raise OSError if that fails.
    """
    env = {name: value for name, value in environ.items() if not _is_dropped(name)}
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
    # Let a bare `torchrun train.py` inside the job join the right world.
    env |= {
        "PET_NNODES": str(context.nodes),
        "PET_NODE_RANK": str(context.node_rank),
        "PET_NPROC_PER_NODE": str(job.processes),
        "PET_MASTER_ADDR": context.master_addr,
        "PET_MASTER_PORT": str(context.master_port),
    }
    defaults = _library_defaults(job, context)
    if context.config_dir:
        values, argv = expand_placeholders([job.values, job.argv], env)
        defaults |= toolkit_variables(job, context, values, argv)
    for name, value in defaults.items():
        env.setdefault(name, value)
    if context.library_dirs:  # at the end, to prefer the user's libraries
        env[LIBRARY_PATH] = _append(env.get(LIBRARY_PATH), *context.library_dirs)

    if job.kind == COMMAND:
        env |= command_variables(job, context)
        env.setdefault("PYTHONUNBUFFERED", "1")

    # After a restart the workers must not read the previous addresses (pytorch/pytorch#135712,
    # #167288).
    env["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    # At the end, to prefer the user's modules.
    env["PYTHONPATH"] = _append(env.get("PYTHONPATH"), str(PAYLOAD_DIR / "job"))
    return env


def command_variables(job: Job, context: NodeContext) -> dict[str, str]:
    """Return the variables that describe the cluster to a command.

    Without `rank_variables` nothing says that the command is a rank: a program which starts its
    own ranks would otherwise wait for others. Lines of `setup` run before the nodes know each
    other's hosts.
    """
    variables = {
        "MASTER_ADDR": context.master_addr,
        "MASTER_PORT": str(context.master_port),
        "WORLD_SIZE": str(context.nodes),
        "NODE_RANK": str(context.node_rank),
    }
    if job.rank_variables:
        variables |= only_rank(context.node_rank)
    if context.hosts:
        variables[HOSTS] = ",".join(host for host, _ in context.hosts)

    if context.hosts and job.tf_config:
        workers = []
        for host, port in context.hosts:
            name = f"[{host}]" if ":" in host else host
            workers.append(f"{name}:{port}")

        task = {"type": "worker", "index": context.node_rank}
        variables["TF_CONFIG"] = json.dumps({"cluster": {"worker": workers}, "task": task})

    return variables


def only_rank(node: int) -> dict[str, str]:
    """Return the variables of a rank that is the only one of its node."""
    return dict(zip(RANK_VARIABLES, (str(node), "0", "1"), strict=True))


def only_rank_of_job(context: NodeContext, environ: Mapping[str, str]) -> dict[str, str]:
    """Return torchrun's variables for the only rank of a job, which makes its own store."""
    asynchronous = "TORCH_NCCL_ASYNC_ERROR_HANDLING"

    return {
        **only_rank(0),
        "WORLD_SIZE": "1",
        "GROUP_RANK": "0",
        "GROUP_WORLD_SIZE": "1",
        "ROLE_RANK": "0",
        "ROLE_NAME": "default",
        "ROLE_WORLD_SIZE": "1",
        "MASTER_ADDR": context.master_addr,
        "MASTER_PORT": str(free_port()),
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_RUN_ID": "none",
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        asynchronous: environ.get(asynchronous, "1"),
    }


def _is_dropped(name: str) -> bool:
    """Return whether the ranks do not get a variable of the launcher, or get torchrun's value."""
    return is_set_by_torchrun(name) or name in _LAUNCHER_VARIABLES


def _library_defaults(job: Job, context: NodeContext) -> dict[str, str]:
    """Return variables for libraries; the user's values take precedence."""
    defaults = {}
    if context.interface:
        defaults["GLOO_SOCKET_IFNAME"] = context.interface
        defaults["NCCL_SOCKET_IFNAME"] = context.interface

    defaults |= context.variables
    defaults["OMP_NUM_THREADS"] = str(max(1, available_cores() // job.processes))
    if job.nodes * job.processes > 1 and not job.gpus and not has_accelerator():
        # Without it Accelerate and Hugging Face's Trainer train one model per process.
        defaults["ACCELERATE_USE_CPU"] = "true"

    return defaults


def _append(search_path: str | None, *folders: str) -> str:
    return os.pathsep.join(filter(None, (search_path, *folders)))


def write_args_file(job: Job, folder: Path, environ: Mapping[str, str]) -> Path:
    """Write the typed arguments, placeholders expanded, to `args.json`; return its path."""
    path = folder / "args.json"
    path.write_text(
        json.dumps(expand_placeholders(job.values, environ), ensure_ascii=False), encoding="utf-8"
    )
    return path


def expand_placeholders(value: Any, environ: Mapping[str, str]) -> Any:
    """Replace `${inputs.NAME}`, `${outputs.model}` and the like by paths on this node.

    Also accept Azure ML's `${{inputs.NAME}}`. Unknown inputs stay.
    """
    if isinstance(value, str):
        return _PLACEHOLDER.sub(lambda match: _placeholder_path(match, environ), value)

    if isinstance(value, dict):
        return {key: expand_placeholders(item, environ) for key, item in value.items()}

    if isinstance(value, list):
        return [expand_placeholders(item, environ) for item in value]

    return value


def _placeholder_path(match: Match[str], environ: Mapping[str, str]) -> str:
    """Return a placeholder's path; the placeholder itself without one.

    An output that only Azure ML has is a folder of the job's output elsewhere.
    """
    name = match["name"]
    if match["kind"] == "inputs":
        return environ.get(input_variable(name), match[0])
    if name in _OUTPUTS:
        return environ.get(f"CLOUDTRAIN_{_OUTPUTS[name]}_DIR", match[0])
    if path := environ.get(f"AZURE_ML_OUTPUT_{name}"):
        return path
    if "CLOUDTRAIN_OUTPUT_DIR" not in environ:
        return match[0]

    folder = Path(environ["CLOUDTRAIN_OUTPUT_DIR"], name)
    folder.mkdir(parents=True, exist_ok=True)
    return str(folder)


def input_variable(name: str) -> str:
    """Return the variable with an input's path: `CLOUDTRAIN_INPUT_TRAIN_SET` for `train-set`."""
    return f"{INPUT_PREFIX}{re.sub('[^A-Z0-9]', '_', name.upper())}"


def input_paths(job: Job, context: NodeContext) -> dict[str, str]:
    """Return input -> path of its folder or file; unassigned channels are inputs themselves."""
    if not context.channel_dir:
        return dict(context.inputs)

    channels = {source["channel"] for source in job.inputs.values()}
    paths = {name: path for name, path in context.inputs.items() if name not in channels}
    for name, source in job.inputs.items():
        folder = Path(context.channel_dir, source["channel"])
        file = folder / source.get("file", "")
        paths[name] = str(file if file.exists() else folder)

    return paths


def require_text(environ: Mapping[str, str], name: str) -> str:
    """Return the value of a variable. Raise RuntimeError if it is unset or empty."""
    if not environ.get(name):
        raise RuntimeError(f"the variable {name} is not set")
    return environ[name]


def require_number(environ: Mapping[str, str], name: str) -> int:
    """Return a variable as a whole number from 0. Raise RuntimeError if it is unset or invalid."""
    value = require_text(environ, name)
    if not value.isdecimal():
        raise RuntimeError(f"{name} is {value!r}: expected a whole number")

    return int(value)


class JobFolders(NamedTuple):
    """Paths on a node, from our own variables."""

    output_dir: str
    model_dir: str
    checkpoint_dir: str
    inputs: Mapping[str, str]
    """Suffix of the variable's name after `CLOUDTRAIN_INPUT_` -> path."""


def job_folders(environ: Mapping[str, str]) -> JobFolders:
    """Read the job's folders from our own variables. Raise RuntimeError if one is unset."""
    inputs = {}
    for name, path in environ.items():
        if name.startswith(INPUT_PREFIX):
            inputs[name.removeprefix(INPUT_PREFIX)] = path

    return JobFolders(
        output_dir=require_text(environ, "CLOUDTRAIN_OUTPUT_DIR"),
        model_dir=require_text(environ, "CLOUDTRAIN_MODEL_DIR"),
        checkpoint_dir=require_text(environ, "CLOUDTRAIN_CHECKPOINT_DIR"),
        inputs=inputs,
    )
