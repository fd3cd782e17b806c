"""Every event of a run: one class for each type, what its fields mean, and who may write it.
Standard library only.

An event is a JSON object with a `type`. Any program may print a line that looks like one, and a log
may arrive damaged: `parse` and `from_json` return an event only if every required field is there
and valid, so that its user can rely on them. Types and fields of a newer version or of a program
are kept.

The client imports this file under another name than the launcher does; therefore its imports are
relative.
"""

from __future__ import annotations

import json
from typing import Any, Literal

from cloudtrain_launcher.client_events import Creating as Creating
from cloudtrain_launcher.client_events import Cursor as Cursor
from cloudtrain_launcher.client_events import Ended as Ended
from cloudtrain_launcher.client_events import Image as Image
from cloudtrain_launcher.client_events import Kept as Kept
from cloudtrain_launcher.client_events import LimitTooLow as LimitTooLow
from cloudtrain_launcher.client_events import LogUnread as LogUnread
from cloudtrain_launcher.client_events import Phase as Phase
from cloudtrain_launcher.client_events import StopRequested as StopRequested
from cloudtrain_launcher.client_events import StopUntold as StopUntold
from cloudtrain_launcher.client_events import Submitted as Submitted
from cloudtrain_launcher.client_events import Submitting as Submitting
from cloudtrain_launcher.event_fields import InvalidValue, Measure, Measures, Seconds, Timestamp
from cloudtrain_launcher.event_parts import Billing as Billing
from cloudtrain_launcher.event_parts import Cause as Cause
from cloudtrain_launcher.event_record import CLIENT as CLIENT
from cloudtrain_launcher.event_record import EVENT_TYPES as EVENT_TYPES
from cloudtrain_launcher.event_record import LAUNCHER as LAUNCHER
from cloudtrain_launcher.event_record import PROGRAM as PROGRAM
from cloudtrain_launcher.event_record import RANK as RANK
from cloudtrain_launcher.event_record import Event as Event
from cloudtrain_launcher.event_record import Record as Record
from cloudtrain_launcher.measurement_events import Gpu as Gpu
from cloudtrain_launcher.measurement_events import Memory as Memory
from cloudtrain_launcher.measurement_events import StepTimes as StepTimes
from cloudtrain_launcher.measurement_events import Usage as Usage
from cloudtrain_launcher.measurement_events import Windows as Windows

MAX_TYPE_CHARS = 64


class NodeStarted(Event, type="node_started", writer=LAUNCHER, requires="time node"):
    """A node's launcher has started."""

    pid: int | None = None
    """Its process id, as seen in its container."""
    host: str = ""
    """The machine's host name."""
    scratch: str = ""
    """The launcher's temporary folder, which is removed when it ends."""


class NodeEnded(Event, type="node_ended", writer=LAUNCHER, requires="node"):
    """A node's launcher is about to exit; all ranks of the node have ended."""

    outcome: Literal["succeeded", "failed", "stopped"]
    """How they ended."""
    error: Cause | None = None
    """The first cause of a failure, without the traceback and stack, which are in its `error`
    event.
    """
    why: str = ""
    """What requested a stop: `sigterm`, `stop_file`, `time`, `preempted`, `peer_preempted`; what
    ended a trial at a rung, so that the node has succeeded: `pruned`, `paused`, `measured`.
    """
    seconds: Seconds | None = None
    """How long the launcher ran."""
    forced: bool = False
    """Whether ranks were killed because the grace period was over."""
    stop_asked: Timestamp = 0.0
    """When the stop was requested; 0: never."""
    stopped_by: str = ""
    """What stopped it, if the launcher cannot know: `the Docker engine was stopped`."""


RESTART_ELSEWHERE = "requested by another node"
"""What a node says of a restart of which another one knows the reason."""


class Restarted(Event, type="restarted", writer=LAUNCHER, requires="node"):
    """All ranks have been restarted."""

    attempt: int
    """How many times they have been restarted, from 1."""
    why: str = ""
    """The failure that was the reason, in one line; RESTART_ELSEWHERE on the other nodes."""


class RankStarted(Event, type="rank_started", writer=RANK, requires="time rank"):
    """A rank's process has started; its program has not yet."""

    local_rank: int = 0
    """The process within its node, from 0."""
    attempt: int = 0
    """How many times the ranks had been restarted before."""
    pid: int | None = None
    """Its process id, as seen in its container."""


class RankEnded(Event, type="rank_ended", writer=RANK, requires="time rank"):
    """A rank's process is about to exit."""

    exitcode: int
    """Its exit code; 0: its program has succeeded."""
    group: int | None = None
    """The size of its torch.distributed group; 0: it never joined one, or exchanged nothing in it.
    """


class RankFailed(Event, type="rank_failed", writer=RANK, requires="time"):
    """torchrun has found that a rank's process is dead."""

    local_rank: int
    """The process within its node, from 0."""
    exitcode: int
    """Its exit code; below 0: minus the number of the signal that killed it."""


class Error(Event, Cause, type="error", writer=RANK, requires="time node rank"):
    """A rank or a node has failed; the fields are those of a [cause](#cause)."""


class Warned(Event, type="warning", writer=RANK):
    """A warning that is shown at the end of the run, however it ends."""

    message: str
    """The text of the warning."""


class Metrics(Event, type="metrics"):
    """Numbers that a program reported by `log_metrics`, on rank 0."""

    values: Measures
    """The numbers by name."""
    step: float | None = None
    """The training step that they belong to."""
    epoch: float | None = None
    """The epoch that they belong to."""


class RungReached(Event, type="rung_reached", writer=LAUNCHER, requires="time"):
    """A trial of a sweep has reached a rung: a report of its metric at which it is compared with
    the other trials.
    """

    report: int
    """Which report of the metric it is, from 1; those of earlier runs of the trial count."""
    value: Measure
    """What was reported."""
    outcome: Literal["goes_on", "pruned", "paused", "measured"]
    """Whether the job ends here: `pruned` since it is behind the others, `paused` to wait for its
    promotion, `measured` since it was only to measure the metric.
    """


class Progress(Event, type="progress"):
    """How far training has got."""

    epoch: float | None = None
    """The current epoch, from 1."""
    epochs: float | None = None
    """The number of epochs in all."""
    step: float | None = None
    """Completed steps, of all epochs."""
    steps: float | None = None
    """The number of steps in all."""
    loss: Measure | None = None
    """The mean loss since the previous report."""
    samples_per_s: float | None = None
    """Samples per second, of all ranks together."""
    unit: str = ""
    """What samples are called, such as `images`."""
    seconds_per_step: Seconds | None = None
    """The time that a step takes."""
    peak_memory_gb: float | None = None
    """The most memory that any device has used so far, in GB (1e9 bytes)."""
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
    """What training is about to do, told before its first step: by the shared trainer, or a
    script's `log_schedule`.
    """

    evaluations: int | None = None
    """Evaluations in all, spread evenly over all steps; training may end before all of them are
    made.
    """
    evaluation_samples: int | None = None
    """Samples of one evaluation, over all ranks; missing: it is not known."""
    step_samples: int | None = None
    """Samples of one training step, over all ranks."""
    checkpoint_steps: int | None = None
    """Steps between checkpoints; missing: they are not counted in steps."""
    checkpoint_seconds: Seconds | None = None
    """The time between checkpoints."""


class Activity(Event, type="activity"):
    """What a node's launcher or a rank is doing, where that is not training."""

    activity: str
    """In words: `installing`, `waiting for peers`, `restoring`, `evaluating`, `saving`; empty:
    training goes on.
    """


class Checkpoint(Event, type="checkpoint"):
    """A checkpoint has been written."""

    step: float | None = None
    """Its training step."""
    path: str = ""
    """Its folder on the node."""
    seconds: Seconds | None = None
    """How long it took to write."""
    stall_seconds: Seconds | None = None
    """How long training waited for it."""


class Profile(Event, type="profile"):
    """Some steps have been profiled; each rank writes its files about now."""

    first_step: float | None = None
    """The first step that was profiled, from 1."""
    last_step: float | None = None
    """The last one."""
    path: str = ""
    """The folder of the files on the node."""


class Resumed(Event, type="resumed"):
    """Training has resumed from a checkpoint."""

    step: float | None = None
    """The checkpoint's training step."""
    epoch: float | None = None
    """The checkpoint's epoch, from 0."""


class Result(Event, type="result"):
    """Training has ended."""

    outcome: str = ""
    """`succeeded`, or `stopped`: it was asked to stop and has saved a checkpoint."""
    step: float | None = None
    """The step at which it ended."""
    parameters_sha256: str = ""
    """A SHA-256 of the trained weights, in hexadecimal."""


class ProgramEvent(Event):
    """An event of another type: a program's own, or a newer version's. Its fields are in `extra`."""

    @property
    def type(self) -> str:
        """The `type` in JSON."""
        return str(vars(self)["_type"])


def parse(line: bytes) -> Event | None:
    """The event in a line of JSON; None if it is not a valid event of its type."""
    try:
        return from_json(json.loads(line))
    except (ValueError, RecursionError):
        return None


def from_json(value: Any) -> Event | None:
    """The event in a JSON object; None if it is not a valid event of its type.

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
