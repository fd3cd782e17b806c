"""The processes of a run on this machine: which one is a rank or a node's launcher, and what they
have started.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from cloudtrain_launcher.events import Event, NodeStarted, RankEnded, RankStarted

LOADER_NAME = "pt_data_worker"
"""How torch names the worker processes of its DataLoader (torch.utils.data._utils.worker, since
torch 2.6).
"""

SIGNAL_SECONDS = 10.0
"""How long a stop may take on its way to the ranks."""
_POLL_SECONDS = 0.01


def rank_processes(events: Iterable[Event]) -> dict[int, int]:
    """The process of each rank whose program runs, by its latest start that is among the events."""
    found: dict[int, int] = {}
    for event in events:
        if isinstance(event, RankStarted) and event.pid:
            found[event.rank] = event.pid
        elif isinstance(event, RankEnded):
            found.pop(event.rank, None)
    return found


def launchers(events: Iterable[Event]) -> dict[int, int]:
    """The launcher of each node."""
    return {
        event.node: event.pid for event in events if isinstance(event, NodeStarted) and event.pid
    }


def with_descendants(process: int) -> list[int]:
    """A process and all that it has started, and those have, parents first; what has ended is left
    out.
    """
    found = []
    left = [process]
    while left:
        current = left.pop()
        found.append(current)
        for task in Path(f"/proc/{current}/task").glob("*/children"):
            with suppress(OSError):
                left += map(int, task.read_text().split())
    return [each for each in found if Path(f"/proc/{each}").exists()]


def loader_workers(rank: int) -> list[int]:
    """The worker processes of the DataLoaders of a rank, by its process."""
    return [each for each in with_descendants(rank)[1:] if _name(each) == LOADER_NAME]


def send(signum: signal.Signals, processes: Iterable[int]) -> None:
    """Send a signal to processes; those that are gone are left out."""
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process, signum)


def kill_at_once(processes: Iterable[int]) -> None:
    """SIGKILL all of these as if their machine had failed: none of them sees another one end."""
    found = list(processes)
    send(signal.SIGSTOP, found)
    send(signal.SIGKILL, found)


def await_pending(signum: signal.Signals, processes: Iterable[int]) -> None:
    """Wait until a signal has reached stopped processes, where it is pending (proc(5), ShdPnd); or
    they have ended.
    """
    deadline = time.monotonic() + SIGNAL_SECONDS
    left = list(processes)
    while left and time.monotonic() < deadline:
        left = [process for process in left if _lacks(process, signum)]
        time.sleep(_POLL_SECONDS)


def _lacks(process: int, signum: signal.Signals) -> bool:
    try:
        lines = Path(f"/proc/{process}/status").read_text(errors="replace").splitlines()
    except OSError:
        return False
    words = dict(line.split(":", 1) for line in lines if ":" in line)
    pending = int(words["SigPnd"], 16) | int(words["ShdPnd"], 16)
    return not words["State"].strip().startswith("Z") and not pending >> (signum - 1) & 1


def _name(process: int) -> str:
    try:
        return Path(f"/proc/{process}/comm").read_text(errors="replace").strip()
    except OSError:
        return ""
