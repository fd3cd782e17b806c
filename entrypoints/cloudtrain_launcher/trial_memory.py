"""How many reports a trial has made, kept among its checkpoints: a job that is started again counts
on from there.

A platform may start the same job again on another machine, whose program goes on from its
checkpoint and reports only what is new. Nothing is kept where there are no checkpoints: then the
program begins anew, and so does the count. Standard library only.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path

FILE_NAME = ".cloudtrain-trial.json"


class TrialMemory:
    """The file of one run among its checkpoints. `folder`: None for a platform that never starts a
    job again.
    """

    def __init__(self, folder: Path | None, run_id: str) -> None:
        self._folder = folder
        self._run_id = run_id

    def read(self) -> tuple[int, float | None]:
        """Reports so far, and the position of the latest; 0 and None if nothing of this very run is
        kept.
        """
        if self._folder is not None:
            with suppress(OSError, ValueError, LookupError, TypeError):
                document = json.loads((self._folder / FILE_NAME).read_text(encoding="utf-8"))
                if document["run"] == self._run_id:
                    return int(document["reports"]), document["position"]
        return 0, None

    def write(self, reports: int, position: float | None) -> None:
        """Keep the count. Errors are ignored: it is needed only if the platform starts the job
        again.
        """
        with suppress(OSError):
            if self._folder is None or not any(self._folder.iterdir()):
                return
            text = json.dumps({"run": self._run_id, "reports": reports, "position": position})
            draft = self._folder / f"{FILE_NAME}.{os.getpid()}"
            draft.write_text(text, encoding="utf-8")
            draft.replace(
                self._folder / FILE_NAME
            )  # whole at once: it may be uploaded at any moment
