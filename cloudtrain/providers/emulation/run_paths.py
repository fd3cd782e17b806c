"""Where a local run keeps what."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class RunPaths:
    """The places of one run."""

    run: Path

    @property
    def job_file(self) -> Path:
        """The job document."""
        return self.run / "job.json"

    @property
    def output(self) -> Path:
        """What the job writes besides the model."""
        return self.run / "output"

    @property
    def model(self) -> Path:
        """The trained model."""
        return self.run / "model"

    @property
    def checkpoints(self) -> Path:
        """Checkpoints, found again after a restart."""
        return self.run / "checkpoints"

    @property
    def lock(self) -> Path:
        """Held by the supervisor as long as it lives; holds its process id."""
        return self.run / "supervisor.lock"

    @property
    def supervisor_file(self) -> Path:
        """Which process the supervisor is; its time is the supervisor's last heartbeat."""
        return self.run / "supervisor.json"

    @property
    def stop_file(self) -> Path:
        """There once a stop was asked for: the supervisor looks for it, wherever it runs."""
        return self.run / "stop"

    @property
    def end_on_full_disk(self) -> Path:
        """How it has ended, where the disk was too full for an event of it."""
        return self.run / "last-word"

    @property
    def supervisor_log(self) -> Path:
        """What the supervisor itself has to say: nothing, unless it breaks."""
        return self.run / "logs" / "supervisor.log"

    def source(self, node: int | str) -> Path:
        """The working folder of one node: its own copy of the source."""
        return self.run / "nodes" / str(node) / "source"
