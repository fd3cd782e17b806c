"""Program that installs a job's packages on one node, started by the launcher.

`python install.py TASK.json` writes the result to the file that the task names. Standard library
only.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, field, replace
from hashlib import sha256
from importlib import metadata
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

# Started by its path: import from the folder of the package, not from this one.
if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[2])
    sys.path.insert(1, str(Path(__file__).resolve().parents[2] / "job"))

from cloudtrain_launcher import reporting
from cloudtrain_launcher.host import set_parent_death_signal
from cloudtrain_launcher.masking import masker
from cloudtrain_launcher.packages import archives, image, installers, layered
from cloudtrain_launcher.packages.index_settings import index_settings
from cloudtrain_launcher.packages.installers import Files, InstallationError
from cloudtrain_launcher.packages.lock_file import read_lock
from cloudtrain_launcher.packages.requirement_files import (
    InvalidRequirements,
    Requested,
    Requirement,
    requested_list,
)
from cloudtrain_launcher.packages.source_files import read_requested


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
    wheels: str = ""
    """Folder of wheels sent with the job, the only source of packages; empty: none."""
    replace_torch: bool = False
    archives: list[str] = field(default_factory=list)
    """Folders that may hold an earlier attempt's archive of the environment."""
    archive_into: str = ""
    """Folder for this node's archive; empty: store none."""


UNUSED_SECONDS = 28 * 24 * 3600
"""Age of an environment's last start after which no job can still use it."""


def archive_name(environment: Path) -> str:
    """Return the name of an environment's archive, the same for all its replacements."""
    return f"{environment.name.partition('.')[0]}.packages"


def main() -> int:
    """Install the packages and write the result; always return 0."""
    set_parent_death_signal(os.getppid())
    task = Task(**json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
    masker.add(os.environ.get(name, "") for name in task.masked)
    try:
        environment, result = Installation(task).run()
    except (InstallationError, InvalidRequirements) as error:
        environment = None
        result = {"error": str(error), "hint": getattr(error, "hint", "")}
    except OSError as error:
        why = (
            f"the packages cannot be installed: {error.strerror or error}"
            + f" ({error.filename})" * bool(error.filename)
        )
        environment = None
        result = {"error": why, "hint": installers.hint_for_output(str(error))}
    draft = Path(task.result + ".partial")
    draft.write_text(json.dumps(result), encoding="utf-8")
    draft.replace(task.result)
    if environment and task.archive_into:
        with suppress(OSError):  # the next attempt installs again
            archives.save(environment, Path(task.archive_into, archive_name(environment)))
    return 0


class Installation:
    """One installation, from files to an environment."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.held = {} if task.replace_torch else image.held_packages()
        self.requested = read_task(task, self.held)
        masker.add(self.requested.passwords)
        self.lines, self.warnings = image.without_held(self.requested, self.held)

    def run(self) -> tuple[Path | None, dict[str, Any]]:
        """Return the environment and the result document. Raise InstallationError or OSError."""
        result: dict[str, Any] = {"environment": "", "warnings": self.warnings}
        if not any(not line.constraint for line in self.lines):
            return None, result
        environment = self._environment()
        with layered.making(
            environment,
            lambda: self._log("waiting for another process to install the same packages"),
        ):
            environment, changed = self._unchanged_or_new(environment)
            document = layered.contents(environment)
            result["reused"] = document is not None
            if document is None:
                if changed:
                    self.warnings.append(
                        f"a job has changed {changed} of the kept packages; installing them again"
                    )
                document = self._make(environment)
        layer = Path(self.task.result).parent / "layer"
        layered.create_layer(layer, environment)
        return environment, {
            **result,
            "environment": str(layer),
            "installed": document["installed"],
        }

    def _unchanged_or_new(self, first: Path) -> tuple[Path, str]:
        """Return the first unchanged or missing environment, and the last change of another.

        A changed environment stays for UNUSED_SECONDS after its last start, as jobs may run in it.
        """
        changed = ""
        for number in count():
            environment = first.with_name(f"{first.name}.{number}") if number else first
            complete = environment / layered.COMPLETE
            if layered.contents(environment) is None:
                break
            if layered.is_unchanged(environment):
                with suppress(OSError):
                    os.utime(complete)
                break
            if time.time() - complete.stat().st_mtime > UNUSED_SECONDS:
                layered.remove(environment)
                break
            changed = layered.last_change(environment)
        return environment, changed

    def _environment(self) -> Path:
        """Return the environment's path; one with code of the source belongs to this run only."""
        folder = Path(self.task.folder)
        if self.requested.is_local:
            folder = Path(self.task.result).parent / "packages"
        requested = [
            *self.requested.options,
            *(f"{line.constraint} {line.text}" for line in self.lines),
        ]
        source = Path(self.task.source).resolve().as_uri()  # differs between runs
        held = [f"{name}=={version}" for name, version in self.held.items()]
        lines = [
            *(text.replace(source, "") for text in requested),
            *held,
            *self._wheels_of_the_source(),
        ]
        if not self.task.wheels:  # else no index is used
            lines += index_settings(os.environ, Path(self.task.source).resolve())
        return folder / image.environment_digest(lines, folder)

    def _wheels_of_the_source(self) -> list[str]:
        """Return hashes of the source's wheels: requirements name them without their content."""
        source = Path(self.task.source).resolve().as_uri()
        links = [
            option.partition(" ")[2]
            for option in self.requested.options
            if option.startswith("--find-links ")
        ]
        folders = [Path(unquote(urlsplit(link).path)) for link in links if link.startswith(source)]
        folders += [Path(self.task.wheels)] if self.task.wheels else []
        wheels = [path for folder in folders for path in sorted(folder.glob("*.*"))]
        wheels += [Path(line.wheel) for line in self.lines if line.wheel]
        return [f"{path.name} {sha256(path.read_bytes()).hexdigest()}" for path in wheels]

    def _make(self, environment: Path) -> dict[str, Any]:
        """Create the environment, replacing an existing one; remove it again after a failure."""
        started = time.monotonic()
        below = image.site_folders()
        try:
            layered.create(environment, below)
            if restored := self._restore(environment, below):
                return restored
            self._install(environment)
            distributions = metadata.distributions(path=[str(layered.site_of(environment))])
            installed = {
                distribution.metadata["Name"]: distribution.version
                for distribution in distributions
            }
            document = {
                "installed": installed,
                "seconds": round(time.monotonic() - started, 3),
                "below": below,
            }
            layered.complete(environment, document)
        except BaseException:
            layered.remove(environment)
            raise
        return document

    def _restore(self, environment: Path, below: list[str]) -> dict[str, Any] | None:
        """Restore the packages from an earlier attempt's first valid archive; None without one."""
        for folder in self.task.archives:
            if archives.restore(environment, Path(folder, archive_name(environment))):
                self._log("reusing the packages of an earlier attempt")
                document = layered.contents(environment)
                layered.complete(environment, document or {})
                return document
            layered.create(environment, below)
        return None

    def _install(self, environment: Path) -> None:
        folder = Path(self.task.result).parent / "requirements"
        folder.mkdir(mode=0o700, exist_ok=True)
        files = self._write_files(folder)
        environ = {**os.environ, **self._only_wheels()}
        python = layered.python_of(environment)
        uv = installers.find_uv(environ)
        try:
            if uv:
                installers.install_by_uv(uv, python, files, self.lines, environ, self._log)
            else:
                installers.install_by_pip(python, files, environ, self._log)
        except InstallationError as error:
            raise self._explained(error) from None

    def _write_files(self, folder: Path) -> Files:
        """Write the installer's own requirement files."""
        hashed = replace(self.requested, requirements=tuple(self.lines)).is_hashed
        options = [*self.requested.options] if not self.task.wheels else []
        requirements = [line.text for line in self.lines if not line.constraint]
        held = [f"{name}=={version}" for name, version in self.held.items()]
        restricting = [line.text for line in self.lines if line.constraint] + held
        files = Files(folder / "requirements.txt", folder / "constraints.txt", hashed)
        files.requirements.write_text("\n".join([*options, *requirements]) + "\n", encoding="utf-8")
        files.constraints.write_text("\n".join(restricting) + "\n", encoding="utf-8")
        return files

    def _only_wheels(self) -> dict[str, str]:
        """Return the variables that restrict an installer to the wheels sent with the job."""
        if not self.task.wheels:
            return {}
        # A URL is free of spaces, so that pip does not split it.
        wheels = Path(self.task.wheels).resolve().as_uri()
        return {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": wheels, "UV_FIND_LINKS": wheels}

    def _explained(self, error: InstallationError) -> InstallationError:
        """Add the failing requirement and a hint to an error."""
        output = str(error)
        requirement = installers.blamed(str(error), self.lines)
        subject = (
            f"{requirement.place}: {requirement.shown}"
            if requirement
            else ", ".join(self.requested.files) or "dependencies"
        )
        return InstallationError(
            f"{subject} cannot be installed for {image.platform_name()}: {output}",
            installers.hint_for_output(output),
        )

    def _log(self, line: str) -> None:
        if self.task.node == 0 and installers.is_telling(line):
            reporting.log(self.task.node, f"installing: {line}")


def read_task(task: Task, held: Collection[str]) -> Requested:
    """Return the task's requirements; evaluate the markers of a lock file here.

    `held`: packages that stay. Raise InvalidRequirements.
    """
    if not task.file:
        return requested_list(task.packages)
    try:
        if Path(task.file).name != "uv.lock":
            return read_requested(Path(task.source), task.file)
        holds = image.marker_reader()
        if holds is None:
            raise InvalidRequirements(
                f"{task.file}: this image lacks pip and packaging; add one to evaluate its markers"
            )
        return read_lock(Path(task.source), task.file, holds, held)
    except OSError as error:
        raise InvalidRequirements(f"{task.file} cannot be read: {error.strerror}") from None


__all__ = ["Installation", "Requirement", "Task", "main", "read_task"]

if __name__ == "__main__":
    sys.exit(main())
