"""Events that the client writes about a run, and parts of events. Standard library only.

Other modules import them from `events`.
"""

from __future__ import annotations

from typing import Literal

from cloudtrain_wire.event_record import CLIENT, Event, Names, Object, Record, Seconds, Timestamp


class Cause(Record):
    """The cause of a failure."""

    rank: int
    """The process that failed; -1: the node itself."""
    node: int
    """The node of that process."""
    time: Timestamp
    """The time of the failure."""
    exception: str
    """The exception's class without its module; without an exception a signal's name or `exit`."""
    message: str
    """Its message, at most 1,000 characters."""
    attempt: int = 0
    """The number of restarts of the ranks before."""
    file: str = ""
    """The program's file that raised it, relative to the job's folder."""
    line: int = 0
    """The line in that file, from 1."""
    code: str = ""
    """That line's text, at most 200 characters."""
    traceback: str = ""
    """The end of Python's traceback, at most 2,500 characters."""
    consequence: bool = False
    """True if it only reports a lost peer: its rank is a victim, not the cause."""
    hint: str = ""
    """A solution."""
    stack: str = ""
    """The Python stack printed by a process that crashed below Python, at most 2,500 characters."""


class Billing(Record):
    """The cost of a run, as far as its cloud reports it."""

    billable_seconds: Seconds | None = None
    """The time that SageMaker bills for each machine; on spot it is shorter than the work."""
    training_seconds: Seconds | None = None
    """The time that the machines worked."""
    kept_seconds: Seconds | None = None
    """The time that machines were kept after its end, and billed."""
    usd: float | None = None
    """US dollars at list price, for all machines; missing if the price is unknown."""


class Submitting(Event, type="submitting", writer=CLIENT, requires="time"):
    """The run has been recorded; its job is about to be submitted."""

    name: str
    """The job's name."""
    provider: str
    """The provider: `local`, `docker`, `aws`, `azure`, or an installed one."""
    contract: str
    """The job's environment: `plain`, `sagemaker` or `azureml`."""
    nodes: int
    """The number of machines, or of local nodes."""
    processes: int
    """Ranks per node."""
    adopted: bool = False
    """True if another machine submitted it, and this one has found it in the cloud."""
    owner: str = ""
    """The submitter, if the cloud reports one."""
    arguments: Object | None = None
    """The program's arguments by name, without probable secrets; long texts are cut."""
    tags: Object | None = None
    """The job's tags by name."""


class Image(Event, type="image", writer=CLIENT):
    """The run's image is available: built and pushed, if necessary."""

    address: str
    """The image's address for the job's machines."""
    planned: str = ""
    """The address in the plan; differs if the image was built for this run."""
    digest: str = ""
    """The image's digest, `sha256:…`."""


class Creating(Event, type="creating", writer=CLIENT, requires="time"):
    """The client is about to create the job: from now on it may exist."""


class Submitted(Event, type="submitted", writer=CLIENT):
    """The job exists."""

    ref: Object
    """The provider's reference to the job."""


class Phase(Event, type="phase", writer=CLIENT, requires="time"):
    """The cloud's phase of the job has changed."""

    phase: str
    """The phase, such as `launching machines`."""
    since: Timestamp = 0.0
    """Start of the phase, according to the cloud; 0: unknown."""
    running: bool = False
    """True if the job's containers are running."""
    instance: str = ""
    """The machine type, once the cloud has chosen one."""
    attempt: str = ""
    """The cloud's own job, where a queue starts one for each attempt."""


class LogUnread(Event, type="log_unread", writer=CLIENT, requires="time"):
    """The job's log cannot be read or, without a reason, can be read again."""

    reason: str
    """The reason, as text; empty: the log can be read."""
    hint: str = ""
    """A solution."""
    code: str = ""
    """The cloud's error code."""
    transient: bool = False
    """True if the problem may be temporary."""


class Kept(Event, type="kept", writer=CLIENT, requires="time"):
    """Machines are kept after the end of the run and billed, or no longer."""

    status: str
    """The cloud's status: `Available` and `InUse` are billed, `Reused` and `Terminated` are not."""
    until: Timestamp = 0.0
    """When they will be released; 0: unknown."""
    seconds: Seconds | None = None
    """Billed time up to now."""
    by: str = ""
    """The job that uses them, or has used them."""
    billing: Billing | None = None
    """The cost of the run and its machines up to now."""


class StopRequested(Event, type="stop_requested", writer=CLIENT, requires="time"):
    """A stop of the run has been requested."""

    reason: str = ""
    """The person or reason, as text."""


class StopUntold(Event, type="stop_untold", writer=CLIENT, requires="time"):
    """A requested stop failed and the job continues; a second request cancels it."""

    reason: str = ""
    """The reason, as text."""


class Cursor(Event, type="cursor", writer=CLIENT):
    """How far the cloud's logs have been read into the run folder."""

    streams: Object | None = None
    """The position in each log stream by its name, as the cloud counts it."""
    sizes: Object | None = None
    """Bytes of each node's log file up to this position; what follows is read again."""


class Ended(Event, type="ended", writer=CLIENT, requires="time"):
    """The run has ended. The first such event counts."""

    state: Literal["succeeded", "failed", "stopped"]
    """The outcome of the run."""
    reason: str = ""
    """The reason, as text; empty after a simple success."""
    hint: str = ""
    """A solution for a rejected submit."""
    error: Cause | None = None
    """The first cause of a failure, if a node has reported it."""
    platform_reason: str = ""
    """The cloud's reason for the failure, if a node reported a better one."""
    billing: Billing | None = None
    """The cost of the run."""
    left: Names | None = None
    """Existence of model, output and checkpoints; missing: not checked."""
