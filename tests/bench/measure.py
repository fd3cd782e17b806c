"""Shared by benchmarks: the cost of a command with its child processes, a place to run it in, the
paired ratios of two things measured in turn, as a table and as JSON, and counts of instructions.

Importing it makes this process a subreaper: a process that outlives its parent becomes our child,
so that its CPU time is counted here when it ends, and a benchmark leaves no process behind.
"""

from __future__ import annotations

import argparse
import atexit
import ctypes
import json
import os
import re
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36
BIN = Path(sys.executable).parent
"""Folder of the console scripts of this Python."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Costs of one call in seconds. CPU: user and system time of the whole tree of processes."""

    wall: float
    cpu: float


def cost(argv: Sequence[str | Path], env: Mapping[str, str], cwd: Path, limit: float = 300) -> Cost:
    """Run a command to its end; raise RuntimeError on failure. CPU includes every process that it
    started.
    """
    with tempfile.TemporaryFile() as output:
        before = _children_cpu()
        start = time.perf_counter()
        process = subprocess.Popen(
            argv, env=env, cwd=cwd, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )
        watch = threading.Timer(limit, end_all)  # `wait(limit)` would look only every 50 ms
        watch.start()
        code = process.wait()
        wall = time.perf_counter() - start
        watch.cancel()
        reap_all(limit)
        cpu = _children_cpu() - before
        if code != 0:
            output.seek(0)
            raise RuntimeError(
                f"{argv} exited with code {code}: {output.read().decode(errors='replace')[-2000:]}"
            )
    return Cost(wall, cpu)


def reap_all(limit: float) -> None:
    """Wait for every process that is ours by now; TimeoutError after `limit` seconds."""
    deadline = time.monotonic() + limit
    with suppress(ChildProcessError):
        while True:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                if time.monotonic() > deadline:
                    raise TimeoutError("processes were left running")
                time.sleep(0.005)


def end_all() -> None:
    """Kill and collect every process that descends from this one."""
    while children := descendants():
        for pid in children:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        with suppress(TimeoutError):
            reap_all(0.2)


@contextmanager
def workplace() -> Iterator[tuple[Path, dict[str, str]]]:
    """Provide a scratch folder, and an environment that stores everything there and caches bytecode
    as usual.
    """
    with tempfile.TemporaryDirectory(prefix="cloudtrain-bench-") as scratch:
        place = Path(scratch).resolve()
        dropped = ("PYTHON", "CLOUDTRAIN_", "PET_", "TORCH", "OMP_", "XDG_")
        env = {key: value for key, value in os.environ.items() if not key.startswith(dropped)}
        env |= {
            "HOME": str(place),
            "CLOUDTRAIN_DATA_DIR": str(place / "data"),
            "PATH": f"{BIN}:{env['PATH']}",
        }
        try:
            yield place, env
        finally:
            end_all()


def _children_cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def cpu_until_now() -> float:
    """Return the CPU seconds of all processes that descend from this one, ended ones included."""
    total = _children_cpu()
    for pid in descendants():
        with suppress(OSError):
            stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            total += sum(map(int, stat[11:15])) / os.sysconf("SC_CLK_TCK")

    return total


def descendants() -> list[int]:
    """Return the processes that descend from this one."""
    parents: dict[int, int] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(OSError):
                parents[int(folder.name)] = int(
                    (folder / "stat").read_text().rpartition(")")[2].split()[1]
                )
    processes = {os.getpid()}
    while new := {
        pid for pid, parent in parents.items() if parent in processes and pid not in processes
    }:
        processes |= new
    return sorted(processes - {os.getpid()})


if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
    raise OSError(ctypes.get_errno(), "this process cannot become a subreaper; Linux is needed")
atexit.register(end_all)
# So that what was started is ended then, too.
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))


@dataclass
class Comparison:
    """The rounds of one row: ours and the reference's, pair by pair."""

    what: str
    reference: str
    bars: Mapping[str, float | None]
    """The bar for the ratio, by `wall` and `cpu`; None where it is only shown."""
    ours: list[Cost] = field(default_factory=list)
    theirs: list[Cost] = field(default_factory=list)
    notes: dict[str, str] = field(default_factory=dict)

    def ratios(self, kind: str) -> list[float]:
        """Ours divided by the reference of the same round."""
        return [
            getattr(a, kind) / getattr(b, kind) for a, b in zip(self.ours, self.theirs, strict=True)
        ]

    def to_json(self) -> dict[str, object]:
        """The figures, for a file."""
        figures: dict[str, object] = {
            "what": self.what,
            "reference": self.reference,
            "rounds": len(self.ours),
        }
        for kind in self.bars if self.ours else ():
            low, middle, high = quartiles(self.ratios(kind))
            figures[kind] = {
                "ratio": middle,
                "quartiles": [low, high],
                "ours_seconds": statistics.median(getattr(cost, kind) for cost in self.ours),
                "reference_seconds": statistics.median(getattr(cost, kind) for cost in self.theirs),
                "bar": self.bars[kind],
                "met": self._is_met(kind, middle),
            }
        return {**figures, **self.notes}

    def row(self) -> str:
        """One row of the table."""
        if not self.ours:
            return f"| {self.what} | {self.reference} | no pair of rounds | | {self._notes()} |"
        cells = []
        for kind in ("wall", "cpu"):
            if kind not in self.bars:
                cells.append("not measured")
                continue
            low, middle, high = quartiles(self.ratios(kind))
            product, reference = (
                statistics.median(getattr(c, kind) for c in costs)
                for costs in (self.ours, self.theirs)
            )
            bar = self.bars[kind]
            verdict = "met" if self._is_met(kind, middle) else "missed"
            shown = "" if bar is None else f", bar {bar:.2f} {verdict}"
            cells.append(
                f"{middle:.2f} [{low:.2f}-{high:.2f}]{shown} ({product:.3f}/{reference:.3f} s)"
            )
        return f"| {self.what} | {self.reference} | {cells[0]} | {cells[1]} | {self._notes()} |"

    def _is_met(self, kind: str, ratio: float) -> bool | None:
        bar = self.bars[kind]
        return None if bar is None else ratio <= bar

    def _notes(self) -> str:
        return ", ".join(
            [f"{len(self.ours)} rounds", *(f"{key} {value}" for key, value in self.notes.items())]
        )


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Lower quartile, median, upper quartile."""
    if len(values) < 2:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def compare(
    comparison: Comparison,
    ours: Callable[[], Cost],
    theirs: Callable[[], Cost],
    rounds: int,
    warm_ups: int = 2,
) -> Comparison:
    """Fill a comparison: rounds of both, the first one changing; the warm-ups are thrown away."""
    for number in range(-warm_ups, rounds):
        first_is_ours = number % 2 == 0
        first = (ours if first_is_ours else theirs)()
        second = (theirs if first_is_ours else ours)()
        if number >= 0:
            comparison.ours.append(first if first_is_ours else second)
            comparison.theirs.append(second if first_is_ours else first)
    return comparison


def options(rounds: int) -> argparse.Namespace:
    """The options of every benchmark."""
    parser = argparse.ArgumentParser(description=sys.modules["__main__"].__doc__)
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument(
        "--count", action="store_true", help="count instructions instead, and fail above a limit"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    return parser.parse_args()


def report(comparisons: Sequence[Comparison], file: Path | None) -> None:
    """Print the rows; write the figures. A missed bar is reported without an error."""
    print("| what | against | wall | CPU | |\n|---|---|---|---|---|")
    for comparison in comparisons:
        print(comparison.row())
    if file:
        file.write_text(json.dumps([c.to_json() for c in comparisons], indent=2) + "\n")


@dataclass(frozen=True)
class Counted:
    """A row of instructions: ours divided by the reference's."""

    what: str
    ours: tuple[str | Path, ...]
    theirs: tuple[str | Path, ...]
    """Arguments of Python."""
    limit: float
    """Ratio that fails: what is reached today, and a margin."""
    bar: float
    """Ratio to reach."""


def count(rows: Sequence[Counted], env: Mapping[str, str], cwd: Path) -> int:
    """Print the rows; return 1 if a limit is passed. Without valgrind nothing is counted."""
    if shutil.which("valgrind") is None:
        print("instructions are not counted: valgrind is not installed")
        return 0

    commands = {row.ours for row in rows} | {row.theirs for row in rows}
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        results = pool.map(lambda command: _instructions(command, env, cwd), commands)
        millions = dict(zip(commands, results, strict=True))

    code = 0
    for row in rows:
        ratio = millions[row.ours] / millions[row.theirs]
        verdict = "met" if ratio <= row.limit else "exceeded"
        code |= ratio > row.limit
        print(
            f"{row.what}: {millions[row.ours]:.0f}/{millions[row.theirs]:.0f} M instructions,"
            f" {ratio:.2f}; limit {row.limit:.2f} {verdict}, bar {row.bar:.2f}"
        )

    return code


def _instructions(command: Sequence[str | Path], env: Mapping[str, str], cwd: Path) -> float:
    """Return millions of instructions of a Python command, without its child processes."""
    env = {**env, "PYTHONHASHSEED": "0"}
    tool = ["valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null"]
    for first in ([], tool):  # bytecode and indexes are written before
        run = subprocess.run(
            [*first, sys.executable, *command],
            env=env,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if run.returncode != 0:
            raise RuntimeError(f"{command} exited with code {run.returncode}: {run.stderr[-2000:]}")

    counts = re.findall(r"I\s+refs:\s+([0-9,]+)", run.stderr)
    return max(int(text.replace(",", "")) for text in counts) / 1e6
