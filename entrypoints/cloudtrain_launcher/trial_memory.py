"""Number of a trial's reports, kept among its checkpoints for a restarted job.

A platform may start the same job again on another machine, where the program continues from its
checkpoint and reports only new values. Without checkpoints the program and the count start at 0.
Standard library only.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path

FILE_NAME = ".cloudtrain-trial.json"


class TrialMemory:
    """File of one run among its checkpoints. `folder`: None if the platform never restarts jobs."""

    def __init__(self, folder: Path | None, run_id: str) -> None:
        self._folder = folder
        self._run_id = run_id

    def read(self) -> tuple[int, float | None]:
        """Return the number and position of the reports; 0 and None without this run's file."""
        if self._folder is not None:
            with suppress(OSError, ValueError, LookupError, TypeError):
                document = json.loads((self._folder / FILE_NAME).read_text(encoding="utf-8"))
                if document["run"] == self._run_id:
                    return int(document["reports"]), document["position"]
        return 0, None

    def write(self, reports: int, position: float | None) -> None:
        """Store the count. Ignore errors: only a restarted job needs it."""
        with suppress(OSError):
            if self._folder is None or not any(self._folder.iterdir()):
                return
            text = json.dumps({"run": self._run_id, "reports": reports, "position": position})
            draft = self._folder / f"{FILE_NAME}.{os.getpid()}"
            draft.write_text(text, encoding="utf-8")
            # Whole at once: it may be uploaded at any moment.
            draft.replace(self._folder / FILE_NAME)
