"""Programs started as a user starts them, by python or torchrun, and the events, logs and models
that they write.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from tests.support.waiting import HANG_SECONDS

ENTRYPOINTS = Path(__file__).resolve().parents[3] / "entrypoints"
TRAIN = ENTRYPOINTS / "train.py"


class Launch:
    """A command in a process group, which is killed when the deadline expires."""

    def __init__(
        self,
        folder: Path,
        *argv: str,
        deadline: float = HANG_SECONDS,
        env: dict[str, str] | None = None,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        clean = {
            k: v
            for k, v in os.environ.items()
            if not k.startswith(("CLOUDTRAIN_", "PET_", "TORCHELASTIC_"))
        }
        self.process = subprocess.Popen(
            [sys.executable, *argv],
            cwd=folder,
            env=clean
            | {
                "OMP_NUM_THREADS": "1",
                "CLOUDTRAIN_RESULT_FILE": "result.json",
                "CLOUDTRAIN_STREAM_DIR": ".",
            }
            | (env or {}),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.lines: list[str] = []
        self._watch = threading.Timer(deadline, self.kill)
        self._watch.start()

    def kill(self) -> None:
        """Kill the process and everything that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def events(self) -> Iterator[dict[str, Any]]:
        """Yield the events live, to the end of the output."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)
            if line.startswith("::cloudtrain:: "):
                yield json.loads(line.removeprefix("::cloudtrain:: "))

    def finish(self) -> list[dict[str, Any]]:
        """Wait for the end of the process; returns the events that have not been read."""
        events = list(self.events())
        self.process.wait()
        self._watch.cancel()
        self.kill()
        assert self.process.stdout is not None
        self.process.stdout.close()
        return events

    def fingerprints(self) -> set[str]:
        """Return the fingerprints of the weights that the ranks printed."""
        return set(
            re.findall(r"^parameters sha256 ([0-9a-f]{16}) ", "".join(self.lines), re.MULTILINE)
        )


def torchrun(folder: Path, processes: int, *argv: str | Path, **env: str) -> Launch:
    """A program under torchrun, on one node."""
    run = [
        "-m",
        "torch.distributed.run",
        "--standalone",
        f"--nproc-per-node={processes}",
        "--monitor-interval=0.1",
    ]
    return Launch(folder, *run, *map(str, argv), env=env)


def exported(folder: Path) -> dict[str, torch.Tensor]:
    """The exported weights by name: safetensors where that package is installed."""
    if find_spec("safetensors") is None:
        weights: dict[str, torch.Tensor] = torch.load(folder / "model.pt", weights_only=True)
    else:
        weights = import_module("safetensors.torch").load_file(folder / "model.safetensors")
    assert len([path for path in folder.iterdir() if path.is_file()]) == 1
    return weights


def only(events: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    """The events of one kind."""
    return [event for event in events if event["type"] == kind]
