"""Paths in the folder of one run."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from cloudtrain_wire.prompts import KEYBOARD_FILE


class RunPaths(NamedTuple):
    """Paths in the folder of one run."""

    run: Path

    @property
    def job_file(self) -> Path:
        """Path of the job document."""
        return self.run / "job.json"

    @property
    def output(self) -> Path:
        """Folder with the job's output besides the model."""
        return self.run / "output"

    @property
    def model(self) -> Path:
        """Folder with the trained model."""
        return self.run / "model"

    @property
    def checkpoints(self) -> Path:
        """Folder with checkpoints, which a restarted job finds again."""
        return self.run / "checkpoints"

    @property
    def published(self) -> Path:
        """Folder with files that the client leaves for the running job."""
        return self.run / "published"

    @property
    def packages(self) -> Path:
        """Folder with the environments of all runs on this machine, except containers."""
        return self.run.parents[1] / "packages"

    def packages_in(self, image: str) -> Path:
        """Return the packages folder of one image's containers, not shared between images."""
        return self.packages / "images" / sha256(image.encode()).hexdigest()[:16]

    @property
    def lock(self) -> Path:
        """File that the supervisor locks while it lives; contains its process id."""
        return self.run / "supervisor.lock"

    @property
    def supervisor_file(self) -> Path:
        """Identity of the supervisor's process; its modification time is the last heartbeat."""
        return self.run / "supervisor.json"

    @property
    def stop_file(self) -> Path:
        """Exists once a stop was requested; the supervisor checks it."""
        return self.run / "stop"

    @property
    def keyboard(self) -> Path:
        """Named pipe with lines for a program that asks; exists while a terminal follows the run."""
        return self.run / KEYBOARD_FILE

    @property
    def reserve(self) -> Path:
        """File that keeps space for the last event; it is removed if the disk is full."""
        return self.run / "reserve"

    @property
    def supervisor_log(self) -> Path:
        """Output of the supervisor itself; empty unless it fails."""
        return self.run / "logs" / "supervisor.log"

    @property
    def working_folders(self) -> list[Path]:
        """Folders where the nodes' programs run, wherever their platform has them."""
        folders = [*self.run.glob("nodes/*/source"), *self.run.glob("nodes/*/*/code")]
        return sorted(folders, key=lambda folder: folder.relative_to(self.run).parts)

    def source(self, node: int | str) -> Path:
        """Return the working folder of one node: its own copy of the source."""
        return self.run / "nodes" / str(node) / "source"
