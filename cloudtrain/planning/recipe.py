"""Recipe of an image: a Dockerfile, the files it may copy, and arguments. Its digest is its name."""

from __future__ import annotations

import io
import os
import stat
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from cloudtrain.bundle import bundled, payload_files
from cloudtrain.errors import SourceError
from cloudtrain.file_names import relative_name
from cloudtrain.planning.dockerfile import Unclear, copied_sources
from cloudtrain.planning.dockerignore import has_exceptions, patterns_of, read_rules
from cloudtrain_wire.bounded_files import open_regular_file, read_regular_text

LOCAL = "cloudtrain"
"""Local name of images that we build."""

KINDS = ("cuda", "cpu")
"""Our own image, for GPUs or for CPUs."""

_CPU_BASE = "debian:12-slim"
_TAG_DIGITS = 12


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
    folder: str = ""
    """Folder of the build; empty: the Dockerfile's."""
    digest: str
    """sha256 of the other fields and of every file and folder that the Dockerfile copies.

    Only executable bits of permissions count: the others come from a umask. A folder `.git` does
    not count: git changes it all the time.
    """

    @property
    def context(self) -> str:
        """Folder of the build, the Dockerfile's by default."""
        return self.folder or str(Path(self.dockerfile).parent)

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

    dockerfile = bundled("docker") / "Dockerfile"
    return recipe_of(dockerfile, our_args + list(args), platform, kind)


def recipe_of(
    dockerfile: Path,
    args: Sequence[str] = (),
    platform: str = "",
    kind: str = "",
    limit: int | None = None,
    context: Path | None = None,
) -> Recipe:
    """Return the recipe of a Dockerfile. `context`: folder of the build; None: the Dockerfile's.

    Raise SourceError if that folder is unreadable, or larger than `limit` bytes.
    """
    top = context or dockerfile.parent
    args_by_name = dict(arg.partition("=")[::2] for arg in args)
    digest = sha256(repr((dockerfile.name, sorted(args_by_name.items()), platform)).encode())
    size = 0

    if kind:
        digest.update(payload_archive())

    try:
        for path, info in sorted(_files(dockerfile, top).items()):
            if not stat.S_ISDIR(info.st_mode):
                size += info.st_size
            if limit is not None and size > limit:
                message = f"{top} holds more than {limit} bytes, all of which the build would get"
                raise SourceError(
                    message,
                    hint="name what it needs in a .dockerignore, or give it a separate folder",
                )

            name = relative_name(path, top)
            digest.update(f"\0{name}\0{_mode(info):o}\0".encode(errors="surrogateescape"))
            digest.update(_content(path, info))
    except OSError as error:
        raise SourceError(f"{error.filename or dockerfile}: {error.strerror or error}") from None

    return Recipe(
        dockerfile=str(dockerfile),
        kind=kind,
        args=tuple(args),
        platform=platform,
        folder=str(context or ""),
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


def ignored_text(dockerfile: Path, top: Path) -> str:
    """Return the content of this Dockerfile's ignore file, or else of the build's folder, or ""."""
    for file in (dockerfile.with_name(f"{dockerfile.name}.dockerignore"), top / ".dockerignore"):
        if file.is_file():
            return read_regular_text(file, errors="surrogateescape")

    return ""


def _files(dockerfile: Path, top: Path) -> dict[Path, os.stat_result]:
    """Return the Dockerfile, and the files, links and folders that the build may copy."""

    info_by_path = {dockerfile: dockerfile.stat()}
    rules = read_rules(ignored_text(dockerfile, top))
    searches_all = has_exceptions(rules)

    try:
        sources = copied_sources(read_regular_text(dockerfile, errors="surrogateescape"))
        named = patterns_of(sources)
    except (Unclear, SourceError):
        named = None

    for folder, folders, files in os.walk(top, onerror=_raise):
        inside = Path(folder).relative_to(top)
        folders[:] = [name for name in folders if name != ".git"]
        names = files + folders
        if not searches_all:
            relative = {name: (inside / name).as_posix() for name in folders}
            folders[:] = [name for name in folders if not rules.match_file(relative[name])]

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
