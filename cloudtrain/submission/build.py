"""Building an image with the docker program, which draws its own progress: the Docker SDK knows no BuildKit."""

from __future__ import annotations

import os
import re
import secrets
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from cloudtrain import __version__
from cloudtrain.errors import CloudError, SourceError
from cloudtrain.images.recipe import LOCAL, Recipe, payload_archive, recipe_of

_CONTEXT = ("Dockerfile", "requirements.txt", "torch-cpu.txt", "torch-cuda.txt", "train")
"""The files of docker/ that its Dockerfile names."""

INPUTS_LABEL = "cloudtrain.inputs"
"""On every image that we build: the digest of what it was built from."""


def build(recipe: Recipe, *, names: Sequence[str] = (), options: Sequence[str] = ()) -> str:
    """Build, and give it its name and others; returns its name. CloudError when docker would not.

    It has a name of no meaning until it is certain what it was built from: SourceError when that changed meanwhile.
    `options` go to `docker build` as they are.
    """
    _refuse_changed(recipe)
    docker, nameless = _program(), f"{LOCAL}:building-{secrets.token_hex(6)}"
    with _context(recipe) as folder:
        by_hand = arguments(recipe, (recipe.name, *names), options)
        _run(docker, recipe, arguments(recipe, (nameless,), options, folder), by_hand)
    try:
        _refuse_changed(recipe)
        for name in (recipe.name, *names):
            _call_it(docker, nameless, name)
    finally:
        _says(docker, "rmi", nameless)  # the name alone, unless it is the last
    return recipe.name


@contextmanager
def _context(recipe: Recipe) -> Iterator[str]:
    """The folder that the build sees: the Dockerfile's own; of our image a copy with launcher and trainer beside it."""
    if not recipe.kind:
        yield recipe.context
        return
    with tempfile.TemporaryDirectory(prefix="cloudtrain-image-") as folder:
        for name in (".dockerignore", *_CONTEXT):
            shutil.copy(Path(recipe.context, name), folder)
        Path(folder, "payload.tar").write_bytes(payload_archive())
        yield folder


def _refuse_changed(recipe: Recipe) -> None:
    now = recipe_of(Path(recipe.dockerfile), recipe.args, recipe.platform, recipe.kind)
    if now.digest != recipe.digest:
        message = f"the image's folder {recipe.context} changed after it was planned"
        raise SourceError(message, hint="run the command again")


def _call_it(docker: str, image: str, name: str) -> None:
    done = subprocess.run((docker, "tag", image, name), capture_output=True, text=True, errors="replace", check=False)
    if done.returncode:
        raise CloudError(f"the image cannot be called {name}: {' '.join(done.stderr.split())}", code="build")


def _run(docker: str, recipe: Recipe, words: Sequence[str], by_hand: Sequence[str]) -> None:
    sys.stderr.flush()
    try:
        code = subprocess.run(
            [docker, *words], env=_environment(docker), stdin=subprocess.DEVNULL, stdout=2, check=False
        ).returncode
    except OSError as error:
        hint = "install Docker's command-line client, or name an image that is built: image: {docker: …}"
        raise CloudError(f"the program {docker} cannot be started: {error.strerror}", hint=hint, code="build") from None
    if code:
        message = f"the image {recipe.name} was not built: docker build ended with {code}"
        hint = f"what it said is above; the same by hand: {shlex.join([docker, *by_hand])}"
        raise CloudError(message, hint=hint, code="build")


def arguments(recipe: Recipe, names: Sequence[str], options: Sequence[str] = (), folder: str = "") -> list[str]:
    """The words after `docker`. `folder`: what the build sees, if not the recipe's own."""
    told = {**_origin(recipe), **dict(arg.partition("=")[::2] for arg in recipe.args)}
    dockerfile = str(Path(folder, Path(recipe.dockerfile).name)) if folder else recipe.dockerfile
    words = ["build", "--file", dockerfile, "--label", f"{INPUTS_LABEL}=sha256:{recipe.digest}"]
    words += [word for name, value in told.items() for word in ("--build-arg", f"{name}={value}")]
    words += [word for name in names for word in ("--tag", name)]
    words += ["--platform", recipe.platform] if recipe.platform else []
    return [*words, *options, folder or recipe.context]


def _origin(recipe: Recipe) -> dict[str, str]:
    """What our own Dockerfile writes into the image's labels."""
    if not recipe.kind:
        return {}
    git = ("git", "-C", recipe.context)
    told = {"VERSION": __version__}
    if _says(*git, "ls-files", "Dockerfile"):  # a package that was installed beside a repository is no part of it
        changed = "-changed" if _says(*git, "status", "--porcelain", "--", ".") else ""
        told["REVISION"] = _says(*git, "rev-parse", "HEAD").strip() + changed
        told["CREATED"] = _says(*git, "show", "-s", "--format=%cI", "HEAD").strip()
        told["SOURCE"] = _public(_says(*git, "config", "--get", "remote.origin.url").strip())
    return told


def _public(remote: str) -> str:
    """A remote as anybody may read it on a label: without a login in it; nothing of a path on this machine."""
    if re.match(r"(https?|ssh|git)://[^/]", remote):
        return re.sub(r"//[^/]*@", "//", remote)
    # As `scp` writes it. One letter before the colon is a drive.
    return remote if re.match(r"([\w.-]+@)?[\w.-]{2,}:(?!/?/)", remote) else ""


def _program() -> str:
    return os.environ.get("DOCKER") or "docker"


def _environment(docker: str) -> Mapping[str, str]:
    """BuildKit where there is one: as buildx, or inside clients older than 23. The builder of old does as well."""
    chosen = {"BUILDX_NO_DEFAULT_ATTESTATIONS": "1"}  # they make an index of an image, which not every cloud reads
    if not os.environ.get("DOCKER_BUILDKIT"):
        old = _says(docker, "version", "--format", "{{.Client.Version}}").startswith(("18.", "19.", "20."))
        chosen["DOCKER_BUILDKIT"] = "1" if old or _says(docker, "buildx", "version") else "0"
    return {**os.environ, **chosen}


def _says(*argv: str) -> str:
    """What a command prints; nothing if it fails."""
    try:
        done = subprocess.run(argv, capture_output=True, text=True, errors="replace", timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""
