"""Run with checkpoints on a small disk that can be filled: a helper process and its client.

The helper has its own namespace of mounts (mount_namespaces(7)) and mounts a small tmpfs over the
run's checkpoints; that needs no privileges where users may create namespaces. The machine is not
changed, and the disk disappears with the helper and the run. The helper reads lines: `fill`, and
`keep`, which ends it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from cloudtrain.errors import CloudtrainError
from cloudtrain.providers.local.lifeline import end_runs_with_this_process
from cloudtrain.providers.local.processes import run_module
from cloudtrain.providers.rehearsal.namespace import MS_PRIVATE, MS_REC, mount, unshare
from cloudtrain.providers.rehearsal.run_paths import RunPaths
from cloudtrain.runs.folder import RunFolder
from cloudtrain.submission.run import Run

BALLAST = ".ballast"
"""Name of the file that fills the disk."""

KEPT = "checkpoints.kept"
"""Folder for the helper's copy of the disk, beside the run's checkpoints."""

_FOLDER_SECONDS = 60.0
"""Maximum seconds for the run's supervisor to make the folder of the mount."""


class SmallDiskRun:
    """Fresh run of an earlier job on a small disk. Raise OSError if that is not possible here."""

    def __init__(self, earlier: RunFolder, overrides: Sequence[str], size: int) -> None:
        argv = [
            *run_module("small_disk", "cloudtrain.submission.drills"),
            str(earlier.path),
            json.dumps(list(overrides)),
        ]
        self._helper = subprocess.Popen(
            [*argv, str(size)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,  # Ctrl-C is the drill's
        )
        word, _, detail = self._answer().partition(" ")
        if word != "started":
            self.close()
            raise OSError(detail or "the helper has ended")
        self.run = Run(RunFolder(earlier.path.with_name(detail)))

    @property
    def checkpoints(self) -> Path:
        """Checkpoints of the run as the helper sees them (proc(5), root)."""
        return Path(f"/proc/{self._helper.pid}/root{RunPaths(self.run.folder.path).checkpoints}")

    def fill(self) -> None:
        """Fill the disk to the last byte. Raise OSError if the helper is gone."""
        self._tell("fill")

    def keep(self) -> None:
        """Copy the disk to the run folder after the end of the run, and end the helper."""
        with suppress(OSError):
            self._tell("keep")
            copies = self.run.folder.path / KEPT
            folder = RunPaths(self.run.folder.path).checkpoints
            if copies.is_dir():
                folder.rmdir()
                copies.rename(folder)
        self.close()

    def close(self) -> None:
        """End the helper and any unfinished run."""
        for pipe in (self._helper.stdin, self._helper.stdout):
            if pipe is not None:
                pipe.close()
        self._helper.wait()

    def _tell(self, word: str) -> None:
        if self._helper.stdin is not None:
            self._helper.stdin.write(f"{word}\n")
            self._helper.stdin.flush()
        if self._answer() != "done":
            raise OSError("the helper that holds the small disk is gone")

    def _answer(self) -> str:
        return (
            self._helper.stdout.readline().rstrip("\n") if self._helper.stdout is not None else ""
        )


def main(argv: list[str]) -> int:
    """Run the helper: start the run, mount the disk, follow commands. Return 1 if impossible."""
    earlier = RunFolder(Path(argv[0]))
    overrides = json.loads(argv[1])
    size = int(argv[2])
    try:
        unshare()
        mount("none", "/", MS_PRIVATE | MS_REC)
        end_runs_with_this_process()
        run = Run(earlier).rerun(overrides, fresh=True)
        folder = RunPaths(run.folder.path).checkpoints
        _await(folder)
        mount("tmpfs", str(folder), kind="tmpfs", options=f"size={size},mode=0700")
    except (OSError, AttributeError, CloudtrainError) as error:  # AttributeError: not Linux
        print(f"cannot {error}", flush=True)
        return 1
    print(f"started {run.id}", flush=True)
    for line in sys.stdin:
        if line.strip() == "fill":
            fill(folder / BALLAST)
        elif line.strip() == "keep":
            (folder / BALLAST).unlink(missing_ok=True)
            shutil.copytree(folder, run.folder.path / KEPT, symlinks=True)
        print("done", flush=True)
    return 0


def fill(file: Path) -> None:
    """Write zeros to a file until the disk is full, in ever smaller pieces."""
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        for piece in (1 << 20, 4096, 1):
            with suppress(OSError):
                while os.write(descriptor, bytes(piece)):
                    pass
    finally:
        os.close(descriptor)


def _await(folder: Path) -> None:
    deadline = time.monotonic() + _FOLDER_SECONDS
    while not folder.is_dir():
        if time.monotonic() > deadline:
            raise OSError(f"{folder} was not made")
        time.sleep(0.001)
