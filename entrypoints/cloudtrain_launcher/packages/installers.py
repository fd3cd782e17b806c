"""Installation of packages by pip, and hints for its errors. Standard library only.

Requirements and addresses are passed in files and in the environment, never as arguments, which
other users of the machine can see.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from cloudtrain_wire.parent_death import set_parent_death_signal
from cloudtrain_wire.requirement_files import Requirement, hide_passwords, normalised

SHOWN_LINES = 8
SHOWN_CHARS = 240
"""Number and length of an installer's last lines in an error message."""

_ELSEWHERE = (
    "TARGET",
    "PREFIX",
    "ROOT",
    "USER",
    "DRY_RUN",
    "REQUIRE_VIRTUALENV",
    "PYTHON",
    "CONSTRAINT",
    "REQUIREMENT",
)
"""Settings of pip that change what is installed, or the target folder."""

Show = Callable[[str], None]
"""Called with each line that an installer prints."""

_OWN_FILE = re.compile(r" ?(\(from )?-r /[^()]* \(line \d+\)\)?")
"""Place of a requirement in our own file, which the user does not know."""

_UNTELLING = re.compile(
    r"\s*$|Looking in |Requirement already satisfied|INFO: |\[notice\]|To fix this you"
    r" could|\d\. |"
    r"ERROR: ResolutionImpossible|\s*(Attempting uninstall|Found existing|Not uninstalling|Can't"
    r" uninstall)"
)

_NAMED = (
    r"No matching distribution found for ([A-Za-z0-9._-]+)",
    r"Cannot install (?:-r \S+ \(line \d+\) and )?([A-Za-z0-9._-]+)",
    r"[Ff]ailed (?:to build|building wheel for) ([A-Za-z0-9._-]+)",
    r"(?:^|\n)\s+([A-Za-z0-9._-]+)[=<>][^\n]* from \S+[^\n]*:\n\s+Expected sha",
)  # fmt: skip

_HINTS = (
    (
        r"No space left|Disk quota",
        "the disk is full: free some space, or ask for more with resources.disk",
    ),
    (
        r"\b(401|403)\b|Unauthorized|Forbidden",
        "the package index rejected the login: pass it in secrets, as PIP_INDEX_URL or ${NAME} in requirements.txt",
    ),
    (
        r"name resolution|NewConnectionError|[Cc]onnection (to|refused|timed|reset|error)|timed out|"
        r"Network is unreachable|[Tt]emporary failure",
        "this node cannot reach a package index: set a reachable one (env: {PIP_INDEX_URL: …}), or send wheels with "
        "the source (--no-index and --find-links in requirements.txt)",
    ),
    (
        r"HASHES|[Hh]ash mismatch|--require-hashes",
        "the file on the index differs from the locked one: lock again, or find out why",
    ),
    (
        r"conflicting dependencies|[Cc]onflict|depends on torch|torch==",
        "the image's torch stays: request versions compatible with it, use another image, or allow the change with "
        "dependencies: {replace_torch: true}",
    ),
    (
        r"[Ff]ailed (to build|building)|metadata-generation-failed|build_wheel|"
        r"(gcc|g\+\+|cc|cmake|ninja)\b.*(not found|No such file)",
        "there is no wheel of it for this machine, and it cannot be built here: ask for a version that has one, or "
        "build it into an image (image: {build: Dockerfile})",
    ),
    (
        r"No matching distribution",
        "is the name right, is there such a version, and a wheel for this Python and system?",
    ),
)  # fmt: skip


class InstallationError(RuntimeError):
    """The packages of a job cannot be installed; `hint` names a solution."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class Files(NamedTuple):
    """Input files of an installer, which may hold passwords: keep them in a private folder."""

    requirements: Path
    constraints: Path
    hashed: bool
    """True if every requirement has hashes."""


def pip_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """Return pip's variables."""
    variables = dict(environ)
    for suffix in _ELSEWHERE:
        variables.pop(f"PIP_{suffix}", None)

    variables["PIP_DISABLE_PIP_VERSION_CHECK"] = "1"
    variables["PIP_NO_INPUT"] = "1"
    variables["PIP_PROGRESS_BAR"] = "off"
    variables["PIP_NO_COLOR"] = "1"
    variables["PIP_USER"] = "0"
    variables["PIP_ROOT_USER_ACTION"] = "ignore"

    return variables


def install(python: Path, files: Files, environ: Mapping[str, str], show: Show) -> None:
    """Install with pip, which also sees packages below the environment. Raise InstallationError."""
    run_pip = [str(python), "-m", "pip"]
    if subprocess.run([*run_pip, "--version"], capture_output=True, check=False).returncode != 0:
        made = subprocess.run([str(python), "-m", "ensurepip"], capture_output=True, check=False)
        if made.returncode != 0:
            raise InstallationError("this image has no pip", "use an image with pip")

    # With hashes the file is complete: install no package that it does not name.
    command = [*run_pip, "install"]
    if files.hashed:
        command += ["--require-hashes", "--no-deps"]
    else:
        command += ["-c", str(files.constraints)]

    command += ["-r", str(files.requirements)]
    process = subprocess.Popen(
        command,
        env=pip_environ(environ),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        preexec_fn=partial(set_parent_death_signal, os.getpid()),
    )
    assert process.stdout is not None  # noqa: S101  (a pipe)
    lines = []

    with process.stdout:
        for line in process.stdout:
            lines.append(_OWN_FILE.sub("", hide_passwords(line.rstrip())))
            show(lines[-1])

    if process.wait() != 0:
        telling = [line[:SHOWN_CHARS] for line in lines if is_telling(line)]
        last = "\n".join(telling[-SHOWN_LINES:])
        raise InstallationError(f"pip exited with code {process.returncode}:\n{last}")


def is_telling(line: str) -> bool:
    """Return whether an output line is informative; notes about unchanged packages are not."""
    return not _UNTELLING.match(line)


def blamed(output: str, lines: Sequence[Requirement]) -> Requirement | None:
    """Return the requirement that an installer's output blames; None if it names none."""
    by_name = {line.name: line for line in lines if line.name}

    for pattern in _NAMED:
        for name in re.findall(pattern, output):
            if requirement := by_name.get(normalised(name.split("[")[0])):
                return requirement

    text = output.lower()
    for line in lines:
        if line.name and re.search(rf"\b{re.escape(line.name)}\b", text):
            return line

    return None


def hint_for_output(output: str) -> str:
    """Return a hint for a failure, by the installer's output."""
    for pattern, hint in _HINTS:
        if re.search(pattern, output):
            return hint

    return "see the installer's output above"
