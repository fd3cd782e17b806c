"""The runs of a sweep on a Ray cluster, on a disk that its nodes share: what became of those whose
worker is gone.
"""

from __future__ import annotations

from cloudtrain.providers.emulation.run_paths import RunPaths
from cloudtrain.runs.folder import RunFolder
from cloudtrain.runs.history import History
from cloudtrain.sweeps.definition import Definition
from cloudtrain.sweeps.journal import SweepFolder
from cloudtrain.sweeps.state import Trial
from cloudtrain.sweeps.trials import RunTrials


class RayRuns(RunTrials):
    """Runs that workers have started."""

    def __init__(self, folder: SweepFolder, definition: Definition) -> None:
        super().__init__(folder, definition)
        self._runs_dir = folder.path.parents[1] / "runs"

    def was_asked_to_stop(self, trial: Trial) -> bool:
        """Whether somebody has asked its run to stop: one that ends with its worker was not asked."""
        return RunPaths(self._runs_dir / trial.run).stop_file.exists()

    def has_failed_by_itself(self, trial: Trial) -> bool:
        """Whether its program has failed, and was not just ended."""
        return History(RunFolder(self._runs_dir / trial.run)).read().error is not None
