"""Causes faults in a job on this machine (Linux), one after the other: which of them does it survive?

    python examples/drill/drill.py job.yaml --set args.epochs=1
    python examples/drill/drill.py job.yaml --only rank-killed,stopped --as aws

The job runs once undisturbed, then once for each fault, and again if that run does not succeed. A
job that is ready ends each time with the parameters of the undisturbed run, or names the fault.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import cloudtrain
from cloudtrain.runs.state import RunState, explain
from cloudtrain_wire.events import Event, Metrics, NodeStarted, Progress, RankStarted, Resumed
from cloudtrain_wire.processes import ProcessTree

FILE_LIMIT_BYTES = 64
"""Maximum size of any file on a full disk: programs get EFBIG, not ENOSPC."""
LOADER_NAME = "pt_data_worker"
"""Name of the processes of torch's DataLoader, since torch 2.6."""


class Watched:
    """A run that is watched, with its events so far."""

    def __init__(self, run: cloudtrain.Run) -> None:
        self.run = run
        self.state = run.cached_status()
        self.events: list[Event] = []
        self._updates = run.watch()

    def until(self, seconds: float, is_ready: Callable[[], bool] = lambda: False) -> bool:
        """Watch until `is_ready`. Return False at the end of the run, or after these seconds."""
        deadline = time.monotonic() + seconds
        for update in self._updates:
            self.state = update.state
            self.events += update.events
            if self.state.has_ended:
                continue  # more events may follow
            if is_ready() or time.monotonic() > deadline:
                return is_ready()

        return False

    def until_end(self, seconds: float = float("inf")) -> bool:
        """Watch until the end. Return False if the run had to be stopped after these seconds."""
        try:
            self.until(seconds)
            return self.state.has_ended
        finally:
            self.run.stop()

    def ranks(self) -> dict[int, int]:
        """Return the process of each rank."""
        started = (event for event in self.events if isinstance(event, RankStarted))
        return {event.rank: event.pid for event in started if event.pid}

    def nodes(self) -> dict[int, list[int]]:
        """Return the processes of each node."""
        tree = ProcessTree()
        nodes = {}
        for event in self.events:
            if isinstance(event, NodeStarted) and event.pid:
                nodes[event.node] = [event.pid, *tree.descendants(event.pid)]

        return nodes

    def steps(self, begin: int = 0) -> list[float]:
        """Return the reported steps, from an event on."""
        steps = []
        for event in self.events[begin:]:
            if isinstance(event, Metrics | Progress | Resumed) and event.step is not None:
                steps.append(event.step)

        return steps

    def files(self, folder: str) -> list[Path]:
        """Return the files of its `model` or `checkpoints`, the last changed ones first."""
        files = (path for path in (self.run.folder.path / folder).rglob("*") if path.is_file())
        return sorted(files, key=lambda path: -path.stat().st_mtime_ns)


def send(signum: signal.Signals, processes: Sequence[int]) -> None:
    """Send a signal to processes."""
    for process in processes:
        os.kill(process, signum)


def kill_rank(watched: Watched) -> None:
    """Kill the last rank."""
    _, process = max(watched.ranks().items())
    send(signal.SIGKILL, [process])


def lose_node(watched: Watched) -> None:
    """Kill all processes of the last node; none sees another one end."""
    _, processes = max(watched.nodes().items())
    send(signal.SIGSTOP, processes)
    send(signal.SIGKILL, processes)


def stop(watched: Watched) -> None:
    """Stop the run as a cloud does that takes its machines back."""
    watched.run.request_stop(watched.state)


def fill_disk(watched: Watched) -> None:
    """Let no file of the job grow any more."""
    for processes in watched.nodes().values():
        for process in processes:
            _, hard = resource.prlimit(process, resource.RLIMIT_FSIZE)
            resource.prlimit(process, resource.RLIMIT_FSIZE, (FILE_LIMIT_BYTES, hard))


def stall_loader(watched: Watched) -> None:
    """Stop the loader's processes of the last rank, or the rank if it has none."""
    _, rank = max(watched.ranks().items())
    below = ProcessTree().descendants(rank)
    loaders = [each for each in below if Path(f"/proc/{each}/comm").read_text()[:-1] == LOADER_NAME]
    send(signal.SIGSTOP, loaders or [rank])


FAULTS: dict[str, Callable[[Watched], None]] = {
    "rank-killed": kill_rank,
    "node-lost": lose_node,
    "stopped": stop,
    "disk-full": fill_disk,
    "checkpoint-torn": stop,  # and half of the newest checkpoint is cut off
    "loader-stalled": stall_loader,
}


def drill(name: str, undisturbed: Watched, overrides: Sequence[str]) -> tuple[str, bool]:
    """Cause a fault in the middle of the job. Return what happened, and whether that is fine."""
    seconds = undisturbed.state.seconds(0)
    patience = 4 * seconds + 120
    middle = max(undisturbed.steps(), default=0.0) / 2
    if name == "loader-stalled":
        overrides = [*overrides, "limits.hang=20 s"]

    watched = Watched(undisturbed.run.rerun(overrides, fresh=True))
    state = watched.state

    def is_time() -> bool:
        if len(watched.ranks()) < state.nodes * state.processes:
            return False
        if middle:
            return max(watched.steps(), default=0.0) >= middle

        return state.seconds(time.time()) >= seconds / 2

    try:
        is_half_done = watched.until(patience, is_time)
        reached = max(watched.steps(), default=0.0)
        begin = len(watched.events)
        if is_half_done:
            FAULTS[name](watched)
    except ProcessLookupError:
        is_half_done = False
    finally:
        has_noticed = watched.until_end(patience)

    if not is_half_done:
        return "it ended before the fault: take a longer job", False
    if not has_noticed:
        return "it did not notice: limits.hang ends a job that waits", False

    torn = watched.files("checkpoints")
    if name == "checkpoint-torn" and torn:
        os.truncate(torn[0], torn[0].stat().st_size // 2)

    steps = watched.steps(begin)
    how = f"restarts in place: {state.restarts}"
    if state.state != "succeeded":
        how = f"it {state.state}, and was run again"
        watched = Watched(watched.run.rerun())
        watched.until_end(patience)
        steps = watched.steps()

    if watched.state.state != "succeeded":
        cause = watched.state.error
        is_named = cause is not None and not cause.consequence
        return f"not recovered: {explain(watched.state)}", is_named

    again = max(0.0, reached - min(steps, default=reached))
    is_same = result_of(watched) == result_of(undisturbed)
    other = "" if is_same else "; the result differs from the undisturbed run's"
    return f"recovered; {how}; reported steps that ran twice: {again:g}{other}", is_same


def result_of(watched: Watched) -> object:
    """Return what a run has learnt: its parameters, the files of its model, or its metrics."""
    state: RunState = watched.state
    if state.result and state.result.parameters_sha256:
        return state.result.parameters_sha256

    digests = {}
    for path in watched.files("model"):
        name = path.relative_to(watched.run.folder.path)
        digests[name] = hashlib.sha256(path.read_bytes()).hexdigest()

    return digests or repr(sorted(state.metrics.items()))


def main() -> int:
    """Drill a job; return 0 if it recovers from every fault, or names it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("job", nargs="?", default="job.yaml")
    parser.add_argument("--as", dest="as_", help="apply the rules of a cloud: aws or azure")
    parser.add_argument(
        "--only", default=",".join(FAULTS), help="faults, such as rank-killed,stopped"
    )
    parser.add_argument("--set", action="append", default=[], help="change a field of the job")
    parser.add_argument(
        "--data-dir", default=tempfile.gettempdir() + "/drills", help="folder of the runs"
    )
    flags = parser.parse_args()
    job = cloudtrain.load(flags.job, [*flags.set, "checkpoints.uri=null"])  # no bucket is written
    plan = cloudtrain.plan(job, "local", as_=flags.as_, data_dir=flags.data_dir)
    undisturbed = Watched(cloudtrain.submit(plan))
    undisturbed.until_end()
    undisturbed.run.result()
    overrides = []
    if job.spec.entrypoint is None:  # the trainer saves often enough for half of a short job
        overrides = [f"args.checkpoint-every-steps={int(max(undisturbed.steps()) // 8) or 1}"]

    print(f"{undisturbed.run.id}: undisturbed in {undisturbed.state.seconds(0):.0f} s", flush=True)
    is_ready = True
    for name in flags.only.split(","):
        text, is_fine = drill(name, undisturbed, overrides)
        is_ready &= is_fine
        print(f"{name:<16} {text}", flush=True)

    print(f"its runs: cloudtrain --data-dir {flags.data_dir} list")
    return not is_ready


if __name__ == "__main__":
    sys.exit(main())
