"""Events of a run: a class for each type, its fields, and its writers. Standard library only.

An event is a JSON object with a `type`. Any program may print a line that looks like one, and a log
may arrive damaged: `parse` and `from_json` return an event only if every required field is present
and valid. Types and fields of a newer version or of a program are kept.
"""

from __future__ import annotations

import json
from typing import Any, Literal

from cloudtrain_wire.client_events import Billing as Billing
from cloudtrain_wire.client_events import Cause as Cause
from cloudtrain_wire.client_events import Creating as Creating
from cloudtrain_wire.client_events import Cursor as Cursor
from cloudtrain_wire.client_events import Ended as Ended
from cloudtrain_wire.client_events import Image as Image
from cloudtrain_wire.client_events import Kept as Kept
from cloudtrain_wire.client_events import LogUnread as LogUnread
from cloudtrain_wire.client_events import Phase as Phase
from cloudtrain_wire.client_events import StopRequested as StopRequested
from cloudtrain_wire.client_events import StopUntold as StopUntold
from cloudtrain_wire.client_events import Submitted as Submitted
from cloudtrain_wire.client_events import Submitting as Submitting
from cloudtrain_wire.event_record import CLIENT as CLIENT
from cloudtrain_wire.event_record import EVENT_TYPES as EVENT_TYPES
from cloudtrain_wire.event_record import LAUNCHER as LAUNCHER
from cloudtrain_wire.event_record import PROGRAM as PROGRAM
from cloudtrain_wire.event_record import RANK as RANK
from cloudtrain_wire.event_record import Event as Event
from cloudtrain_wire.event_record import (
    InvalidValue,
    Measure,
    Measures,
    Seconds,
    Timestamp,
    WholeNumbers,
)
from cloudtrain_wire.event_record import Record as Record

MAX_TYPE_CHARS = 64

RESTART_ELSEWHERE = "requested by another node"
"""Reason of a restart that another node caused."""


class NodeStarted(Event, type="node_started", writer=LAUNCHER, requires="time node"):
    """A node's launcher has started."""

    pid: int | None = None
    """Its process id in its container."""
    host: str = ""
    """The machine's host name."""
    scratch: str = ""
    """The launcher's temporary folder, removed at its end."""


class NodeEnded(Event, type="node_ended", writer=LAUNCHER, requires="node"):
    """A node's launcher is about to exit; all ranks of the node have ended."""

    outcome: Literal["succeeded", "failed", "stopped"]
    """The node's outcome."""
    error: Cause | None = None
    """The first cause of a failure, without the traceback and stack of its `error` event."""
    why: str = ""
    """The reason of a stop.

    `sigterm`, `stop_file`, `time`, `preempted` or `peer_preempted`; for a trial that succeeded and
    ended at a rung: `pruned` or `paused`.
    """
    seconds: Seconds | None = None
    """The launcher's run time."""
    forced: bool = False
    """True if ranks were killed at the end of the grace period."""
    stop_asked: Timestamp = 0.0
    """When the stop was requested; 0: never."""
    stopped_by: str = ""
    """The cause of the stop, if the launcher cannot know: `the Docker engine was stopped`."""


class Restarted(Event, type="restarted", writer=LAUNCHER, requires="node"):
    """All ranks have been restarted."""

    attempt: int
    """The number of restarts, from 1."""
    why: str = ""
    """The failure that caused it, in one line; RESTART_ELSEWHERE on the other nodes."""


class RankStarted(Event, type="rank_started", writer=RANK, requires="time rank"):
    """A rank's process has started; its program has not."""

    local_rank: int = 0
    """The process within its node, from 0."""
    attempt: int = 0
    """The number of restarts of the ranks before."""
    pid: int | None = None
    """Its process id in its container."""


class RankEnded(Event, type="rank_ended", writer=RANK, requires="time rank"):
    """A rank's process is about to exit."""

    exitcode: int
    """Its exit code; 0: its program succeeded."""
    group: int | None = None
    """The size of its torch.distributed group; 0: it joined none, or exchanged no data in it."""


class RankFailed(Event, type="rank_failed", writer=RANK, requires="time"):
    """The process of a rank has ended, and torchrun ends its peers."""

    local_rank: int
    """The process within its node, from 0."""
    exitcode: int
    """Its exit code, 0 too; below 0: minus the number of the signal."""


class Error(Event, Cause, type="error", writer=RANK, requires="time node rank"):
    """A rank or a node has failed; the fields are a [cause](#cause)'s."""


class Warned(Event, type="warning", writer=RANK):
    """A warning to show at the end of the run, whatever its outcome."""

    message: str
    """The text of the warning."""


class Metrics(Event, type="metrics"):
    """Numbers reported by `log_metrics` on rank 0."""

    values: Measures
    """The numbers by name."""
    step: float | None = None
    """The training step of the values."""
    epoch: float | None = None
    """The epoch of the values."""


class RungReached(Event, type="rung_reached", writer=LAUNCHER, requires="time"):
    """A trial has reached a rung: a report of its metric that is compared with the other trials."""

    report: int
    """The number of the report, from 1, earlier runs of the trial included."""
    value: Measure
    """The reported value."""
    outcome: Literal["goes_on", "pruned", "paused", "measured"]
    """The outcome if the job ends here.

    `pruned`: it is behind the other trials. `paused`: it waits for its promotion. `measured`: of
    earlier versions.
    """


class Progress(Event, type="progress"):
    """Progress of training."""

    epoch: float | None = None
    """The current epoch, from 1."""
    epochs: float | None = None
    """The total number of epochs."""
    step: float | None = None
    """Completed steps, of all epochs."""
    steps: float | None = None
    """The total number of steps."""
    loss: Measure | None = None
    """The mean loss since the previous report."""
    samples_per_s: float | None = None
    """Samples per second, of all ranks together."""
    unit: str = ""
    """The unit of samples, such as `images`."""
    seconds_per_step: Seconds | None = None
    """The time per step."""
    peak_memory_gb: float | None = None
    """The peak memory of any device so far, in GB (1e9 bytes)."""
    tokens_per_s: float | None = None
    """Tokens per second, of all ranks together."""
    mfu: float | None = None
    """Model FLOPS utilisation: the model's arithmetic as a part of the devices' peak, from 0 to 1.
    """
    lr: float | None = None
    """The learning rate of the latest step."""
    gradient_norm: Measure | None = None
    """The norm of the latest step's gradients over all ranks, before it was clipped."""


class Schedule(Event, type="schedule"):
    """The schedule of training, before its first step; a script reports it by `log_schedule`."""

    evaluations: int | None = None
    """The number of evaluations, spread evenly over all steps; training may end earlier."""
    evaluation_samples: int | None = None
    """Samples of one evaluation, over all ranks; missing: unknown."""
    step_samples: int | None = None
    """Samples of one training step, over all ranks."""
    checkpoint_steps: int | None = None
    """Steps between checkpoints; missing: they are not counted in steps."""
    checkpoint_seconds: Seconds | None = None
    """The time between checkpoints."""


class Activity(Event, type="activity"):
    """An activity of a node's launcher or a rank, other than training."""

    activity: str
    """`installing`, `setting up`, `waiting for peers`, `restoring`, `evaluating`, `saving`.

    Empty: training.
    """
    prompt: str = ""
    """Text of the prompt at which the program waits for a line, of that activity."""


class Checkpoint(Event, type="checkpoint"):
    """A checkpoint has been written."""

    step: float | None = None
    """Its training step."""
    path: str = ""
    """Its folder on the node."""
    seconds: Seconds | None = None
    """The duration of the write."""
    stall_seconds: Seconds | None = None
    """The time that training waited for it."""


class Resumed(Event, type="resumed"):
    """Training has resumed from a checkpoint."""

    step: float | None = None
    """The checkpoint's training step."""
    epoch: float | None = None
    """The checkpoint's epoch, from 0."""


class Result(Event, type="result"):
    """Training has ended."""

    outcome: str = ""
    """`succeeded`, or `stopped` after a request and a saved checkpoint."""
    step: float | None = None
    """The last step."""
    parameters_sha256: str = ""
    """A SHA-256 of the trained weights, in hexadecimal."""


class Usage(Event, type="usage", writer=LAUNCHER, requires="time node"):
    """Usage of a node and its ranks, every few seconds, as far as it can be measured there."""

    cores: int | None = None
    """CPU cores that the job may use."""
    cpu_percent: float | None = None
    """CPU time of all ranks with their child processes; 100 is one busy core."""
    memory_gb: float | None = None
    """Used memory of the machine or container, in GB (1e9 bytes), without caches of files."""
    memory_total_gb: float | None = None
    """Its total memory, in GB (1e9 bytes)."""
    rank_cpu_percent: Measures | None = None
    """CPU time by rank, with its child processes; 100 is one busy core."""
    rank_memory_gb: Measures | None = None
    """Resident memory by rank, with its child processes, in GB (1e9 bytes)."""
    gpu_percent: Measures | None = None
    """Busy time of a GPU, from 0 to 100, by the GPU's number on the node."""
    gpu_memory_gb: Measures | None = None
    """Used memory of each GPU, in GB (1e9 bytes)."""
    gpu_memory_total_gb: Measures | None = None
    """Total memory of each GPU, in GB (1e9 bytes)."""
    gpu_power_w: Measures | None = None
    """Power draw of each GPU, in watts."""
    gpu_temperature_c: Measures | None = None
    """Temperature of each GPU, in degrees Celsius."""


class StepTimes(Event, type="step_times", requires="time rank"):
    """Time of a rank since its last such event. The phases add up to `wall`."""

    steps: int
    """Training steps in this time; 0: none, as at the end of a run."""
    wall: Seconds
    """The time that has passed."""
    step: int | None = None
    """The run's total steps at its end."""
    samples: int | None = None
    """Samples of these steps, over all ranks."""
    data: Seconds | None = None
    """Waiting for the next batch."""
    compute: Seconds | None = None
    """Forward and backward passes, without waits for communication."""
    communication: Seconds | None = None
    """Waits for other ranks and their messages, overlap excluded; missing: part of `compute`."""
    optimizer: Seconds | None = None
    """Updates of the weights, with the norm of the gradients."""
    saving: Seconds | None = None
    """Checkpoints, as far as training waited for them."""
    evaluation: Seconds | None = None
    """Evaluations on the validation data."""
    other: Seconds | None = None
    """All other time."""
    run_delay: Seconds | None = None
    """Part of the phases in which the rank's thread was ready but had no core.

    Missing if unknown: Linux reports it, for phases that are not a GPU's.
    """
    message_mb: float | None = None
    """Gradients exchanged per step, in MB (1e6 bytes); missing: none."""
    warm_up: bool = False
    """True if it includes the process's first steps, which are not representative."""


class Memory(Event, type="memory"):
    """A batch did not fit into memory and is split into micro-batches."""

    refused: WholeNumbers | None = None
    """Sizes that did not fit, in samples per rank, in the order of the attempts."""
    micro_batch: int | None = None
    """The size that fits, in samples per rank."""
    parts: int | None = None
    """Micro-batches per step."""


class ProgramEvent(Event):
    """An event of another type, from a program or a newer version. Its fields are in `extra`."""

    @property
    def type(self) -> str:
        """The `type` in JSON."""
        return str(vars(self)["_type"])


def parse(line: bytes) -> Event | None:
    """Return the event in a line of JSON; None if it is invalid."""
    try:
        return from_json(json.loads(line))
    except (ValueError, RecursionError):
        return None


def from_json(value: Any) -> Event | None:
    """Return the event in a JSON object; None if it is invalid.

    An optional field that is invalid is left out. Measured numbers too large for a float become
    infinite.
    """
    type_name = value.get("type") if isinstance(value, dict) else None
    if not isinstance(type_name, str) or not 0 < len(type_name) <= MAX_TYPE_CHARS:
        return None

    try:
        if type_name in EVENT_TYPES:
            return EVENT_TYPES[type_name].read(value)

        event = ProgramEvent.read(value)
        vars(event)["_type"] = type_name
        return event
    except InvalidValue:
        return None
