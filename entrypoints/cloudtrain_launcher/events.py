"""Every event of a run: one class for each kind, what its fields mean, and who may write it. Standard library only.

An event is one JSON object with a `type`. Any program may print a line that looks like one, and a log may reach us
damaged: `parse` and `from_json` give an event only where all that its class requires is there and of its kind, so
that whoever has one may rely on its fields. Kinds and fields of a newer version, or of a program's own, are kept.

The client loads this file under another name than the launcher does, which is why its imports are relative.
"""

from __future__ import annotations

import json
from typing import Any, Literal, Optional

from .event_fields import InvalidValue, Measure, Measures, Names, Object, Seconds, Timestamp, WholeNumbers
from .event_record import CLIENT as CLIENT
from .event_record import EVENT_TYPES as EVENT_TYPES
from .event_record import LAUNCHER as LAUNCHER
from .event_record import PROGRAM as PROGRAM
from .event_record import RANK as RANK
from .event_record import Event as Event
from .event_record import Record as Record

MAX_TYPE_CHARS = 64


class Cause(Record):
    """Why something failed."""

    rank: int
    """The process that failed; -1: the node itself."""
    node: int
    """Its node."""
    time: Timestamp
    """When it failed."""
    exception: str
    """The class of the exception, without its module; a signal's name, or `exit`, where there was none."""
    message: str
    """What it says, at most 1,000 characters."""
    attempt: int = 0
    """How many times the ranks had been started again by then."""
    file: str = ""
    """The program's own file that it was raised in, as seen from the job's folder."""
    line: int = 0
    """The line there, from 1."""
    code: str = ""
    """That line's text, at most 200 characters."""
    traceback: str = ""
    """The end of Python's traceback, at most 2,500 characters."""
    consequence: bool = False
    """Whether it only says that a peer was gone: then its rank is a victim, not the cause."""
    hint: str = ""
    """What to do about it."""
    stack: str = ""
    """Of a process that C++ or the kernel ended: the Python stack that it printed, at most 2,500 characters."""


class NodeStarted(Event, type="node_started", writer=LAUNCHER, requires="time node"):
    """A node's launcher has begun."""

    pid: Optional[int] = None
    """Its process id, in its container's own count."""
    host: str = ""
    """The machine's name for itself."""
    scratch: str = ""
    """The launcher's temporary folder, which goes when it ends."""


class NodeEnded(Event, type="node_ended", writer=LAUNCHER, requires="node"):
    """A node's launcher has come to its end, and knows how the node's ranks ended."""

    outcome: Literal["succeeded", "failed", "stopped"]
    """How they ended."""
    error: Optional[Cause] = None
    """The first cause of a failure, without its traceback and stack, which its own event has."""
    why: str = ""
    """Of a stop, who asked for it: `sigterm`, `stop_file`, `time`, `preempted`, `peer_preempted`."""
    seconds: Optional[Seconds] = None
    """How long the launcher ran."""
    forced: bool = False
    """Whether ranks were killed, because the grace period was over."""
    stop_asked: Timestamp = 0.0
    """When the node was asked to stop; 0: it was not."""
    stopped_by: str = ""
    """Who stopped it, where the launcher cannot know: `the Docker engine was stopped`."""


class Restarted(Event, type="restarted", writer=LAUNCHER, requires="node"):
    """All ranks have been started again."""

    attempt: int
    """How many times they have been, from 1."""
    why: str = ""
    """The failure that made it necessary, in one line."""


class RankStarted(Event, type="rank_started", writer=RANK, requires="time rank"):
    """A rank's process has begun; the program has not yet."""

    local_rank: int = 0
    """The process within its node, from 0."""
    attempt: int = 0
    """How many times the ranks had been started before."""
    pid: Optional[int] = None
    """Its process id, in its container's own count."""


class RankEnded(Event, type="rank_ended", writer=RANK, requires="time rank"):
    """A rank's process is about to leave."""

    exitcode: int
    """What it leaves with; 0: its program has ended well."""
    group: Optional[int] = None
    """How many processes it was in one torch.distributed group with; 0: it never joined one."""


class RankFailed(Event, type="rank_failed", writer=RANK, requires="time"):
    """torchrun has found a rank's process dead."""

    local_rank: int
    """The process within its node, from 0."""
    exitcode: int
    """What it left with; below 0: minus the number of the signal that ended it."""


class Error(Event, Cause, type="error", writer=RANK, requires="time node rank"):
    """Something has failed on a rank or on a node; the fields are those of a [cause](#cause)."""


class Warned(Event, type="warning", writer=RANK):
    """Something that is to be said at the end of the run, whatever the end is."""

    message: str
    """In words."""


class Metrics(Event, type="metrics"):
    """Numbers of a program, by `log_metrics`; from rank 0."""

    values: Measures
    """The numbers by their names."""
    step: Optional[float] = None
    """The training step that they are of."""
    epoch: Optional[float] = None
    """The epoch that they are of."""


class Progress(Event, type="progress"):
    """How far training is."""

    epoch: Optional[float] = None
    """The epoch that is under way, from 1."""
    epochs: Optional[float] = None
    """How many there will be."""
    step: Optional[float] = None
    """Steps that are done, of all epochs."""
    steps: Optional[float] = None
    """How many there will be."""
    loss: Optional[Measure] = None
    """The mean loss since the last report."""
    samples_per_s: Optional[float] = None
    """Samples per second, of all ranks together."""
    unit: str = ""
    """What a sample is, in the plural."""
    seconds_per_step: Optional[Seconds] = None
    """How long a step takes."""
    peak_memory_gb: Optional[float] = None
    """The most memory that any device has used so far, in GB (1e9 bytes)."""
    tokens_per_s: Optional[float] = None
    """Tokens per second, of all ranks together."""
    mfu: Optional[float] = None
    """Model FLOPS utilisation: the part of the devices' peak that the model's own arithmetic makes up, from 0 to 1."""


class Checkpoint(Event, type="checkpoint"):
    """A checkpoint has been written."""

    step: Optional[float] = None
    """The training step that it is of."""
    path: str = ""
    """Its folder, on the node."""
    seconds: Optional[Seconds] = None
    """How long it took to write."""
    stall_seconds: Optional[Seconds] = None
    """How long training stood still for it."""


class Resumed(Event, type="resumed"):
    """Training goes on from a checkpoint."""

    step: Optional[float] = None
    """The training step that the checkpoint is of."""
    epoch: Optional[float] = None
    """Its epoch, from 0."""


class Result(Event, type="result"):
    """Training has come to its end."""

    outcome: str = ""
    """`succeeded`, or `stopped`: it was told to stop, and has saved."""
    step: Optional[float] = None
    """The step at which it ended."""
    parameters_sha256: str = ""
    """A fingerprint of the trained weights, in hexadecimal digits."""


class Gpu(Event, type="gpu"):
    """What a GPU says of itself, as far as it does; every few seconds, from each rank."""

    utilization_percent: Optional[float] = None
    """The part of the time in which it was computing, from 0 to 100."""
    memory_used_gb: Optional[float] = None
    """Memory in use, in GB (1e9 bytes)."""
    memory_total_gb: Optional[float] = None
    """All its memory, in GB (1e9 bytes)."""
    power_w: Optional[float] = None
    """Watts."""
    temperature_c: Optional[float] = None
    """Degrees Celsius."""


class Memory(Event, type="memory"):
    """A batch did not fit into memory, and is taken in smaller parts."""

    refused: Optional[WholeNumbers] = None
    """Samples per rank of the parts that did not fit, in the order in which they were tried."""
    micro_batch: Optional[int] = None
    """Samples of a part that fits, on each rank."""
    parts: Optional[int] = None
    """Parts of a step."""


class Submitting(Event, type="submitting", writer=CLIENT, requires="time"):
    """A run has been written down; its job is about to be started."""

    name: str
    """The job's name."""
    provider: str
    """Who runs it: `local`, `docker`, `aws`, `azure`, or another provider's name."""
    contract: str
    """Whose environment the job finds: `plain`, `sagemaker` or `azureml`."""
    nodes: int
    """How many machines, or stand-ins for them."""
    processes: int
    """Ranks on each node."""
    adopted: bool = False
    """Whether another machine submitted it, and this one has found it in the cloud."""
    owner: str = ""
    """Who did, as far as the cloud tells."""


class Image(Event, type="image", writer=CLIENT):
    """The image of the run is known, built and pushed where it had to be."""

    address: str
    """Where the job's machines find it."""
    planned: str = ""
    """What the plan says, which is not the address yet where it was built."""
    digest: str = ""
    """The digest of its contents, `sha256:…`."""


class Creating(Event, type="creating", writer=CLIENT, requires="time"):
    """The request that creates the job is about to be sent: from now on the job may exist."""


class Submitted(Event, type="submitted", writer=CLIENT):
    """The job exists."""

    ref: Object
    """What finds it again, in the provider's own way."""


class Phase(Event, type="phase", writer=CLIENT, requires="time"):
    """What a cloud is doing with the job."""

    phase: str
    """In words: `launching machines`."""
    since: Timestamp = 0.0
    """Since when, as the cloud says; 0: it does not."""
    running: bool = False
    """Whether the job's containers run."""
    instance: str = ""
    """The type of machine it runs on, once the cloud has chosen it."""


class LogUnread(Event, type="log_unread", writer=CLIENT, requires="time"):
    """The job's log cannot be read; or, without a reason, it can be read again."""

    reason: str
    """Why, in words; empty: it can be."""
    hint: str = ""
    """What to do about it."""
    code: str = ""
    """The cloud's own code for it."""
    transient: bool = False
    """Whether it may pass by itself."""


class Kept(Event, type="kept", writer=CLIENT, requires="time"):
    """Machines are kept after the end of the run, and billed; or are not any more."""

    status: str
    """As the cloud says it: `Available` and `InUse` cost, `Reused` and `Terminated` do not."""
    until: Timestamp = 0.0
    """When they will go; 0: not known."""
    seconds: Optional[Seconds] = None
    """How long they have been billed for so far."""
    by: str = ""
    """The job that uses them now, or has."""
    billing: Optional[Object] = None
    """What the run and its machines have cost so far: as in [ended](#ended)."""


class StopRequested(Event, type="stop_requested", writer=CLIENT, requires="time"):
    """Somebody has asked for the run to stop."""

    reason: str = ""
    """Who or what, in words."""


class StopUntold(Event, type="stop_untold", writer=CLIENT, requires="time"):
    """A stop was asked for and could not be told to the job, which goes on: asked once more, it is cancelled."""

    reason: str = ""
    """Why, in words."""


class Cursor(Event, type="cursor", writer=CLIENT):
    """How far a cloud's logs have been read; what they hold is in the run folder."""

    streams: Optional[Object] = None
    """The position in each log, by its name, in the cloud's own way."""
    sizes: Optional[Object] = None
    """The bytes of each node's log file that this accounts for; what is beyond them is read again."""


class Ended(Event, type="ended", writer=CLIENT, requires="time"):
    """The run has ended. The first such event counts."""

    state: Literal["succeeded", "failed", "stopped"]
    """How."""
    reason: str = ""
    """Why, in words, where it did not simply succeed."""
    error: Optional[Cause] = None
    """The first cause of a failure, where a node has told it."""
    platform_reason: str = ""
    """What the cloud says of the failure, where a node says more."""
    billing: Optional[Object] = None
    """What it cost: `billable_seconds` or `training_seconds`, and `usd` where the price is known."""
    left: Optional[Names] = None
    """What of model, output and checkpoints is there; missing: nobody has looked."""


class ProgramEvent(Event):
    """An event of a kind that is not listed here: of a program's own, or of a newer version. `extra` has its fields."""

    @property
    def type(self) -> str:
        """Its kind, as JSON has it."""
        return str(vars(self)["_type"])


def parse(line: bytes) -> Optional[Event]:
    """The event in a line of JSON; None when it is none, or none of the kind that it says."""
    try:
        return from_json(json.loads(line))
    except (ValueError, RecursionError):
        return None


def from_json(value: Any) -> Optional[Event]:
    """The event in a JSON object; None when it is none, or none of the kind that it says.

    A field that the kind does not need is left out where it is wrong; numbers beyond all measure become infinite.
    """
    kind = value.get("type") if isinstance(value, dict) else None
    if not isinstance(kind, str) or not 0 < len(kind) <= MAX_TYPE_CHARS:
        return None
    try:
        if kind in EVENT_TYPES:
            return EVENT_TYPES[kind].read(value)
        event = ProgramEvent.read(value)
        vars(event)["_type"] = kind
        return event
    except InvalidValue:
        return None
