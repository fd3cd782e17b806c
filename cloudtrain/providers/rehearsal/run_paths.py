"""Files and folders of a run on this machine."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path


@dataclass(frozen=True, slots=True)
class RunPaths:
    """Paths in the folder of one run."""

    run: Path

    @property
    def job_file(self) -> Path:
        """The path of the job document."""
        return self.run / "job.json"

    @property
    def output(self) -> Path:
        """The path of the folder with what the job writes besides the model."""
        return self.run / "output"

    @property
    def model(self) -> Path:
        """The path of the folder with the trained model."""
        return self.run / "model"

    @property
    def checkpoints(self) -> Path:
        """The path of the folder with checkpoints, which a restarted job finds again."""
        return self.run / "checkpoints"

    @property
    def published(self) -> Path:
        """The path of the folder with what the client leaves for the job while it runs."""
        return self.run / "published"

    @property
    def packages(self) -> Path:
        """The environments of all runs on this machine, kept; those of containers have folders of
        their own.
        """
        return self.run.parents[1] / "packages"

    def packages_in(self, image: str) -> Path:
        """The same for containers of one image: what one image runs, the other need not trust."""
        return self.packages / "images" / sha256(image.encode()).hexdigest()[:16]

    @property
    def lock(self) -> Path:
        """Locked by the supervisor while it lives; contains its process id."""
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
    def end_on_full_disk(self) -> Path:
        """How the run ended, if the disk was too full for the event."""
        return self.run / "last-word"

    @property
    def supervisor_log(self) -> Path:
        """Output of the supervisor itself; empty unless it fails."""
        return self.run / "logs" / "supervisor.log"

    def source(self, node: int | str) -> Path:
        """The working folder of one node: its own copy of the source."""
        return self.run / "nodes" / str(node) / "source"
