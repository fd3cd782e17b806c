"""How to install the packages of an extra."""

from __future__ import annotations

import re
import shlex
from importlib import metadata


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
