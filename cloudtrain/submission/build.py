"""Image builds by the docker program: the Docker SDK lacks BuildKit."""

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
from cloudtrain.planning.recipe import LOCAL, Recipe, payload_archive, recipe_of

_CONTEXT = ("Dockerfile", "requirements.txt", "torch-cpu.txt", "torch-cuda.txt", "train")
"""Files of docker/ that its Dockerfile uses."""

INPUTS_LABEL = "cloudtrain.inputs"
"""Label on every image that is built here: the digest of its inputs."""


def build(recipe: Recipe, *, names: Sequence[str] = (), options: Sequence[str] = ()) -> str:
    """Build an image, tag it with its name and `names`, and return its name.

    `options` go to `docker build` unchanged. The image has a temporary name until its inputs are
    checked again: raise SourceError if they changed, CloudError if the build fails.
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
    """Yield the build context: the Dockerfile's folder, or for our image a copy."""
    if not recipe.kind:
        yield recipe.context
        return
    with tempfile.TemporaryDirectory(prefix="cloudtrain-image-") as folder:
        for name in (".dockerignore", *_CONTEXT):
            shutil.copy(Path(recipe.context, name), folder)
        Path(folder, "payload.tar").write_bytes(payload_archive())
        yield folder


def _raise_if_changed(recipe: Recipe) -> None:
    current = recipe_of(Path(recipe.dockerfile), recipe.args, recipe.platform, recipe.kind)
    if current.digest != recipe.digest:
        message = f"the image's folder {recipe.context} changed after it was planned"
        raise SourceError(message, hint="run the command again")


def _tag_image(docker: str, image: str, name: str) -> None:
    process = subprocess.run(
        (docker, "tag", image, name), capture_output=True, text=True, errors="replace", check=False
    )
    if process.returncode:
        raise CloudError(
            f"the image cannot be called {name}: {' '.join(process.stderr.split())}", code="build"
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
    """Return the arguments of `docker`. `folder`: build context, if not the recipe's."""
    values = {**_origin(recipe), **dict(arg.partition("=")[::2] for arg in recipe.args)}
    dockerfile = str(Path(folder, Path(recipe.dockerfile).name)) if folder else recipe.dockerfile
    argv = ["build", "--file", dockerfile, "--label", f"{INPUTS_LABEL}=sha256:{recipe.digest}"]
    argv += [word for name, value in values.items() for word in ("--build-arg", f"{name}={value}")]
    argv += [word for name in names for word in ("--tag", name)]
    argv += ["--platform", recipe.platform] if recipe.platform else []
    return [*argv, *options, folder or recipe.context]


def _origin(recipe: Recipe) -> dict[str, str]:
    """Return the build arguments for the labels of our image."""
    if not recipe.kind:
        return {}
    git = ("git", "-C", recipe.context)
    values = {"VERSION": __version__}
    # A package that was installed beside a repository is not part of it.
    if _output_of(*git, "ls-files", "Dockerfile"):
        changed = "-changed" if _output_of(*git, "status", "--porcelain", "--", ".") else ""
        values["REVISION"] = _output_of(*git, "rev-parse", "HEAD").strip() + changed
        values["CREATED"] = _output_of(*git, "show", "-s", "--format=%cI", "HEAD").strip()
        values["SOURCE"] = _public_url(
            _output_of(*git, "config", "--get", "remote.origin.url").strip()
        )
    return values


def _public_url(remote: str) -> str:
    """Return a remote without login for a public label; "" for a path on this machine."""
    if re.match(r"(https?|ssh|git)://[^/]", remote):
        return re.sub(r"//[^/]*@", "//", remote)
    # As `scp` writes it. One letter before the colon is a drive.
    return remote if re.match(r"([\w.-]+@)?[\w.-]{2,}:(?!/?/)", remote) else ""


def _program() -> str:
    return os.environ.get("DOCKER") or "docker"


def _environment(docker: str) -> Mapping[str, str]:
    """Return the environment of docker, with BuildKit if buildx or an older client has it."""
    # Attestations turn an image into an index, which not every cloud reads.
    chosen = {"BUILDX_NO_DEFAULT_ATTESTATIONS": "1"}
    if not os.environ.get("DOCKER_BUILDKIT"):
        old = _output_of(docker, "version", "--format", "{{.Client.Version}}").startswith(
            ("18.", "19.", "20.")
        )
        chosen["DOCKER_BUILDKIT"] = "1" if old or _output_of(docker, "buildx", "version") else "0"
    return {**os.environ, **chosen}


def _output_of(*argv: str) -> str:
    """Return the output of a command; empty if it fails."""
    try:
        process = subprocess.run(
            argv, capture_output=True, text=True, errors="replace", timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return process.stdout if process.returncode == 0 else ""
