"""Containers of an imitated cloud: processes with their children, and the threads of jobs."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, ClassVar, Protocol, TypeVar

from cloudtrain.providers.local.processes import RUN_DIR_VARIABLE, end_orphans
from tests.support.forked_command import ForkedCommand, command_server
from tests.support.waiting import HANG_SECONDS

# The threads of an imitated cloud's jobs, one each.


class Wakeable(Protocol):
    """A job that waits for this between its phases."""

    name: str
    woken: threading.Event


class JobThreads:
    """`closing`: what every job looks at when it is woken; once it is set, it ends by force."""

    def __init__(self, closing: threading.Event) -> None:
        self._closing = closing
        self._lock = threading.Lock()
        self._started: list[tuple[Wakeable, threading.Thread]] = []

    def start(self, job: Wakeable, live: Callable[[], None]) -> None:
        """Begin the life of a job."""
        thread = threading.Thread(target=live, name=f"loopback-{job.name}", daemon=True)
        with self._lock:
            self._started.append((job, thread))
            thread.start()

    def close(self) -> None:
        """End all jobs by force, and wait until each has ended."""
        self._closing.set()
        with self._lock:
            started = list(self._started)
        for job, _ in started:
            job.woken.set()
        for _, thread in started:
            thread.join()


POLL_SECONDS = 0.02
Point = TypeVar("Point")


class Trial(Protocol):
    """A job of a search."""

    @property
    def has_ended(self) -> bool:
        """Return whether its state is final."""


def run_search(
    trials: Sequence[Trial],
    points: Iterator[Point],
    start: Callable[[Point], None],
    at_once: int,
    is_over: Callable[[], bool],
) -> None:
    """Start a trial for each point until the search is over; return when all have ended."""
    more = True
    while more or not all(trial.has_ended for trial in trials):
        more = not is_over() and more
        running = sum(not trial.has_ended for trial in trials)
        if not more or running >= at_once:
            time.sleep(POLL_SECONDS)
            continue
        for point in itertools.islice(points, 1):
            start(point)
            break
        else:
            more = False


# One container: a process with all its children, and a thread that reads their output.

READ_SECONDS = HANG_SECONDS
"""How long to wait for the last output of a container; only an escaped process keeps its pipe open
longer.
"""

ONE_CORE = {"OMP_NUM_THREADS": "1"}
"""All nodes of an imitated cloud share this machine: with more threads they would compete for its
cores.
"""

ReadOutput = Callable[[IO[bytes]], None]
"""Reads all output of a container; called in a separate thread."""


class Container:
    """A container that runs as a process of this machine. OSError when there is no such program."""

    forked: ClassVar[bool] = False
    """True if launchers are forks of a process that has imported torch
    (tests/support/warm_jobs.py).
    """

    def __init__(
        self,
        name: str,
        root: Path,
        argv: Sequence[str],
        env: Mapping[str, str],
        *,
        cwd: Path,
        read_output: ReadOutput,
    ) -> None:
        """`root`: a separate folder that identifies its processes."""
        self.name = name
        self.root = root
        self._read_output = read_output
        self.code: int | None = None
        self._tmp = tempfile.mkdtemp(prefix="loopback-tmp-")  # a container's own /tmp goes with it
        try:
            self._process = self._start(
                argv, cwd, {**ONE_CORE, **env, "TMPDIR": self._tmp, RUN_DIR_VARIABLE: str(root)}
            )
        except OSError:
            shutil.rmtree(self._tmp)
            raise
        self._reader = threading.Thread(target=self._read, name=f"loopback-{name}", daemon=True)
        self._reader.start()

    def _start(
        self, argv: Sequence[str], cwd: Path, env: Mapping[str, str]
    ) -> subprocess.Popen[bytes] | ForkedCommand:
        server = command_server("warm_jobs") if self.forked else None
        if server is not None:
            forked = server.start((), cwd, env, program=argv)
            forked.stderr.close()  # its errors are in its output
            return forked
        return subprocess.Popen(
            argv,
            cwd=cwd,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def poll(self) -> bool:
        """Return whether it has ended.

        The end of its first process ends all others, as in docker.
        """
        if self.code is None and self._process.poll() is not None:
            self.end()
        return self.code is not None

    def terminate(self) -> None:
        """Send SIGTERM to the first process, unless it has ended."""
        self._process.send_signal(signal.SIGTERM)

    def end(self) -> None:
        """Send SIGKILL to all remaining processes; the exit code is set afterwards."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        end_orphans(self.root)
        code = self._process.wait()
        self._reader.join(READ_SECONDS)
        shutil.rmtree(self._tmp, ignore_errors=True)
        self.code = code if code >= 0 else 128 - code

    def _read(self) -> None:
        if self._process.stdout is None:
            raise RuntimeError("a container was started without a pipe")
        output: Any = self._process.stdout
        with output:
            self._read_output(getattr(output, "buffer", output))
