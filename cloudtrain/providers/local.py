"""The local provider: N nodes are N launchers on this machine, watched by a supervisor that outlives the client."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloudtrain.contracts import job_document
from cloudtrain.contracts.plain import Layout, launches
from cloudtrain.errors import UsageError
from cloudtrain.local.folders import RunPaths
from cloudtrain.local.liveness import end_leftovers, has_begun, supervisor_pid
from cloudtrain.planning import Plan, Target
from cloudtrain.provider import Adopted, Finding, Progress, Request
from cloudtrain.runs.state import RunState
from cloudtrain.runs.store import RunFolder, storing
from cloudtrain.settings import Settings

if TYPE_CHECKING:  # looking after a run needs no pydantic
    from cloudtrain.spec import JobSpec

_SUPERVISE = """
import sys
sys.path[0] = sys.argv.pop(1)
from cloudtrain.local.supervisor import main
sys.exit(main(sys.argv[1:]))
"""
"""The supervisor runs this very package, wherever it lies, and leaves no trace of that in the job's environment."""

ORPHANS_SECONDS = 10
"""How long launchers that lost their supervisor may take to stop by themselves, with a checkpoint."""

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


class Provider:
    """This machine, under the plain contract."""

    name = "local"
    contracts = ("plain", "sagemaker", "azureml")
    is_remote = False

    def target(self, settings: Settings, spec: JobSpec, *, rehearsal: bool = False) -> Target:  # noqa: ARG002
        """This machine: its Python and its cores."""
        return Target(
            provider=self.name,
            where="this machine",
            max_nodes=99,
            grace_seconds=settings["stop_grace"],
            schemes=("",),
            unused=UNUSED,
            facts={
                "python": settings.get("python") or sys.executable,
                "cores": os.cpu_count() or 1,
                "system": sys.platform,
            },
        )

    def rules(self, plan: Plan) -> list[Finding]:
        """Checkpoints of a run in a cloud are not at hand here."""
        earlier = plan.facts.resume_from
        if "://" not in earlier:
            return []
        hint = f"cloudtrain rerun {plan.facts.resume_run} --fresh starts without them"
        return [Finding(severity="error", message=f"the earlier run's checkpoints lie in {earlier}", hint=hint)]

    def checks(self, plan: Plan) -> list[Finding]:
        """Whether this machine can run the plan: torch, GPUs, inputs, secrets."""
        from cloudtrain.local.checks import machine_checks

        return machine_checks(plan)

    def render(self, plan: Plan) -> Request:
        """The launches, one per node, with every path of the run."""
        spec, facts = plan.spec, plan.target.facts
        paths = RunPaths(Path(plan.facts.data_dir) / "runs" / plan.run_id)
        layout = Layout(
            python=facts["python"],
            job_file=str(paths.job_file),
            source=str(paths.source("{node}")),
            output=str(paths.output),
            model=str(paths.model),
            checkpoints=str(paths.checkpoints),
            inputs={name: _input_path(item.on(self.name) or "", plan) for name, item in spec.inputs.items()},
        )
        nodes, per_node = spec.resources.nodes, spec.resources.processes_per_node
        # Linux answers on all of 127/8: an address of its own keeps each node apart, and in order, under c10d.
        linux = facts["system"] == "linux"
        addresses = tuple(f"127.0.0.{101 + node}" if linux and nodes > 1 else "127.0.0.1" for node in range(nodes))
        job = job_document(plan)
        document = {
            "run_id": plan.run_id,
            "job": job,
            "source": plan.facts.source.digest,
            "launches": [
                launch.to_json()
                for launch in launches(
                    plan,
                    layout,
                    addresses=addresses,
                    interface="lo" if linux else "lo0",
                    threads=max(1, facts["cores"] // (nodes * per_node)),
                )
            ],
            "max_runtime_seconds": spec.limits.max_runtime,
            "grace_seconds": plan.target.grace_seconds,
            "resume_from": plan.facts.resume_from or None,
        }
        return Request(provider=self.name, document=document, job=job)

    def start(
        self,
        request: Request,  # noqa: ARG002  (the supervisor reads it from the run folder)
        run: RunFolder,
        archive: Path,
        progress: Progress | None,  # noqa: ARG002
    ) -> dict[str, Any]:
        """Start the supervisor, in a session of its own: closing the terminal does not reach it."""
        paths = RunPaths(run.path)
        argv = [sys.executable, "-c", _SUPERVISE, str(Path(__file__).parents[2]), str(run.path), str(archive)]
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
        """The end of a run whose supervisor is gone; its processes, if any are left, are ended first."""
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
        left = end_leftovers(run.path, ORPHANS_SECONDS)
        if left:
            reason += f"; {left} processes that were left have been ended"
        return [{"type": "ended", "time": now, "state": "failed", "reason": reason}]

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
        raise UsageError("a local run has no object of a cloud's SDK")


def _input_path(place: str, plan: Plan) -> str:
    return os.path.normpath(Path(plan.facts.folder) / Path(place).expanduser())


def _reap(process: subprocess.Popen[bytes]) -> None:
    """Leave the supervisor to itself: collect it when it ends while we still live, and do not wait for it."""

    def collect() -> None:
        with suppress(ChildProcessError):
            os.waitpid(process.pid, 0)

    threading.Thread(target=collect, daemon=True).start()
    process.returncode = 0
