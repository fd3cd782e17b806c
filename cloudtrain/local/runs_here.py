"""What every provider that runs jobs on this machine does alike: a supervisor per run, and the run's own folders."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloudtrain.errors import UsageError
from cloudtrain.local.children import run_module
from cloudtrain.local.folders import RunPaths
from cloudtrain.local.liveness import end_leftovers, has_begun, supervisor_pid
from cloudtrain.provider import Adopted, Finding, Progress, Request
from cloudtrain.runs.state import RunState
from cloudtrain.runs.store import RunFolder, storing
from cloudtrain.settings import Settings

if TYPE_CHECKING:
    from cloudtrain.planning import Plan

ORPHANS_SECONDS = 10
"""How long nodes that lost their supervisor may take to stop by themselves, with a checkpoint."""

START_DEADLINE_SECONDS = 20
"""A supervisor that has not reported by then never will."""

UNUSED = (
    "image",
    "resources.gpu",
    "resources.instance",
    "resources.spot",
    "resources.disk",
    "resources.shm",
    "limits.max_wait",
    "limits.max_cost",
    "limits.retries",
    "checkpoints.uri",
    "tags",
    "aws",
    "azure",
)
"""Fields of the spec that mean nothing on this machine."""


class RunsHere:
    """The part of a provider that is the same for launchers and for containers."""

    contracts = ("plain", "sagemaker", "azureml")
    is_remote = False

    def rules(self, plan: Plan) -> list[Finding]:
        """Checkpoints of a run in a cloud are not at hand here."""
        earlier = plan.facts.resume_from
        if "://" not in earlier:
            return []
        hint = f"cloudtrain rerun {plan.facts.resume_run} --fresh starts without them"
        return [Finding(severity="error", message=f"the earlier run's checkpoints lie in {earlier}", hint=hint)]

    def start(
        self,
        request: Request,  # noqa: ARG002  (the supervisor reads it from the run folder)
        run: RunFolder,
        archive: Path,
        progress: Progress | None,  # noqa: ARG002
    ) -> dict[str, Any]:
        """Start the supervisor, in a session of its own: closing the terminal does not reach it."""
        paths = RunPaths(run.path)
        argv = [*run_module("supervisor"), str(run.path), str(archive)]
        with storing(paths.supervisor_log), paths.supervisor_log.open("wb") as log:
            process = subprocess.Popen(
                argv,
                cwd=run.path,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        _reap(process)
        return {"pid": process.pid}

    def pause_seconds(self, run: RunFolder) -> float:  # noqa: ARG002
        """A look at this machine costs next to nothing."""
        return 1.0

    def observe(self, run: RunFolder, state: RunState) -> list[dict[str, Any]]:
        """The end of a run whose supervisor is gone; what of it is left, if anything, is ended first."""
        now = time.time()
        if state.has_ended or supervisor_pid(run.path) is not None:
            return []
        begun = has_begun(run.path)
        if not begun and now - state.created < START_DEADLINE_SECONDS:
            return []
        # It may have written its last word and gone between the reading of the events and this look.
        if any(event["type"] == "ended" for event in run.events()):
            return []
        reason = "submit was interrupted before anything started"
        if begun:
            reason = "its supervisor is gone (killed, or this machine was restarted)"
        if left := self.end_leftovers(run.path):
            reason += f"; {left}"
        return [{"type": "ended", "time": now, "state": "failed", "reason": reason}]

    def end_leftovers(self, run: Path) -> str:
        """End what a dead supervisor left running; what there is to say of it."""
        left = end_leftovers(run, ORPHANS_SECONDS)
        return f"{left} processes that were left have been ended" if left else ""

    def stop(self, run: RunFolder, state: RunState) -> bool:  # noqa: ARG002
        """SIGTERM to the supervisor, which passes it to every node."""
        with storing(run.path):
            RunPaths(run.path).stop_mark.touch()
        pid = supervisor_pid(run.path)
        if pid:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        return True

    def places(self, run: RunFolder, state: RunState) -> Mapping[str, str]:  # noqa: ARG002
        """The run's own folders, those that hold something."""
        paths = RunPaths(run.path)
        found = {"model": paths.model, "output": paths.output, "checkpoints": paths.checkpoints}
        return {name: str(path) for name, path in found.items() if path.is_dir() and any(path.iterdir())}

    def checkpoints(self, run: RunFolder, state: RunState) -> str:
        """Their folder, if it holds any."""
        return self.places(run, state).get("checkpoints", "")

    def fetch(
        self,
        run: RunFolder,
        state: RunState,
        names: Sequence[str],
        folder: Path,
        progress: Progress | None,  # noqa: ARG002
    ) -> list[str]:
        """Copy them."""
        places = self.places(run, state)
        brought = [name for name in names if name in places]
        for name in brought:
            shutil.copytree(places[name], folder / name, symlinks=True)
        return brought

    def adopt(self, settings: Settings, run_id: str | None) -> list[Adopted]:  # noqa: ARG002
        """None: all runs of this machine are known."""
        return []

    def catch_up(self, run: RunFolder, state: RunState) -> None:
        """Nothing: all of it is here."""

    def native(self, run: RunFolder, state: RunState) -> Any:  # noqa: ARG002
        """UsageError: there is no SDK."""
        raise UsageError("a run on this machine has no object of a cloud's SDK")


def here(plan: Plan, place: str) -> str:
    """The absolute path of a place on this machine, as the spec says it."""
    return os.path.normpath(Path(plan.facts.folder) / Path(place).expanduser())


def _reap(process: subprocess.Popen[bytes]) -> None:
    """Leave the supervisor to itself: collect it when it ends while we still live, and do not wait for it."""

    def collect() -> None:
        with suppress(ChildProcessError):
            os.waitpid(process.pid, 0)

    threading.Thread(target=collect, daemon=True).start()
    process.returncode = 0
