"""The real command line in its own job folder and home; each command is a process, forked if that
is equal.
"""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.forked_command import ForkedCommand, command_server
from tests.support.waiting import HANG_SECONDS

Command = subprocess.Popen[str] | ForkedCommand


@dataclass
class CommandLine:
    """One job folder and one home.

    `run` runs a command to its end; `start` starts one beside the test.
    """

    folder: Path
    env: dict[str, str] = field(default_factory=dict)
    """Further environment variables of every command."""
    modules: tuple[str, ...] = ()
    """Slow imports of commands here, such as the SDK of a cloud: imported once for all commands.

    A module of `tests/support` is named without its folder.
    """
    started: list[Command] = field(default_factory=list)
    events_read: dict[str, tuple[list[dict[str, Any]], int]] = field(default_factory=dict)
    """By run: its events that were read, and where in the file the next ones begin."""

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "home").mkdir()

    @property
    def data(self) -> Path:
        """The data folder of this home."""
        return self.folder / "home" / ".local" / "share" / "cloudtrain"

    def write(self, **files: str) -> None:
        """Write files; `job_yaml` is job.yaml, `train_py` train.py."""
        for name, text in files.items():
            path = (
                self.folder
                / "job"
                / (name.rpartition("_")[0].replace("__", "/") + "." + name.rpartition("_")[2])
            )
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")

    def environment(self, **extra: str) -> dict[str, str]:
        """Return the environment of every command: this home, without the test runner's variables."""
        excluded = (
            "AWS_",
            "CLOUDTRAIN_",
            "XDG_",
            "PET_",
            "TORCHELASTIC_",
            "COV_",
            "PYTEST_",
            "PIP_",
            "UV_",
        )
        env = {key: value for key, value in os.environ.items() if not key.startswith(excluded)}
        return {**env, "HOME": str(self.folder / "home"), "NO_COLOR": "1", **self.env, **extra}

    def start(self, *arguments: str, **env: str) -> Command:
        """Start a command in a new session."""
        environment = self.environment(**env)
        server = command_server(*self.modules)
        if server is not None and server.can_start(environment):
            command: Command = server.start(arguments, self.folder / "job", environment)
        else:
            command = self._start_interpreter(*arguments, **env)
        self.started.append(command)
        return command

    def _start_interpreter(self, *arguments: str, **env: str) -> subprocess.Popen[str]:
        """Start the same in a new interpreter."""
        return subprocess.Popen(
            [sys.executable, "-m", "cloudtrain", *arguments],
            cwd=self.folder / "job",
            env=self.environment(**env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, *arguments: str, **env: str) -> CommandResult:
        """Run a command to its end."""
        process = self.start(*arguments, **env)
        out, err = process.communicate(timeout=HANG_SECONDS)
        return CommandResult(process.wait(), out, err)

    def json(self, *arguments: str, **env: str) -> Any:
        """Run a command with --json and parse its output."""
        return json.loads(self.run(*arguments, "--json", **env).out)

    def run_folder(self, run: str) -> Path:
        """The folder of a run."""
        return self.data / "runs" / run

    def document(self, run: str, name: str) -> Any:
        """One of the JSON documents of a run."""
        return json.loads((self.run_folder(run) / name).read_text())

    def events(self, run: str) -> list[dict[str, Any]]:
        """Return the complete events of a run; read each from the file once."""
        events, position = self.events_read.get(run, ([], 0))
        path = self.run_folder(run) / "events.jsonl"
        with path.open("rb") if path.exists() else io.BytesIO() as file:
            file.seek(position)
            *lines, partial = file.read().split(b"\n")
            self.events_read[run] = [*events, *map(json.loads, lines)], file.tell() - len(partial)
        return self.events_read[run][0]

    def by_rank(self, run: str, kind: str = "seen") -> dict[int, dict[str, Any]]:
        """Return the last event of that type of each rank."""
        return {event["rank"]: event for event in self.events(run) if event["type"] == kind}

    def wait_for_event(self, run: str, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Wait until `wanted` is true for an event of a run."""
        deadline = time.monotonic() + HANG_SECONDS
        while time.monotonic() < deadline:
            events = self.events(run)
            for event in events:
                if wanted(event):
                    return event
            if any(event["type"] == "ended" for event in events):
                break
            time.sleep(0.05)  # the polling interval, not a guess at how long something takes
        raise AssertionError(f"no such event; the run has {self.events(run)}")

    def processes(self) -> list[int]:
        """Processes that belong to any run of this home."""
        mark = f"CLOUDTRAIN_RUN_DIR={self.data}".encode()
        events = []
        for file in Path("/proc").glob("[0-9]*/environ"):
            try:
                if any(entry.startswith(mark) for entry in file.read_bytes().split(b"\0")):
                    events.append(int(file.parent.name))
            except OSError:
                continue
        return events

    def close(self) -> None:
        """Kill whatever a failed test has left running."""
        for process in self.started:
            if process.poll() is None:
                process.kill()
            process.communicate()
        for lock in self.data.glob("runs/*/supervisor.lock"):
            pid = lock.read_text()
            if (
                pid
                and Path(f"/proc/{pid}/cmdline").exists()
                and str(lock.parent) in _cmdline(int(pid))
            ):
                _kill(int(pid))
        for process_id in self.processes():
            _kill(process_id)


@dataclass(frozen=True)
class CommandResult:
    """The exit code of a command and its output."""

    code: int
    out: str
    err: str


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):  # it has ended meanwhile
        os.kill(pid, signal.SIGKILL)


def _cmdline(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""
