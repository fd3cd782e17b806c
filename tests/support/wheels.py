"""Wheels made by hand, so that an installer works without a package index."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

PURE = "py3-none-any"


def make_wheel(
    folder: Path,
    name: str,
    version: str,
    *,
    requires: Sequence[str] = (),
    files: Mapping[str, bytes] | None = None,
    tag: str = PURE,
) -> Path:
    """A wheel of a module `name` that has `VERSION`; `files` replaces its files."""
    info = f"{name}-{version}.dist-info"
    metadata = [
        f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}",
        *(f"Requires-Dist: {r}" for r in requires),
    ]
    content = dict(files or {f"{name}.py": f"VERSION = {version!r}\n".encode()})
    content[f"{info}/METADATA"] = "\n".join([*metadata, ""]).encode()
    pure = "true" if tag == PURE else "false"
    content[f"{info}/WHEEL"] = (
        f"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: {pure}\nTag: {tag}\n".encode()
    )
    content[f"{info}/RECORD"] = "".join(
        f"{path},,\n" for path in [*content, f"{info}/RECORD"]
    ).encode()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{version}-{tag}.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for place, data in content.items():
            wheel.writestr(place, data)
    return path


def offline(wheels: Path) -> dict[str, str]:
    """Return variables that make pip use only these wheels on any machine."""
    return {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": wheels.as_uri(), "PIP_CONFIG_FILE": "/dev/null"}
