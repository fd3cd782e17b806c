"""Processes of a run on this machine: ranks, launchers and their descendants."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from cloudtrain_launcher.events import Event, NodeStarted, RankEnded, RankStarted

LOADER_NAME = "pt_data_worker"
"""Name of torch's DataLoader workers (torch.utils.data._utils.worker, since torch 2.6)."""

SIGNAL_SECONDS = 10.0
"""Maximum seconds for a stop to reach the ranks."""
_POLL_SECONDS = 0.01


def rank_processes(events: Iterable[Event]) -> dict[int, int]:
    """Return the current process of each running rank, from its events."""
    processes: dict[int, int] = {}
    for event in events:
        if isinstance(event, RankStarted) and event.pid:
            processes[event.rank] = event.pid
        elif isinstance(event, RankEnded):
            processes.pop(event.rank, None)
    return processes


def launchers(events: Iterable[Event]) -> dict[int, int]:
    """Return the launcher process of each node."""
    return {
        event.node: event.pid for event in events if isinstance(event, NodeStarted) and event.pid
    }


def with_descendants(process: int) -> list[int]:
    """Return a process and its living descendants, parents first."""
    tree = []
    unvisited = [process]
    while unvisited:
        current = unvisited.pop()
        tree.append(current)
        for task in Path(f"/proc/{current}/task").glob("*/children"):
            with suppress(OSError):
                unvisited += map(int, task.read_text().split())
    return [member for member in tree if Path(f"/proc/{member}").exists()]


def loader_workers(rank: int) -> list[int]:
    """Return the DataLoader workers of a rank's process."""
    return [member for member in with_descendants(rank)[1:] if _name(member) == LOADER_NAME]


def send(signum: signal.Signals, processes: Iterable[int]) -> None:
    """Send a signal to processes that still exist."""
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process, signum)


def kill_at_once(processes: Iterable[int]) -> None:
    """Kill processes as if their machine had failed: none sees another one end."""
    victims = list(processes)
    send(signal.SIGSTOP, victims)
    send(signal.SIGKILL, victims)


def await_pending(signum: signal.Signals, processes: Iterable[int]) -> None:
    """Wait until a signal is pending in stopped processes (proc(5), ShdPnd) or they have ended."""
    deadline = time.monotonic() + SIGNAL_SECONDS
    waiting = list(processes)
    while waiting and time.monotonic() < deadline:
        waiting = [process for process in waiting if _lacks(process, signum)]
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
