"""Runs one program that fails, in a forked process and a folder of its own, and diagnoses what it
has printed.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from cloudtrain.diagnosis.failure import Diagnosis, diagnose_lines
from cloudtrain.diagnosis.log_file import read_log
from cloudtrain.diagnosis.rules import rule_named
from tests.bench.failing_programs import PRELUDE

LIMIT_SECONDS = 90
SKIPPED = "SKIPPED"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a failure that was really made was diagnosed as."""

    name: str
    place: str
    """Where it was made: `process`, `container`, `run`, `cloud` (imitated), or `text`: what a
    driver prints.
    """
    expected: str
    """The rule that names its cause; `none`: no rule may claim it."""
    found: str
    cause: str = ""
    said: str = ""
    """The line of evidence, or the end of what was printed."""

    @property
    def is_right(self) -> bool:
        """Whether the cause is the right one."""
        return self.found == self.expected

    @property
    def is_wrong_remedy(self) -> bool:
        """Whether it came with the remedy of another failure."""
        claimed = self.found not in ("none", SKIPPED) and not rule_named(self.found).is_consequence
        return claimed and not self.is_right


def outcome_of(name: str, place: str, expected: str, found: Diagnosis, said: str = "") -> Outcome:
    """What a diagnosis says of a failure whose rule is known."""
    rule = found.rule.name if found.rule else "none"
    line = found.evidence[0].text if found.evidence else said
    return Outcome(
        name, place, expected, SKIPPED if SKIPPED in said else rule, found.cause, line[:160]
    )


def run_program(name: str, expected: str, code: str) -> Outcome:
    """Run a program to its end in a fork of this process, which has imported what takes long;
    diagnose its output.
    """
    folder = Path(tempfile.mkdtemp(prefix="failing-"))
    log = folder / "output.log"
    child = os.fork()
    if child == 0:
        _be_the_program(folder, log, code)
    try:
        _wait(child)
        with log.open("rb") as file:
            found = diagnose_lines(read_log(file, "output.log", []))
        return outcome_of(name, "process", expected, found, log.read_text(errors="replace")[-300:])
    finally:
        with suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        shutil.rmtree(folder, ignore_errors=True)


def _be_the_program(folder: Path, log: Path, code: str) -> None:
    """In the fork: print into the log, and leave as a script does that fails."""
    status = 1
    try:
        os.setsid()
        out = os.open(log, os.O_WRONLY | os.O_CREAT, 0o600)
        os.dup2(out, 1)
        os.dup2(out, 2)
        sys.stdin = open(os.devnull)  # noqa: SIM115
        sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
        work = folder / "work"
        work.mkdir()
        folder.chmod(0o755)
        os.chdir(work)
        exec(compile(PRELUDE + code, "train.py", "exec"), {"__name__": "__main__"})  # noqa: S102
        status = 0
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:  # noqa: BLE001  (what it raises is what is being looked at)
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(status)


def _wait(child: int) -> None:
    deadline = time.monotonic() + LIMIT_SECONDS
    while os.waitpid(child, os.WNOHANG)[0] == 0:
        if time.monotonic() > deadline:
            os.killpg(child, signal.SIGKILL)
        time.sleep(0.02)
