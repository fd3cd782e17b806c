"""The process of a node that has imported torch and forks the ranks: none of them has to import it
again.

The agent forks it before torchrun starts threads, and asks it by messages over a socket. Standard
library only. A forked rank is what a new process would be: `_become_rank` restores what differs.
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
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from cloudtrain_launcher import shutdown, worker
from cloudtrain_launcher.fork_rules import reason_in_process
from cloudtrain_launcher.host import set_parent_death_signal

MAX_MESSAGE_BYTES = 100_000
"""Of a request or an answer; below Linux's default limit for one packet of a Unix socket."""
ANSWER_SECONDS = 120
"""After this time without an answer the server is given up; it may still be importing."""
POLL_SECONDS = 0.02

_TORCHRUN_SIGNALS: Mapping[signal.Signals, Any] = {
    signal.SIGTERM: signal.SIG_DFL,
    signal.SIGINT: signal.default_int_handler,
    signal.SIGHUP: signal.SIG_DFL,
    signal.SIGQUIT: signal.SIG_DFL,
}
"""Signals that torchrun passes on, so that the server ignores them, and how a rank begins with
each: as torchrun handles them, the programs that it starts have their defaults, even where its
parent ignores them (nohup).
"""


class ForkServerError(Exception):
    """The server has died, or cannot fork; its text says why."""


class ForkServer:
    """The agent's side: starts the server as a fork of this process, and asks it for ranks and how
    they ended.
    """

    def __init__(self, modules: Sequence[str], program_dirs: Sequence[Path]) -> None:
        """Fork the server, which then imports `modules`. OSError if this process cannot be forked.

        `program_dirs`: the folders in which a rank finds the program's own modules.
        """
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._requests = 0
        self._ended: dict[int, int] = {}
        self._environ = dict(os.environ)
        agent = os.getpid()
        if os.fork() == 0:
            self._socket.close()
            _serve(theirs, agent, modules, program_dirs)
        theirs.close()
        self._socket.settimeout(ANSWER_SECONDS)

    def start(self, environ: Mapping[str, str]) -> ForkedProcess:
        """Fork a rank with these variables. ForkServerError if that is not possible."""
        changed = {
            name: value for name, value in environ.items() if self._environ.get(name) != value
        }
        removed = [name for name in self._environ if name not in environ]
        return ForkedProcess(self, int(self._ask(changed=changed, removed=removed)["pid"]))

    def returncode(self, pid: int) -> int | None:
        """How a rank ended, as `subprocess.Popen.returncode` says it; None while it runs.

        If the server has died, its ranks have been killed with it.
        """
        if pid not in self._ended:
            try:
                self._ended.update({int(key): code for key, code in self._ask()["ended"].items()})
            except ForkServerError:
                return -signal.SIGKILL
        return self._ended.get(pid)

    def _ask(self, **request: Any) -> dict[str, Any]:
        """The answer to a request. An exception of a signal handler may have left the answer to an
        earlier one.
        """
        self._requests += 1
        message = json.dumps({"number": self._requests, **request}).encode()
        if len(message) > MAX_MESSAGE_BYTES:
            raise ForkServerError("its variables are too long")
        answer: dict[str, Any] = {}
        try:
            self._socket.send(message)
            while answer.get("number") != self._requests:
                answer = json.loads(
                    self._socket.recv(MAX_MESSAGE_BYTES)
                )  # no JSON if the server is gone
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
    """A rank's process: the part of `subprocess.Popen` that torchrun uses."""

    def __init__(self, server: ForkServer, pid: int) -> None:
        self._server = server
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while the process runs."""
        if self.returncode is None:
            self.returncode = self._server.returncode(self.pid)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait until the process has ended; `subprocess.TimeoutExpired` after `timeout` seconds."""
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
    """Import the modules and answer requests until the agent is gone. In a rank it runs the program
    instead.
    """
    try:
        set_parent_death_signal(agent)
        for signum in _TORCHRUN_SIGNALS:
            signal.signal(signum, signal.SIG_IGN)
        environ = dict(os.environ)
        for name in modules:
            import_module(name)
        reason = reason_in_process(program_dirs)
        gc.collect()
        gc.freeze()  # a collection in a rank neither visits nor copies what is shared
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
    """Fork one rank; the answer to the request. It is sent when the rank leads a session that can
    be signalled.

    `environ`: the agent's variables, as they were before the imports.
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
    """What a new process has and a fork shares with its parent: signals, variables, arguments,
    random state, a key.
    """
    for signum, handler in _TORCHRUN_SIGNALS.items():
        signal.signal(signum, handler)
    kept = {name: value for name, value in environ.items() if name not in request["removed"]}
    os.environ.clear()  # imports may have set some
    os.environ.update({**kept, **request["changed"]})
    sys.orig_argv = [sys.executable, "-u", worker.__file__]
    set_native_id = getattr(threading.current_thread(), "_set_native_id", None)
    if set_native_id is not None:  # which Python 3.11 leaves as it was
        set_native_id()
    modules: Any = sys.modules
    modules["torch"].default_generator.seed()
    if "numpy.random" in modules:  # Python's own generator seeds itself after a fork
        modules["numpy.random"].seed()
    if "multiprocessing.process" in modules:
        modules["multiprocessing.process"].current_process().authkey = os.urandom(32)


def _ended(ranks: dict[int, int | None]) -> dict[int, int]:
    """The ranks that have ended, those that were reported before included: an answer may have been
    lost.
    """
    for pid, code in ranks.items():
        if code is None:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                ranks[pid] = os.waitstatus_to_exitcode(status)
    return {pid: code for pid, code in ranks.items() if code is not None}
