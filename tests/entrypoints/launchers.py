"""Launchers without the client, as on any platform: a process, a few variables, a job document.

By default they are forked from a process that has imported torch, and so are their agents: a start
costs 0.3 s, not 2.5. All else is as on a platform: launcher and agent have processes, variables,
sessions, signals and streams of their own. Tests with `new_process` show that it starts as a new
process too. `run_rank` runs one rank without torchrun.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import subprocess
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

from cloudtrain_job import MARKER, signed_marker
from cloudtrain_wire.ports import free_port
from tests.entrypoints.groups import OUTER, ForkServer
from tests.support.waiting import HANG_SECONDS

MODULES = (
    "torch",
    "torch._dynamo",
    "torch.distributed.run",
    "torch.distributed.elastic.agent.server",
)
REPOSITORY = Path(__file__).resolve().parents[2]
ENTRYPOINTS = REPOSITORY / "entrypoints"
OF_TESTS = (
    REPOSITORY,
    REPOSITORY / "tests/entrypoints",
    ENTRYPOINTS,
    ENTRYPOINTS / "job",
)
"""Folders where the fork server finds modules, and a launcher must not."""
POLL_SECONDS = 0.01

_servers: list[ForkServer] = []


def close_server() -> None:
    """End the server, if one has been started."""
    while _servers:
        _servers.pop().close()


class ForkedLauncher:
    """A launcher's process and its output: what tests use of `subprocess.Popen`. `entry`: the
    folder that is run.
    """

    def __init__(self, entry: Path, folder: Path, env: Mapping[str, str]) -> None:
        if not _servers:
            _servers.append(ForkServer(*MODULES))

        self._server = _servers[0]
        reader, writer = os.pipe()
        request = {"folder": str(folder), "argv": [str(entry)], "env": dict(env), "before": ""}
        request |= {
            "logs": [f"/proc/{os.getpid()}/fd/{writer}"],
            "program": "tests.entrypoints.launchers:main",
        }
        (self.pid,) = self._server.start(request)
        os.close(writer)
        self.stdout = os.fdopen(reader, encoding="utf-8", errors="replace")
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while the process runs."""
        if self.returncode is None:
            self.returncode = self._server.code(self.pid, time.monotonic() + POLL_SECONDS)
        return self.returncode

    def communicate(self, timeout: float) -> tuple[str, None]:
        """The rest of the output, when the process has ended; after `timeout` seconds it is killed."""
        watch = threading.Timer(timeout, os.killpg, (self.pid, signal.SIGKILL))
        watch.start()
        with self.stdout:
            text = self.stdout.read()

        self.returncode = self._server.code(self.pid, time.monotonic() + HANG_SECONDS)
        watch.cancel()
        return text, None

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal, unless the process has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)


class ForkedAgent:
    """The agent as a fork of the launcher: what the launcher uses of `subprocess.Popen`."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str], **_: Any) -> None:
        reader, writer = os.pipe()
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid == 0:
            become_agent(command, env, writer)

        os.close(writer)
        self.stdout = os.fdopen(reader, "rb")
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while the process runs."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None

        return self.returncode

    def terminate(self) -> None:
        """Send SIGTERM."""
        os.kill(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        os.kill(self.pid, signal.SIGKILL)


def become_agent(command: Sequence[str], env: Mapping[str, str], output: int) -> NoReturn:
    """In a fork of the launcher: be what `python -u agent.py ...` is, and end."""
    try:
        os.setsid()
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.closerange(3, 1024)
        signal.set_wakeup_fd(-1)
        for number in signal.valid_signals():
            if callable(signal.getsignal(number)):
                signal.signal(number, signal.SIG_DFL)

        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
        for name in [name for name in sys.modules if name.startswith("cloudtrain_")]:
            del sys.modules[name]

        getattr(weakref.finalize, "_registry").clear()  # noqa: B009  (else the launcher's scratch folder ends with a rank)
        os.environ.clear()
        os.environ.update(env)
        agent = command[2]
        paths = [path for path in env.get("PYTHONPATH", "").split(os.pathsep) if path]
        # The launcher's variables: its folder, and the job's.
        sys.path[:2] = [
            str(Path(agent).parent),
            *paths,
        ]
        sys.argv = list(command[2:])
        sys.orig_argv = list(command)
        runpy.run_path(agent, run_name="__main__")
    except BaseException:  # noqa: BLE001  (shown in the launcher's log, whatever it is)
        traceback.print_exc()

    os._exit(1)


def main() -> NoReturn:
    """Run the launcher in this process."""
    for path in OF_TESTS:
        sys.path.remove(str(path))

    entry = sys.argv[0]
    sys.path[:0] = [entry, str(Path(entry) / "job")]
    torchrun: Any = __import__("cloudtrain_launcher.torchrun").torchrun
    streams = {name: getattr(subprocess, name) for name in ("DEVNULL", "PIPE", "STDOUT")}
    torchrun.subprocess = SimpleNamespace(Popen=ForkedAgent, **streams)
    sys.path.pop(1)  # the launcher adds it
    code = 1
    try:
        runpy.run_path(entry, run_name="__main__")
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException:  # noqa: BLE001
        traceback.print_exc()

    sys.stdout.flush()
    os._exit(code)


Launcher = subprocess.Popen[str] | ForkedLauncher


def document(**changes: Any) -> dict[str, Any]:
    return {
        "run_id": "job-1",
        "name": "job",
        "kind": "script",
        "target": "train.py",
        "argv": [],
        "values": {},
        "nodes": 1,
        "processes": 1,
        "gpus": 0,
        "restarts": 0,
        "grace_seconds": 20,
        "checkpoint_every_seconds": 600,
        "checkpoint_keep": 3,
        "a_field_of_a_later_version": True,
    } | changes


def start(
    folder: Path,
    script: str,
    *,
    new_process: bool = False,
    node: int = 0,
    port: int = 0,
    **changes: Any,
) -> Launcher:
    """Start a launcher: as a fork, which has imported torch, or as a new process. `port`: of the
    first node.
    """
    (folder / "train.py").write_text(script)
    (folder / "job.json").write_text(json.dumps(document(**changes)))
    env = clean() | {
        "CLOUDTRAIN_JOB_FILE": str(folder / "job.json"),
        "CLOUDTRAIN_NODE_RANK": str(node),
        "CLOUDTRAIN_NODES": str(changes.get("nodes", 1)),
        "CLOUDTRAIN_MASTER_ADDR": "127.0.0.1",
        "CLOUDTRAIN_MASTER_PORT": str(port or free_port()),
        "CLOUDTRAIN_OUTPUT_DIR": str(folder / "output"),
        "CLOUDTRAIN_MODEL_DIR": str(folder / "model"),
        "CLOUDTRAIN_CHECKPOINT_DIR": str(folder / "checkpoints"),
        "CLOUDTRAIN_PUBLISHED": str(folder / "published"),
        "RANK": "17",
        "WORLD_SIZE": "99",
    }
    if changes.get("nodes", 1) > 1 and sys.platform == "linux":
        env["CLOUDTRAIN_NODE_ADDR"] = f"127.0.0.{101 + node}"  # c10d orders the nodes by it

    command = [sys.executable, str(ENTRYPOINTS)] if new_process else []
    return start_launcher(ENTRYPOINTS, folder, env, command)


def start_launcher(
    entry: Path, folder: Path, env: dict[str, str], command: Sequence[str] = ()
) -> Launcher:
    """Start the launcher of the folder `entry`: as a fork, or as a new process by `command`."""
    if not command and sys.platform == "linux":
        return ForkedLauncher(entry, folder, env)

    return subprocess.Popen(
        command or [sys.executable, str(entry)],
        cwd=folder,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )


def clean(**variables: str) -> dict[str, str]:
    """Return this process's variables without those of a job around it, and with `variables`."""
    foreign = (*OUTER, "AZUREML_")
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(foreign)}
    return inherited | variables


def events(text: str) -> list[dict[str, Any]]:
    marker = "::cloudtrain:: "
    return [
        json.loads(line[len(marker) :]) for line in text.splitlines() if line.startswith(marker)
    ]


def output_until(process: Launcher, text: str) -> str:
    """The output up to the first line with the text, or all of it."""
    assert process.stdout is not None
    output = ""
    for line in process.stdout:
        output += line
        if text in line:
            break

    return output


def finish(process: Launcher) -> str:
    try:
        return process.communicate(timeout=HANG_SECONDS)[0]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise


KEY = "0123456789abcdef"


SHORT_DEADLINE = """
import sys
frame = sys._getframe()
while "EXIT_DEADLINE_SECONDS" not in frame.f_globals:
    frame = frame.f_back
frame.f_globals["EXIT_DEADLINE_SECONDS"] = 0.5
"""
"""Beginning of a script whose rank may take half a second to exit after a failure."""


@dataclass(frozen=True)
class Rank:
    """How a rank ended, and its output."""

    code: int
    output: str
    """Text and events from its pipe."""

    @property
    def events(self) -> list[dict[str, Any]]:
        """The events of the rank itself."""
        marker = signed_marker(KEY)
        lines = [line.partition(marker)[2] for line in self.output.splitlines() if marker in line]
        return [json.loads(line) for line in lines]

    @property
    def error(self) -> dict[str, Any]:
        """The only error that it reported."""
        (error_event,) = (event for event in self.events if event["type"] == "error")
        return error_event

    @property
    def text(self) -> str:
        """The output without events."""
        marks = (MARKER, signed_marker(KEY))
        return "".join(
            line for line in self.output.splitlines(True) if not any(mark in line for mark in marks)
        )


def run_rank(folder: Path, script: str | bytes, *argv: str, world: int = 1, **job: Any) -> Rank:
    """Run a script as rank 0, without starting the other ranks."""
    data = script if isinstance(script, bytes) else script.encode()
    (folder / job.get("target", "train.py")).write_bytes(data)
    (folder / "job.json").write_text(json.dumps(document(processes=world, argv=list(argv), **job)))
    os.mkfifo(folder / "rank-0")
    pipe = os.open(folder / "rank-0", os.O_RDWR)
    output: list[bytes] = []
    env = {
        **os.environ,
        "CLOUDTRAIN_JOB_FILE": str(folder / "job.json"),
        "CLOUDTRAIN_STREAM_DIR": str(folder),
    }
    env |= {"LOCAL_RANK": "0", "RANK": "0", "WORLD_SIZE": str(world), "CLOUDTRAIN_STREAM_KEY": KEY}
    reader = threading.Thread(target=_read, args=(pipe, output))
    reader.start()
    try:
        worker = [sys.executable, str(ENTRYPOINTS / "cloudtrain_launcher" / "worker.py")]
        process = subprocess.run(worker, cwd=folder, env=env, timeout=HANG_SECONDS, check=False)
    finally:
        os.write(pipe, _END)
        reader.join()
        os.close(pipe)
        (folder / "rank-0").unlink()

    return Rank(process.returncode, b"".join(output).removesuffix(_END).decode("utf-8", "replace"))


_END = b"\0the rank has ended\0"


def _read(pipe: int, output: list[bytes]) -> None:
    while not b"".join(output[-2:]).endswith(_END):
        output.append(os.read(pipe, 1 << 16))
