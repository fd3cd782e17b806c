"""Jobs that cloudtrain started, perhaps from another machine, as a cloud lists them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cloudtrain.declaration import Declaration
from cloudtrain.runs.files import as_text
from cloudtrain.version import __version__
from cloudtrain_wire.events import Submitted, Submitting

if TYPE_CHECKING:
    from cloudtrain.runs.provider_config import ProviderConfig
    from cloudtrain_wire.events import Event


@dataclass(frozen=True, kw_only=True, slots=True)
class DiscoveredRun:
    """A job that cloudtrain started, perhaps from another machine, as a cloud lists it."""

    run_id: str
    config: ProviderConfig
    """Settings that the provider needs to watch the job."""
    instance: str
    """The instance type; may be empty."""
    grace_seconds: int
    """Grace period of the job, from SIGTERM to SIGKILL."""
    request: Mapping[str, Any]
    """The cloud's own request document, as far as the cloud repeats it."""
    submitting: Submitting
    """First event of the run, if this machine does not know the run yet."""
    ref: dict[str, Any]
    """Reference to the job, as `Provider.start` returns it."""
    spot: bool | None = None
    """Whether it runs on spot machines; None if unknown."""
    mlflow_run: str = ""
    """Id of its run in MLflow, if its submitter has made one."""
    updates: Sequence[Event] = ()
    """The current phase of the job, or its end."""

    @property
    def submitted(self) -> Submitted:
        """Second event of the run."""
        return Submitted(time=self.submitting.time, ref=self.ref)

    def documents(self) -> dict[str, str]:
        """Content of `plan.json` and `request.json` of its run folder, by file name."""
        provider = self.submitting.provider
        contract = self.submitting.contract
        plan = {
            "version": __version__,
            "run_id": self.run_id,
            "provider": provider,
            "host": None,
            "spec": {"name": self.submitting.name},
            "target": {
                "provider": provider,
                "contract": contract,
                "grace_seconds": self.grace_seconds,
                "facts": {**self.config.to_json(), "instances": [self.instance]},
            },
            "spot": self.spot,
            "facts": {"mlflow_run": self.mlflow_run},
            "adopted": time.time(),
        }
        return {"plan.json": as_text(plan), "request.json": as_text(dict(self.request))}


def adopted(
    declaration: Declaration,
    tags: Mapping[str, str],
    *,
    title: str,
    owner: str = "",
    nodes: int,
    created: float,
) -> Submitting:
    """Return the first event of a run that another machine, or a cloud's sweep, has created.

    `tags`: ours, without their prefix. `created`: Unix timestamp, or 0.
    """
    processes = 1
    if tags.get("processes", "").isdecimal():
        processes = int(tags["processes"])

    return Submitting(
        adopted=True,
        owner=owner,
        time=created or time.time(),
        name=title,
        provider=declaration.name,
        contract=declaration.contract,
        nodes=nodes,
        processes=processes,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class KnownRuns:
    """Runs of a provider that this machine knows, so that discovery can skip them."""

    states: Mapping[str, str] = field(default_factory=dict)
    """Run id -> last known state."""
    synced_until: dict[str, float] = field(default_factory=dict)
    """Account -> Unix timestamp by the cloud's clock; all changes before it are known.

    Updated by `discover_runs`.
    """
