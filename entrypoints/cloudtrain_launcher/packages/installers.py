"""The commands of uv and pip that install a job's packages, and what they say when they cannot.
Standard library only.

No requirement and no address is an argument of a process: all are in files and in the environment,
which other users of the machine do not see.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from cloudtrain_launcher.host import set_parent_death_signal
from cloudtrain_launcher.packages.index_settings import pip_files
from cloudtrain_launcher.packages.requirement_files import Requirement, hide_passwords, normalised

SHOWN_LINES = 8
SHOWN_CHARS = 240
"""How many of an installer's last lines are in the message of a failure, and how much of each."""

_UV_NAMES = {
    "PIP_INDEX_URL": "UV_DEFAULT_INDEX",
    "PIP_EXTRA_INDEX_URL": "UV_INDEX",
    "PIP_FIND_LINKS": "UV_FIND_LINKS",
    "PIP_CERT": "SSL_CERT_FILE",
}
"""What pip's variables are called by uv, which does not read them."""

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
"""Settings of pip that would install something else, or somewhere else."""


class InstallationError(RuntimeError):
    """The packages of a job cannot be installed; `hint` says what to do about it."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class Files(NamedTuple):
    """What an installer reads. The files may hold passwords, so that they are in a folder of the
    job alone.
    """

    requirements: Path
    constraints: Path
    hashed: bool
    """Whether every requirement has hashes."""


Show = Callable[[str], None]
"""Called with each line that an installer prints."""


def find_uv(environ: Mapping[str, str]) -> str:
    """The path of uv, where it would find the packages that pip finds; empty: pip is to be used.

    uv reads none of pip's own configuration files, in which an image or a machine may name its
    index.
    """
    own = any(name.startswith("UV_") and "INDEX" in name for name in environ)
    if not own and any(file.is_file() for file in pip_files(environ)):
        return ""
    return shutil.which("uv", path=environ.get("PATH")) or ""


def uv_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables for uv: pip's say the same, unless uv's own are set."""
    said = {
        uv: environ[pip] for pip, uv in _UV_NAMES.items() if environ.get(pip) and uv not in environ
    }
    if "UV_FIND_LINKS" in said:  # pip separates them by spaces
        said["UV_FIND_LINKS"] = ",".join(said["UV_FIND_LINKS"].split())
    return {**environ, **said, "UV_NO_PROGRESS": "1", "NO_COLOR": "1"}


def is_without_index(environ: Mapping[str, str]) -> bool:
    """Whether pip's variable says that only links and local files are to be searched."""
    return environ.get("PIP_NO_INDEX", "").lower() in {"1", "true", "yes", "on"}


def pip_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables for pip."""
    kept = {
        name: value
        for name, value in environ.items()
        if name not in {f"PIP_{each}" for each in _ELSEWHERE}
    }
    quiet = {
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_NO_INPUT": "1",
        "PIP_PROGRESS_BAR": "off",
        "PIP_NO_COLOR": "1",
    }
    return {**kept, **quiet, "PIP_USER": "0", "PIP_ROOT_USER_ACTION": "ignore"}


def install_by_pip(python: Path, files: Files, environ: Mapping[str, str], show: Show) -> None:
    """Install into the environment of `python`, in which pip sees what it is layered on.
    InstallationError.
    """
    run_pip = [str(python), "-m", "pip"]
    if subprocess.run([*run_pip, "--version"], capture_output=True, check=False).returncode != 0:
        made = subprocess.run([str(python), "-m", "ensurepip"], capture_output=True, check=False)
        if made.returncode != 0:
            raise InstallationError(
                "this image has neither uv nor pip", "use an image with one of them"
            )
    # A file in which everything has hashes is complete: a package that it does not name must not
    # come either.
    how = ["--require-hashes", "--no-deps"] if files.hashed else ["-c", str(files.constraints)]
    _run(
        [*run_pip, "install", *how, "-r", str(files.requirements)],
        pip_environ(environ),
        show,
        "pip",
    )


def install_by_uv(
    uv: str,
    python: Path,
    files: Files,
    lines: Sequence[Requirement],
    environ: Mapping[str, str],
    show: Show,
) -> None:
    """The same by uv, which sees only an environment's own packages: it first resolves against what
    is below.

    `lines`: the requirements in `files`. InstallationError.
    """
    env = uv_environ(environ)
    install = [
        uv,
        "pip",
        "install",
        *(["--no-index"] if is_without_index(environ) else []),
    ]  # it has no variable for it
    how = ["--require-hashes", "--no-deps"] if files.hashed else ["-c", str(files.constraints)]
    below = [*install, "--dry-run", "--break-system-packages", "--python", sys.executable, *how]
    missing = missing_packages(
        _run([*below, "-r", str(files.requirements)], env, lambda _: None, "uv"), lines
    )
    if not missing:
        return
    options = [
        line
        for line in files.requirements.read_text(encoding="utf-8").splitlines()
        if line.startswith("--")
    ]
    exact = files.requirements.with_name("exact.txt")
    exact.write_text("\n".join([*options, *missing]) + "\n", encoding="utf-8")
    strict = ["--require-hashes"] if files.hashed else []
    into = [
        *install,
        "--no-deps",
        "--link-mode=copy",
        "--python",
        str(python),
        *strict,
        "-r",
        str(exact),
    ]
    _run(into, env, show, "uv")


_WOULD_INSTALL = re.compile(
    r"^ [+~] (?P<name>[A-Za-z0-9._-]+)==(?P<version>\S+)(?: \(from (?P<url>\S+)\))?"
)


def missing_packages(output: Sequence[str], lines: Sequence[Requirement]) -> list[str]:
    """What a dry run of uv would install, as exact requirements; one with hashes or an address as
    it was written.
    """
    written = {
        each.name: each.text
        for each in lines
        if each.name and ("--hash" in each.text or " @ " in each.text)
    }
    found = [match for match in map(_WOULD_INSTALL.match, output) if match]
    return [
        written.get(
            normalised(match["name"]),
            (
                f"{match['name']} @ {match['url']}"
                if match["url"]
                else f"{match['name']}=={match['version']}"
            ),
        )
        for match in found
    ]


def _run(argv: Sequence[str], environ: Mapping[str, str], show: Show, name: str) -> list[str]:
    """Run an installer to its end; returns its lines. InstallationError with the last of them where
    it fails.
    """
    process = subprocess.Popen(
        argv,
        env=dict(environ),
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
        last = "\n".join([line[:SHOWN_CHARS] for line in lines if is_telling(line)][-SHOWN_LINES:])
        raise InstallationError(f"{name} exited with code {process.returncode}:\n{last}")
    return lines


_OWN_FILE = re.compile(r" ?(\(from )?-r /[^()]* \(line \d+\)\)?")
"""Where pip found a requirement: a file of ours, which nobody knows."""

_UNTELLING = re.compile(
    r"\s*$|Looking in |Requirement already satisfied|INFO: |Using Python|\[notice\]|To fix this you"
    r" could|\d\. |"
    r"ERROR: ResolutionImpossible|\s*(Attempting uninstall|Found existing|Not uninstalling|Can't"
    r" uninstall)"
)


def is_telling(line: str) -> bool:
    """Whether a line of an installer tells something: that what is below an environment stays as it
    is does not.
    """
    return not _UNTELLING.match(line)


_NAMED = (
    r"No matching distribution found for ([A-Za-z0-9._-]+)",
    r"Because ([A-Za-z0-9._-]+) was not found",
    r"there (?:is|are) no versions? of ([A-Za-z0-9._-]+)",
    r"Cannot install (?:-r \S+ \(line \d+\) and )?([A-Za-z0-9._-]+)",
    r"[Ff]ailed (?:to build|building wheel for) [`']?([A-Za-z0-9._-]+)",
    r"(?:hash mismatch for|[Hh]ash mismatch[^\n]*`)\s*([A-Za-z0-9._-]+)",
    r"(?:^|\n)\s+([A-Za-z0-9._-]+)[=<>][^\n]* from \S+[^\n]*:\n\s+Expected sha",
)  # fmt: skip


def blamed(output: str, lines: Sequence[Requirement]) -> Requirement | None:
    """The requirement that an installer's output is about; None where it names none of them."""
    by_name = {each.name: each for each in lines if each.name}
    for pattern in _NAMED:
        for name in re.findall(pattern, output):
            if found := by_name.get(normalised(name.split("[")[0])):
                return found
    said = output.lower()
    return next(
        (each for each in lines if each.name and re.search(rf"\b{re.escape(each.name)}\b", said)),
        None,
    )


_HINTS = (
    (
        r"No space left|Disk quota",
        "the disk is full: free some space, or ask for more with resources.disk",
    ),
    (
        r"\b(401|403)\b|Unauthorized|Forbidden",
        "the package index refuses the login: hand it over by secrets, as PIP_INDEX_URL or ${NAME} in requirements.txt",
    ),
    (
        r"name resolution|NewConnectionError|[Cc]onnection (to|refused|timed|reset|error)|timed out|dns error|"
        r"error sending request|Network is unreachable|[Tt]emporary failure",
        "this node reaches no package index: name one that it reaches (env: {PIP_INDEX_URL: …}), or send the wheels "
        "with the job (dependencies: {vendor: true})",
    ),
    (
        r"HASHES|[Hh]ash mismatch|--require-hashes",
        "the file on the index is not the one that was locked: lock again, or find out why",
    ),
    (
        r"conflicting dependencies|[Cc]onflict|depends on torch|torch==",
        "the image's torch stays as it is: ask for versions that fit it, take another image, or allow the change with "
        "dependencies: {replace_torch: true}",
    ),
    (
        r"[Ff]ailed (to build|building)|metadata-generation-failed|build_wheel|"
        r"(gcc|g\+\+|cc|cmake|ninja)\b.*(not found|No such file)",
        "there is no wheel of it for this machine, and it cannot be built here: ask for a version that has one, or "
        "build it into an image (image: {build: Dockerfile})",
    ),
    (
        r"No matching distribution|not found in the package registry|no versions? of|no wheels|was not found",
        "is the name right, is there such a version, and a wheel for this Python and system? Where a node reaches no "
        "index, dependencies: {vendor: true} sends the wheels with the job",
    ),
)  # fmt: skip


def hint_for_output(output: str) -> str:
    """What to do about a failure, by what the installer has printed."""
    return next(
        (hint for pattern, hint in _HINTS if re.search(pattern, output)),
        "the lines above are the installer's",
    )
