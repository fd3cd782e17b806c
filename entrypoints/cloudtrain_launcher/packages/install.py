"""Installs the packages of a job on one node: a program of its own, beside which the launcher does
other work.

`python install.py TASK.json` writes what became of it to the file that the task names. Standard
library only.
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

if (
    __name__ == "__main__"
):  # started by its path: import from the folder of the package, not from this one
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
    """What is to be installed, and where."""

    source: str
    """The job's working folder."""
    result: str
    """The file that gets the result, as JSON: `environment`, or `error` and `hint`."""
    folder: str
    """The folder of environments that are kept on this machine."""
    node: int
    masked: list[str] = field(default_factory=list)
    """Variables whose values are secret."""
    file: str = ""
    """The file that asks for packages, below the source folder; empty: `packages` does."""
    packages: list[str] = field(default_factory=list)
    wheels: str = ""
    """A folder of wheels that were sent with the job, from which alone is installed; empty: none.
    """
    replace_torch: bool = False
    archives: list[str] = field(default_factory=list)
    """Folders in which an earlier attempt may have left an archive of the environment."""
    archive_into: str = ""
    """The folder in which this node leaves one; empty: it leaves none."""


UNUSED_SECONDS = 28 * 24 * 3600
"""An environment that no job has begun with for so long is in no job's use: no cloud's job may run
longer.
"""


def archive_name(environment: Path) -> str:
    """The name of an environment's archive: the same for those that are made in place of a changed
    one.
    """
    return f"{environment.name.partition('.')[0]}.packages"


def main() -> int:
    """Install, and write the result; 0 unless that was not possible."""
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
        """The environment, and what the launcher is told of it. InstallationError, OSError."""
        result: dict[str, Any] = {"environment": "", "warnings": self.warnings}
        if not any(not each.constraint for each in self.lines):
            return None, result
        environment = self._environment()
        with layered.making(
            environment, lambda: self._log("waiting for another process that installs the same")
        ):
            environment, changed = self._unchanged_or_new(environment)
            known = layered.contents(environment)
            result["reused"] = known is not None
            if known is None:
                if changed:
                    self.warnings.append(
                        f"a job has changed {changed} of the kept packages: they are installed"
                        " again"
                    )
                known = self._make(environment)
        layer = Path(self.task.result).parent / "layer"
        layered.create_layer(layer, environment)
        return environment, {**result, "environment": str(layer), "installed": known["installed"]}

    def _unchanged_or_new(self, first: Path) -> tuple[Path, str]:
        """The first environment that no job has changed, or that is still to be made; and the last
        change of another.

        A changed one stays, as jobs may run in it, until nobody has begun with it for
        UNUSED_SECONDS.
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
        """Its path: what is built from the source's own files is used by this run alone."""
        folder = Path(self.task.folder)
        if self.requested.is_local:
            folder = Path(self.task.result).parent / "packages"
        asked = [
            *self.requested.options,
            *(f"{each.constraint} {each.text}" for each in self.lines),
        ]
        own = Path(self.task.source).resolve().as_uri()  # each run has the source in another place
        held = [f"{name}=={version}" for name, version in self.held.items()]
        lines = [*(text.replace(own, "") for text in asked), *held, *self._wheels_of_the_source()]
        if not self.task.wheels:  # which are all that is taken then
            lines += index_settings(os.environ, Path(self.task.source).resolve())
        return folder / image.environment_digest(lines, folder)

    def _wheels_of_the_source(self) -> list[str]:
        """Hashes of the wheels that came with the source: their content is not in the text of the
        requirements.
        """
        own = Path(self.task.source).resolve().as_uri()
        links = [
            option.partition(" ")[2]
            for option in self.requested.options
            if option.startswith("--find-links ")
        ]
        folders = [Path(unquote(urlsplit(link).path)) for link in links if link.startswith(own)]
        folders += [Path(self.task.wheels)] if self.task.wheels else []
        wheels = [path for folder in folders for path in sorted(folder.glob("*.*"))]
        wheels += [Path(each.wheel) for each in self.lines if each.wheel]
        return [f"{path.name} {sha256(path.read_bytes()).hexdigest()}" for path in wheels]

    def _make(self, environment: Path) -> dict[str, Any]:
        """Make it; what is there is removed, and so is what is left of a failure."""
        started = time.monotonic()
        below = image.site_folders()
        try:
            layered.create(environment, below)
            if restored := self._restore(environment, below):
                return restored
            self._install(environment)
            found = metadata.distributions(path=[str(layered.site_of(environment))])
            installed = {each.metadata["Name"]: each.version for each in found}
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
        """What an earlier attempt has installed, from the first archive that is whole; None without
        one.
        """
        for folder in self.task.archives:
            if archives.restore(environment, Path(folder, archive_name(environment))):
                self._log("the packages that an earlier attempt has installed are taken")
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
        """The installer's own files, of what remains of those of the job."""
        hashed = replace(self.requested, requirements=tuple(self.lines)).is_hashed
        options = [*self.requested.options] if not self.task.wheels else []
        wanted = [each.text for each in self.lines if not each.constraint]
        held = [f"{name}=={version}" for name, version in self.held.items()]
        restricting = [each.text for each in self.lines if each.constraint] + held
        files = Files(folder / "requirements.txt", folder / "constraints.txt", hashed)
        files.requirements.write_text("\n".join([*options, *wanted]) + "\n", encoding="utf-8")
        files.constraints.write_text("\n".join(restricting) + "\n", encoding="utf-8")
        return files

    def _only_wheels(self) -> dict[str, str]:
        """Variables by which only wheels are taken that were sent with the job."""
        if not self.task.wheels:
            return {}
        wheels = (
            Path(self.task.wheels).resolve().as_uri()
        )  # without spaces, at which pip would part it
        return {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": wheels, "UV_FIND_LINKS": wheels}

    def _explained(self, error: InstallationError) -> InstallationError:
        """The error with the requirement that it is about, and what to do."""
        said = str(error)
        about = installers.blamed(str(error), self.lines)
        what = (
            f"{about.place}: {about.shown}"
            if about
            else ", ".join(self.requested.files) or "dependencies"
        )
        return InstallationError(
            f"{what} cannot be installed for {image.platform_name()}: {said}",
            installers.hint_for_output(said),
        )

    def _log(self, line: str) -> None:
        if self.task.node == 0 and installers.is_telling(line):
            reporting.log(self.task.node, f"installing: {line}")


def read_task(task: Task, held: Collection[str]) -> Requested:
    """What the task asks for, with the markers of a lock file evaluated here. InvalidRequirements.

    `held`: packages that stay as they are.
    """
    if not task.file:
        return requested_list(task.packages)
    try:
        if Path(task.file).name != "uv.lock":
            return read_requested(Path(task.source), task.file)
        holds = image.marker_reader()
        if holds is None:
            raise InvalidRequirements(
                f"{task.file}: this image has neither pip nor packaging, which read its markers"
            )
        return read_lock(Path(task.source), task.file, holds, held)
    except OSError as error:
        raise InvalidRequirements(f"{task.file} cannot be read: {error.strerror}") from None


__all__ = ["Installation", "Requirement", "Task", "main", "read_task"]

if __name__ == "__main__":
    sys.exit(main())
