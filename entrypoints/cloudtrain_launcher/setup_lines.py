"""Shell lines of a job that prepare its node before the ranks. Standard library only."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import IO

from cloudtrain_launcher.contract import Job, NodeContext
from cloudtrain_launcher.environment import job_environment

SHOWN_LINES = 5
"""Number of lines of output in the error."""


def run_setup(
    job: Job,
    context: NodeContext,
    scratch: Path,
    log: Callable[[str], None],
    cancelled: Callable[[], bool],
) -> None:
    """Run each line in its own shell, with the variables of the ranks; log its output.

    Raise RuntimeError for a line that fails. Return early if `cancelled()` is true.
    """
    environment = job_environment(job, context, scratch, os.environ)
    shell = shutil.which("bash", path=environment.get("PATH")) or "/bin/sh"
    for line in job.setup:
        log(f"setup: {line}")
        process = subprocess.Popen(
            [shell, "-c", line],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        assert process.stdout is not None  # noqa: S101  (a pipe)
        last_lines: deque[str] = deque(maxlen=SHOWN_LINES)
        reader = Thread(target=_copy, args=(process.stdout, last_lines, log), daemon=True)
        reader.start()
        while process.poll() is None:
            if cancelled():
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                return

            time.sleep(0.05)

        reader.join(timeout=1)  # a program in the background may keep the pipe open
        if process.returncode:
            output = "".join(f"\n{text}" for text in last_lines)
            raise RuntimeError(f"setup: {line!r} exited with code {process.returncode}{output}")


def _copy(output: IO[bytes], last_lines: deque[str], log: Callable[[str], None]) -> None:
    for line in output:
        text = line.decode("utf-8", "replace").rstrip()
        last_lines.append(text)
        log(text)
