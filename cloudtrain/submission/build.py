"""Builds images with the docker program, as the Docker SDK has no BuildKit, and removes those that
are not used.
"""

from __future__ import annotations

import os
import re
import secrets
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cloudtrain import __version__
from cloudtrain.errors import CloudError, SourceError
from cloudtrain.planning.recipe import KINDS, LOCAL, Recipe, payload_archive, recipe_of
from cloudtrain.providers.docker.connect import docker_engine

_CONTEXT = ("Dockerfile", "requirements.txt", "torch-cpu.txt", "torch-cuda.txt", "train")
"""The files of docker/ that its Dockerfile names."""

INPUTS_LABEL = "cloudtrain.inputs"
"""A label on every image that is built here: the digest of its inputs."""


def build(recipe: Recipe, *, names: Sequence[str] = (), options: Sequence[str] = ()) -> str:
    """Build an image, tag it with its name and `names`, and return its name. `options` go to
    `docker build` unchanged.

    It has a temporary name until its inputs are checked again: SourceError when they changed
    meanwhile. CloudError when the build fails.
    """
    _raise_if_changed(recipe)
    docker = _program()
    temporary_name = f"{LOCAL}:building-{secrets.token_hex(6)}"
    with _context(recipe) as folder:
        by_hand = arguments(recipe, (recipe.name, *names), options)
        _run(docker, recipe, arguments(recipe, (temporary_name,), options, folder), by_hand)
    try:
        _raise_if_changed(recipe)
        for name in (recipe.name, *names):
            _tag_image(docker, temporary_name, name)
    finally:
        _output_of(docker, "rmi", temporary_name)  # the name alone, unless it is the last
    return recipe.name


@contextmanager
def _context(recipe: Recipe) -> Iterator[str]:
    """The build context: the Dockerfile's folder; for our own image a copy with launcher and
    trainer beside it.
    """
    if not recipe.kind:
        yield recipe.context
        return
    with tempfile.TemporaryDirectory(prefix="cloudtrain-image-") as folder:
        for name in (".dockerignore", *_CONTEXT):
            shutil.copy(Path(recipe.context, name), folder)
        Path(folder, "payload.tar").write_bytes(payload_archive())
        yield folder


def _raise_if_changed(recipe: Recipe) -> None:
    now = recipe_of(Path(recipe.dockerfile), recipe.args, recipe.platform, recipe.kind)
    if now.digest != recipe.digest:
        message = f"the image's folder {recipe.context} changed after it was planned"
        raise SourceError(message, hint="run the command again")


def _tag_image(docker: str, image: str, name: str) -> None:
    done = subprocess.run(
        (docker, "tag", image, name), capture_output=True, text=True, errors="replace", check=False
    )
    if done.returncode:
        raise CloudError(
            f"the image cannot be called {name}: {' '.join(done.stderr.split())}", code="build"
        )


def _run(docker: str, recipe: Recipe, argv: Sequence[str], by_hand: Sequence[str]) -> None:
    sys.stderr.flush()
    try:
        code = subprocess.run(
            [docker, *argv],
            env=_environment(docker),
            stdin=subprocess.DEVNULL,
            stdout=2,
            check=False,
        ).returncode
    except OSError as error:
        hint = (
            "install Docker's command-line client, or name an image that is built: image:"
            " {docker: …}"
        )
        raise CloudError(
            f"the program {docker} cannot be started: {error.strerror}", hint=hint, code="build"
        ) from None
    if code:
        message = f"the image {recipe.name} was not built: docker build ended with {code}"
        hint = f"what it said is above; the same by hand: {shlex.join([docker, *by_hand])}"
        raise CloudError(message, hint=hint, code="build")


def arguments(
    recipe: Recipe, names: Sequence[str], options: Sequence[str] = (), folder: str = ""
) -> list[str]:
    """The arguments of `docker`. `folder`: the build context, if not the recipe's own."""
    values = {**_origin(recipe), **dict(arg.partition("=")[::2] for arg in recipe.args)}
    dockerfile = str(Path(folder, Path(recipe.dockerfile).name)) if folder else recipe.dockerfile
    argv = ["build", "--file", dockerfile, "--label", f"{INPUTS_LABEL}=sha256:{recipe.digest}"]
    argv += [word for name, value in values.items() for word in ("--build-arg", f"{name}={value}")]
    argv += [word for name in names for word in ("--tag", name)]
    argv += ["--platform", recipe.platform] if recipe.platform else []
    return [*argv, *options, folder or recipe.context]


def _origin(recipe: Recipe) -> dict[str, str]:
    """What our own Dockerfile writes into the image's labels."""
    if not recipe.kind:
        return {}
    git = ("git", "-C", recipe.context)
    values = {"VERSION": __version__}
    if _output_of(
        *git, "ls-files", "Dockerfile"
    ):  # a package that was installed beside a repository is no part of it
        changed = "-changed" if _output_of(*git, "status", "--porcelain", "--", ".") else ""
        values["REVISION"] = _output_of(*git, "rev-parse", "HEAD").strip() + changed
        values["CREATED"] = _output_of(*git, "show", "-s", "--format=%cI", "HEAD").strip()
        values["SOURCE"] = _public_url(
            _output_of(*git, "config", "--get", "remote.origin.url").strip()
        )
    return values


def _public_url(remote: str) -> str:
    """A remote as anybody may read it on a label: without a login in it; nothing of a path on this
    machine.
    """
    if re.match(r"(https?|ssh|git)://[^/]", remote):
        return re.sub(r"//[^/]*@", "//", remote)
    # As `scp` writes it. One letter before the colon is a drive.
    return remote if re.match(r"([\w.-]+@)?[\w.-]{2,}:(?!/?/)", remote) else ""


def _program() -> str:
    return os.environ.get("DOCKER") or "docker"


def _environment(docker: str) -> Mapping[str, str]:
    """BuildKit where there is one: as buildx, or inside clients older than 23. The builder of old
    does as well.
    """
    chosen = {
        "BUILDX_NO_DEFAULT_ATTESTATIONS": "1"
    }  # they make an index of an image, which not every cloud reads
    if not os.environ.get("DOCKER_BUILDKIT"):
        old = _output_of(docker, "version", "--format", "{{.Client.Version}}").startswith(
            ("18.", "19.", "20.")
        )
        chosen["DOCKER_BUILDKIT"] = "1" if old or _output_of(docker, "buildx", "version") else "0"
    return {**os.environ, **chosen}


def _output_of(*argv: str) -> str:
    """What a command prints; empty if it fails."""
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, errors="replace", timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


_TAG = rf"(({'|'.join(KINDS)})-)?[0-9a-f]{{12}}"
"""Of the names that stand for a content: here, and in a registry that it was pushed to."""

_OURS = re.compile(rf"{LOCAL}:({_TAG}|building-[0-9a-f]+|{'|'.join(KINDS)})|.+/.+:{_TAG}")


@dataclass(frozen=True, slots=True)
class Removed:
    """One name of an image; `size` in bytes, `goes`: whether the image is removed with it."""

    name: str
    id: str
    size: int
    goes: bool


def prune(age_seconds: float, *, dry_run: bool = False) -> list[Removed]:
    """Remove images, by name, that were built here more than `age_seconds` ago. CloudError when no
    engine answers.

    An image that a container uses stays; one that a user has named keeps that name.
    """
    found: list[Removed] = []
    with docker_engine() as engine:
        used = engine.images_in_use()
        for image in engine.images_with_label(INPUTS_LABEL):
            if image.id in used or image.created > time.time() - age_seconds:
                continue
            ours = [name for name in image.names if _OURS.fullmatch(name)]
            goes = len(ours) == len(image.names)
            found += [
                Removed(name, image.id, image.size, goes)
                for name in ours or ([image.id] if goes else [])
            ]
        for each in found:
            if not dry_run:
                engine.remove_image(each.name)
    return found
