"""Groups of ranks that train together in tests, started by a fork server; and what their logs and
events say.
"""

from __future__ import annotations

import json
import os
import re
import select
import signal
import socket
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from cloudtrain_wire.ports import free_port
from tests.support.shared_server import connect
from tests.support.waiting import HANG_SECONDS, eventually

PROGRAM = Path(__file__).with_name("fork_server.py")
TRAIN = "train:main"
TRAINER = (
    "train",
    "cloudtrain_trainer.training.loop",
    "cloudtrain_trainer.training.memory",
    "cloudtrain_trainer.own_task",
    "torch._dynamo",
    *(["torch.utils.tensorboard"] if find_spec("tensorboard") else []),
)
"""Imports of every rank of the trainer."""
HANGING = -99
"""Stands for the exit code of a rank that had not ended at the deadline."""
SURVIVOR_SECONDS = 60
"""Time limit of a rank after another one has failed."""
OUTER = ("CLOUDTRAIN_", "PET_", "TORCHELASTIC_")
"""Variables of a job around the tests, which ranks must not see."""


class ForkServer:
    """The process whose forks are ranks. `modules`: imported before it forks."""

    def __init__(self, *modules: str) -> None:
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        self._connection = connect(socket.SOCK_STREAM, [str(PROGRAM), *modules], env)
        self._received = b""
        self._codes: dict[int, int] = {}
        """Exit code by process id; a signal counts negative."""

    def start(self, request: dict[str, Any]) -> list[int]:
        """Fork a group; returns the process ids by rank."""
        self._connection.sendall(json.dumps(request).encode() + b"\n")
        deadline = time.monotonic() + HANG_SECONDS
        while time.monotonic() < deadline:
            for message in self._messages(deadline):
                if "started" in message:
                    pids: list[int] = message["started"]
                    return pids
        raise TimeoutError(f"the fork server has not answered for {HANG_SECONDS} s")

    def code(self, pid: int, deadline: float) -> int | None:
        """The exit code of a rank; None if it still runs at the deadline (of the monotonic clock)."""
        while pid not in self._codes:
            if time.monotonic() > deadline:
                return None
            self._messages(deadline)
        return self._codes[pid]

    def _messages(self, deadline: float) -> list[dict[str, Any]]:
        """The answers that have come, after waiting for one; empty if none came in time."""
        ready, _, _ = select.select(
            [self._connection], [], [], max(0.0, deadline - time.monotonic())
        )
        if not ready:
            return []
        chunk = self._connection.recv(1 << 16)
        assert chunk, "the fork server has ended"
        *lines, self._received = (self._received + chunk).split(b"\n")
        messages = [json.loads(line) for line in lines]
        for message in messages:
            for pid in message.get("started", ()):
                self._codes.pop(pid, None)  # the system may use a number again
            if "ended" in message:
                self._codes[message["ended"]] = message["code"]
        return messages

    def close(self) -> None:
        """End the server and every rank that is left."""
        # A line, since a process that a test forked may hold the connection open.
        self._connection.sendall(b"null\n")
        self._connection.settimeout(HANG_SECONDS)
        while self._connection.recv(1 << 16):
            pass
        self._connection.close()


class StartGroup(Protocol):
    """The fixture `group`: starts ranks in `folder`, below the test's own."""

    def __call__(
        self,
        ranks: int,
        flags: str = "",
        *,
        folder: str = "",
        program: str = ...,
        before: str = "",
        **env: str,
    ) -> Group: ...


class Group:
    """Ranks that train together, each with its output in a file of `folder`.

    `program`: `module:function`, the main program of a rank. `before`: called in each rank with its
    number, first.
    """

    def __init__(
        self,
        server: ForkServer,
        folder: Path,
        ranks: int,
        flags: str = "",
        *,
        program: str = TRAIN,
        before: str = "",
        **env: str,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._server = server
        self.logs = [folder / f"rank-{rank}.log" for rank in range(ranks)]
        clean = {name: value for name, value in os.environ.items() if not name.startswith(OUTER)}
        world = {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks), "OMP_NUM_THREADS": "1"}
        world |= {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port()),
            "CLOUDTRAIN_RESULT_FILE": "result.json",
            "CLOUDTRAIN_STREAM_DIR": ".",
        }
        request = {
            "folder": str(folder),
            "logs": list(map(str, self.logs)),
            "argv": ["train.py", *flags.split()],
        }
        self.pids = server.start(
            request | {"program": program, "before": before, "env": clean | world | env}
        )

    def events(self, kind: str, rank: int = 0) -> list[dict[str, Any]]:
        """Return the events of a kind that a rank has sent."""
        lines = self.logs[rank].read_text().splitlines() if self.logs[rank].exists() else []
        marked = [
            line.removeprefix("::cloudtrain:: ")
            for line in lines
            if line.startswith("::cloudtrain:: {")
        ]
        records = [json.loads(line) for line in marked if line.endswith("}")]
        return [event for event in records if event["type"] == kind]

    def await_event(self, kind: str) -> None:
        """Wait for the first event of a kind from rank 0."""
        assert eventually(lambda: self.events(kind)), self.output()

    def send_signal(self, number: signal.Signals, *ranks: int) -> None:
        """Send a signal to these ranks, by default to all."""
        for rank in ranks or range(len(self.pids)):
            os.kill(self.pids[rank], number)

    def terminate_process_groups(self) -> None:
        """Send SIGTERM to each rank and to the processes that it has started."""
        for pid in self.pids:
            os.killpg(pid, signal.SIGTERM)

    def wait(self) -> list[int]:
        """The exit codes by rank; a signal counts negative. Ranks that hang are killed at the
        deadline.

        Once a rank has failed, that comes soon: a survivor may wait for it in a collective, and
        torchrun would end it.
        """
        deadline = time.monotonic() + HANG_SECONDS
        codes = dict[int, int]()
        while len(codes) < len(self.pids):
            soon = min(deadline, time.monotonic() + 0.5)
            for pid in set(self.pids) - set(codes):
                if (code := self._server.code(pid, soon)) is not None:
                    codes[pid] = code
                    if code:
                        deadline = min(deadline, time.monotonic() + SURVIVOR_SECONDS)
                elif time.monotonic() > deadline:
                    os.kill(pid, signal.SIGKILL)
                    codes[pid] = HANGING
        return [codes[pid] for pid in self.pids]

    def succeed(self) -> dict[str, Any]:
        """Wait for the group, which must end with exit codes 0; returns its result event."""
        assert self.wait() == [0] * len(self.pids), self.output()
        (result,) = self.events("result")
        return result

    def output(self) -> str:
        """The last part of each rank's log."""
        return "\n".join(
            f"--- {log}\n{log.read_text()[-30_000:]}" for log in self.logs if log.exists()
        )

    def fingerprints(self) -> set[str]:
        """Return the fingerprints of the weights that the ranks printed."""
        text = "\n".join(log.read_text() for log in self.logs)
        return set(re.findall(r"^parameters sha256 ([0-9a-f]{16}) ", text, re.MULTILINE))
