"""What a job may rely on, on every platform: the job document that comes in, the variables that go out.

The one place in the job that reads the job document and that names the `CLOUDTRAIN_*` and `PET_*` variables.
Standard library only.
"""

from __future__ import annotations

import json
import os
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Mapping

JOB, JOB_FILE = "CLOUDTRAIN_JOB", "CLOUDTRAIN_JOB_FILE"
RESUME_DIR = "CLOUDTRAIN_RESUME_DIR"
STREAM_DIR, STREAM_KEY = "CLOUDTRAIN_STREAM_DIR", "CLOUDTRAIN_STREAM_KEY"
LAUNCHER_PID = "CLOUDTRAIN_LAUNCHER_PID"
ARGV_REFERENCE = "$argv"
"""In the values of a job document: the place in `argv` of a text that is too long to be said twice."""

PAYLOAD_DIR = Path(__file__).resolve().parents[1]
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
    inputs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Where the platform brings inputs as channels: name -> its `channel`, and the one `file` that is meant in it."""
    secrets: Mapping[str, str] = field(default_factory=dict)
    """Variables whose values the job itself looks up: name -> where it is kept, such as `secretsmanager:hf-token`."""
    stop_after_seconds: int = 0
    """From the launcher's start to a stop of its own, where the platform ends a job without a word; 0: never."""
    masked: list[str] = field(default_factory=list)
    """Variables whose values are secret, beside those of `secrets`: the log shows `***` instead."""
    require_group: bool = False
    """Whether processes that never join one torch.distributed group are a failure, not only worth a warning."""


@dataclass(frozen=True)
class NodeContext:
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
    """Inputs, or the platform's channels, by name: the folder or file that each of them is."""
    failure_file: str
    """Where the platform looks for the reason of a failure; empty: nowhere."""
    job_file: str
    """The job document; empty: `job_document` is it."""
    channel_dir: str = ""
    """The folder of the channels that the job document speaks of; empty: `inputs` says it all."""
    resume_dir: str = ""
    """An earlier run's checkpoints, to be restored before the start, if it is there."""
    synced_dirs: Mapping[str, str] = field(default_factory=dict)
    """Folders on this node's disk whose content is kept in the job's storage: folder -> where that is mounted."""
    linked_dirs: Mapping[str, str] = field(default_factory=dict)
    """Folders that the platform looks for elsewhere on this disk: folder -> where it takes files to storage from."""
    stopped_exit_code: int = 5
    """What the launcher leaves with after a stop that the job was asked for; with 5 after any other."""
    scheduled_events_url: str = ""
    """Where the platform announces that it takes this machine away; empty: nowhere."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """What libraries must be told here. What the user says counts more."""
    library_dirs: tuple[str, ...] = ()
    """Folders of libraries that only machines of this kind are to load, such as NCCL's plug-in for their network."""
    job_document: str = ""
    """The job document itself, where the platform brings it in a variable."""
    stop_file: str = ""
    """A file whose appearance asks for a stop, where the platform promises no SIGTERM; empty: none."""


def with_job_file(context: NodeContext, folder: Path) -> NodeContext:
    """The place with its job document in a file; in `folder`, if the platform has brought none."""
    if not context.job_document:
        return context
    path = folder / "job.json"
    path.write_bytes(os.fsencode(context.job_document))  # as it stood in the variable, whatever the locale
    return replace(context, job_file=str(path), job_document="")


def read_job(path: str | os.PathLike[str]) -> Job:
    """The job document at `path`; RuntimeError if it is none.

    Unknown fields are ignored, so that an older launcher reads a newer document.
    """
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else f"not JSON: {error}"
        raise RuntimeError(f"the job document {path} cannot be read: {why}") from None
    if not isinstance(document, dict):
        raise RuntimeError(f"the job document {path} is no JSON object")
    values = {item.name: document[item.name] for item in fields(Job) if item.name in document}
    for item in fields(Job):
        if item.name not in values and item.default is MISSING and item.default_factory is MISSING:
            raise RuntimeError(f"the job document {path} does not say {item.name}")
        kind = _FIELD_TYPES.get(str(item.type).partition("[")[0], object)
        if not isinstance(values.get(item.name, kind()), kind):
            raise RuntimeError(f"the job document {path}: {item.name} is {values[item.name]!r}: expected {item.type}")
    return Job(**{**values, "values": _expand_references(values["values"], values["argv"])})


def _expand_references(value: Any, argv: list[str]) -> Any:
    """The values with long texts put back that the document holds once, in `argv`: `{"$argv": 3}` stands for each."""

    def expand(item: Any) -> Any:
        if isinstance(item, dict) and isinstance(item.get(ARGV_REFERENCE), int):  # an argument itself is no mapping
            return argv[item[ARGV_REFERENCE]]
        return [expand(part) for part in item] if isinstance(item, list) else item

    return {key: expand(item) for key, item in value.items()} if isinstance(value, dict) else expand(value)


_FIELD_TYPES: dict[str, type] = {"str": str, "int": int, "list": list, "Mapping": dict, "bool": bool}
