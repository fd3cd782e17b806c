"""A sweep by a cloud's own service, started as the command does, and watched until it is over."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from cloudtrain.api.context import pack_source
from cloudtrain.api.submit import documents_of, submitting
from cloudtrain.planning.plan import Plan
from cloudtrain.providers import get_provider
from cloudtrain.runs.history import History
from cloudtrain.runs.store import RunStore
from cloudtrain.spec.load import override
from cloudtrain.spec.yaml_document import parse_document
from cloudtrain.sweeps.journal import SweepFolder
from cloudtrain.sweeps.native import drive_native
from cloudtrain.sweeps.state import SweepState
from cloudtrain.sweeps.sweep import Sweep
from cloudtrain_wire.events import Submitted
from cloudtrain_wire.file_locks import FileLock
from tests.support.waiting import eventually

SCRIPT = """
import json, os, sys
from pathlib import Path
from cloudtrain_job import log_metrics
arguments = json.loads(Path(os.environ["CLOUDTRAIN_ARGS_FILE"]).read_text())
Path(os.environ["CLOUDTRAIN_MODEL_DIR"], "seen.json").write_text(json.dumps(
    {"argv": sys.argv[1:], "arguments": arguments, "run": os.environ["CLOUDTRAIN_RUN_ID"]}
))
log_metrics(step=1, score=0.0)
log_metrics(step=2, score=float(arguments["x"]) * 10)
"""
"""Program of a trial that really trains: it leaves files and reports."""

JOB: dict[str, Any] = {
    "name": "tuned",
    "entrypoint": "train.py",
    "args": {"epochs": 2},
    "resources": {"instance": {"aws": "ml.m5.xlarge", "azure": "Standard_DS3_v2"}},
    "limits": {"max_runtime": "1 h"},
    "env": {"EPOCHS": 2},
}
SWEEP: dict[str, Any] = {
    "objective": {"metric": "score", "goal": "maximize"},
    "method": "random",
    "space": {"x": "loguniform(1e-3, 1)", "n": "int(1, 9)", "kind": ["a", 2, True]},
    "trials": 5,
    "parallel": 2,
    "budget": {"max_cost": "20 USD"},
}
GRID: dict[str, Any] = {
    "method": "grid",
    "space": {"x": [2], "flag": [True, False]},
    "trials": None,
}
"""The grid that every cloud's own service is given: its trials are the same everywhere."""


PLANNED = """
name: digits
args: {epochs: 3}
image:
  aws: 123456789012.dkr.ecr.us-east-1.amazonaws.com/train:1
  azure: myregistry.azurecr.io/train:1
resources: {instance: {aws: ml.m5.xlarge, azure: Standard_DS3_v2}}
limits: {max_runtime: 1 h}
sweep:
  objective: {metric: val_loss, goal: minimize}
  space: {lr: "uniform(1e-4, 1e-1)"}
  trials: 20
"""
"""A job that is only planned: every cloud's own service takes its section."""


def changed(*changes: str) -> str:
    """PLANNED with these overrides, as JSON, which YAML reads too."""
    return json.dumps(
        override(parse_document(PLANNED, name="job.yaml"), list(changes)).values, default=list
    )


def enter_job(
    folder: Path, environment: Mapping[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Work in a folder with the job's script, below this one, as a user whose cloud these variables
    name.
    """
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("CLOUDTRAIN_DATA_DIR", str(folder / "data"))
    job = folder / "job"
    job.mkdir()
    monkeypatch.chdir(job)
    (job / "train.py").write_text(SCRIPT)


def image_program(path: Path, text: str) -> Path:
    """Write a program that containers find first; returns its folder."""
    path.parent.mkdir()
    path.write_text(text)
    path.chmod(0o755)
    return path.parent


def hold_grid(state: SweepState, folder: SweepFolder, fetched: Path) -> None:
    """Check the trials of GRID: flags, numbers and words as our own trials get them."""
    assert [(trial.state, trial.curve) for trial in state.trials] == [
        ("completed", [0.0, 20.0])
    ] * 2, state.trials
    for trial, flag in zip(state.trials, (True, False), strict=True):
        assert trial.parameters == {"x": 2, "flag": flag}
        Sweep(folder).run_of(trial).fetch(fetched / trial.run)
        report = json.loads((fetched / trial.run / "model" / "seen.json").read_text())
        assert report["run"] == trial.run
        assert report["argv"] == ["--epochs", "2", "--x", "2", *(["--flag"] if flag else [])]
        assert report["arguments"] == {"epochs": 2, "x": 2, "flag": flag}
    assert Sweep(folder).best()[0].number == 0


def begin(plan: Plan) -> History:
    """Make a folder for the sweep, and start it; no rule may refuse it."""
    native = get_provider(plan.provider).native_sweeps()
    errors = [issue.message for issue in native.rules(plan) if issue.is_error]
    assert not errors, errors
    request = native.render(plan)
    store = RunStore(Path(plan.context.data_dir, "sweeps"))
    locks: list[FileLock] = []
    history = History(
        store.create(plan.run_id, documents_of(plan, request), submitting(plan), locks)
    )
    try:
        reference = native.start(
            plan, request, history.folder, pack_source(plan, None), None, history.record
        )
        history.folder.append(Submitted(ref=reference))
    finally:
        for lock in locks:
            lock.release()
    history.read()
    return history


class _Killed(Exception):
    """The driver ends here."""


def drive_and_kill(folder: SweepFolder) -> SweepState:
    """Drive a sweep to its end by drivers that are killed at their first pause, one after the
    other.
    """

    def kill() -> None:
        raise _Killed

    def drive_once() -> SweepState | None:
        with suppress(_Killed):
            return drive_native(folder, pause=kill)
        return None

    state = eventually(drive_once)
    assert state is not None
    return state
