"""Wheels made by hand, and the worked example of a provider, installed."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

# Wheels made by hand, so that an installer works without a package index.

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


# The worked example of a provider, installed from its package as anybody would install it.

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "examples" / "provider"


def install(site: Path) -> Path:
    """Install the package into a folder, by pip and without any index."""
    argv = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
        "--isolated",  # from a person's settings
    ]
    argv += ["--disable-pip-version-check", "--target", str(site), str(PACKAGE)]
    process = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    return site


@pytest.fixture(scope="session")
def ssh_site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of packages with the provider `ssh`."""
    return install(tmp_path_factory.mktemp("packages") / "site")


@pytest.fixture
def ssh_provider(ssh_site: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The provider `ssh` is installed for one test."""
    monkeypatch.syspath_prepend(str(ssh_site))
    yield ssh_site
    sys.modules.pop("cloudtrain_ssh", None)
