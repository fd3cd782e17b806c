"""The launcher tells an MLflow server what a trial reaches, as Microsoft's own client does, and
never holds it up.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from cloudtrain_launcher import service_metric
from cloudtrain_launcher.events import Metrics
from cloudtrain_launcher.service_metric import MlflowServer, ServiceMetric

WORKSPACE = (
    "subscriptions/s/resourceGroups/g/providers/Microsoft.MachineLearningServices/workspaces/w"
)


class Tracking:
    """A tracking server that stores its requests, and answers as configured."""

    def __init__(self) -> None:
        self.told: list[tuple[str, float | str, int]] = []
        self.requests: list[str] = []
        self.tokens = {"first"}
        self.answers: list[int] = []
        tracking = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                tracking.tokens = {"next"}
                self.answer(200, {"token": "next"})

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                is_authorized = self.headers["Authorization"] in {
                    f"Bearer {token}" for token in tracking.tokens
                }
                status = (
                    tracking.answers.pop(0) if tracking.answers else 200 if is_authorized else 401
                )
                if status == 200:
                    tracking.told.append((body["key"], body["value"], body.get("step", 0)))
                self.answer(status, {})

            def answer(self, status: int, body: object) -> None:
                tracking.requests.append(f"{self.command} {self.path}")
                content = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    @property
    def environ(self) -> dict[str, str]:
        """Return Azure ML's tracking variables of a job, except for the scheme."""
        return {
            "MLFLOW_TRACKING_URI": (
                f"http://127.0.0.1:{self.server.server_port}/mlflow/v1.0/{WORKSPACE}?"
            ),
            "MLFLOW_TRACKING_TOKEN": "first",
            "MLFLOW_RUN_ID": "sweep_3",
            "MLFLOW_EXPERIMENT_ID": "e",
        }


@pytest.fixture
def tracking(monkeypatch: pytest.MonkeyPatch) -> Iterator[Tracking]:
    monkeypatch.setattr(service_metric, "PAUSE_SECONDS", 0.0)
    made = Tracking()
    yield made
    made.server.shutdown()
    made.server.server_close()


def report(step: int, **values: float) -> Metrics:
    return Metrics(rank=0, step=step, values=values)


def tell(tracking: Tracking, *events: Metrics) -> list[str]:
    """Return the warnings while a trial makes these reports."""
    warnings: list[str] = []
    metric = ServiceMetric("score", {}, tracking.environ, warnings.append)
    for event in events:
        metric.on_metrics(event)
    metric.finish()
    return warnings


def test_each_report_is_told_once_by_its_number(tracking: Tracking) -> None:
    second = report(10, score=0.1)
    assert (
        tell(
            tracking,
            report(10, score=0.1, loss=3.0),
            second,
            report(20, loss=2.0),
            report(30, score=0.3),
        )
        == []
    )
    assert tracking.told[-1] == ("score", 0.3, 2)
    assert set(tracking.told) <= {("score", 0.1, 1), ("score", 0.3, 2)}
    assert set(tracking.requests) == {
        f"POST /mlflow/v2.0/{WORKSPACE}/api/2.0/mlflow/runs/log-metric"
    }


def test_the_values_of_a_trial_are_told_first(tracking: Tracking) -> None:
    metric = ServiceMetric(
        "score", {"lr": "0.1", "batch_size": "16"}, tracking.environ, pytest.fail
    )
    metric.on_metrics(report(1, score=1.0))
    metric.finish()
    names = [request.rpartition("/")[2] for request in tracking.requests]
    assert names == ["log-parameter", "log-parameter", "log-metric"]
    assert tracking.told == [
        ("cloudtrain.lr", "0.1", 0),
        ("cloudtrain.batch_size", "16", 0),
        ("score", 1.0, 1),
    ]


def test_a_value_that_is_not_finite_is_not_told(tracking: Tracking) -> None:
    assert tell(tracking, report(1, score=float("nan")), report(2, score=1.0)) == []
    assert tracking.told == [("score", 1.0, 2)]


def test_a_token_that_has_run_out_is_replaced(tracking: Tracking) -> None:
    tracking.tokens = set()
    assert tell(tracking, report(1, score=1.0)) == []
    assert tracking.told == [("score", 1.0, 1)]
    assert f"GET /history/v1.0/{WORKSPACE}/experimentids/e/runs/sweep_3/token" in tracking.requests


def test_an_error_that_passes_is_tried_again_and_one_that_stays_is_warned_of_once(
    tracking: Tracking,
) -> None:
    tracking.answers = [503, 429]
    assert tell(tracking, report(1, score=1.0)) == []
    assert tracking.told == [("score", 1.0, 1)]
    tracking.answers = [400]
    [warning] = tell(tracking, report(1, score=2.0))
    assert warning.startswith(
        "the sweep is not told what this trial reaches (score): HTTP Error 400"
    )


def test_a_platform_that_names_no_server_is_warned_of_and_a_rehearsal_has_none() -> None:
    warnings: list[str] = []
    metric = ServiceMetric("score", {}, {"MLFLOW_RUN_ID": "r"}, warnings.append)
    metric.on_metrics(report(1, score=1.0))
    metric.finish()
    [warning] = warnings
    assert "the platform has not set MLFLOW_TRACKING_URI, MLFLOW_TRACKING_TOKEN" in warning
    ServiceMetric("score", {}, {"CLOUDTRAIN_SERVICE_METRIC": "off"}, pytest.fail).finish()


def test_the_address_of_azure_ml_is_one_of_https() -> None:
    server = MlflowServer(
        {
            "MLFLOW_TRACKING_URI": f"azureml://eastus.api.azureml.ms/mlflow/v1.0/{WORKSPACE}?x=1",
            "MLFLOW_TRACKING_TOKEN": "t",
            "MLFLOW_RUN_ID": "r",
            "MLFLOW_EXPERIMENT_ID": "e",
        }
    )
    assert server._url == f"https://eastus.api.azureml.ms/mlflow/v2.0/{WORKSPACE}"
    history = f"https://eastus.api.azureml.ms/history/v1.0/{WORKSPACE}"
    assert server._token_url == f"{history}/experimentids/e/runs/r/token"
