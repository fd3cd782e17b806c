"""Find the rank that a job waits for, from samples of each rank. Standard library only.

A rank waits if its stack, its CPU time, its reads and the wakeups of its main thread stand still.
Its other threads do not count: the threads of gloo, NCCL and of trackers wake up many times a
second in a job that hangs, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from cloudtrain_launcher.contract import PAYLOAD_DIR
from cloudtrain_launcher.error_details import (
    MAX_TRACEBACK_CHARS,
    at_line,
    display_path,
    is_user_code,
)
from cloudtrain_launcher.stacks import StackFrame, main_thread
from cloudtrain_wire.events import Error
from cloudtrain_wire.processes import ProcessMoves

IDLE_CPU = 0.02
"""A rank that uses less than this share of one core only waits, unless it is ready to run."""
ANSWER_CPU_SECONDS = 0.02
"""Maximum CPU time of a rank that writes its stack; measured: 1 to 5 ms."""

POLL_SECONDS = 5.0
"""Seconds between wakeups of a waiting DataLoader.

torch's MP_STATUS_CHECK_INTERVAL.
"""
SPARE_WAKEUPS = 1.5
"""Maximum wakeups of a waiting rank per wakeup with a known cause; measured: 0.8 to 1.0."""
FEW_WAKEUPS = 3
"""Maximum further wakeups, without a known cause."""

_LOGGED_FRAMES = 12
"""Maximum logged frames of each rank's stack."""
_DISTRIBUTED = "/torch/distributed/"
_BACKWARD = ("_engine_run_backward", "backward")
_LOADER = "/torch/utils/data/dataloader.py"
_DATA_PARALLEL = "/torch/nn/parallel/distributed.py"
_FROZEN = {
    "T": "is stopped (SIGSTOP)",
    "t": "is stopped by a debugger",
    "D": "waits in the kernel, as for a disk that does not answer",
}
"""States of a process that neither runs nor answers a signal."""
_ORDER = ("frozen", "blocked", "ended", "busy")
"""Order of blame."""
_CHILDREN = (
    "/multiprocessing/popen_",
    "/torch/multiprocessing/spawn.py",
    "/multiprocessing/connection.py",
)


class Sample(NamedTuple):
    """Measurements of a rank at one moment."""

    time: float
    """Time by `time.monotonic()`."""
    cpu_seconds: float
    """CPU time of the rank and the processes that it started."""
    stack: str = ""
    """Stack as faulthandler writes it; empty if the rank did not answer."""
    state: str = ""
    """State of its process, a letter of proc(5); empty if unknown."""
    moves: ProcessMoves | None = None
    """Moves of the rank, before the request for its stack; None if unknown."""


class RankActivity(NamedTuple):
    """Activity of a rank during its silence."""

    rank: int
    kind: str
    """`collective`, `blocked`, `frozen`, `busy` or `ended`.

    `collective`: it waits for its peers; `blocked`: for something else; `frozen`: its process does
    not run; `busy`: it computes; `ended`: its process is gone.
    """
    call: str = ""
    """The collective, such as `all_reduce`."""
    file: str = ""
    """File of the program's innermost line, relative to the working folder if inside.

    Empty if unknown.
    """
    line: int = 0
    stack: str = ""
    state: str = ""
    """State of its process, a letter of proc(5); empty if unknown."""
    has_children: bool = False
    """True if it waits for processes that it started."""

    @property
    def place(self) -> str:
        """Return `train.py:7`; empty if unknown."""
        if not self.file:
            return ""

        return f"{self.file}:{self.line}"


def activity(rank: int, samples: Sequence[Sample], folder: Path) -> RankActivity:
    """Return the activity of a rank, from at least two samples.

    `folder`: the job's working folder.
    """
    stacks = [main_thread(sample.stack) for sample in samples]
    frames = stacks[-1]
    in_files = [frame for frame in frames if not frame.file.startswith("<")]
    at = next((frame for frame in frames if is_user_code(frame.file, folder, PAYLOAD_DIR)), None)
    at = at or next((frame for frame in in_files if "/site-packages/" not in frame.file), None)
    at = at or next(iter(in_files), None)
    seconds = max(1e-9, samples[-1].time - samples[0].time)
    cpu_seconds = samples[-1].cpu_seconds - samples[0].cpu_seconds
    # A busy machine gives a computing rank little CPU time; it is ready to run nonetheless.
    is_ready = 2 * sum(sample.state == "R" for sample in samples) > len(samples)
    most_idle = IDLE_CPU * seconds + ANSWER_CPU_SECONDS * (len(samples) - 1)
    is_idle = cpu_seconds < most_idle and not is_ready
    is_still = all(stack == frames for stack in stacks)
    if at in frames:
        inner = frames[: frames.index(at)]
    else:
        inner = frames

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
    """Return whether a rank woke up or read more than a waiting one does.

    Reads of a rank in a collective do not matter: it waits for its peers alone.
    """
    first = samples[0].moves
    last = samples[-1].moves
    if first is None or last is None:
        return False

    expected = len(samples) - 1.0  # a request by signal wakes the rank once
    if any(frame.file.endswith(_LOADER) for frame in inner):
        expected += (samples[-1].time - samples[0].time) / POLL_SECONDS
    if last.wakeups - first.wakeups > SPARE_WAKEUPS * expected + FEW_WAKEUPS:
        return True

    return last.bytes_read > first.bytes_read and not in_collective


def verdict(
    ranks: Sequence[RankActivity], nodes: int
) -> tuple[RankActivity, list[RankActivity]] | None:
    """Return (rank that the others wait for, the others); None if ranks may be computing.

    If all of this node's ranks wait at the same place, the missing rank is on another node: then
    the first of them is returned, with itself among the waiting ranks.
    """
    waiting = [rank for rank in ranks if rank.kind == "collective"]
    not_waiting = [rank for rank in ranks if rank.kind != "collective"]

    if not waiting:
        running = [rank for rank in ranks if rank.kind != "ended"]
        if not running or any(rank.kind == "busy" for rank in running):
            return None

        blamed = min(running, key=_blame)
        return blamed, [rank for rank in running if rank is not blamed]

    if not_waiting:
        return min(not_waiting, key=_blame), waiting

    places = Counter((rank.call, rank.file, rank.line) for rank in waiting)
    if len(places) == 1:
        is_elsewhere = nodes > 1 or len(waiting) == 1
        return waiting[0], waiting if is_elsewhere else waiting[1:]

    # The smallest group went another way; of equal groups, the one that is further on has left a
    # collective out.
    odd = min(waiting, key=lambda rank: (places[rank.call, rank.file, rank.line], -rank.line))

    return odd, [rank for rank in waiting if rank.place != odd.place or rank.call != odd.call]


def _blame(rank: RankActivity) -> tuple[int, int]:
    """Return a sort key that puts the rank to blame first."""
    return _ORDER.index(rank.kind), rank.rank


def describe(
    blamed: RankActivity, waiting: Sequence[RankActivity], silent_seconds: float, processes: int
) -> str:
    """Return the verdict as the rest of a sentence that begins with the rank."""
    silence = f"has given no sign of life for {duration(silent_seconds)}"
    where = ""
    if blamed.place:
        where = f" at {blamed.place}"

    if blamed in waiting:
        return f"{silence}: all ranks of its node wait in {blamed.call}{where} for another node"

    text = f"{silence}: it {_does(blamed)}{where}"
    peers = sorted({(peer.call, peer.place) for peer in waiting if peer.call})

    if peers:
        call, place = peers[0]
        if len(waiting) == 1:
            who = f"rank {waiting[0].rank} waits"
        else:
            who = f"{len(waiting)} other ranks wait"

        text += f", and {who} for it in {call}" + (f" at {place}" if place else "")

    if blamed.has_children and processes > 1:
        text += (
            ". It waits for processes that it has started itself: if those are the ranks, use"
            " processes: 1"
        )

    return text


def describe_wait(blamed: RankActivity, waiting: Sequence[RankActivity]) -> str:
    """Return the node's activity for an `activity` event."""
    if blamed in waiting:
        return "waiting for another node"

    text = f"rank {blamed.rank}"
    if any(peer.call for peer in waiting):
        text = f"waiting for {text}, which"

    return f"{text} {_does(blamed)}" + (f" at {blamed.place}" if blamed.place else "")


def to_error(blamed: RankActivity, message: str, time_now: float, folder: Path) -> Error:
    """Return the verdict as an error of the rank. `time_now`: a Unix timestamp."""
    error = Error(
        rank=blamed.rank,
        time=time_now,
        exception="Hang",
        message=message,
        stack=blamed.stack[:MAX_TRACEBACK_CHARS],
    )
    if not blamed.file:
        return error

    return at_line(error, blamed.file, blamed.line, folder)


def stack_lines(rank: RankActivity) -> list[str]:
    """Return lines for the log: the rank's activity, and its stack below."""
    frames = main_thread(rank.stack)[:_LOGGED_FRAMES]
    return [
        f"rank {rank.rank} {_does(rank)}:",
        *(f'  File "{frame.file}", line {frame.line} in {frame.function}' for frame in frames),
    ]


def duration(seconds: float) -> str:
    """Format seconds: `30 min`, or `45 s`."""
    if seconds >= 120:
        return f"{seconds / 60:.0f} min"

    return f"{seconds:.0f} s"


def _does(rank: RankActivity) -> str:
    if rank.kind == "frozen":
        return _FROZEN.get(rank.state, "does not run")

    return {
        "blocked": "is blocked",
        "collective": f"waits in {rank.call}",
        "ended": "has ended",
    }.get(rank.kind, "is busy")


def _collective(inner: Sequence[StackFrame]) -> str:
    """Return the function of torch.distributed that the program has called, or ""."""
    calls = [
        frame.function
        for frame in inner
        if _DISTRIBUTED in frame.file and frame.function != "wrapper"
    ]
    if not calls:
        return ""

    return calls[-1]
