"""Commands of uv and pip that install packages, and hints for their errors. Standard library only.

Requirements and addresses are passed in files and in the environment, never as arguments, which
other users of the machine can see.
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
"""Number and length of an installer's last lines in an error message."""

_UV_NAMES = {
    "PIP_INDEX_URL": "UV_DEFAULT_INDEX",
    "PIP_EXTRA_INDEX_URL": "UV_INDEX",
    "PIP_FIND_LINKS": "UV_FIND_LINKS",
    "PIP_CERT": "SSL_CERT_FILE",
}
"""pip's variables -> uv's names for them; uv does not read pip's."""

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


Show = Callable[[str], None]
"""Called with each line that an installer prints."""


def find_uv(environ: Mapping[str, str]) -> str:
    """Return the path of uv; empty if pip must be used.

    uv does not read pip's configuration files, which may name the index of an image or a machine.
    With such a file, only pip finds the right packages.
    """
    has_uv_index = any(name.startswith("UV_") and "INDEX" in name for name in environ)
    if not has_uv_index and any(file.is_file() for file in pip_files(environ)):
        return ""
    return shutil.which("uv", path=environ.get("PATH")) or ""


def uv_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """Return uv's variables; fill unset ones from pip's."""
    translated = {
        uv: environ[pip] for pip, uv in _UV_NAMES.items() if environ.get(pip) and uv not in environ
    }
    if "UV_FIND_LINKS" in translated:  # pip separates links by spaces
        translated["UV_FIND_LINKS"] = ",".join(translated["UV_FIND_LINKS"].split())
    return {**environ, **translated, "UV_NO_PROGRESS": "1", "NO_COLOR": "1"}


def is_without_index(environ: Mapping[str, str]) -> bool:
    """Return whether pip's variable restricts the search to links and local files."""
    return environ.get("PIP_NO_INDEX", "").lower() in {"1", "true", "yes", "on"}


def pip_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """Return pip's variables."""
    inherited = {
        name: value
        for name, value in environ.items()
        if name not in {f"PIP_{suffix}" for suffix in _ELSEWHERE}
    }
    quiet = {
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_NO_INPUT": "1",
        "PIP_PROGRESS_BAR": "off",
        "PIP_NO_COLOR": "1",
    }
    return {**inherited, **quiet, "PIP_USER": "0", "PIP_ROOT_USER_ACTION": "ignore"}


def install_by_pip(python: Path, files: Files, environ: Mapping[str, str], show: Show) -> None:
    """Install with pip, which also sees packages below the environment. Raise InstallationError."""
    run_pip = [str(python), "-m", "pip"]
    if subprocess.run([*run_pip, "--version"], capture_output=True, check=False).returncode != 0:
        made = subprocess.run([str(python), "-m", "ensurepip"], capture_output=True, check=False)
        if made.returncode != 0:
            raise InstallationError(
                "this image has neither uv nor pip", "use an image with one of them"
            )
    # With hashes the file is complete: install no package that it does not name.
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
    """Install with uv, which does not see packages below: resolve against those first.

    `lines`: the requirements in `files`. Raise InstallationError.
    """
    env = uv_environ(environ)
    # uv lacks a variable for it.
    install = [
        uv,
        "pip",
        "install",
        *(["--no-index"] if is_without_index(environ) else []),
    ]
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
    """Return exact requirements for a dry run's packages; keep hashes and addresses as written."""
    written = {
        line.name: line.text
        for line in lines
        if line.name and ("--hash" in line.text or " @ " in line.text)
    }
    matches = [match for match in map(_WOULD_INSTALL.match, output) if match]
    return [
        written.get(
            normalised(match["name"]),
            (
                f"{match['name']} @ {match['url']}"
                if match["url"]
                else f"{match['name']}=={match['version']}"
            ),
        )
        for match in matches
    ]


def _run(argv: Sequence[str], environ: Mapping[str, str], show: Show, name: str) -> list[str]:
    """Run an installer and return its output. Raise InstallationError with its last lines."""
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
"""Place of a requirement in our own file, which the user does not know."""

_UNTELLING = re.compile(
    r"\s*$|Looking in |Requirement already satisfied|INFO: |Using Python|\[notice\]|To fix this you"
    r" could|\d\. |"
    r"ERROR: ResolutionImpossible|\s*(Attempting uninstall|Found existing|Not uninstalling|Can't"
    r" uninstall)"
)


def is_telling(line: str) -> bool:
    """Return whether an output line is informative; notes about unchanged packages are not."""
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
    """Return the requirement that an installer's output blames; None if it names none."""
    by_name = {line.name: line for line in lines if line.name}
    for pattern in _NAMED:
        for name in re.findall(pattern, output):
            if requirement := by_name.get(normalised(name.split("[")[0])):
                return requirement
    text = output.lower()
    return next(
        (line for line in lines if line.name and re.search(rf"\b{re.escape(line.name)}\b", text)),
        None,
    )


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
        r"name resolution|NewConnectionError|[Cc]onnection (to|refused|timed|reset|error)|timed out|dns error|"
        r"error sending request|Network is unreachable|[Tt]emporary failure",
        "this node cannot reach a package index: set a reachable one (env: {PIP_INDEX_URL: …}), or send the wheels "
        "with the job (dependencies: {vendor: true})",
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
        r"No matching distribution|not found in the package registry|no versions? of|no wheels|was not found",
        "is the name right, is there such a version, and a wheel for this Python and system? Where a node reaches no "
        "index, dependencies: {vendor: true} sends the wheels with the job",
    ),
)  # fmt: skip


def hint_for_output(output: str) -> str:
    """Return a hint for a failure, by the installer's output."""
    return next(
        (hint for pattern, hint in _HINTS if re.search(pattern, output)),
        "see the installer's output above",
    )
