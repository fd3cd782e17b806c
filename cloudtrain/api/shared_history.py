"""Shared history in MLflow: the runs that it still lacks, and who brings them there.

A submit leaves a mark in the data folder. One process per data folder, `mlflow_mirror`, brings the
marked runs to the server. Commands that look at a run start it, and none waits for it: a server
that is gone delays nothing. The mark of a run goes when the server has its end.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloudtrain.errors import Outcome, UsageError
from cloudtrain.runs.files import make_private_folder
from cloudtrain.runs.folder import RunFolder
from cloudtrain.runs.store import HISTORY_MARKS, sweep_ids, sweep_of_run
from cloudtrain.settings import Settings, load_settings
from cloudtrain_wire.bounded_files import read_regular_text
from cloudtrain_wire.file_locks import is_locked

if TYPE_CHECKING:
    from cloudtrain.planning.plan import Plan

LOCK = ".lock"
"""File in that folder, locked by the process that brings runs to the server."""
MODULE = "cloudtrain.api.mlflow_mirror"

SUBMIT_SECONDS = 5.0
"""Maximum time from the beginning of a submit until it continues without the id."""
REQUEST_SECONDS = 10
LOOK_SECONDS = 2.0
"""Minimum time between two looks of a client for something that the server lacks."""

_CLIENT = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": str(REQUEST_SECONDS),
    "MLFLOW_DISABLE_TELEMETRY": "true",
}
"""Variables of the process that uses MLflow's client. Those of the user win."""

_DATABASES = r"(sqlite|postgresql|mysql|mssql)(\+\w+)?://"
_NEEDS = (
    (_DATABASES, "sqlalchemy", "pip install mlflow", "a database needs the whole of mlflow"),
    ("arn:", "sagemaker_mlflow", "pip install sagemaker-mlflow", "SageMaker needs its plugin"),
    ("azureml:", "azureml.mlflow", "pip install azureml-mlflow", "Azure ML needs its plugin"),
)
"""Pattern of an address, the module that it needs, how to install it, and why."""

_looked: dict[Path, float] = {}
"""Monotonic time of the last look, by data folder."""
_warned: set[Path] = set()
"""Data folders whose user knows that the history is behind."""


@dataclass(frozen=True, slots=True)
class Mark:
    """Note that the server lacks a run, in whole or in part."""

    path: Path

    @property
    def run(self) -> RunFolder:
        """Folder of the run, which a submit may not have made yet."""
        return RunFolder(self.path.parents[1] / "runs" / self.path.name)

    def read(self) -> dict[str, Any]:
        """Return what is known: the run's `id` in MLflow, the bytes `done`, the last `error`."""
        with suppress(OSError, ValueError, RecursionError):
            content = json.loads(read_regular_text(self.path))
            if isinstance(content, dict):
                return content

        return {}

    def write(self, **values: Any) -> None:
        """Change what is known of a run whose mark is still there."""
        content = self.read()
        if content != content | values:
            with suppress(FileNotFoundError), self.path.open("r+", encoding="utf-8") as file:
                file.truncate(file.write(json.dumps(content | values)))

    @property
    def is_behind(self) -> bool:
        """True if the run has events that the server lacks."""
        try:
            return self.run.events_file.stat().st_size != self.read().get("done")
        except OSError:
            return False


def marks(data_dir: Path) -> list[Mark]:
    """Return the marks of all runs that the server lacks."""
    folder = data_dir / HISTORY_MARKS
    with suppress(OSError):
        return [Mark(folder / name) for name in sorted(os.listdir(folder)) if name[0] != "."]  # noqa: PTH208

    return []


def expect(data_dir: Path, run_id: str, settings: Settings) -> Mark | None:
    """Note that the server lacks a run, if the user's settings name one."""
    if not settings.get("mlflow.uri"):
        return None

    mark = Mark(data_dir / HISTORY_MARKS / run_id)
    with suppress(OSError):
        make_private_folder(mark.path.parent)
        mark.path.touch(0o600)
        return mark

    return None


def refuse_unusable(uri: str) -> None:
    """Raise UsageError for an address that cannot work from here, with what to do."""
    problem = ""
    hint = 'uri = "http://HOST:5000", or sqlite:////PATH/mlflow.db for one user'
    if re.match(r"https?://[^/@]*@", uri):
        problem = "has a password, which other users of this machine could read"
        hint = "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN"
    elif uri.startswith("file:") or ":" not in uri:
        problem = "is a folder: MLflow no longer develops this kind of store, and it keeps a point"
        problem += " that is sent twice"
    elif not re.match(
        rf"https?://[^/]|{_DATABASES}|arn:aws[\w-]*:sagemaker:|azureml:|databricks", uri
    ):
        problem = "is not the address of an MLflow server"
    elif not _is_installed("mlflow"):
        from cloudtrain.extras import install_command  # slow to import

        problem = "needs MLflow's client, which is not installed here"
        hint = install_command("mlflow")
    else:
        for pattern, module, install, why in _NEEDS:
            if re.match(pattern, uri) and not _is_installed(module):
                problem = f"cannot be used: {why}"
                hint = install

    if problem:
        raise UsageError(
            f"the setting mlflow.uri {problem}", hint=hint, outcome=Outcome.NOT_STARTED
        )


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # of the package around it
        return False


class Announcement:
    """The run of a plan in MLflow, made by another process during the submit."""

    def __init__(self, plan: Plan) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._began = time.monotonic()
        self.mark: Mark | None = None

        data_dir = Path(plan.context.data_dir)
        settings = load_settings(Path(plan.context.folder))
        uri = settings.get("mlflow.uri")
        if not uri or plan.is_rehearsal or "MLFLOW_TRACKING_URI" in plan.spec.env:
            return

        refuse_unusable(uri)
        self.mark = expect(data_dir, plan.run_id, settings)
        if self.mark and not sweep_of_run(plan.run_id, sweep_ids(data_dir)):
            self._process = _start(data_dir, plan.run_id)

    def with_id(self, plan: Plan) -> Plan:
        """Return the plan with the id of its run in MLflow, if the server has answered in time."""
        if self.mark is None or self._process is None:
            return plan

        with suppress(subprocess.TimeoutExpired):
            self._process.wait(max(0.0, self._began + SUBMIT_SECONDS - time.monotonic()))

        mlflow_run = str(self.mark.read().get("id") or "")
        if not mlflow_run:
            return plan

        return replace(plan, context=replace(plan.context, mlflow_run=mlflow_run))

    def close(self) -> None:
        """Bring the run to the server; or have it deleted there, if the submit has made none."""
        if self.mark is None:
            return
        if self._process is not None and self._process.poll() is None:
            _reap(self._process)
        if not self.mark.run.path.exists():
            with suppress(OSError):
                os.utime(self.mark.path, (0, 0))

        mirror(self.mark.path.parents[1], at_once=True)


def mirror(data_dir: Path, *, at_once: bool = False) -> None:
    """Start the process that brings runs to the server, if it lacks something.

    Say once that it is behind. `at_once`: look, however short ago the last look was.
    """
    moment = time.monotonic()
    if not at_once and moment - _looked.get(data_dir, -LOOK_SECONDS) < LOOK_SECONDS:
        return

    _looked[data_dir] = moment
    waiting = marks(data_dir)
    errors = [error for mark in waiting if (error := mark.read().get("error"))]
    if errors and data_dir not in _warned:
        _warned.add(data_dir)
        import logging  # needed only for this warning

        message = "the history in MLflow is behind by %s (%s); cloudtrain list sends the rest"
        runs = "1 run" if len(errors) == 1 else f"{len(errors)} runs"
        logging.getLogger(__name__).warning(message, runs, errors[-1])

    is_busy = is_locked(data_dir / HISTORY_MARKS / LOCK)
    if not is_busy and any(mark.is_behind or _is_dropped(mark) for mark in waiting):
        _start(data_dir)


def _is_dropped(mark: Mark) -> bool:
    with suppress(OSError):
        return mark.path.stat().st_mtime == 0

    return False


def _start(data_dir: Path, *words: str) -> subprocess.Popen[bytes] | None:
    with suppress(OSError):
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", MODULE, str(data_dir), *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env={**_CLIENT, **os.environ},
        )
        if not words:
            _reap(process)

        return process

    return None


def _reap(process: subprocess.Popen[bytes]) -> None:
    from cloudtrain.providers.local.processes import reap_in_background  # rarely needed

    reap_in_background(process)
