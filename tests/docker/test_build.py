"""Building the image: what a change rebuilds, what is refused, each builder, and AWS's network
adapter as an option.
"""

from __future__ import annotations

import hashlib
import io
import ipaddress
import shutil
import tarfile
import threading
import uuid
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.docker.engine import ROOT, Engine, steps
from tests.entrypoints.test_launcher import ENTRYPOINTS

pytestmark = [pytest.mark.docker, pytest.mark.timeout(1800)]

# A stand-in for AWS's installer, which lays files out as the real one does and says how it was
# called.
INSTALLER = """#!/bin/bash
set -eu
mkdir -p /opt/amazon/efa/lib /opt/amazon/ofi-nccl/lib/x86_64-linux-gnu /opt/amazon/openmpi/bin /opt/amazon/openmpi5
echo "$*" > /opt/amazon/efa/called
cp /lib/*/libresolv.so.2 /opt/amazon/ofi-nccl/lib/x86_64-linux-gnu/libnccl-net.so
cp /lib/*/libresolv.so.2 /opt/amazon/efa/lib/libfabric.so.1
echo /opt/amazon/efa/lib > /etc/ld.so.conf.d/000_efa.conf
echo /opt/amazon/ofi-nccl/lib/x86_64-linux-gnu > /etc/ld.so.conf.d/100_ofinccl.conf
echo 'export LD_LIBRARY_PATH=/opt/amazon/efa/lib' > /etc/profile.d/zippy_efa.sh
ldconfig
"""


@pytest.fixture
def context(tmp_path: Path) -> Path:
    """A copy of docker/ to be changed."""
    return shutil.copytree(ROOT / "docker", tmp_path / "docker")


@pytest.fixture(scope="module")
def efa(
    engine: Engine, image: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, str]]:
    """Return the address of the stand-in and its checksum, which is this machine as containers see
    it.
    """
    route = engine.run(image, "awk", '$2 == "00000000" {print $3}', "/proc/net/route")
    gateway = str(ipaddress.IPv4Address(bytes.fromhex(route)[::-1]))
    folder = tmp_path_factory.mktemp("efa")
    with tarfile.open(folder / "efa.tar.gz", "w:gz") as tar:
        member = tarfile.TarInfo("aws-efa-installer/efa_installer.sh")
        member.size = len(INSTALLER)
        member.mode = 0o755
        tar.addfile(member, io.BytesIO(INSTALLER.encode()))
    quiet = type("Quiet", (SimpleHTTPRequestHandler,), {"log_message": lambda *_: None})
    server = ThreadingHTTPServer((gateway, 0), partial(quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    digest = hashlib.sha256((folder / "efa.tar.gz").read_bytes()).hexdigest()
    yield f"http://{gateway}:{server.server_port}/efa.tar.gz", digest
    server.shutdown()
    server.server_close()


def test_a_change_of_train_rebuilds_no_layer_of_packages(
    engine: Engine, image: str, context: Path
) -> None:
    (context / "train").write_text((context / "train").read_text() + f"# {uuid.uuid4()}\n")
    build = engine.build(context, "changed")
    assert build.returncode == 0, build.stdout
    before = engine.layers(image)
    after = engine.layers("changed")
    assert before[:-2] == after[:-2], "all but `train` and its mode"
    assert before[-2:] != after[-2:]
    assert steps(build.stdout), build.stdout


def with_efa(url: str, digest: str) -> list[str]:
    arguments = {"WITH_EFA": "1", "EFA_URL": url, "EFA_SHA256": digest}
    return [f"{name}={value}" for name, value in arguments.items()]


def test_efas_plug_in_is_there_for_those_who_are_told_of_it_only(
    engine: Engine, image: str, efa: tuple[str, str]
) -> None:
    build = engine.build(ROOT / "docker", "efa", *with_efa(*efa))
    assert build.returncode == 0, build.stdout
    # All but the last layers equal those of the image without it: the large ones are stored and
    # pulled once.
    shared = [
        one == second
        for one, second in zip(engine.layers(image), engine.layers("efa"), strict=True)
    ]
    assert shared == [True] * (len(shared) - 3) + [False] * 3
    called = engine.run("efa", "cat", "/opt/amazon/efa/called")
    assert called == "-y --skip-kmod --skip-limit-conf --no-verify"
    load = "import ctypes; ctypes.CDLL('libnccl-net.so')"
    assert engine.run("efa", "bash", "-lc", f'python3 -c "{load}" 2>&1 || true').endswith(
        "No such file or directory"
    )
    devices = "; ".join(
        (
            "import sys",
            "sys.path.append('/opt')",
            "import host",
            "print(*host.efa_library_dirs(), sep=':')",
        )
    )
    with engine.container(
        "efa", "bash", "-c", f'LD_LIBRARY_PATH=$(python3 -c "{devices}") python3 -c "{load}"'
    ) as name:
        engine.do(
            "cp", str(ENTRYPOINTS / "cloudtrain_launcher" / "host.py"), f"{name}:/opt/host.py"
        )
        engine.do("start", "--attach", name)
    leftovers = (
        "ls -d /opt/amazon/openmpi* /etc/profile.d/*efa* /tmp/* /var/lib/apt/lists/* 2>/dev/null ||"
        " true"
    )
    assert engine.run("efa", "bash", "-c", leftovers) == ""
