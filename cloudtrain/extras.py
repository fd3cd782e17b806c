"""Imports from the packages of an extra, and how to install them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata

from cloudtrain.errors import UsageError


def install_command(extra: str) -> str:
    """Return the command that installs the packages of an extra, with the bounds of this version.

    No index has cloudtrain itself, so the command names what the extra needs.
    """
    packages = []
    for requirement in metadata.requires("cloudtrain") or ():
        package, _, marker = requirement.partition(";")
        if re.search(rf"extra\s*==\s*['\"]{extra}['\"]", marker):
            packages.append(package.strip())

    return shlex.join(["pip", "install", *packages])


@contextmanager
def importing(extra: str, need: str) -> Iterator[None]:
    """Raise UsageError for a failed import. `need`: what needs which package."""
    try:
        yield
    except ImportError as error:
        message = f"{need}, which is not installed: {error}"
        raise UsageError(message, hint=install_command(extra)) from None
