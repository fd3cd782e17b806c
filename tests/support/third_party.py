"""The worked example of a provider, installed from its package as anybody would install it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

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
