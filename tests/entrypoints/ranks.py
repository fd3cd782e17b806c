"""One rank without torchrun: the worker started as by torchrun, and its messages to the launcher."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cloudtrain_job import MARKER, signed_marker
from tests.entrypoints.test_launcher import ENTRYPOINTS, document

KEY = "0123456789abcdef"
DEADLINE_SECONDS = 60


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
        process = subprocess.run(worker, cwd=folder, env=env, timeout=DEADLINE_SECONDS, check=False)
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
