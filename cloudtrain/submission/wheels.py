"""Wheels of a job with `dependencies: {vendor: true}`, downloaded here and sent with the source.

They are for nodes without access to a package index. The data folder keeps them under a digest of
the request and the Python; a plan sends those that exist.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from cloudtrain.errors import SourceError, UsageError
from cloudtrain.planning.plan import json_digest
from cloudtrain.runs.files import make_private_folder
from cloudtrain.source.distributions import (
    Requested,
    automatic_file,
    hide_passwords,
    installed_version,
    requested_by,
    requested_list,
)
from cloudtrain.source.tree import stamp
from cloudtrain_launcher.packages.image import index_settings, local_packages

if TYPE_CHECKING:
    from cloudtrain.planning.target import Target
    from cloudtrain.spec.model import JobSpec

_OF_TORCH = re.compile(r"(torch|triton|pytorch-triton|cuda-.*|nvidia-(?!ml-py).*)$")
"""Packages of every image, not installed unless the job sets `replace_torch`."""

_PLATFORMS = ("manylinux_2_28", "manylinux_2_17", "manylinux2014", "manylinux2010", "linux")
SHOWN_LINES = 6


@dataclass(frozen=True, kw_only=True, slots=True)
class WheelSet:
    """Wheels of one job for one Python."""

    folder: Path
    """Folder of the wheels; it exists once they are complete."""
    requested: Requested
    python: str
    """Interpreter of this machine that will install them; empty: an image's."""
    version: str
    """Python version of the image, `3.12`; empty for this machine's."""
    torch: str
    """Installed version of torch; empty if unknown."""
    replace_torch: bool

    @property
    def files(self) -> dict[str, Path]:
        """Wheels by name below `.cloudtrain/` in the archive; empty until downloaded."""
        return {f"wheels/{path.name}": path for path in sorted(self.folder.glob("*.whl"))}

    def download(self, note: Callable[[str], None] | None = None) -> None:
        """Download the missing wheels. Raise UsageError, with pip's output, if that fails."""
        if self.folder.is_dir():
            return

        if note is not None:
            count = len(self.requested.to_install)
            count_text = f"{count} requirement{'s' if count > 1 else ''}"
            note(f"downloading the wheels of {count_text}, which are sent with the source")

        make_private_folder(self.folder.parent)
        with tempfile.TemporaryDirectory(dir=self.folder.parent, prefix=".") as scratch:
            folder = Path(scratch)
            exact = _resolve(self, folder)
            (folder / "exact.txt").write_text(
                "\n".join([*self.requested.options, *exact]) + "\n", encoding="utf-8"
            )
            (folder / "wheels").mkdir()

            if exact:
                _pip(
                    self,
                    "download",
                    "--no-deps",
                    "-d",
                    str(folder / "wheels"),
                    "-r",
                    str(folder / "exact.txt"),
                )

            if not self.folder.exists():
                shutil.move(folder / "wheels", self.folder)


def wheel_set(spec: JobSpec, source: Path, data_dir: Path, host: Target) -> WheelSet:
    """Return the wheels that a job with `vendor` sends. `host`: the target that runs it.

    Raise SourceError if its requirements cannot be read or are built from the source, UsageError if
    the Python that needs them is unknown.
    """
    dependencies = spec.dependencies
    python, version, torch = _interpreter(spec, host)
    file = dependencies.file or (automatic_file(source) if dependencies.is_automatic else "")
    requested = requested_by(source, file) if file else requested_list(dependencies.packages)

    if requested.is_local:
        raise SourceError(
            f"{file} names a project of the source itself, which cannot be sent as a wheel"
        )

    check_lines(requested)
    identity: list[object] = [
        [*requested.options],
        [requirement.text for requirement in requested.requirements],
        python,
        version,
        torch,
    ]
    identity.append(index_settings(os.environ, source.resolve()))

    for path in local_packages(requested, os.environ, Path.cwd()):  # pip runs here
        identity.append([str(path), stamp(path.stat())])

    folder = data_dir / "wheels" / json_digest([*identity, dependencies.replace_torch])[:24]
    return WheelSet(
        folder=folder,
        requested=requested,
        python=python,
        version=version,
        torch=torch,
        replace_torch=dependencies.replace_torch,
    )


def _interpreter(spec: JobSpec, host: Target) -> tuple[str, str, str]:
    """Return this machine's Python, or the image's version, and the installed torch."""
    if host.image is None:
        python = str(getattr(host.config, "python", sys.executable))
        is_ours = python == sys.executable
        return python, "", installed_version("torch").partition("+")[0] if is_ours else ""

    contents = host.image.known_contents
    version = spec.dependencies.python or (contents.python if contents else "")
    if not version:
        hint = "dependencies: {vendor: true, python: '3.12'}"
        raise UsageError(
            "the Python version of the image is unknown: cannot choose wheels", hint=hint
        )

    return "", version, contents.torch if contents else ""


def _resolve(wheels: WheelSet, folder: Path) -> list[str]:
    """Return exact requirements without torch and its libraries, which the image has."""
    requirements = [
        requirement
        for requirement in wheels.requested.requirements
        if wheels.replace_torch or not _OF_TORCH.match(requirement.name)
    ]
    texts = [requirement.text for requirement in requirements if not requirement.constraint]
    limits = [requirement.text for requirement in requirements if requirement.constraint]
    limits += [f"torch=={wheels.torch}"] if wheels.torch and not wheels.replace_torch else []
    list_file, constraints, report = (
        folder / name for name in ("asked.txt", "constraints.txt", "report.json")
    )
    list_file.write_text("\n".join([*wheels.requested.options, *texts]) + "\n", encoding="utf-8")
    constraints.write_text("\n".join(limits) + "\n", encoding="utf-8")

    if not texts:
        return []

    into = ["--target", str(folder / "none"), "--report", str(report)]
    how = ["--no-deps"] if wheels.requested.is_hashed else ["-c", str(constraints)]
    _pip(
        wheels,
        "install",
        "--dry-run",
        "--ignore-installed",
        *into,
        *how,
        "-r",
        str(list_file),
    )
    exact = [_exact(item) for item in json.loads(report.read_text(encoding="utf-8"))["install"]]
    strange = [text for _, text in exact if not is_harmless(text)]  # packages name themselves

    if strange:
        raise UsageError(
            f"the index offers {hide_passwords(strange[0])!r}, which cannot be downloaded as a wheel"
        )

    return [text for name, text in exact if wheels.replace_torch or not _OF_TORCH.match(name)]


def _exact(item: Mapping[str, Any]) -> tuple[str, str]:
    """Return the normalised name and the exact requirement of an item of pip's report."""
    metadata = item["metadata"]
    name = re.sub(r"[-_.]+", "-", metadata["name"]).lower()
    text = f"{metadata['name']} @ {item['download_info']['url']}" if item.get("is_direct") else ""

    return name, text or f"{metadata['name']}=={metadata['version']}"


def _pip(wheels: WheelSet, command: str, *arguments: str) -> None:
    flags = [
        "--only-binary=:all:",
        "--disable-pip-version-check",
        "--no-input",
        "--progress-bar=off",
    ]
    python = wheels.python or sys.executable

    if wheels.version:
        flags += _platform_flags(wheels.version)

    process = subprocess.run(
        [python, "-m", "pip", command, *flags, *arguments],
        # A module `pip` of the working folder is not ours.
        env={**os.environ, "PYTHONSAFEPATH": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if process.returncode != 0:
        dependencies = [
            line for line in f"{process.stdout}\n{process.stderr}".splitlines() if line.strip()
        ][-SHOWN_LINES:]
        lines = "\n  ".join(
            ["the wheels cannot be downloaded:", *map(hide_passwords, dependencies)]
        )
        raise UsageError(
            lines,
            hint="pip needs an index that has wheels of all of them; vendor: false sends none",
        )


def _platform_flags(version: str) -> Sequence[str]:
    """Return pip's flags for this CPython on Linux x86_64, as on all cloud machines except ARM."""
    digits = version.replace(".", "")
    platforms = [flag for name in _PLATFORMS for flag in ("--platform", f"{name}_x86_64")]
    abis = [flag for name in (f"cp{digits}", "abi3", "none") for flag in ("--abi", name)]

    return ["--python-version", version, "--implementation", "cp", *abis, *platforms]


_HARMLESS_OPTION = re.compile(
    r"--pre|--prefer-binary|--no-index|--require-hashes|--only-binary[= ]:all:|"
    r"((-i|-f) |--(index-url|extra-index-url|find-links|trusted-host)[= ] *)[^\s\"'\\-][^\s\"'\\]*"
)
_HASHES = re.compile(r"(\s+--hash[= ]\w+:[0-9a-fA-F]+)+\s*")
_NAMED = re.compile(
    r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)\s*(\[[\w\s,.-]*\])?\s*([<>=!~;(][^/\\]*)?"
)
_ARCHIVE = re.compile(r"\.(zip|whl|tar|t[bglx]z2?|tar\.\w+)", re.IGNORECASE)
_ADDRESS = re.compile(r"\S+://\S+")


def check_lines(requested: Requested) -> None:
    """Raise SourceError with every line that may make pip build a package."""
    lines = [*_options(requested), *_requirements(requested)]
    if not lines:
        return

    hint = "remove it, or leave vendor out: then each node installs and builds by itself"
    message = "; ".join(f"{place}: {hide_passwords(text)}" for place, text in lines)
    raise SourceError(
        f"{message} may run a build script here, and vendor: true takes wheels alone", hint=hint
    )


def is_harmless(text: str) -> bool:
    """Return whether a requirement names a wheel, or a project with wheels only."""
    options = re.search(r"\s-", text)
    bare = text[: options.start()] if options else text

    if options and not _HASHES.fullmatch(text[options.start() :]):
        return False

    address = _ADDRESS.search(bare)
    if address is None:
        named = _NAMED.fullmatch(bare)
        # pip reads the name of an archive as a file of the working folder
        return named is not None and not _ARCHIVE.search(named["name"])

    parts = urlsplit(address.group())
    return parts.scheme in ("http", "https", "file") and parts.path.endswith(".whl")


def _options(requested: Requested) -> Iterator[tuple[str, str]]:
    for text, place in zip_longest(requested.options, requested.option_places):
        if not _HARMLESS_OPTION.fullmatch(text):
            yield place or requested.files[0], text


def _requirements(requested: Requested) -> Iterator[tuple[str, str]]:
    for requirement in requested.requirements:
        if not is_harmless(requirement.text):
            yield requirement.place, requirement.shown
