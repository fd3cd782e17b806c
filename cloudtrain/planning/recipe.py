"""Recipe of an image: a Dockerfile, the files it may copy, and arguments. Its digest is its name."""

from __future__ import annotations

import io
import json
import os
import posixpath
import re
import stat
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from cloudtrain.bundle import bundled, payload_files
from cloudtrain.errors import SourceError
from cloudtrain_wire.bounded_files import open_regular_file, read_regular_text

if TYPE_CHECKING:
    from pathspec import PathSpec
    from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern

USUAL = (
    "torch torchvision torchaudio triton numpy pillow filelock fsspec jinja2 networkx sympy"
    " typing-extensions requests tqdm pyyaml packaging psutil protobuf click scipy pandas"
    " scikit-learn matplotlib h5py setuptools six pip"
)
"""Packages of any cloud's PyTorch image. The list is generous: it only suppresses warnings."""

_PYTHON = {"cuda": "3.12", "cpu": "3.11"}
"""Python of our image's distribution: Ubuntu 24.04, Debian 12."""


class ImageContents(NamedTuple):
    """Packages of an image, by normalised names, and its version of torch; empty if unknown."""

    packages: frozenset[str]
    torch: str = ""
    python: str = ""
    """Version of Python, `3.12`; empty if unknown."""


def usual_contents(torch: str, python: str, more: str) -> ImageContents:
    """Return the packages of a cloud's image. `more`: names besides the usual ones."""
    return ImageContents(frozenset(f"{USUAL} {more}".split()), torch, python)


def our_contents(kind: str) -> ImageContents:
    """Return the packages of our image, `cuda` or `cpu`, from its lock files."""
    folder = bundled("docker")
    text = "\n".join(
        (folder / name).read_text(encoding="utf-8")
        for name in (f"torch-{kind}.txt", "requirements.txt")
    )
    locked = dict(re.findall(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)", text, re.MULTILINE))
    names = {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in locked.items()}

    return ImageContents(
        frozenset({*names, "pip", "setuptools"}), names.get("torch", ""), _PYTHON[kind]
    )


LOCAL = "cloudtrain"
"""Local name of images that we build."""

KINDS = ("cuda", "cpu")
"""Our own image, for GPUs or for CPUs."""

_CPU_BASE = "debian:12-slim"
_TAG_DIGITS = 12

_FLAGS = re.compile(r"--[a-z-]+(=(\"[^\"]*\"|\S*))?\s+")
_HEREDOC = re.compile(r"<<-?\s*[\"']?[A-Za-z_]")
_EVERYTHING = {"", ".", "/", "./"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """Inputs of a build that this machine knows; a base's tag may move."""

    dockerfile: str
    kind: str = ""
    """cuda or cpu of our own image; empty for any other image."""
    args: tuple[str, ...] = ()
    """Arguments of the build, `NAME=VALUE`; the later one of a name counts."""
    platform: str = ""
    """Platform such as `linux/amd64`; empty for this machine's."""
    digest: str
    """sha256 of the other fields and of every file and folder that the Dockerfile copies.

    Only executable bits of permissions count: the others come from a umask. A folder `.git` does
    not count: git changes it all the time.
    """

    @property
    def context(self) -> str:
        """Folder of the build, which is the Dockerfile's."""
        return str(Path(self.dockerfile).parent)

    @property
    def tag(self) -> str:
        """One tag for one content: `cuda-1f0c9a62b3d4`."""
        return "-".join(part for part in (self.kind, self.digest[:_TAG_DIGITS]) if part)

    @property
    def name(self) -> str:
        """Local name of the image."""
        return f"{LOCAL}:{self.tag}"

    def to_json(self) -> dict[str, Any]:
        """Plain JSON."""
        return asdict(self)


def from_json(document: Mapping[str, Any]) -> Recipe:
    """Read the result of `to_json`."""
    return Recipe(**{**document, "args": tuple(document["args"])})


def our_recipe(kind: str, args: Sequence[str] = (), platform: str = "") -> Recipe:
    """Return the recipe of our image, for GPUs (`cuda`) or for CPUs (`cpu`)."""
    our_args = [f"TORCH={kind}"]
    if kind == "cpu":
        our_args.append(f"BASE_IMAGE={_CPU_BASE}")
    return recipe_of(bundled("docker") / "Dockerfile", (*our_args, *args), platform, kind)


def recipe_of(
    dockerfile: Path,
    args: Sequence[str] = (),
    platform: str = "",
    kind: str = "",
    limit: int | None = None,
) -> Recipe:
    """Return the recipe of a Dockerfile.

    Raise SourceError if its folder is unreadable, or larger than `limit` bytes.
    """
    args_by_name = dict(arg.partition("=")[::2] for arg in args)
    digest = sha256(repr((dockerfile.name, sorted(args_by_name.items()), platform)).encode())
    size = 0

    if kind:
        digest.update(payload_archive())

    try:
        for path, info in sorted(_files(dockerfile).items()):
            size += 0 if stat.S_ISDIR(info.st_mode) else info.st_size
            if limit is not None and size > limit:
                message = (
                    f"{dockerfile.parent} holds more than {limit} bytes, all of which the build"
                    " would get"
                )
                raise SourceError(
                    message,
                    hint="name what it needs in a .dockerignore, or give it a separate folder",
                )

            name = path.relative_to(dockerfile.parent).as_posix()
            digest.update(f"\0{name}\0{_mode(info):o}\0".encode(errors="surrogateescape"))
            digest.update(_content(path, info))
    except OSError as error:
        raise SourceError(f"{error.filename or dockerfile}: {error.strerror or error}") from None

    return Recipe(
        dockerfile=str(dockerfile),
        kind=kind,
        args=tuple(args),
        platform=platform,
        digest=digest.hexdigest(),
    )


def payload_archive() -> bytes:
    """Pack launcher and trainer for our image: `docker run IMAGE train` runs them.

    The same files give the same bytes on any machine at any time.
    """
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, path in sorted(payload_files().items()):
            member = tarfile.TarInfo(name)
            content = path.read_bytes()
            member.size = len(content)
            member.mode = 0o644
            tar.addfile(member, io.BytesIO(content))

    return buffer.getvalue()


def _ignore_file(dockerfile: Path) -> str:
    """Return the content of this Dockerfile's ignore file, or else of its folder's, or ""."""
    for name in (f"{dockerfile.name}.dockerignore", ".dockerignore"):
        if (file := dockerfile.with_name(name)).is_file():
            return read_regular_text(file, errors="surrogateescape")

    return ""


def _files(dockerfile: Path) -> dict[Path, os.stat_result]:
    """Return the Dockerfile, and the files, links and folders that the build may copy."""

    info_by_path = {dockerfile: dockerfile.stat()}
    rules = read_rules(_ignore_file(dockerfile))
    searches_all = has_exceptions(rules)

    try:
        sources = _copied_sources(read_regular_text(dockerfile, errors="surrogateescape"))
        named = patterns_of(sources)
    except (Unclear, SourceError):
        named = None

    top = dockerfile.parent
    for folder, folders, files in os.walk(top, onerror=_raise):
        inside = Path(folder).relative_to(top)
        folders[:] = [name for name in folders if name != ".git"]
        names = [*files, *folders]
        folders[:] = [
            name
            for name in folders
            if searches_all or not rules.match_file((inside / name).as_posix())
        ]

        for name in names:
            path = Path(folder) / name
            below = (inside / name).as_posix()
            info = path.lstat()

            if stat.S_IFMT(info.st_mode) not in (stat.S_IFREG, stat.S_IFLNK, stat.S_IFDIR):
                continue
            if named is not None and not named.match_file(below):
                continue
            if path == dockerfile or rules.match_file(below):
                continue

            info_by_path[path] = info
            # A file that an exception brings back needs the folders above it.
            for parent in path.parents:
                if top in parent.parents and parent not in info_by_path:
                    info_by_path[parent] = parent.lstat()

    return info_by_path


def _mode(info: os.stat_result) -> int:
    """Return the permission bits that change an image."""
    if not stat.S_ISREG(info.st_mode):
        return 0
    return info.st_mode & (stat.S_IXUSR | stat.S_ISUID | stat.S_ISGID)


def _content(path: Path, info: os.stat_result) -> bytes:
    if stat.S_ISDIR(info.st_mode):
        return b"/"
    if stat.S_ISLNK(info.st_mode):
        return b"->" + os.fsencode(os.readlink(path))  # noqa: PTH115
    with open_regular_file(path) as file:
        import hashlib

        return hashlib.file_digest(file, "sha256").digest()


def _raise(error: OSError) -> None:
    raise error


class Unclear(Exception):
    """Error of a Dockerfile that only the builder can resolve."""


def _copied_sources(text: str) -> list[str]:
    """Return the sources of COPY, ADD and mounts. Raise Unclear if they may be everything."""
    return [
        source
        for instruction, arguments in _instructions(text)
        for source in _named(instruction, arguments)
    ]


def _instructions(text: str) -> Iterator[tuple[str, str]]:
    directive = re.search(r"^#\s*(syntax|escape)\s*=\s*(\S+)", text, re.MULTILINE | re.IGNORECASE)
    if directive and not re.match(r"(docker\.io/)?docker/dockerfile(:|$)", directive[2]):
        raise Unclear  # another language, or other line ends
    if _HEREDOC.search(text):
        raise Unclear

    lines = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    for line in re.sub(r"\\[ \t]*\n", " ", lines).splitlines():
        instruction, _, arguments = line.strip().partition(" ")
        yield instruction.upper(), arguments.strip()


def _named(instruction: str, arguments: str) -> Iterator[str]:
    if instruction == "FROM" and "onbuild" in arguments.lower():  # such a base may copy any file
        raise Unclear
    if instruction == "RUN":
        yield from _mounted(arguments)
    if instruction not in ("COPY", "ADD"):
        return

    flags = ""
    while match := _FLAGS.match(arguments):
        flags += match[0]
        arguments = arguments[match.end() :]

    if "--from=" in flags:  # another stage, or another image
        return

    try:
        words = json.loads(arguments) if arguments.startswith("[") else arguments.split()
    except ValueError:
        raise Unclear from None

    for source in words[:-1]:
        if "://" not in source and not source.startswith("git@"):
            yield _certain(source)


def _mounted(arguments: str) -> Iterator[str]:
    """Yield the folders that a RUN mounts: `--mount=type=bind,source=…`, and `bind` is the default."""
    for flag in re.findall(r"--mount=(\S+)", arguments):
        options = dict(part.partition("=")[::2] for part in flag.split(","))
        if options.get("type", "bind") == "bind" and "from" not in options:
            yield _certain(options.get("source") or options.get("src") or "")


def _certain(source: str) -> str:
    if (
        source in _EVERYTHING
        or any(char in source for char in "$\"'\\")
        or ".." in source.split("/")
    ):
        raise Unclear

    return source


MAX_WILDCARDS = 6
"""Maximum wildcards of a pattern before regex backtracking gets expensive."""


def read_rules(text: str) -> PathSpec[GitIgnoreSpecPattern]:
    """Return the rules of an ignore file. Raise SourceError for an invalid line."""
    lines = text.removeprefix("\ufeff").splitlines()
    return patterns_of(line.strip() for line in lines if not line.startswith("#"))


def patterns_of(lines: Iterable[str]) -> PathSpec[GitIgnoreSpecPattern]:
    """Return the patterns of these lines. Raise SourceError for an invalid one."""
    from pathspec import PathSpec  # slow to import

    return PathSpec(_patterns(lines))


def _patterns(lines: Iterable[str]) -> Iterator[GitIgnoreSpecPattern]:
    from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern

    for line in lines:
        sign = "!" if line.startswith("!") else ""
        pattern = line.removeprefix(sign).strip()
        # Docker compares such a pattern with the end of the path.
        pattern = re.sub(r"^\*\*(?=[^/*])", "**/*", pattern)
        pattern = posixpath.normpath(pattern).lstrip("/")

        if pattern == ".":
            continue

        if len(re.findall(r"\*+", pattern)) > MAX_WILDCARDS:
            raise SourceError(
                f"{line!r} in a .dockerignore has more than {MAX_WILDCARDS} wildcards"
            )

        try:
            yield GitIgnoreSpecPattern(f"{sign}/{pattern}")
        except (ValueError, re.error) as error:
            hint = "a range in [] goes upwards: [a-z]"
            raise SourceError(
                f"{line!r} in a .dockerignore is not a valid pattern: {error}", hint=hint
            ) from None


def has_exceptions(rules: PathSpec[GitIgnoreSpecPattern]) -> bool:
    """Return whether a rule may bring back files of an ignored folder."""
    return any(pattern.include is False for pattern in rules.patterns)
