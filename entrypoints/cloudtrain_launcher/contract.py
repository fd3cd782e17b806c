"""The contract with a job: job document and node context. Standard library only.

All trials of a sweep that a cloud service runs share one job document, whose `tuned` names the
settings: `at`, the index in `argv` after the flag, `key`, the argument's name in `values`, and the
`type` of a range (int, float) or the `values` to choose from. A service passes every value as text.
Client and job share these rules.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from cloudtrain_wire.kept_files import MODEL_PREFIX
from cloudtrain_wire.tuned_values import texts_of, with_values

JOB = "CLOUDTRAIN_JOB"
JOB_FILE = "CLOUDTRAIN_JOB_FILE"
RESUME_DIR = "CLOUDTRAIN_RESUME_DIR"
PUBLISHED = "CLOUDTRAIN_PUBLISHED"
STREAM_DIR = "CLOUDTRAIN_STREAM_DIR"
STREAM_KEY = "CLOUDTRAIN_STREAM_KEY"
LAUNCHER_PID = "CLOUDTRAIN_LAUNCHER_PID"
PYTHON = "CLOUDTRAIN_PROGRAM_PYTHON"
"""Variable with the Python that runs a command's program, for the process that starts it."""
COMMAND = "command"
"""Kind of a program that runs unchanged, once per node, without torchrun."""
ARGV_REFERENCE = "$argv"
"""Key of references: `{"$argv": 3}` in a value refers to a long argument without repeating it."""

PAYLOAD_DIR = Path(__file__).resolve().parents[1]
"""Folder of the launcher and the shared trainer, wherever the source was extracted."""

_JOB_DOCUMENT = "the job document"


@dataclass(frozen=True)
class Job:
    """The job document: the part of the plan that the job needs, the same on every platform."""

    run_id: str
    name: str
    kind: str
    """script, module, notebook or trainer, which torchrun starts; or command."""
    target: str
    """Path of the script or notebook in the working folder, or a module's name; empty: trainer.

    Of a command the program: a file of the working folder, or a name to look up in PATH.
    """
    argv: list[str]
    values: Any
    """Arguments with their types: a mapping, or a list if the spec has a list."""
    nodes: int
    processes: int
    """Per node."""
    gpus: int
    """Per node; 0 on CPU."""
    restarts: int
    """Maximum number of restarts of the ranks by torchrun after a failure."""
    grace_seconds: int
    """From the platform's SIGTERM to its SIGKILL."""
    checkpoint_every_seconds: int
    checkpoint_keep: int
    """How many checkpoints the trainer keeps."""
    inputs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """For platforms with channels: input -> its `channel`, and the `file` in it if it is a file."""
    secrets: Mapping[str, str] = field(default_factory=dict)
    """Variables to look up inside the job -> references, such as `secretsmanager:hf-token`."""
    stop_after_seconds: int = 0
    """Time of a stop by the launcher, for platforms that end a job without a signal; 0: never."""
    masked: list[str] = field(default_factory=list)
    """Further variables with secret values, masked in the log."""
    dependencies: Mapping[str, Any] = field(default_factory=dict)
    """Packages to install before the start.

    `file`: the requirements file, or `packages`: a list. `replace_torch`.
    """
    command: list[str] = field(default_factory=list)
    """Words of a command between its program and `argv`."""
    tf_config: bool = False
    """True if a command gets TensorFlow's description of the cluster in TF_CONFIG."""
    rank_variables: bool = False
    """True if a command is its node's only rank, and gets a rank's variables."""
    setup: list[str] = field(default_factory=list)
    """Shell lines to run once per node before the ranks: see `run_setup`."""
    metrics: Mapping[str, str] = field(default_factory=dict)
    """Metric printed by the first rank -> regular expression whose group is the number."""
    require_group: bool = False
    """True if it is a failure that the processes never join one torch.distributed group."""
    timings: bool = False
    """True to report step times of the program, without a change of it: see `report_steps`."""
    hang_seconds: int = 1800
    """Maximum silence of ranks that wait for each other; 0: unlimited."""
    keep: list[str] = field(default_factory=list)
    """Patterns of files in the working folder to keep: see `KeepPattern`."""
    network_gbps: int = 0
    """Bandwidth of a node's network, in Gbit/s; 0: unknown."""
    warm: bool = True
    """True if the ranks may be forks of a process that has imported torch."""
    tuned: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Settings whose values a cloud service chooses for each trial; `with_trial` inserts them."""
    service_metric: str = ""
    """Metric to report to the platform's own service: see `ServiceMetric`; empty: none."""
    trial: Mapping[str, Any] = field(default_factory=dict)
    """Rules of a trial in a sweep with early stopping: see `trial.Trial`."""


@dataclass(frozen=True)
class NodeContext:
    """This node's part of the job, as its platform describes it."""

    platform: str
    node_rank: int
    nodes: int
    master_addr: str
    master_port: int
    address: str
    """This node's address for its peers; empty if unknown."""
    interface: str
    """The network interface between the nodes; empty: let the libraries choose."""
    output_dir: str
    model_dir: str
    checkpoint_dir: str
    inputs: Mapping[str, str]
    """Input or channel -> path of its folder or file."""
    failure_file: str
    """File for the platform with the reason of a failure; empty: none."""
    job_file: str
    """Path of the job document; empty: see `job_document`."""
    channel_dir: str = ""
    """Folder of the channels in `Job.inputs`; empty: `inputs` has the inputs themselves."""
    config_dir: str = ""
    """Folder of SageMaker's description of the job; empty on other platforms."""
    resume_dir: str = ""
    """Checkpoints of an earlier run, to restore before the start if they exist; empty: none."""
    synced_dirs: Mapping[str, str] = field(default_factory=dict)
    """Folder on this node's disk -> mounted folder of the job's storage that gets its files."""
    linked_dirs: Mapping[str, str] = field(default_factory=dict)
    """Folder -> folder that the platform itself uploads and that gets links to its files."""
    stopped_exit_code: int = 5
    """Exit code after a stop that the user requested; after other stops it is 5."""
    scheduled_events_url: str = ""
    """URL where Azure announces the end of this machine; empty: none."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Variables for libraries on this platform; the user's values take precedence."""
    library_dirs: tuple[str, ...] = ()
    """Folders of libraries for this machine type only, such as NCCL's network plug-in."""
    job_document: str = ""
    """Content of the job document, if the platform passes it in a variable."""
    stop_file: str = ""
    """File that requests a stop, on platforms without SIGTERM; empty: none."""
    job_name: str = ""
    """The platform's name of this job: the run id of a trial that the platform started."""
    hyperparameters: Mapping[str, str] = field(default_factory=dict)
    """Values chosen by the platform for a trial, as strings by setting or `plain_name`."""
    published: str = ""
    """Folder or `s3://` address with files from the client for the running job; empty: none."""
    python: str = ""
    """The Python of the job's program, if lines of `setup` have chosen one; empty: the launcher's."""
    hosts: tuple[tuple[str, int], ...] = ()
    """Host and free port of each node, once a command's nodes have exchanged them."""


def with_job_file(context: NodeContext, folder: Path) -> NodeContext:
    """Return the context with a job document file: the platform's, or `job.json` in `folder`."""
    if not context.job_document:
        return context

    path = folder / "job.json"
    # The bytes of the variable, independent of the locale.
    path.write_bytes(os.fsencode(context.job_document))
    return replace(context, job_file=str(path), job_document="")


def with_trial(context: NodeContext, folder: Path) -> NodeContext:
    """Insert a trial's values into the job document `trial.json`, if a cloud service chose them.

    Raise RuntimeError if the document cannot be read or a value is invalid.
    """
    document = read_object(context.job_file, _JOB_DOCUMENT)
    if not document.get("tuned"):
        return context

    expanded = {**document, "values": _expand_references(document["values"], document["argv"])}
    texts = {**texts_of(document, context.hyperparameters), **context.hyperparameters}
    trial = {**with_values(expanded, texts), "run_id": context.job_name or document["run_id"]}
    path = folder / "trial.json"
    path.write_text(json.dumps(trial), encoding="utf-8")
    return replace(context, job_file=str(path))


def read_job(path: str | os.PathLike[str]) -> Job:
    """Read the job document at `path`. Raise RuntimeError if it is unreadable or invalid.

    Unknown fields are ignored, so that an older launcher can read a newer document.
    """
    document = read_object(path, _JOB_DOCUMENT)
    values = {item.name: document[item.name] for item in fields(Job) if item.name in document}
    try:
        job = Job(**values)
    except TypeError as error:
        raise RuntimeError(f"the job document {path} is incomplete: {error}") from None

    return replace(job, values=_expand_references(job.values, job.argv))


def read_object(path: str | os.PathLike[str], what: str) -> dict[str, Any]:
    """Read a JSON object. Raise RuntimeError with `what` it is if it is unreadable or invalid."""
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        if isinstance(error, OSError):
            why = error.strerror
        else:
            why = f"not JSON: {error}"

        raise RuntimeError(f"{what} {path} cannot be read: {why}") from None

    if not isinstance(document, dict):
        raise RuntimeError(f"{what} {path} is not a JSON object")

    return document


def _expand_references(value: Any, argv: list[str]) -> Any:
    """Replace each reference `{"$argv": 3}` by its argument."""

    def expand(item: Any) -> Any:
        # Arguments are never mappings themselves.
        if isinstance(item, dict) and isinstance(item.get(ARGV_REFERENCE), int):
            return argv[item[ARGV_REFERENCE]]

        if not isinstance(item, list):
            return item

        return [expand(part) for part in item]

    if isinstance(value, dict):
        return {key: expand(item) for key, item in value.items()}

    return expand(value)


class KeepPattern:
    """A pattern below the working folder: `snapshot.pt`, `out-*/`, `runs/*/best.pt`, `**/*.ckpt`.

    `*`, `?` and `[…]` stay within one name; `**` matches any number of folders. A matching folder
    includes its whole content; a pattern with a slash at its end matches folders only. Files are
    kept with the output, or with the model after `model:`.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.is_for_model = text.startswith(MODEL_PREFIX)
        parts = text.removeprefix(MODEL_PREFIX).split("/")
        self._parts = [part for part in parts if part not in ("", ".")]
        self._folders_only = text.endswith("/")

    def covers(self, path: str) -> bool:
        """Return whether a file matches. `path`: relative, with `/` between its parts."""
        parts = path.split("/")
        depths = range(1, len(parts) + (0 if self._folders_only else 1))
        return any(_matches(self._parts, parts[:depth]) for depth in depths)


def _matches(pattern: Sequence[str], parts: Sequence[str]) -> bool:
    if not pattern:
        return not parts
    if pattern[0] == "**":
        return any(_matches(pattern[1:], parts[start:]) for start in range(len(parts) + 1))
    return bool(parts) and fnmatchcase(parts[0], pattern[0]) and _matches(pattern[1:], parts[1:])
