"""Reports of a trial to the platform's MLflow server, for comparison in its sweep.

See "Hyperparameter tuning a model (v2)" in the documentation of Azure Machine Learning: a sweep job
reads its objective from MLflow. The requests equal mlflow 3's calls with azureml-mlflow 1.62;
tokens are replaced as in `azureml_utils.R` of Microsoft's azureml-examples. The image needs neither
package. Standard library only.
"""

from __future__ import annotations

import json
import math
import queue
import re
import threading
import time
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import suppress
from http.client import HTTPException
from typing import Any

from cloudtrain_wire.events import Metrics
from cloudtrain_wire.rungs import MetricReports
from cloudtrain_wire.tuned_values import PARAMETERS

SWITCH = "CLOUDTRAIN_SERVICE_METRIC"
"""Variable; `off` disables the service in a rehearsal."""

TOKEN_SECONDS = 30.0
"""Maximum age of a token, as in Microsoft's own script."""

TIMEOUT_SECONDS = 10.0
ATTEMPTS = 4
PAUSE_SECONDS = 1.0
"""Delay before the second attempt at a request; doubled before each further one."""

FLUSH_SECONDS = 30.0
"""Maximum wait for the last reports at the end of the job."""

Report = tuple[float, int]
"""A value and its report's number, from 1."""


class ServiceMetric:
    """Thread that sends each report of one metric. `warn`: called once.

    `values`: the trial's values, sent first as MLflow's parameters for the client.
    """

    def __init__(
        self,
        metric: str,
        values: Mapping[str, str],
        environ: Mapping[str, str],
        warn: Callable[[str], None],
    ) -> None:
        self._values = values
        self._reports = MetricReports(metric)
        self._warn = warn
        self._has_warned = False
        self._queue: queue.Queue[Report | None] = queue.Queue()
        self._thread: threading.Thread | None = None
        if environ.get(SWITCH) == "off":
            return

        try:
            server = MlflowServer(environ)
        except RuntimeError as error:
            self._fail(str(error))
            return

        self._thread = threading.Thread(
            target=self._tell_all, args=(server,), daemon=True, name="service metric"
        )
        self._thread.start()

    def on_metrics(self, event: Metrics) -> None:
        """Process metrics of the first rank; skip values that are not finite."""
        value = self._reports.add(event)
        if value is not None and math.isfinite(value) and self._thread is not None:
            self._queue.put((value, self._reports.count))

    def finish(self) -> None:
        """Wait for the last report, within a time limit."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join(FLUSH_SECONDS)
            if self._thread.is_alive():
                self._fail("the server does not answer")

    def _tell_all(self, server: MlflowServer) -> None:
        for name, text in self._values.items():
            with suppress(OSError, HTTPException):  # the service may report them itself
                server.log_parameter(f"{PARAMETERS}{name}", text)

        while True:
            try:
                report = self._queue.get(timeout=TOKEN_SECONDS)
            except queue.Empty:
                server.refresh_token()
                continue

            if report is None:
                return

            try:
                server.log_metric(self._reports.metric, *report)
            except (OSError, HTTPException) as error:
                self._fail(str(error))

    def _fail(self, why: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            self._warn(
                f"the sweep is not told what this trial reaches ({self._reports.metric}): {why}"
            )


class MlflowServer:
    """Return Azure ML's tracking server. Raise RuntimeError without one."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        names = ("MLFLOW_TRACKING_URI", "MLFLOW_TRACKING_TOKEN", "MLFLOW_RUN_ID")
        missing = [name for name in names if not environ.get(name)]
        if missing:
            raise RuntimeError(f"the platform has not set {', '.join(missing)}")

        uri, self._token, self._run = (environ[name] for name in names)
        address = re.sub("^azureml://", "https://", uri.partition("?")[0]).rstrip("/")
        # The address is for MLflow 1; azureml-mlflow converts it like this for MLflow 2 and 3.
        self._url = address.replace("/mlflow/v1.0/", "/mlflow/v2.0/", 1)
        history = self._url.replace("/mlflow/v2.0/", "/history/v1.0/", 1)
        self._named = {"run_uuid": self._run, "run_id": self._run}
        experiment = environ.get("MLFLOW_EXPERIMENT_ID", "")
        self._token_url = ""
        if experiment:
            self._token_url = f"{history}/experimentids/{experiment}/runs/{self._run}/token"

        self._token_time = time.monotonic()

    def log_metric(self, name: str, value: float, step: int) -> None:
        """Send one report. Raise OSError if the server rejects it or is too slow."""
        body = {
            "key": name,
            "value": value,
            "step": step,
            "timestamp": round(time.time() * 1000),
        }
        self._post("log-metric", body)

    def log_parameter(self, name: str, text: str) -> None:
        """Send one parameter of the run. Raise OSError if the server has another value for it."""
        self._post("log-parameter", {"key": name, "value": text})

    def _post(self, call: str, body: Mapping[str, Any]) -> None:
        """Send a request about the run; retry after temporary errors."""
        if time.monotonic() > self._token_time + TOKEN_SECONDS:
            self.refresh_token()

        pause = PAUSE_SECONDS

        for attempt in range(1, ATTEMPTS + 1):
            try:
                self._request(f"{self._url}/api/2.0/mlflow/runs/{call}", {**self._named, **body})
                return
            except OSError as error:
                code = getattr(error, "code", 0)
                if attempt == ATTEMPTS or (400 <= code < 500 and code not in (401, 403, 408, 429)):
                    raise
                if code in (401, 403):
                    self.refresh_token()

            time.sleep(pause)
            pause *= 2

    def refresh_token(self) -> None:
        """Request the next token; without one keep the old one."""
        self._token_time = time.monotonic()
        if not self._token_url:
            return
        with suppress(OSError, HTTPException, ValueError, LookupError, TypeError):
            self._token = str(json.loads(self._request(self._token_url))["token"])

    def _request(self, url: str, body: Mapping[str, Any] | None = None) -> bytes:
        headers: dict[str, str] = {"Authorization": f"Bearer {self._token}"}
        data = None
        if body is not None:
            data = json.dumps(body).encode()
            headers["Content-Type"] = "application/json"

        with urllib.request.urlopen(
            urllib.request.Request(url, data, headers), timeout=TIMEOUT_SECONDS
        ) as answer:
            content: bytes = answer.read(1 << 20)

        return content
