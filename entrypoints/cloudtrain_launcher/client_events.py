"""The events that the client itself writes about a run. Standard library only; a part of `events`."""

from __future__ import annotations

from typing import Literal

from cloudtrain_launcher.event_fields import Names, Object, Seconds, Timestamp
from cloudtrain_launcher.event_parts import Billing, Cause
from cloudtrain_launcher.event_record import CLIENT, Event


class Submitting(Event, type="submitting", writer=CLIENT, requires="time"):
    """The run has been recorded; its job is about to be submitted."""

    name: str
    """The job's name."""
    provider: str
    """The provider: `local`, `docker`, `aws`, `azure`, or one that is installed."""
    contract: str
    """The environment that the job finds: `plain`, `sagemaker` or `azureml`."""
    nodes: int
    """The number of machines, or of local nodes in their place."""
    processes: int
    """Ranks per node."""
    adopted: bool = False
    """Whether it was submitted from another machine, and this one has found it in the cloud."""
    owner: str = ""
    """Who submitted it, if the cloud says so."""


class Image(Event, type="image", writer=CLIENT):
    """The run's image is available: built and pushed, if that was needed."""

    address: str
    """The reference by which the job's machines pull it."""
    planned: str = ""
    """What the plan says; differs from the address if the image was built for this run."""
    digest: str = ""
    """Its digest, `sha256:…`."""


class Creating(Event, type="creating", writer=CLIENT, requires="time"):
    """The request that creates the job is about to be sent: from now on the job may exist."""


class Submitted(Event, type="submitted", writer=CLIENT):
    """The job exists."""

    ref: Object
    """The provider's reference to the job."""


class Phase(Event, type="phase", writer=CLIENT, requires="time"):
    """The cloud's phase of the job has changed."""

    phase: str
    """The phase in words: `launching machines`."""
    since: Timestamp = 0.0
    """When it began, according to the cloud; 0: unknown."""
    running: bool = False
    """Whether the job's containers are running."""
    instance: str = ""
    """The machine type, once the cloud has chosen one."""


class LogUnread(Event, type="log_unread", writer=CLIENT, requires="time"):
    """The job's log cannot be read or, without a reason, can be read again."""

    reason: str
    """Why not, in words; empty: it can be read."""
    hint: str = ""
    """What to do about it."""
    code: str = ""
    """The cloud's error code."""
    transient: bool = False
    """Whether the problem may pass by itself."""


class Kept(Event, type="kept", writer=CLIENT, requires="time"):
    """Machines are kept after the end of the run and billed, or no longer."""

    status: str
    """The cloud's status: `Available` and `InUse` are billed, `Reused` and `Terminated` are not."""
    until: Timestamp = 0.0
    """When they will be released; 0: unknown."""
    seconds: Seconds | None = None
    """For how long they have been billed so far."""
    by: str = ""
    """The job that uses them, or has used them."""
    billing: Billing | None = None
    """The cost of the run and its machines so far."""


class LimitTooLow(Event, type="limit_too_low", writer=CLIENT, requires="time"):
    """By the forecast, a limit of the job is going to end it before its last step; written once."""

    message: str
    """Which limit, when, and what the run needs."""
    raised: str = ""
    """The limit with which it would end, as `--set` takes it."""


class StopRequested(Event, type="stop_requested", writer=CLIENT, requires="time"):
    """A stop of the run has been requested."""

    reason: str = ""
    """By whom or what, in words."""


class StopUntold(Event, type="stop_untold", writer=CLIENT, requires="time"):
    """A requested stop could not be passed on to the job, which continues; a second request cancels
    it.
    """

    reason: str = ""
    """Why, in words."""


class Cursor(Event, type="cursor", writer=CLIENT):
    """How far the cloud's logs have been read into the run folder."""

    streams: Object | None = None
    """The position in each log stream by its name, as the cloud counts it."""
    sizes: Object | None = None
    """Bytes of each node's log file up to this position; what follows is read again."""


class Ended(Event, type="ended", writer=CLIENT, requires="time"):
    """The run has ended. The first such event counts."""

    state: Literal["succeeded", "failed", "stopped"]
    """How it ended."""
    reason: str = ""
    """Why, in words, unless it simply succeeded."""
    hint: str = ""
    """What to do, where the submit was refused."""
    error: Cause | None = None
    """The first cause of a failure, if a node has reported it."""
    platform_reason: str = ""
    """The cloud's reason for the failure, if a node has given a better one."""
    billing: Billing | None = None
    """What it cost."""
    left: Names | None = None
    """Which of model, output and checkpoints exist; missing: not checked."""
