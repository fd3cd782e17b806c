"""Sweep jobs: each chooses values, starts command jobs that really train, and hears of their metric
by MLflow alone.

Its sampler is simple (all points of a grid, else random values by the seed), but obeys the
parameter expressions as "Hyperparameter tuning a model (v2)" explains them. Bayesian sampling is
imitated by random values.
"""

from __future__ import annotations

import itertools
import json
import math
import random
import re
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tests.fakes.azure.account import Account
from tests.fakes.azure.jobs import Job
from tests.fakes.azure.recorded import duration_seconds, form
from tests.fakes.azure.wire import iso_date
from tests.fakes.containers import run_search

Document = dict[str, Any]
_OF_TRIAL = (
    "codeId",
    "command",
    "environmentId",
    "environmentVariables",
    "distribution",
    "resources",
)
_OF_SWEEP = ("computeId", "queueSettings", "identity", "inputs", "outputs", "experimentName")


def template(properties: Mapping[str, Any]) -> Document:
    """The properties of a trial's command job, before there are values for it."""
    job: Document = {"jobType": "Command"}
    job |= {key: properties[key] for key in _OF_SWEEP if key in properties}
    job |= {key: properties["trial"][key] for key in _OF_TRIAL if key in properties["trial"]}
    timeout = properties.get("limits", {}).get("trialTimeout")
    return job | ({"limits": {"jobLimitsType": "Command", "timeout": timeout}} if timeout else {})


class SweepJob(Job):
    """One sweep job from the moment its creation was answered. `launch` starts a trial."""

    def __init__(
        self,
        name: str,
        body: Mapping[str, Any],
        account: Account,
        launch: Callable[[str, Document], Job],
    ) -> None:
        super().__init__(name, body, vm_size="", low_priority=False)
        self.trials: list[Job] = []
        self._account = account
        self._launch = launch
        self._points = _points(self.properties)

        self.enter("Running")

    def system_tags(self) -> dict[str, str]:
        limits = self.properties.get("limits", {})
        objective = self.properties["objective"]
        seconds = duration_seconds(limits.get("timeout", "")) or 0
        tags = {
            "max_concurrent_jobs": limits.get("maxConcurrentTrials", limits.get("maxTotalTrials")),
            "max_total_jobs": limits.get("maxTotalTrials"),
            "max_duration_minutes": seconds // 60,
            "policy_config": {"name": "Default", "properties": {}},
            "generator_config": {"parameter_space": self.properties["searchSpace"]},
            "primary_metric_config": {
                "name": objective["primaryMetric"],
                "goal": objective["goal"].lower(),
            },
            "platform_config": {},
            "resume_child_runs": None,
            "all_jobs_generated": False,
            "cancellation_requested": self.cancel_asked.is_set(),
            "samples_generated_count": len(self.trials),
        }
        return {f"_aml_system_{name}": json.dumps(value) for name, value in tags.items()}

    def system_properties(self) -> dict[str, str | None]:
        recorded = form("/jobs/", "2024-01-01-preview", "Sweep").answered["properties"]
        objective = self.system_tags()["_aml_system_primary_metric_config"]
        return {**recorded, "primary_metric_config": objective}

    def shown(self) -> dict[str, Any]:
        objective = self.properties["objective"]
        return {"objective": {**objective, "goal": objective["goal"].capitalize()}}

    def run(self) -> None:
        """Run the sweep in its own thread."""
        limits = self.properties.get("limits", {})
        points = itertools.islice(self._points, limits["maxTotalTrials"])
        at_once = limits.get("maxConcurrentTrials", limits["maxTotalTrials"])
        run_search(self.trials, points, self._start, at_once, self._is_over)
        self._conclude()

    def _is_over(self) -> bool:
        """Return whether no more trials are started; cancel those that run."""
        seconds = duration_seconds(self.properties["limits"].get("timeout", "")) or math.inf
        if self._account.closing.is_set() or time.time() > self.started + seconds:
            self.cancel()
        is_early = self.properties.get("earlyTermination") is not None  # each trial is a bad one
        for trial in self.trials:
            if self.cancel_asked.is_set() or (is_early and trial.metrics):
                trial.cancel()
        return self.cancel_asked.is_set()

    def _start(self, point: Mapping[str, Any]) -> None:
        name = f"{self.name}_{len(self.trials)}"
        properties = template(self.properties)
        texts = {
            key: value if isinstance(value, str) else json.dumps(value)
            for key, value in point.items()
        }
        properties["command"] = re.sub(
            r"\$\{\{\s*search_space\.(\w+)\s*\}\}",
            lambda match: texts[match[1]],
            properties["command"],
        )
        variables = {f"AZUREML_SWEEP_{key}": text for key, text in texts.items()}
        properties["environmentVariables"] = {
            **properties.get("environmentVariables", {}),
            **variables,
        }
        trial = self._launch(name, {"properties": properties})
        trial.parent = self.name
        if self._account.tells_parameters:
            trial.parameters = texts
        self.trials.append(trial)

    def _conclude(self) -> None:
        objective = self.properties["objective"]
        sign = -1 if objective["goal"].lower() == "minimize" else 1
        best = {
            trial.name: max(sign * value for value in trial.metrics[objective["primaryMetric"]])
            for trial in self.trials
            if trial.metrics.get(objective["primaryMetric"])
        }
        if best:
            self.added["best_child_run_id"] = max(best, key=lambda name: best[name])
        if self.trials and all(trial.status == "Failed" for trial in self.trials):
            self.finish("Failed", "All trials of the sweep job have failed.")
        else:
            self.finish("Canceled" if self.cancel_asked.is_set() else "Completed")


def child(trial: Job) -> Document:
    """A trial as run history lists it below its sweep job."""
    return {
        "runId": trial.name,
        "parentRunId": trial.parent,
        "displayName": trial.name,
        "status": trial.status,
        "createdUtc": iso_date(trial.created),
        "tags": trial.tags,
        "properties": {},
    }


def _points(properties: Mapping[str, Any]) -> Iterator[Document]:
    """The values of each trial in turn."""
    space = properties["searchSpace"]
    sampling = properties["samplingAlgorithm"]
    if sampling["samplingAlgorithmType"] == "Grid":
        choices = (expression[1][0] for expression in space.values())
        for point in itertools.product(*choices):
            yield dict(zip(space, point, strict=True))
        return
    chance = random.Random(sampling.get("seed"))
    while True:
        yield {
            name: _drawn(expression[0], expression[1], chance) for name, expression in space.items()
        }


def _drawn(kind: str, arguments: list[Any], chance: random.Random) -> Any:
    """A value of a parameter expression, by the formulas of its documentation."""
    if kind == "choice":
        return chance.choice(arguments[0])
    *ends, q = arguments if kind.startswith("q") else (*arguments, 0)
    value = (chance.gauss if "normal" in kind else chance.uniform)(*ends)
    value = math.exp(value) if "log" in kind else value
    return round(value / q) * q if q else value
