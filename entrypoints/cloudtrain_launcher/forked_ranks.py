"""Forks of torchrun's ranks from a process that has imported torch. Standard library only.

If that is impossible, each rank is a new process, and the log gives the reason in one line.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cloudtrain_launcher.contract import PAYLOAD_DIR, Job
from cloudtrain_launcher.fork_rules import (
    read_source,
    reason_in_process,
    reason_in_source,
    uses_dynamo,
)
from cloudtrain_launcher.fork_server import ForkedProcess, ForkServer, ForkServerError

_TRAINER = (
    "cloudtrain_trainer.arguments",
    "cloudtrain_trainer.training.loop",
    "cloudtrain_trainer.training.memory",
)
"""Modules that every rank of the shared trainer imports."""
_DYNAMO = "torch._dynamo"
"""Module that every optimizer imports, as slow to import as torch itself."""


class ForkedRank:
    """Replacement for torchrun's `SubprocessHandler`: a process and a way to end it."""

    def __init__(self, process: ForkedProcess, local_rank_id: int) -> None:
        self.proc = process
        self.local_rank_id = local_rank_id

    def close(self, death_sig: signal.Signals | None = None) -> None:
        """Send a signal, by default SIGTERM, to the rank and its child processes."""
        os.killpg(self.proc.pid, death_sig or signal.SIGTERM)


def fork_server(job: Job) -> ForkServer | None:
    """Return a server that forks this job's ranks; None if they must be new processes.

    This process imports torch. Call it in the main thread, before other threads start: the server
    and its ranks end with that thread.
    """
    if not job.warm:
        return None
    folder = Path.cwd()
    programs = {"script": folder / job.target, "notebook": folder / job.target}
    programs["module"] = folder / f"{job.target.replace('.', os.sep)}.py"
    program = programs.get(job.kind)
    source = read_source(program or PAYLOAD_DIR / "train.py", folder)
    program_dirs = [
        program.parent if program and job.kind != "module" else folder,
        *([] if program else [PAYLOAD_DIR]),
    ]
    reason = reason_in_source(source, folder) or reason_in_process(program_dirs)
    if reason:
        _log(reason)
        return None
    modules: list[str] = [
        *([] if program else _TRAINER),
        *([_DYNAMO] if uses_dynamo(source) else []),
    ]
    try:
        return ForkServer(modules, program_dirs)
    except OSError as error:
        _log(str(error))
        return None


def start_as_forks(start: Callable[..., Any], server: ForkServer) -> Callable[..., Any]:
    """Wrap torchrun's function that starts a rank's process, to fork while the server can."""
    usable = True

    def fork_or_start(**options: Any) -> Any:
        nonlocal usable
        is_program = options["entrypoint"] == sys.executable
        if (
            usable
            and is_program
            and not any(options.get(name) for name in ("stdout", "stderr", "numa_options"))
        ):
            try:
                return ForkedRank(
                    server.start({**os.environ, **options["env"]}), options["local_rank_id"]
                )
            except ForkServerError as error:
                usable = False
                _log(str(error))
        return start(**options)

    return fork_or_start


def _log(reason: str) -> None:
    print(f"each rank imports torch by itself: {reason}", flush=True)
