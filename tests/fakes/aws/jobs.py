"""One training job as the control plane knows it: its request, its statuses, its tags, and what
describing it says.
"""

from __future__ import annotations

import copy
import math
import re
import threading
import time
from collections.abc import Mapping
from typing import Any

from tests.fakes.aws.wire import invalid

ENDED = ("Completed", "Failed", "Stopped")
SPOT_SHARE_PERCENT = 40
"""Share of the price that spot machines cost."""

MESSAGES = {
    "Starting": "Starting the training job",
    "Pending": "Training job waiting for capacity",
    "Downloading": "Downloading input data",
    "Training": "Training image download completed. Training in progress.",
    "Uploading": "Uploading generated training model",
    "Interrupted": "Training job interrupted: the spot instances were reclaimed",
    "Stopping": "Stopping the training job",
    "Completed": "Training job completed",
    "Failed": "Training job failed",
    "Stopped": "Training job stopped",
    "MaxRuntimeExceeded": "Training job runtime exceeded MaxRuntimeInSeconds provided",
    "MaxWaitTimeExceeded": "Training job wait time exceeded MaxWaitTimeInSeconds provided",
}
"""First message of each secondary status; those of interruptions and limits are not observed."""
BOOTING = "Preparing the instances for training"
DOWNLOADING_IMAGE = "Downloading the training image"
"""Messages that replace the first one within a transition."""


class Job:
    """A job from the moment its creation was answered. Every method may be called from any thread."""

    def __init__(self, body: Mapping[str, Any], arn: str) -> None:
        self.body = copy.deepcopy(dict(body))
        self.name = str(body["TrainingJobName"])
        self.tags = {tag["Key"]: tag["Value"] for tag in body.get("Tags", ())}
        self.machines = instance_choices(body["ResourceConfig"])[0]
        """Type and count of its machines, or else of its first choice."""
        self.stop_asked = threading.Event()
        self.woken = threading.Event()
        """There is a reason not to wait any longer."""
        self.interrupted = threading.Event()
        """Its machines are being taken away; taken back when that has been seen to."""
        self._lock = threading.RLock()
        self._machine_seconds = 0.0
        self._machines_since = 0.0
        self._keeps = False
        self._kept_until = 0.0
        self._facts: dict[str, Any] = {
            "EnableNetworkIsolation": False,
            "EnableInterContainerTrafficEncryption": False,
            "EnableManagedSpotTraining": False,
            **{key: value for key, value in self.body.items() if key != "Tags"},
            "StoppingCondition": {
                "MaxRuntimeInSeconds": 86_400,
                **body.get("StoppingCondition", {}),
            },
            "TrainingJobArn": arn,
            "CreationTime": time.time(),
            "SecondaryStatusTransitions": [],
        }
        self.enter("Starting", status="InProgress")

    def __getitem__(self, name: str) -> Any:
        with self._lock:
            return self._facts[name]

    @property
    def created(self) -> float:
        """When its creation was answered."""
        return float(self["CreationTime"])

    @property
    def spot(self) -> bool:
        """Return whether it runs on spot machines."""
        return bool(self.body.get("EnableManagedSpotTraining"))

    @property
    def has_ended(self) -> bool:
        """Return whether its state is final."""
        return self["TrainingJobStatus"] in ENDED

    def describe(self) -> dict[str, Any]:
        """DescribeTrainingJob's answer: no tags."""
        with self._lock:
            pool = self._pool()
            return copy.deepcopy(self._facts) | ({"WarmPoolStatus": pool} if pool else {})

    def keep_machines(self) -> None:
        """The account has a quota of warm pools."""
        self._keeps = bool(self.body["ResourceConfig"].get("KeepAlivePeriodInSeconds"))

    def keep_for(self, seconds: int) -> None:
        """Change the time as UpdateTrainingJob asks: longer, shorter, or 0 to end it. Refuse a job
        without a warm pool.

        After the developer guide's page on managed warm pools and the API reference of
        WarmPoolStatus.
        """
        with self._lock:
            status = (self._pool() or {}).get("Status")
            if status not in ("InUse", "Available"):
                raise invalid(
                    f"The warm pool of training job {self.name} is not available:"
                    f" {status or 'none'}."
                )
            self._facts["ResourceConfig"]["KeepAlivePeriodInSeconds"] = seconds
            if status == "Available" and seconds == 0:
                self._kept_until = time.time()

    def _pool(self) -> dict[str, Any] | None:
        if not self._keeps:
            return None
        if not self.has_ended:
            return {"Status": "InUse"}
        ended = self._facts.get("TrainingEndTime", self._facts["LastModifiedTime"])
        until = (
            self._kept_until or ended + self._facts["ResourceConfig"]["KeepAlivePeriodInSeconds"]
        )
        status = "Available" if time.time() < until else "Terminated"
        seconds = math.ceil(min(time.time(), until) - ended)
        return {"Status": status, "ResourceRetainedBillableTimeInSeconds": max(0, seconds)}

    def tag_list(self) -> list[dict[str, str]]:
        """Its tags as the API writes them."""
        return [{"Key": key, "Value": value} for key, value in self.tags.items()]

    def update(self, **facts: Any) -> None:
        """Set fields of the description."""
        with self._lock:
            self._facts |= facts

    def enter(self, secondary: str, *, status: str = "") -> None:
        """Another phase begins, and the one before it ends."""
        with self._lock:
            moment = time.time()
            transitions = self._facts["SecondaryStatusTransitions"]
            if transitions:
                transitions[-1]["EndTime"] = moment
            transitions.append(
                {"Status": secondary, "StartTime": moment, "StatusMessage": MESSAGES[secondary]}
            )
            self._facts |= {"SecondaryStatus": secondary, "LastModifiedTime": moment}
            if status:
                self._facts["TrainingJobStatus"] = status

    def say(self, message: str) -> None:
        """Replace the message of the current transition, as SageMaker does."""
        with self._lock:
            self._facts["SecondaryStatusTransitions"][-1]["StatusMessage"] = message

    def stop(self) -> None:
        """Ask it to stop. Refused for a job that is stopping or over."""
        with self._lock:
            if self["TrainingJobStatus"] != "InProgress":
                status = self["TrainingJobStatus"]
                raise invalid(
                    f"The request was rejected because the training job is in status {status}."
                )
            self.enter("Stopping", status="Stopping")
            self.stop_asked.set()
            self.woken.set()

    def choose_machines(self, plans: Mapping[str, Mapping[str, Any]]) -> None:
        """Choose the first type whose machines are free, as those on demand are.

        `plans`: descriptions of training plans, by name.
        """
        resources = self.body["ResourceConfig"]
        choices = resources.get("InstancePreferences") or [resources]
        for choice, machines in zip(choices, instance_choices(resources), strict=True):
            self.machines = machines
            arn = choice.get("TrainingPlanArns", [""])[0]
            plan = plans.get(arn.rpartition("/")[2], {})
            if plan.get("AvailableInstanceCount", math.inf) >= machines[1]:
                break

        kind, count = self.machines
        if "InstancePreferences" in resources:
            chosen = {"SelectedInstanceType": kind, "SelectedInstanceCount": count}
            self.update(ResourceConfig={**resources, **chosen})

    def take_machines(self) -> None:
        """Begin to bill its machines: at the first download, image included."""
        with self._lock:
            self._machines_since = time.time()
            self._facts.setdefault("TrainingStartTime", self._machines_since)

    def return_machines(self) -> None:
        """End the bill of its machines: after the upload, or at an interruption."""
        with self._lock:
            if self._machines_since:
                self._machine_seconds += time.time() - self._machines_since
            self._machines_since = 0.0

    def _bill(self) -> None:
        """Tell the seconds that one machine was used, which only an ended job has."""
        self.return_machines()
        whole = math.ceil(self._machine_seconds)
        billed = math.ceil(whole * SPOT_SHARE_PERCENT / 100) if self.spot else whole
        self.update(
            TrainingEndTime=time.time(), TrainingTimeInSeconds=whole, BillableTimeInSeconds=billed
        )

    def finish(self, status: str, secondary: str, reason: str = "") -> None:
        """The end. A stop that was granted before it is what it ends with."""
        with self._lock:
            if self.stop_asked.is_set():
                status = "Stopped"
                secondary = "Stopped"
                reason = ""
            if secondary != "Completed" and reason:
                self.update(FailureReason=reason)
            if "TrainingStartTime" in self._facts:
                self._bill()
            self.enter(secondary, status=status)
            self._facts["SecondaryStatusTransitions"][-1]["EndTime"] = time.time()


def instance_choices(resources: Mapping[str, Any]) -> list[tuple[str, int]]:
    """Return types and counts in the order of preference; a single one without preferences."""
    items = resources.get("InstancePreferences") or [resources]
    return [(item.get("InstanceType", ""), item.get("InstanceCount", 0)) for item in items]


def has_accelerators(kind: str) -> bool:
    """Return whether a type has GPUs or Trainium chips."""
    return re.match(r"ml\.(p|g|trn)\d", kind) is not None
