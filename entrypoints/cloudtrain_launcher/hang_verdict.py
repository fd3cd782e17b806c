"""Which rank a job waits for, judged by what each of its ranks has done for a while. Standard
library only.

A rank waits if its stack, its CPU time, its reads and the wakeups of its main thread stand still.
Those of its other threads do not count: the ones of gloo, NCCL and of trackers wake up many times a
second in a job that hangs, too.
"""

from __future__ import annotations

import linecache
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from cloudtrain_launcher.contract import PAYLOAD_DIR
from cloudtrain_launcher.error_details import (
    MAX_CODE_CHARS,
    MAX_TRACEBACK_CHARS,
    display_path,
    is_user_code,
)
from cloudtrain_launcher.events import Error
from cloudtrain_launcher.processes import ProcessMoves
from cloudtrain_launcher.stacks import StackFrame, main_thread, program_lines

IDLE_CPU = 0.02
"""A rank that uses less of one core does nothing but wait."""

POLL_SECONDS = 5.0
"""How often a DataLoader and its workers wake up while they wait (torch's
MP_STATUS_CHECK_INTERVAL).
"""
SPARE_WAKEUPS = 1.5
"""Of a rank that waits, per wakeup that has a known cause; measured: 0.8 to 1.0."""
FEW_WAKEUPS = 3
"""More of them, which no cause is known of."""

_LOGGED_FRAMES = 12
"""Of each rank's stack."""
_DISTRIBUTED = "/torch/distributed/"
_BACKWARD = ("_engine_run_backward", "backward")
_LOADER = "/torch/utils/data/dataloader.py"
_DATA_PARALLEL = "/torch/nn/parallel/distributed.py"
_FROZEN = {
    "T": "is stopped (SIGSTOP)",
    "t": "is stopped by a debugger",
    "D": "waits in the kernel, as for a disk that does not answer",
}
"""States of a process that does not run, nor answer a signal."""
_ORDER = ("frozen", "blocked", "ended", "busy")
"""Who is to blame first."""
_CHILDREN = (
    "/multiprocessing/popen_",
    "/torch/multiprocessing/spawn.py",
    "/multiprocessing/connection.py",
)


class Sample(NamedTuple):
    """What was seen of a rank at one moment."""

    time: float
    """By `time.monotonic()`."""
    cpu_seconds: float
    """Used so far by the rank and by the processes that it started."""
    stack: str = ""
    """As faulthandler writes it; empty if the rank did not answer."""
    state: str = ""
    """Its process's, a letter of proc(5); empty if unknown."""
    moves: ProcessMoves | None = None
    """Those of the rank itself, before it was asked for its stack; None if unknown."""
    children: Mapping[int, ProcessMoves] = {}
    """Process id -> those of a process that it started."""


class RankActivity(NamedTuple):
    """What a rank has done for as long as nobody has heard of it."""

    rank: int
    kind: str
    """`collective`: it waits for its peers; `blocked`: for something else; `frozen`: its process
    does not run at all;
    `busy`: it computes; `ended`: it is gone.
    """
    call: str = ""
    """The collective, such as `all_reduce`."""
    file: str = ""
    """Of the innermost line of the program, below the working folder where it is; empty if unknown.
    """
    line: int = 0
    stack: str = ""
    state: str = ""
    """Its process's, a letter of proc(5); empty if unknown."""
    has_children: bool = False
    """Whether it waits for processes of its own."""

    @property
    def place(self) -> str:
        """`train.py:7`; empty if unknown."""
        return f"{self.file}:{self.line}" if self.file else ""


def activity(rank: int, samples: Sequence[Sample], folder: Path) -> RankActivity:
    """What a rank does, by at least two samples. `folder`: the job's working folder."""
    stacks = [main_thread(sample.stack) for sample in samples]
    frames = stacks[-1]
    at = next((frame for frame in frames if is_user_code(frame.file, folder, PAYLOAD_DIR)), None)
    at = at or next((frame for frame in frames if "/site-packages/" not in frame.file), None)
    seconds = max(1e-9, samples[-1].time - samples[0].time)
    is_idle = (samples[-1].cpu_seconds - samples[0].cpu_seconds) / seconds < IDLE_CPU
    is_still = all(stack == frames for stack in stacks)
    inner = frames[: frames.index(at)] if at in frames else frames
    call = _collective(inner)
    if not call and is_idle and any(frame.function in _BACKWARD for frame in inner):
        call = "backward"  # of DistributedDataParallel, whose all_reduce is in C++
    elif not call and is_idle and inner and inner[0].file.endswith(_DATA_PARALLEL):
        call = "forward"  # which broadcasts buffers, in C++ too
    kind = "busy"
    if _moves(samples, inner, in_collective=bool(call)):
        pass
    elif all(sample.state and sample.state in _FROZEN for sample in samples):
        kind = "frozen"
    elif is_still and (is_idle or call):
        kind = "collective" if call else "blocked"
    return RankActivity(
        rank,
        kind,
        call=call,
        file=display_path(at.file, folder) if at else "",
        line=at.line if at else 0,
        stack=samples[-1].stack.strip(),
        state=samples[-1].state,
        has_children=any(part in frame.file for frame in inner for part in _CHILDREN),
    )


def _moves(samples: Sequence[Sample], inner: Sequence[StackFrame], *, in_collective: bool) -> bool:
    """Whether a rank, or a process that it started, has woken up or read more than one does that
    waits.

    A rank in a collective waits for its peers alone: what its other threads and processes do does
    not matter.
    """
    first = samples[0]
    last = samples[-1]
    polls = (last.time - first.time) / POLL_SECONDS

    if first.moves and last.moves:
        expected = len(samples) - 1.0  # a request by signal wakes the rank once
        if any(frame.file.endswith(_LOADER) for frame in inner):
            expected += polls
        if last.moves.wakeups - first.moves.wakeups > SPARE_WAKEUPS * expected + FEW_WAKEUPS:
            return True
        if last.moves.bytes_read > first.moves.bytes_read and not in_collective:
            return True

    if in_collective:
        return False
    for pid, moves in last.children.items():
        before = first.children.get(pid, moves)
        if moves.bytes_read > before.bytes_read:
            return True
        if moves.wakeups - before.wakeups > SPARE_WAKEUPS * polls + FEW_WAKEUPS:
            return True
    return False


def verdict(
    ranks: Sequence[RankActivity], nodes: int
) -> tuple[RankActivity, list[RankActivity]] | None:
    """The rank that the others wait for, and those; None if none waits, or if the ranks may be
    computing.

    If all of this node's ranks wait at the same place, the one that is missing is on another node:
    then the first of them is returned, with itself among those that wait.
    """
    waiting = [rank for rank in ranks if rank.kind == "collective"]
    others = [rank for rank in ranks if rank.kind != "collective"]
    if not waiting:
        left = [rank for rank in ranks if rank.kind != "ended"]
        if not left or any(rank.kind == "busy" for rank in left):
            return None
        found = min(left, key=_blame)
        return found, [rank for rank in left if rank is not found]
    if others:
        return min(others, key=_blame), waiting
    places = Counter((rank.call, rank.file, rank.line) for rank in waiting)
    if len(places) == 1:
        return (
            (waiting[0], waiting) if nodes > 1 or len(waiting) == 1 else (waiting[0], waiting[1:])
        )
    # The fewest have gone another way; of equally many, those who are further on have left a
    # collective out.
    odd = min(waiting, key=lambda rank: (places[rank.call, rank.file, rank.line], -rank.line))
    return odd, [rank for rank in waiting if rank.place != odd.place or rank.call != odd.call]


def _blame(rank: RankActivity) -> tuple[int, int]:
    """What sorts the rank first that the others wait for."""
    return _ORDER.index(rank.kind), rank.rank


def describe(
    found: RankActivity, waiting: Sequence[RankActivity], silent_seconds: float, processes: int
) -> str:
    """The verdict as the rest of a sentence that begins with the rank."""
    silence = f"has given no sign of life for {duration(silent_seconds)}"
    where = f" at {found.place}" if found.place else ""
    if found in waiting:
        return f"{silence}: all ranks of its node wait in {found.call}{where} for another node"
    text = f"{silence}: it {_does(found)}{where}"
    peers = sorted({(peer.call, peer.place) for peer in waiting if peer.call})
    if peers:
        call, place = peers[0]
        who = (
            f"rank {waiting[0].rank} waits"
            if len(waiting) == 1
            else f"{len(waiting)} other ranks wait"
        )
        text += f", and {who} for it in {call}" + (f" at {place}" if place else "")
    if found.has_children and processes > 1:
        text += (
            ". It waits for processes that it has started itself: if those are the ranks, use"
            " processes: 1"
        )
    return text


def describe_wait(found: RankActivity, waiting: Sequence[RankActivity]) -> str:
    """What the node is doing meanwhile, as an `activity` event says it."""
    if found in waiting:
        return "waiting for another node"
    return f"waiting for rank {found.rank}, which {_does(found)}" + (
        f" at {found.place}" if found.place else ""
    )


def to_error(found: RankActivity, message: str, now: float, folder: Path) -> Error:
    """The verdict as an error of the rank. `now`: a Unix timestamp."""
    code = (
        linecache.getline(str(folder / found.file), found.line).strip()[:MAX_CODE_CHARS]
        if found.file
        else ""
    )
    error = Error(
        rank=found.rank,
        time=now,
        exception="Hang",
        message=message,
        stack=found.stack[:MAX_TRACEBACK_CHARS],
    )
    return error.replace(file=found.file, line=found.line, code=code) if found.file else error


def stack_lines(rank: RankActivity) -> list[str]:
    """For the log: what the rank does, and its stack below."""
    return [f"rank {rank.rank} {_does(rank)}:", *program_lines(rank.stack)[:_LOGGED_FRAMES]]


def duration(seconds: float) -> str:
    """`30 min`, or `45 s`."""
    return f"{seconds / 60:.0f} min" if seconds >= 120 else f"{seconds:.0f} s"


def _does(rank: RankActivity) -> str:
    if rank.kind == "frozen":
        return _FROZEN.get(rank.state, "does not run")
    return {
        "blocked": "is blocked",
        "collective": f"waits in {rank.call}",
        "ended": "has ended",
    }.get(rank.kind, "is busy")


def _collective(inner: Sequence[StackFrame]) -> str:
    """The function of torch.distributed that the program has called; empty if it is in none."""
    calls = [
        frame.function
        for frame in inner
        if _DISTRIBUTED in frame.file and frame.function != "wrapper"
    ]
    return calls[-1] if calls else ""
