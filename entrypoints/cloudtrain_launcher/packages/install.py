"""Program that installs a job's packages on one node, started by the launcher.

`python install.py JOB.json SCRATCH NODE` writes the result to `packages.json` in the scratch folder.
Standard library only.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

# Started by its path: import from the folder of the package, not from this one.
if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[2])
    sys.path.insert(1, str(Path(__file__).resolve().parents[2] / "job"))

from cloudtrain_launcher import reporting
from cloudtrain_launcher.contract import Job, read_job
from cloudtrain_launcher.packages import image, installers, layered
from cloudtrain_launcher.packages.installation import PACKAGES_DIR, RESULT
from cloudtrain_launcher.packages.installers import Files, InstallationError
from cloudtrain_wire.parent_death import set_parent_death_signal
from cloudtrain_wire.requirement_files import (
    InvalidRequirements,
    Requested,
    read_requested,
    requested_list,
)
from cloudtrain_wire.secret_values import masker


def main() -> int:
    """Install the packages and write the result; always return 0."""
    set_parent_death_signal(os.getppid())
    job_file, scratch, node = sys.argv[1:]
    job = read_job(job_file)
    reporting.mask_secrets(job, os.environ)

    try:
        result = Installation(job, Path(scratch), int(node)).run()
    except (InstallationError, InvalidRequirements) as error:
        result = {"error": str(error), "hint": getattr(error, "hint", "")}
    except OSError as error:
        why = (
            f"the packages cannot be installed: {error.strerror or error}"
            + f" ({error.filename})" * bool(error.filename)
        )
        result = {"error": why, "hint": installers.hint_for_output(str(error))}

    draft = Path(scratch, f"{RESULT}.partial")
    draft.write_text(json.dumps(result), encoding="utf-8")
    draft.replace(Path(scratch, RESULT))

    return 0


class Installation:
    """One installation for the job in the current folder, from files to an environment.

    The result has `environment`, or `error` and `hint`.
    """

    def __init__(self, job: Job, scratch: Path, node: int) -> None:
        self.scratch = scratch
        self.node = node
        self.held = {} if job.dependencies.get("replace_torch") else image.held_packages()
        self.requested = requested_by(job)
        masker.add(self.requested.passwords)
        self.lines, self.warnings = image.without_held(self.requested, self.held)

    def run(self) -> dict[str, Any]:
        """Return the result document. Raise InstallationError or OSError."""
        result: dict[str, Any] = {"environment": "", "warnings": self.warnings}
        if all(line.constraint for line in self.lines):
            return result

        environment = self.environment()

        if layered.is_changed(environment):
            self.warnings.append(
                f"packages in {environment} were changed after their installation: this run"
                " installs its own; remove that folder to keep them again"
            )
            environment = self.scratch / "packages" / environment.name

        with layered.making(
            environment,
            lambda: self._log("waiting for another process to install the same packages"),
        ):
            installed = layered.installed_in(environment)
            result["reused"] = installed is not None
            if installed is None:
                result["installed"] = self._make(environment)
            else:
                result["installed"] = installed

        layer = self.scratch / "layer"
        layered.create_layer(layer, environment)

        return {**result, "environment": str(layer)}

    def environment(self) -> Path:
        """Return the environment's path; one with files of the source belongs to this run only."""
        folder = self.scratch / "packages"
        kept = os.environ.get(PACKAGES_DIR)
        is_own = self.requested.is_local or image.uses_files_of(
            Path.cwd(), self.requested, os.environ
        )
        if kept and not is_own:
            folder = Path(kept)

        lines = list(self.requested.options)
        lines += [f"{line.constraint} {line.text}" for line in self.lines]
        lines += self._held_lines()
        lines.append(image.index_settings(os.environ))

        return folder / image.environment_digest(lines, folder)

    def _make(self, environment: Path) -> dict[str, str]:
        """Create the environment, replacing an existing one; return name -> version of its packages.

        Remove it again after a failure.
        """
        try:
            layered.create(environment, image.site_folders())
            self._install(environment)
            installed = {}
            for distribution in metadata.distributions(path=[str(layered.site_of(environment))]):
                installed[distribution.metadata["Name"]] = distribution.version

            layered.complete(environment, installed)
        except BaseException:
            layered.remove(environment)
            raise

        return installed

    def _install(self, environment: Path) -> None:
        folder = self.scratch / "requirements"
        folder.mkdir(mode=0o700, exist_ok=True)
        files = self._write_files(folder)

        try:
            installers.install(layered.python_of(environment), files, os.environ, self._log)
        except InstallationError as error:
            raise self._explained(error) from None

    def _write_files(self, folder: Path) -> Files:
        """Write the installer's own requirement files."""
        hashed = replace(self.requested, requirements=tuple(self.lines)).is_hashed
        requirements = list(self.requested.options)
        restricting = []

        for line in self.lines:
            if line.constraint:
                restricting.append(line.text)
            else:
                requirements.append(line.text)

        restricting += self._held_lines()
        files = Files(folder / "requirements.txt", folder / "constraints.txt", hashed)
        files.requirements.write_text("\n".join(requirements) + "\n", encoding="utf-8")
        files.constraints.write_text("\n".join(restricting) + "\n", encoding="utf-8")

        return files

    def _held_lines(self) -> list[str]:
        """Return the packages that stay, as lines of a requirements file."""
        return [f"{name}=={version}" for name, version in self.held.items()]

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
        if self.node == 0 and installers.is_telling(line):
            reporting.log(self.node, f"installing: {line}")


def requested_by(job: Job) -> Requested:
    """Return the job's requirements. Raise InvalidRequirements."""
    file = job.dependencies.get("file")
    if not file:
        return requested_list(job.dependencies.get("packages", ()))

    try:
        return read_requested(Path.cwd(), file)
    except OSError as error:
        raise InvalidRequirements(f"{file} cannot be read: {error.strerror}") from None


if __name__ == "__main__":
    sys.exit(main())
