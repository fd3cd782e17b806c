"""What a job can rely on, on every platform: the job document, and the context of a node. Standard
library only.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from cloudtrain_launcher.tuned import texts_of, with_values

JOB = "CLOUDTRAIN_JOB"
JOB_FILE = "CLOUDTRAIN_JOB_FILE"
RESUME_DIR = "CLOUDTRAIN_RESUME_DIR"
PUBLISHED = "CLOUDTRAIN_PUBLISHED"
STREAM_DIR = "CLOUDTRAIN_STREAM_DIR"
STREAM_KEY = "CLOUDTRAIN_STREAM_KEY"
LAUNCHER_PID = "CLOUDTRAIN_LAUNCHER_PID"
ARGV_REFERENCE = "$argv"
"""In the values of a job document, `{"$argv": 3}` refers to an argument that is too long to be
repeated.
"""

PAYLOAD_DIR = Path(__file__).resolve().parents[1]
"""The folder of the launcher and the shared trainer, wherever the source was extracted."""


@dataclass(frozen=True)
class Job:
    """The job document: the part of the plan that the job itself needs, the same on every platform."""

    run_id: str
    name: str
    kind: str
    """script, module, notebook or trainer."""
    target: str
    """The script's or notebook's path relative to the working folder, or the module's name; empty
    for the trainer.
    """
    argv: list[str]
    values: Any
    """The arguments with their types kept: a mapping, or a list if the spec has a list."""
    nodes: int
    processes: int
    """Per node."""
    gpus: int
    """Per node; 0 on CPU."""
    restarts: int
    """How many times torchrun may restart the ranks after a failure."""
    grace_seconds: int
    """From the platform's SIGTERM to its SIGKILL."""
    checkpoint_every_seconds: int
    checkpoint_keep: int
    """How many checkpoints the trainer keeps."""
    inputs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """For platforms with channels: input -> its `channel`, and the `file` in it if the input is a
    file.
    """
    secrets: Mapping[str, str] = field(default_factory=dict)
    """Variables whose values the job looks up itself -> where they are stored, such as
    `secretsmanager:hf-token`.
    """
    stop_after_seconds: int = 0
    """When the launcher stops the job by itself, since the platform ends it without a signal; 0:
    never.
    """
    masked: list[str] = field(default_factory=list)
    """More variables whose values are secret, beside those of `secrets`: they are masked in the
    log.
    """
    dependencies: Mapping[str, Any] = field(default_factory=dict)
    """The packages to install before the start: the `file` that asks for them, or a list of
    `packages`; `wheels`, a folder of the source that holds them; `replace_torch`; `keep`, whether
    the next attempt finds them in storage.
    """
    metrics: Mapping[str, str] = field(default_factory=dict)
    """Metrics that the first rank prints -> the regular expression whose group is the number."""
    require_group: bool = False
    """Whether it is a failure, not only a warning, if the processes never join one
    torch.distributed group.
    """
    hang_seconds: int = 1800
    """After how long without a sign of life ranks that wait for each other are ended; 0: never."""
    keep: list[str] = field(default_factory=list)
    """Patterns of files in the working folder that are kept with the output: see `KeepPattern`."""
    warm: bool = True
    """Whether the ranks may be forks of a process that has imported torch; if not, each imports it
    itself.
    """
    tuned: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Settings whose values a cloud's own service chooses for each trial: `with_trial` has put them
    in place.
    """
    service_metric: str = ""
    """A metric whose reports the launcher tells the platform's own service: see `ServiceMetric`;
    empty: none.
    """
    trial: Mapping[str, Any] = field(default_factory=dict)
    """If the job is a trial of a sweep that ends trials early, its rules: see `trial.Trial`."""


@dataclass(frozen=True)
class NodeContext:
    """This node's part of the job, as its platform describes it."""

    platform: str
    node_rank: int
    nodes: int
    master_addr: str
    master_port: int
    address: str
    """This node's own address, by which its peers reach it; empty if unknown."""
    interface: str
    """The network interface between the nodes; empty: let the libraries choose."""
    output_dir: str
    model_dir: str
    checkpoint_dir: str
    inputs: Mapping[str, str]
    """Inputs, or the platform's channels -> the path of the folder or file."""
    failure_file: str
    """The file in which the platform reads the reason for a failure; empty: none."""
    job_file: str
    """The path of the job document; empty: `job_document` has its content."""
    channel_dir: str = ""
    """The folder of the channels that `Job.inputs` names; empty: `inputs` has the inputs
    themselves.
    """
    resume_dir: str = ""
    """The checkpoints of an earlier run, to be restored before the start if the folder exists;
    empty: none.
    """
    synced_dirs: Mapping[str, str] = field(default_factory=dict)
    """Folders on this node's disk -> the mounted folder of the job's storage to which their files
    are copied.
    """
    linked_dirs: Mapping[str, str] = field(default_factory=dict)
    """Folders -> another folder of this disk from which the platform itself uploads, and to which
    files are linked.
    """
    stopped_exit_code: int = 5
    """The launcher's exit code after a stop that the job was asked for; after any other stop it is
    5.
    """
    scheduled_events_url: str = ""
    """Where Azure announces that it is about to end this machine; empty: nowhere."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Variables that libraries need on this platform; those that the user has set take precedence.
    """
    library_dirs: tuple[str, ...] = ()
    """Folders of libraries for this kind of machine only, such as NCCL's plug-in for its network.
    """
    job_document: str = ""
    """The content of the job document, if the platform passes it in a variable."""
    stop_file: str = ""
    """A file whose appearance requests a stop, if the platform does not send SIGTERM; empty: none.
    """
    job_name: str = ""
    """The platform's own name of this job, which is the run id of a trial that it has started by
    itself.
    """
    hyperparameters: Mapping[str, str] = field(default_factory=dict)
    """What the platform has chosen for a trial that it has started, by name: the values are texts.
    A name may be that of a setting, or its `tuned.plain_name`.
    """
    published: str = ""
    """Where the client leaves files for the job while it runs, a folder or an `s3://` address;
    empty: nowhere.
    """


def with_job_file(context: NodeContext, folder: Path) -> NodeContext:
    """The context with its job document in a file: `job.json` in `folder`, unless the platform
    provides one already.
    """
    if not context.job_document:
        return context
    path = folder / "job.json"
    path.write_bytes(
        os.fsencode(context.job_document)
    )  # the bytes of the variable, whatever the locale
    return replace(context, job_file=str(path), job_document="")


def with_trial(context: NodeContext, folder: Path) -> NodeContext:
    """The context with the job document of this trial, if a cloud's own service has started it:
    `trial.json` there.

    RuntimeError if the document cannot be read, or the service's values are not what it says.
    """
    document = _read_document(context.job_file)
    if not document.get("tuned"):
        return context
    expanded = {**document, "values": _expand_references(document["values"], document["argv"])}
    texts = {**texts_of(document, context.hyperparameters), **context.hyperparameters}
    trial = {**with_values(expanded, texts), "run_id": context.job_name or document["run_id"]}
    path = folder / "trial.json"
    path.write_text(json.dumps(trial), encoding="utf-8")
    return replace(context, job_file=str(path))


def read_job(path: str | os.PathLike[str]) -> Job:
    """The job document at `path`; RuntimeError if it cannot be read or is not a valid one.

    Unknown fields are ignored, so that an older launcher can read a newer document.
    """
    document = _read_document(path)
    values = {item.name: document[item.name] for item in fields(Job) if item.name in document}
    for item in fields(Job):
        if item.name not in values and item.default is MISSING and item.default_factory is MISSING:
            raise RuntimeError(f"the job document {path} has no field {item.name}")
        kind = _FIELD_TYPES.get(str(item.type).partition("[")[0], object)
        if not isinstance(values.get(item.name, kind()), kind):
            raise RuntimeError(
                f"the job document {path}: {item.name} is {values[item.name]!r}: expected"
                f" {item.type}"
            )
    return Job(**{**values, "values": _expand_references(values["values"], values["argv"])})


def _read_document(path: str | os.PathLike[str]) -> dict[str, Any]:
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else f"not JSON: {error}"
        raise RuntimeError(f"the job document {path} cannot be read: {why}") from None
    if not isinstance(document, dict):
        raise RuntimeError(f"the job document {path} is not a JSON object")
    return document


def _expand_references(value: Any, argv: list[str]) -> Any:
    """The values with each reference `{"$argv": 3}` replaced by that argument."""

    def expand(item: Any) -> Any:
        if isinstance(item, dict) and isinstance(
            item.get(ARGV_REFERENCE), int
        ):  # arguments are never mappings themselves
            return argv[item[ARGV_REFERENCE]]
        return [expand(part) for part in item] if isinstance(item, list) else item

    return (
        {key: expand(item) for key, item in value.items()}
        if isinstance(value, dict)
        else expand(value)
    )


_FIELD_TYPES: dict[str, type] = {
    "str": str,
    "int": int,
    "list": list,
    "Mapping": dict,
    "bool": bool,
}
