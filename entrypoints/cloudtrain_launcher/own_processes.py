"""Warning about a program that starts ranks itself, below a job's ranks. Standard library only.

The guide to Keras with torch does so, and other programs written without torchrun. Each rank then
starts a whole group, whose processes wait for torchrun's store at a port without a server.
"""

from __future__ import annotations

import functools
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cloudtrain_launcher.contract import PAYLOAD_DIR
from cloudtrain_launcher.error_details import display_path, is_user_code
from cloudtrain_launcher.import_hooks import when_imported

_SPAWN = "torch.multiprocessing.spawn"


def warn_of_own_ranks(warn: Callable[[str], None]) -> None:
    """Call `warn` if this process, the first of several ranks, starts torch processes."""
    rank_pid = os.getpid()
    ranks = int(os.environ["WORLD_SIZE"])
    if ranks == 1 or os.environ["RANK"] != "0":
        return

    def change(module: Any) -> None:
        start = module.start_processes
        wrapped = _after_warning(start, ranks, rank_pid, warn)
        for owner in (module, sys.modules.get("torch.multiprocessing")):
            if getattr(owner, "start_processes", None) is start:
                setattr(owner, "start_processes", wrapped)  # noqa: B010  (mypy knows no such attribute)

    when_imported(_SPAWN, change)


def _after_warning(
    start: Callable[..., Any], ranks: int, rank_pid: int, warn: Callable[[str], None]
) -> Callable[..., Any]:
    """Wrap `start_processes` to warn before the first processes start."""
    warned = False

    @functools.wraps(start)
    def start_processes(*args: Any, **kwargs: Any) -> Any:
        nonlocal warned
        if not warned and os.getpid() == rank_pid:
            warned = True
            warn(_sentence(ranks))
        return start(*args, **kwargs)

    return start_processes


def _sentence(ranks: int) -> str:
    folder = Path.cwd()
    frames = traceback.extract_stack()
    calls = [frame for frame in frames if is_user_code(frame.filename, folder, PAYLOAD_DIR)]
    place = f"{display_path(calls[-1].filename, folder)}:{calls[-1].lineno}: " if calls else ""
    return (
        f"{place}starts processes with torch.multiprocessing in each of the job's {ranks} ranks. "
        "If those are to be the ranks, they never meet: set resources.processes to 1, "
        "or leave out start_processes, since the job starts one process per rank"
    )
