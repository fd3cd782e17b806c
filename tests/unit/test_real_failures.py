"""Programs that really fail, without torch: `diagnose` names the rule of each cause."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cloudtrain.diagnosis.failure import diagnose_lines
from cloudtrain.diagnosis.log_text import read_log
from tests.support.waiting import HANG_SECONDS

MOUNT_SMALL_DISK = """
libc = ctypes.CDLL(None, use_errno=True)
CLONE_NEWNS = 0x00020000
if libc.unshare(CLONE_NEWNS):
    sys.exit("cannot mount")
subprocess.run(["mount", "--make-rprivate", "/"], check=True)
os.makedirs("disk")
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k,rw", "tmpfs", "disk"], check=True)
"""

PROGRAMS = {
    "host-allocation-failed": """
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
x = bytearray(1 << 33)
""",
    "disk-full": MOUNT_SMALL_DISK + "open('disk/x', 'wb').write(bytes(1 << 20))",
    "permission-denied": """
os.mkdir("folder", 0o700)
os.setuid(65534) if os.getuid() == 0 else os.chmod("folder", 0)
open("folder/x", "w")
""",
    "open-files": """
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
files = [open("/dev/null") for _ in range(99)]
""",
    "module-not-found": "import einops_that_nobody_has",
    "library-missing": "ctypes.CDLL('libnothing.so.1')",
    "wrong-architecture": r"""
ARM_HEADER = b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x02\x00\xb7\x00" + bytes(200)
with open("program", "wb") as file:
    file.write(ARM_HEADER)
os.chmod("program", 0o755)
os.execv("./program", ["program"])
""",
    "download-failed": """
with socket.socket() as listener:
    listener.bind(("127.0.0.1", 0))
    port = listener.getsockname()[1]
urllib.request.urlopen(f"http://127.0.0.1:{port}/model.bin", timeout=5)
""",
    "killed": """
subprocess.run(["bash", "-c", 'sh -c "kill -9 $$"; true'], check=True)
""",
    "segmentation-fault": "faulthandler.enable(); ctypes.string_at(0)",
    "none": "raise ValueError('the dog ate shard 3')",
}
"""A program for each rule that must claim its failure; `none`: no rule may."""

IMPORTS = "import ctypes, faulthandler, os, resource, socket, subprocess, sys, urllib.request\n"


@pytest.mark.parametrize("rule", PROGRAMS)
def test_a_real_failure_gets_the_rule_of_its_cause(rule: str, tmp_path: Path) -> None:
    if rule == "disk-full" and os.geteuid() != 0:
        pytest.skip("only root may mount a small disk")
    (tmp_path / "train.py").write_text(IMPORTS + PROGRAMS[rule])
    log = tmp_path / "output.log"
    tmp_path.chmod(0o755)

    with log.open("wb") as output:
        subprocess.run(
            [sys.executable, "train.py"],
            cwd=tmp_path,
            stdout=output,
            stderr=output,
            stdin=subprocess.DEVNULL,
            timeout=HANG_SECONDS,
            check=False,
        )

    if "cannot mount" in log.read_text():
        pytest.skip("this container may not mount a small disk")
    with log.open("rb") as file:
        diagnosis = diagnose_lines(read_log(file, "output.log", []))
    assert (diagnosis.rule.name if diagnosis.rule else "none") == rule, log.read_text()
