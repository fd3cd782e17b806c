"""Program that installs a job's packages on one node, started by the launcher.

`python install.py TASK.json` writes the result to the file that the task names. Standard library
only.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import Any

# Started by its path: import from the folder of the package, not from this one.
if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[2])
    sys.path.insert(1, str(Path(__file__).resolve().parents[2] / "job"))

from cloudtrain_launcher import reporting
from cloudtrain_launcher.host import set_parent_death_signal
from cloudtrain_launcher.packages import image, installers, layered
from cloudtrain_launcher.packages.installers import Files, InstallationError
from cloudtrain_launcher.packages.requirement_files import (
    InvalidRequirements,
    Requested,
    read_requested,
    requested_list,
)


@dataclass(frozen=True)
class Task:
    """Input of one installation."""

    source: str
    """The job's working folder."""
    result: str
    """File for the result, as JSON: `environment`, or `error` and `hint`."""
    folder: str
    """Folder of the environments kept on this machine."""
    node: int
    masked: list[str] = field(default_factory=list)
    """Variables whose values are secret."""
    file: str = ""
    """Requirements file below the source folder; empty: use `packages`."""
    packages: list[str] = field(default_factory=list)
    replace_torch: bool = False


def main() -> int:
    """Install the packages and write the result; always return 0."""
    set_parent_death_signal(os.getppid())
    task = Task(**json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
    reporting.masker.add(os.environ.get(name, "") for name in task.masked)

    try:
        result = Installation(task).run()
    except (InstallationError, InvalidRequirements) as error:
        result = {"error": str(error), "hint": getattr(error, "hint", "")}
    except OSError as error:
        why = (
            f"the packages cannot be installed: {error.strerror or error}"
            + f" ({error.filename})" * bool(error.filename)
        )
        result = {"error": why, "hint": installers.hint_for_output(str(error))}

    draft = Path(task.result + ".partial")
    draft.write_text(json.dumps(result), encoding="utf-8")
    draft.replace(task.result)

    return 0


class Installation:
    """One installation, from files to an environment."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.held = {} if task.replace_torch else image.held_packages()
        self.requested = read_task(task)
        reporting.masker.add(self.requested.passwords)
        self.lines, self.warnings = image.without_held(self.requested, self.held)

    def run(self) -> dict[str, Any]:
        """Return the result document. Raise InstallationError or OSError."""
        result: dict[str, Any] = {"environment": "", "warnings": self.warnings}
        if not any(not line.constraint for line in self.lines):
            return result

        environment = self._environment()

        if layered.is_changed(environment):
            self.warnings.append(
                f"packages in {environment} were changed after their installation: this run"
                " installs its own; remove that folder to keep them again"
            )
            environment = self._own_folder / environment.name

        with layered.making(
            environment,
            lambda: self._log("waiting for another process to install the same packages"),
        ):
            installed = layered.installed_in(environment)
            result["reused"] = installed is not None
            result["installed"] = self._make(environment) if installed is None else installed

        layer = Path(self.task.result).parent / "layer"
        layered.create_layer(layer, environment)

        return {**result, "environment": str(layer)}

    @property
    def _own_folder(self) -> Path:
        """Folder of environments of this run alone."""
        return Path(self.task.result).parent / "packages"

    def _environment(self) -> Path:
        """Return the environment's path; one with files of the source belongs to this run only."""
        folder = Path(self.task.folder)
        source = Path(self.task.source).resolve()
        if self.requested.is_local or image.uses_files_of(source, self.requested, os.environ):
            folder = self._own_folder

        lines = [
            *self.requested.options,
            *(f"{line.constraint} {line.text}" for line in self.lines),
            *(f"{name}=={version}" for name, version in self.held.items()),
            *image.index_settings(os.environ),
        ]
        return folder / image.environment_digest(lines, folder)

    def _make(self, environment: Path) -> dict[str, str]:
        """Create the environment, replacing an existing one; return name -> version of its packages.

        Remove it again after a failure.
        """
        try:
            layered.create(environment, image.site_folders())
            self._install(environment)
            distributions = metadata.distributions(path=[str(layered.site_of(environment))])
            installed = {
                distribution.metadata["Name"]: distribution.version
                for distribution in distributions
            }
            layered.complete(environment, installed)
        except BaseException:
            layered.remove(environment)
            raise

        return installed

    def _install(self, environment: Path) -> None:
        folder = Path(self.task.result).parent / "requirements"
        folder.mkdir(mode=0o700, exist_ok=True)
        files = self._write_files(folder)

        try:
            installers.install(layered.python_of(environment), files, os.environ, self._log)
        except InstallationError as error:
            raise self._explained(error) from None

    def _write_files(self, folder: Path) -> Files:
        """Write the installer's own requirement files."""
        hashed = replace(self.requested, requirements=tuple(self.lines)).is_hashed
        requirements = [line.text for line in self.lines if not line.constraint]
        held = [f"{name}=={version}" for name, version in self.held.items()]
        restricting = [line.text for line in self.lines if line.constraint] + held
        files = Files(folder / "requirements.txt", folder / "constraints.txt", hashed)
        files.requirements.write_text(
            "\n".join([*self.requested.options, *requirements]) + "\n", encoding="utf-8"
        )
        files.constraints.write_text("\n".join(restricting) + "\n", encoding="utf-8")

        return files

    def _explained(self, error: InstallationError) -> InstallationError:
        """Add the failing requirement and a hint to an error."""
        output = str(error)
        requirement = installers.blamed(str(error), self.lines)

        if requirement:
            subject = f"{requirement.place}: {requirement.shown}"
        else:
            subject = ", ".join(self.requested.files) or "dependencies"

        return InstallationError(
            f"{subject} cannot be installed for {image.platform_name()}: {output}",
            installers.hint_for_output(output),
        )

    def _log(self, line: str) -> None:
        if self.task.node == 0 and installers.is_telling(line):
            reporting.log(self.task.node, f"installing: {line}")


def read_task(task: Task) -> Requested:
    """Return the task's requirements. Raise InvalidRequirements."""
    if not task.file:
        return requested_list(task.packages)

    try:
        return read_requested(Path(task.source), task.file)
    except OSError as error:
        raise InvalidRequirements(f"{task.file} cannot be read: {error.strerror}") from None


if __name__ == "__main__":
    sys.exit(main())
