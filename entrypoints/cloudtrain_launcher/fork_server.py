"""Process of a node that imports torch once and forks the ranks. Standard library only.

The agent forks it before torchrun starts threads, and sends requests over a socket. `_become_rank`
makes a forked rank equal to a new process.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from cloudtrain_launcher import shutdown, worker
from cloudtrain_launcher.contract import PAYLOAD_DIR, Job
from cloudtrain_launcher.fork_rules import (
    read_source,
    reason_in_process,
    reason_in_source,
    uses_dynamo,
)
from cloudtrain_wire.parent_death import set_parent_death_signal

MAX_MESSAGE_BYTES = 100_000
"""Maximum size of a message; below Linux's default limit for a packet of a Unix socket."""
ANSWER_SECONDS = 120
"""Time limit of an answer; the server may still be importing."""
POLL_SECONDS = 0.02

_TRAINER = (
    "cloudtrain_trainer.arguments",
    "cloudtrain_trainer.training.loop",
    "cloudtrain_trainer.training.memory",
)
"""Modules that every rank of the shared trainer imports."""
_DYNAMO = "torch._dynamo"
"""Module that every optimizer imports, as slow to import as torch itself."""


class ForkServerError(Exception):
    """The server has died or cannot fork, as the message says."""


class ForkServer:
    """Agent's side of the server: start it as a fork, request ranks and their exit codes."""

    def __init__(self, modules: Sequence[str], program_dirs: Sequence[Path]) -> None:
        """Fork the server, which then imports `modules`. Raise OSError if the fork fails.

        `program_dirs`: folders of the program's own modules.
        """
        self._socket, server_socket = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._requests = 0
        self._ended: dict[int, int] = {}
        self._environ = dict(os.environ)
        agent = os.getpid()
        if os.fork() == 0:
            self._socket.close()
            _serve(server_socket, agent, modules, program_dirs)

        server_socket.close()
        self._socket.settimeout(ANSWER_SECONDS)

    def start(self, environ: Mapping[str, str]) -> ForkedProcess:
        """Fork a rank with these variables. Raise ForkServerError if that fails."""
        changed = {}
        for name, value in environ.items():
            if self._environ.get(name) != value:
                changed[name] = value

        removed = [name for name in self._environ if name not in environ]
        return ForkedProcess(self, int(self._ask(changed=changed, removed=removed)["pid"]))

    def returncode(self, pid: int) -> int | None:
        """Return a rank's exit code like `subprocess.Popen.returncode`; None while it runs.

        If the server has died, its ranks have been killed with it.
        """
        if pid not in self._ended:
            try:
                self._ended.update({int(key): code for key, code in self._ask()["ended"].items()})
            except ForkServerError:
                return -signal.SIGKILL

        return self._ended.get(pid)

    def _ask(self, **request: Any) -> dict[str, Any]:
        """Return the answer to a request; skip leftovers of a request that a signal interrupted."""
        self._requests += 1
        message = json.dumps({"number": self._requests, **request}).encode()
        if len(message) > MAX_MESSAGE_BYTES:
            raise ForkServerError("its variables are too long")

        answer: dict[str, Any] = {}

        try:
            self._socket.send(message)
            while answer.get("number") != self._requests:
                # Not JSON if the server has died.
                answer = json.loads(self._socket.recv(MAX_MESSAGE_BYTES))
        except TimeoutError:
            raise ForkServerError(
                f"the process that forks them has not answered for {ANSWER_SECONDS} s"
            ) from None
        except (OSError, ValueError):
            raise ForkServerError("the process that forks them has died") from None

        if "error" in answer:
            raise ForkServerError(answer["error"])

        return answer


class ForkedProcess:
    """A rank's process, with torchrun's part of the interface of `subprocess.Popen`."""

    def __init__(self, server: ForkServer, pid: int) -> None:
        self._server = server
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal; None while the process runs."""
        if self.returncode is None:
            self.returncode = self._server.returncode(self.pid)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the process's end. Raise `subprocess.TimeoutExpired` after `timeout` seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout

        while True:
            code = self.poll()
            if code is not None:
                return code
            if deadline is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(f"rank {self.pid}", timeout or 0)

            time.sleep(POLL_SECONDS)


def _serve(
    connection: socket.socket, agent: int, modules: Sequence[str], program_dirs: Sequence[Path]
) -> NoReturn:
    """Import the modules and answer requests until the agent's end. In a rank, run the program."""
    try:
        set_parent_death_signal(agent)
        for signum in worker.TORCHRUN_SIGNALS:
            signal.signal(signum, signal.SIG_IGN)

        environ = dict(os.environ)
        for name in modules:
            import_module(name)

        reason = reason_in_process(program_dirs)
        gc.collect()
        gc.freeze()  # keep a rank's garbage collection away from shared memory
        shutdown.ignore_frozen()
        ranks: dict[int, int | None] = {}

        while True:
            message = connection.recv(MAX_MESSAGE_BYTES)
            if not message:
                break

            request = json.loads(message)
            answer: dict[str, Any] = {"number": request["number"]}

            if reason:
                answer["error"] = reason
            elif "changed" in request:
                answer.update(_fork_rank(connection, request, environ, ranks))
            else:
                answer["ended"] = _ended(ranks)

            connection.send(json.dumps(answer).encode())
    except BaseException:  # noqa: BLE001  (shown in the log; the agent then starts the ranks itself)
        traceback.print_exc()

    os._exit(0)


def _fork_rank(
    connection: socket.socket,
    request: Mapping[str, Any],
    environ: Mapping[str, str],
    ranks: dict[int, int | None],
) -> dict[str, Any]:
    """Fork one rank and return the answer, once the rank leads a session and can be signalled.

    `environ`: the agent's variables before the imports.
    """
    server = os.getpid()
    ready, began = os.pipe()

    try:
        pid = os.fork()
    except OSError as error:
        os.close(began)
        os.close(ready)
        return {"error": str(error)}

    if pid == 0:
        try:
            connection.close()
            os.close(ready)
            os.setsid()  # as torchrun starts a rank
            os.close(began)
            _become_rank(request, environ)
            worker.main(server)
        except BaseException:  # noqa: BLE001  (whatever it is, it must not run the server's loop)
            traceback.print_exc()

        os._exit(1)

    os.close(began)
    os.read(ready, 1)  # its end: the rank has closed it
    os.close(ready)
    ranks[pid] = None

    return {"pid": pid}


def _become_rank(request: Mapping[str, Any], environ: Mapping[str, str]) -> None:
    """Reset state shared with the parent.

    Signals, variables, arguments, random state, the folder of temporary files, and the key.
    """
    worker.reset_signals()
    inherited = {name: value for name, value in environ.items() if name not in request["removed"]}
    os.environ.clear()  # imports may have set some
    os.environ.update({**inherited, **request["changed"]})
    sys.orig_argv = [sys.executable, "-u", worker.__file__]
    set_native_id = getattr(threading.current_thread(), "_set_native_id", None)
    if set_native_id is not None:  # unchanged by Python 3.11
        set_native_id()

    modules: Any = sys.modules
    modules["torch"].default_generator.seed()
    if "numpy.random" in modules:  # Python's own generator seeds itself after a fork
        modules["numpy.random"].seed()
    if "tempfile" in modules:
        modules["tempfile"].tempdir = None  # the program may set TMPDIR
    if "multiprocessing.process" in modules:
        modules["multiprocessing.process"].current_process().authkey = os.urandom(32)


def _ended(ranks: dict[int, int | None]) -> dict[int, int]:
    """Return all ended ranks, reported ones included, since an answer may have been lost."""
    for pid, code in ranks.items():
        if code is None:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                ranks[pid] = os.waitstatus_to_exitcode(status)

    return {pid: code for pid, code in ranks.items() if code is not None}


class ForkedRank:
    """Replacement for torchrun's `SubprocessHandler`: a process and a way to end it."""

    def __init__(self, process: ForkedProcess, local_rank_id: int) -> None:
        self.proc = process
        self.local_rank_id = local_rank_id

    def close(self, death_sig: signal.Signals | None = None) -> None:
        """Send a signal, by default SIGTERM, to the rank and its child processes."""
        os.killpg(self.proc.pid, death_sig or signal.SIGTERM)


def fork_server(job: Job) -> ForkServer | None:
    """Return a server that forks this job's ranks; None if they must be new processes.

    This process imports torch. Call it in the main thread, before other threads start: the server
    and its ranks end with that thread.
    """
    if not job.warm:
        return None

    folder = Path.cwd()
    programs = {"script": folder / job.target, "notebook": folder / job.target}
    programs["module"] = folder / f"{job.target.replace('.', os.sep)}.py"
    program = programs.get(job.kind)  # None: the shared trainer, which needs no new processes
    source = read_source(program, folder)
    if program is None:
        program_dirs = [folder, PAYLOAD_DIR]
    elif job.kind == "module":
        program_dirs = [folder]
    else:
        program_dirs = [program.parent]

    reason = reason_in_source(source, folder) or reason_in_process(program_dirs)
    if reason:
        _log(reason)
        return None

    modules: list[str] = []
    if program is None:
        modules += _TRAINER
        modules.append(_DYNAMO)
    elif uses_dynamo(source):
        modules.append(_DYNAMO)

    try:
        return ForkServer(modules, program_dirs)
    except OSError as error:
        _log(str(error))
        return None


def start_as_forks(start: Callable[..., Any], server: ForkServer) -> Callable[..., Any]:
    """Wrap torchrun's function that starts a rank's process, to fork while the server can."""
    usable = True

    def fork_or_start(**options: Any) -> Any:
        nonlocal usable
        is_program = options["entrypoint"] == sys.executable
        is_plain = not (
            options.get("stdout") or options.get("stderr") or options.get("numa_options")
        )
        if usable and is_program and is_plain:
            environ = os.environ | options["env"]
            try:
                return ForkedRank(server.start(environ), options["local_rank_id"])
            except ForkServerError as error:
                usable = False
                _log(str(error))

        return start(**options)

    return fork_or_start


def _log(reason: str) -> None:
    print(f"each rank imports torch by itself: {reason}", flush=True)
