"""Hyperparameter tuning jobs: their rules, and the training jobs that they start."""

from __future__ import annotations

import copy
import itertools
import math
import random
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tests.fakes.aws.account import Account
from tests.fakes.aws.jobs import Job
from tests.fakes.aws.wire import invalid
from tests.fakes.containers import run_search
from tests.fakes.messages import ServiceError

KINDS = ("IntegerParameterRanges", "ContinuousParameterRanges", "CategoricalParameterRanges")
# Hyperparameter tuning jobs: each chooses values, starts training jobs that really train, and reads
# their objective.
# Its sampler is simple (all points of a grid, else random values by the seed), but obeys ranges,
# scales and limits. Hyperband ends a trial at MaxResource reports, and compares no trials.

Document = dict[str, Any]
FIRST_FAILURES = 5
"""Trials that may fail before any has succeeded."""
SUMMARY = (
    *("TrainingJobName", "TrainingJobArn", "CreationTime", "TrainingStartTime", "TrainingEndTime"),
    *("TrainingJobStatus", "FailureReason"),
)
"""Members of a description that the summary of a trial has too."""


def missing(name: str) -> ServiceError:
    """The answer about a tuning job that there is not (API reference, ResourceNotFound)."""
    return ServiceError(
        "ResourceNotFound", f"Amazon SageMaker can't find a tuning job with name {name}."
    )


class TuningJob:
    """One tuning job from the moment its creation was answered."""

    def __init__(self, body: Document, account: Account, launch: Callable[[Document], Job]) -> None:
        self.name = str(body["HyperParameterTuningJobName"])
        self.body = copy.deepcopy(body)
        self.config = self.body["HyperParameterTuningJobConfig"]
        self.definition = self.body["TrainingJobDefinition"]
        self.arn = f"arn:aws:sagemaker:{account.region}:{account.account}:hyper-parameter-tuning-job/{self.name}"
        self.tags = {tag["Key"]: tag["Value"] for tag in body.get("Tags", ())}
        self.trials: list[Job] = []
        self.woken = threading.Event()
        self.status = "InProgress"
        self.reason = ""
        self.created = time.time()
        self.ended = 0.0
        self.values: dict[str, list[float]] = {}
        """Training job -> all its values of the objective."""
        self._account = account
        self._launch = launch
        self._lock = threading.RLock()
        self._points = _points(self.config)
        definitions = self.definition["AlgorithmSpecification"]["MetricDefinitions"]
        self._patterns = {item["Name"]: re.compile(item["Regex"]) for item in definitions}

    @property
    def objective(self) -> str:
        """The name of the metric that is tuned."""
        return str(self.config["HyperParameterTuningJobObjective"]["MetricName"])

    def run(self) -> None:
        """Run the tuning job in its own thread."""
        self._account.logs.listeners.append(self._hear)
        try:
            self._search()
        except ServiceError as refused:  # what CreateTrainingJob says of a trial
            self.stop_trials()
            self._finish("Failed", f"{refused.code}: {refused.message}")
        finally:
            self._account.logs.listeners.remove(self._hear)

    def stop(self) -> None:
        """Ask it to stop. Refused for one that is stopping or over."""
        with self._lock:
            if self.status != "InProgress":
                raise invalid(
                    f"The request was rejected because the tuning job is in status {self.status}."
                )
            self.status = "Stopping"
        self.stop_trials()

    def stop_trials(self) -> None:
        """Each that is in progress."""
        for job in list(self.trials):
            _stop(job)

    def tag_list(self) -> list[dict[str, str]]:
        """Its tags as the API writes them."""
        return [{"Key": key, "Value": value} for key, value in self.tags.items()]

    def describe(self) -> Document:
        """DescribeHyperParameterTuningJob's answer."""
        trials = list(self.trials)
        statuses = Counter(job["TrainingJobStatus"] for job in trials)
        objectives = Counter(self._objective_status(job) for job in trials)
        facts = {
            **{key: value for key, value in self.body.items() if key != "Tags"},
            "HyperParameterTuningJobArn": self.arn,
            "HyperParameterTuningJobStatus": self.status,
            "TrainingJobStatusCounters": {
                "Completed": statuses["Completed"],
                "InProgress": statuses["InProgress"] + statuses["Stopping"],
                "NonRetryableError": statuses["Failed"],
                "RetryableError": 0,
                "Stopped": statuses["Stopped"],
            },
            "ObjectiveStatusCounters": {
                status: objectives[status] for status in ("Succeeded", "Pending", "Failed")
            },
            "CreationTime": self.created,
            "LastModifiedTime": self.ended or time.time(),
            **({"HyperParameterTuningEndTime": self.ended} if self.ended else {}),
            **({"FailureReason": self.reason} if self.reason else {}),
        }
        return copy.deepcopy(facts)

    def summary(self, job: Job) -> Document:
        """One HyperParameterTrainingJobSummary."""
        described = job.describe()
        values = self.values.get(job.name, [])
        description: Document = {key: described[key] for key in SUMMARY if key in described}
        tuned = {
            parameter["Name"]
            for kind in KINDS
            for parameter in self.config["ParameterRanges"].get(kind, [])
        }
        description["TunedHyperParameters"] = {
            key: value for key, value in described["HyperParameters"].items() if key in tuned
        }
        description["ObjectiveStatus"] = self._objective_status(job)
        if values:
            kind = self.config["HyperParameterTuningJobObjective"]["Type"]
            metric = {"Type": kind, "MetricName": self.objective, "Value": values[-1]}
            description["FinalHyperParameterTuningJobObjectiveMetric"] = metric
        return description

    def _objective_status(self, job: Job) -> str:
        if not job.has_ended:
            return "Pending"
        return "Succeeded" if self.values.get(job.name) else "Failed"

    def _search(self) -> None:
        limits = self.config["ResourceLimits"]
        at_once = limits["MaxParallelTrainingJobs"]
        run_search(self.trials, self._points, self._start, at_once, self._is_over)
        if self.status == "Stopping":
            self._finish("Stopped")
        elif self.trials and all(job["TrainingJobStatus"] == "Failed" for job in self.trials):
            self._finish(
                "Failed",
                f"No training job succeeded after {min(len(self.trials), FIRST_FAILURES)} attempts."
                " For additional details, please take a look at the training job failures by"
                " listing training jobs for the hyperparameter tuning job.",
            )
        else:
            self._finish("Completed")

    def _fails(self) -> bool:
        """Return whether the first trials have all failed: no more are started (observed 2022)."""
        statuses = [job["TrainingJobStatus"] for job in self.trials]
        return statuses.count("Failed") >= FIRST_FAILURES and "Completed" not in statuses

    def _is_over(self) -> bool:
        """Return whether no more trials are started; stop those that run if time is up."""
        limit: float = self.config["ResourceLimits"].get("MaxRuntimeInSeconds", math.inf)
        is_late = time.time() > self.created + limit and self.status == "InProgress"
        if is_late or self._account.closing.is_set():
            self.status = "Stopping"
            self.stop_trials()
        return self.status != "InProgress" or self._fails()

    def _start(self, point: Mapping[str, str]) -> None:
        number = len(self.trials) + 1
        body = dict(self.definition)
        flexible = body.pop("HyperParameterTuningResourceConfig", None)
        if flexible is not None:
            key = {name: flexible[name] for name in ("VolumeKmsKeyId",) if name in flexible}
            body["ResourceConfig"] = {**flexible["InstanceConfigs"][0], **key}
        body["TrainingJobName"] = f"{self.name}-{number:03}-{random.getrandbits(32):08x}"
        body["HyperParameters"] = {
            **point,
            "_tuning_objective_metric": self.objective,
        }
        body["Tags"] = self.tag_list()
        with self._lock:  # a quick one prints before it is among the trials
            self.trials.append(self._launch(body))

    def _hear(self, stream: str, line: str) -> None:
        """A line of any job's log."""
        match = self._patterns[self.objective].search(line)
        if match is None:
            return
        with self._lock:
            trials = (trial for trial in self.trials if stream.startswith(f"{trial.name}/"))
            job = next(trials, None)
            if job is None:
                return
            values = self.values.setdefault(job.name, [])
            values.append(float(match[1]))
            if self.config["Strategy"] == "Hyperband" and len(values) >= self._max_resource():
                _stop(job)

    def _max_resource(self) -> int:
        return int(self.config["StrategyConfig"]["HyperbandStrategyConfig"]["MaxResource"])

    def _finish(self, status: str, reason: str = "") -> None:
        self.reason = reason
        self.ended = time.time()
        self.status = status


def _stop(job: Job) -> None:
    if job["TrainingJobStatus"] == "InProgress":
        job.stop()


def _points(config: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    """The values of each trial in turn, all of them texts."""
    ranges = config["ParameterRanges"]
    if config["Strategy"] == "Grid":
        choices = ranges["CategoricalParameterRanges"]
        names = [choice["Name"] for choice in choices]
        for point in itertools.product(*(choice["Values"] for choice in choices)):
            yield dict(zip(names, point, strict=True))
        return
    chance = random.Random(config.get("RandomSeed"))
    for _ in range(config["ResourceLimits"]["MaxNumberOfTrainingJobs"]):
        yield {
            parameter["Name"]: _drawn(kind, parameter, chance)
            for kind in KINDS
            for parameter in ranges.get(kind, [])
        }


def _drawn(kind: str, parameter: Mapping[str, Any], chance: random.Random) -> str:
    if kind == "CategoricalParameterRanges":
        return str(chance.choice(parameter["Values"]))
    low = float(parameter["MinValue"])
    high = float(parameter["MaxValue"])
    if parameter.get("ScalingType") == "Logarithmic":
        value = math.exp(chance.uniform(math.log(low), math.log(high)))
    else:
        value = chance.uniform(low, high)
    value = min(high, max(low, value))
    return str(round(value)) if kind == "IntegerParameterRanges" else repr(value)
