"""Installation of a job's packages, in a process beside the launcher. Standard library only.

Afterwards the launcher starts torchrun, and so the ranks, with the interpreter of their
environment.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, MutableMapping
from pathlib import Path
from typing import Any

from cloudtrain_launcher.contract import NodeContext
from cloudtrain_launcher.packages.installers import InstallationError as InstallationError

PACKAGES_DIR = "CLOUDTRAIN_PACKAGES_DIR"
"""Folder of the environments kept on this machine; unset: none is kept."""

RESULT = "packages.json"
"""File in the scratch folder with the result of `install.py`."""

SHOWN = 8
"""Maximum number of packages named in a line of the log."""

VIRTUAL_ENV = "VIRTUAL_ENV"
PATH = "PATH"


class Installation:
    """The installation of one node. `scratch`: a folder for temporary files of this job."""

    def __init__(self, context: NodeContext, scratch: Path) -> None:
        self._context = context
        self._scratch = scratch
        self._result = scratch / RESULT
        self._process: subprocess.Popen[bytes] | None = None
        self.installed: Mapping[str, str] = {}
        """Name -> version of the installed packages. Empty before `finish`."""
        self.reused = False
        """True if the environment existed before."""

    def start(self, environ: Mapping[str, str]) -> None:
        """Start the process. Call it from the main thread. Raise OSError if it cannot start."""
        program = [sys.executable, "-u", str(Path(__file__).with_name("install.py"))]
        context = self._context
        self._process = subprocess.Popen(
            [*program, context.job_file, str(self._scratch), str(context.node_rank)],
            stdin=subprocess.DEVNULL,
            env=dict(environ),
            start_new_session=True,
        )

    def finish(
        self, environ: MutableMapping[str, str], cancelled: Callable[[], bool] = lambda: False
    ) -> list[str]:
        """Wait for the process, then activate its environment in `environ` and this process.

        Return warnings. Raise InstallationError if the packages cannot be installed. Return early
        if `cancelled()` is true.
        """
        if self._process is None:
            return []

        while not self._result.exists() and self._process.poll() is None:
            if cancelled():
                self._process.kill()
                return []

            time.sleep(0.05)

        result = self._read()
        if "error" in result:
            raise InstallationError(result["error"], result.get("hint", ""))
        if result["environment"]:
            activate(Path(result["environment"]), environ)

        self.installed = result.get("installed", {})
        self.reused = result.get("reused", False)

        return list(result["warnings"])

    def summary(self) -> str:
        """Describe the installed packages in one line."""
        names = [f"{name} {self.installed[name]}" for name in sorted(self.installed, key=str.lower)]
        more = ""
        if len(names) > SHOWN:
            more = f" and {len(names) - SHOWN} more"

        return (
            f"packages: {', '.join(names[:SHOWN])}{more}"
            f" ({'installed before' if self.reused else 'installed now'})"
        )

    def _read(self) -> dict[str, Any]:
        try:
            document: dict[str, Any] = json.loads(self._result.read_text(encoding="utf-8"))
        except FileNotFoundError:
            if self._process:
                code = self._process.wait()
            else:
                code = 0

            raise InstallationError(
                f"the installation of packages ended with code {code}; see the log"
            ) from None

        return document


def activate(environment: Path, environ: MutableMapping[str, str]) -> None:
    """Run every later program of this process in an environment, as its `activate` script does.

    Change `environ` and `sys.executable`, which starts torchrun.
    """
    programs = str(environment / "bin")
    inherited = environ.get(PATH, os.defpath)
    environ[PATH] = f"{programs}{os.pathsep}{inherited}" if inherited else programs
    environ[VIRTUAL_ENV] = str(environment)
    environ.pop("PYTHONHOME", None)
    sys.executable = f"{programs}/python3"
