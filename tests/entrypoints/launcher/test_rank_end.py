"""How a rank ends: files that the program leaves open are written, as by `python program`.

A DDP model that outlives its process group would destroy it while it holds Python's lock, and join
a thread of gloo that may wait for that lock (~Reducer in torch/csrc/distributed/c10d, torch 2.13).
A rank keeps the group; scripts that we give away free the model first.
"""

from __future__ import annotations

import gc
import gzip
import os
import runpy
import signal
import subprocess
import sys
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler
from torch.nn.parallel import DistributedDataParallel

from cloudtrain_launcher import shutdown
from cloudtrain_launcher.agent import FailureMonitor
from tests.entrypoints.groups import StartGroup
from tests.entrypoints.launchers import SHORT_DEADLINE, run_rank
from tests.repo.tools import ROOT
from tests.support.waiting import HANG_SECONDS

UNCLOSED = """
import csv, gzip, io, os, sys, threading, zipfile
from mine import keep

rows = csv.writer(open("metrics.csv", "w"))
rows.writerow(["step", "loss"])
packed = gzip.open("log.gz", "wt")
packed.write("packed")
bare = gzip.GzipFile("bare.gz", "wb")
bare.write(b"bare")
archive = zipfile.ZipFile("all.zip", "w")
archive.writestr("first.txt", "first")
entry = io.TextIOWrapper(archive.open("second.txt", "w"))
entry.write("second")
keep(open("module.txt", "w")).write("of a module")

class Cycle:
    def __init__(self):
        self.me, self.file = self, open("cycle.txt", "w")
        self.file.write("in a cycle")
cycle = Cycle()

class Report:
    def __init__(self):
        self.file = open("report.txt", "w")
    def __del__(self):
        self.file.write(f"of a __del__ that sees its globals: {TOTAL}")
TOTAL = 3
report = Report()

def work():
    global made_by_thread
    made_by_thread = open("thread.txt", "w")
    made_by_thread.write("by a thread")
threading.Thread(target=work).start()

def forever():
    file = open("daemon.txt", "w")
    file.write("by a daemon thread")
    written.set()
    threading.Event().wait()
written = threading.Event()
threading.Thread(target=forever, daemon=True).start()
written.wait()
"""
EXPECTED = {
    "metrics.csv": b"step,loss\r\n",
    "module.txt": b"of a module",
    "cycle.txt": b"in a cycle",
    "report.txt": b"of a __del__ that sees its globals: 3",
    "thread.txt": b"by a thread",
    "daemon.txt": b"by a daemon thread",
}
ENDINGS = {
    "by its last line": ("", 0),
    "by sys.exit": ("sys.exit(0)", 0),
    "by an exception inside a function": (
        "def fail():\n    raise ValueError('on purpose')\nfail()",
        1,
    ),
}


def content(folder: Path) -> dict[str, bytes]:
    contents = {name: (folder / name).read_bytes() for name in EXPECTED}
    with zipfile.ZipFile(folder / "all.zip") as archive:
        contents |= {name: archive.read(name) for name in archive.namelist()}

    return contents | {
        name: gzip.decompress((folder / name).read_bytes()) for name in ("log.gz", "bare.gz")
    }


@pytest.mark.parametrize("ending", ENDINGS)
def test_files_that_a_program_leaves_open_are_written_completely(
    tmp_path: Path, ending: str
) -> None:
    last, code = ENDINGS[ending]
    (tmp_path / "mine.py").write_text(
        "kept = []\ndef keep(file):\n    kept.append(file)\n    return file\n"
    )
    rank = run_rank(tmp_path, UNCLOSED + last)
    assert rank.code == code, rank.output
    more = {"first.txt": b"first", "second.txt": b"second", "log.gz": b"packed", "bare.gz": b"bare"}
    assert content(tmp_path) == EXPECTED | more
    assert ("Traceback" in rank.text) == bool(code)


def test_a_file_that_cannot_be_written_is_reported_and_the_others_are_written(
    tmp_path: Path,
) -> None:
    script = (
        "full = open('/dev/full', 'w')\nfull.write('lost')\ngood = open('good.txt',"
        " 'w')\ngood.write('kept')\n"
    )
    rank = run_rank(tmp_path, script)
    assert (tmp_path / "good.txt").read_text() == "kept"
    assert "/dev/full could not be closed, and may lack its end: OSError: [Errno 28]" in rank.text


def test_a_pipe_without_a_reader_does_not_block_a_failed_rank(tmp_path: Path) -> None:
    script = (
        "import os\nreader, writer = os.pipe()\nstuck = open(writer, 'w', 1 << 20)\nstuck.write('x'"
        " * 900_000)\nraise ValueError('on purpose')\n"
    )
    rank = run_rank(tmp_path, SHORT_DEADLINE + script)
    assert rank.code == 1
    assert rank.error["message"] == "on purpose"


def run_python(program: str) -> subprocess.CompletedProcess[str]:
    """Run a program that imports the launcher."""
    environ = {**os.environ, "PYTHONPATH": str(Path(shutdown.__file__).parents[1])}
    return subprocess.run(
        [sys.executable, "-c", program],
        env=environ,
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        check=False,
    )


def test_a_successful_rank_gives_up_a_stuck_file_after_a_while_and_reports_it(
    tmp_path: Path,
) -> None:
    program = (
        "import os, sys\nfrom cloudtrain_launcher import shutdown\n"
        "reader, writer = os.pipe()\nstuck = open(writer, 'w', 1 << 20)\n"
        "stuck.write('x' * 900_000)\nwatchdog = shutdown.Watchdog(0, seconds=0.2)\n"
        "shutdown.close([stuck], watchdog.reset)\n"
    )
    process = run_python(program)
    assert process.returncode == 0
    assert "took longer than 0.2 s" in process.stderr


def test_a_child_that_a_program_forks_is_not_the_rank(tmp_path: Path) -> None:
    """It returns to the worker's code when it ends, and must not report the end of the rank."""
    script = (
        "import os, sys\npid = os.fork()\nif pid == 0:\n    kept = open('child.txt', 'w')\n   "
        " kept.write('kept')\n    sys.exit(7)\nprint('child',"
        " os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))\n"
    )
    rank = run_rank(tmp_path, script)
    assert rank.code == 0
    assert "child 7" in rank.text
    assert (tmp_path / "child.txt").read_text() == "kept"
    assert [event["type"] for event in rank.events] == ["rank_started", "rank_ended"]


def look() -> None:
    """Run a script of this repository; count models when its group is destroyed."""
    destroy = dist.destroy_process_group

    def look_and_destroy() -> None:
        left = sum(isinstance(each, DistributedDataParallel) for each in gc.get_objects())
        print("models left:", left, flush=True)
        destroy()

    setattr(dist, "destroy_process_group", look_and_destroy)  # noqa: B010
    del sys.argv[0]
    sys.argv[0] = str(ROOT / sys.argv[0])
    runpy.run_path(sys.argv[0], run_name="__main__")
    os._exit(0)


@pytest.mark.parametrize(
    ("script", "flag"),
    [
        ("cloudtrain/cli/starter/train.py", "--epochs=1"),
        ("examples/existing-script/classify.py", "--steps=2"),
    ],
    ids=["starter", "existing-script"],
)
def test_the_model_is_gone_before_its_process_group(
    script: str, flag: str, group: StartGroup
) -> None:
    rank = group(1, f"{script} {flag}", program=f"{__name__}:look")
    assert rank.wait() == [0], rank.output()
    assert "models left: 0" in rank.output()


def train_and_outlive() -> None:
    """Train in this rank with a model that outlives its group, and count gloo's threads."""
    shutdown.keep_destroyed_groups()
    dist.init_process_group("gloo")
    model: Any = DistributedDataParallel(torch.nn.Linear(1, 1))
    model(torch.ones(1, 1)).sum().backward()
    dist.destroy_process_group()
    del model
    gc.collect()
    names = []
    for path in Path("/proc/self/task").glob("*/comm"):
        with suppress(OSError):  # a thread that ends meanwhile
            names.append(path.read_text())

    print("threads kept:", any(name.startswith("pt_gloo") for name in names), flush=True)
    os._exit(0)


@pytest.mark.linux("threads are counted in /proc")
def test_a_group_does_not_end_with_the_model_that_outlives_it(group: StartGroup) -> None:
    rank = group(1, program=f"{__name__}:train_and_outlive")
    assert rank.wait() == [0], rank.output()
    assert "threads kept: True" in rank.output()


def test_rank_stuck_at_its_end_exits_and_shows_the_place() -> None:
    program = (
        "import ctypes, sys\nfrom cloudtrain_launcher import shutdown\n"
        "sys.setswitchinterval(1000)  # no other thread of Python's gets the lock meanwhile\n"
        "shutdown.LOCKED_SECONDS = 0.2\nshutdown.Watchdog(7, seconds=0.5)\n"
        "ctypes.PyDLL(None).sleep(600)\n"
    )
    process = run_python(program)
    assert process.returncode == 1
    assert "Timeout" in process.stderr
    assert 'File "<string>", line ' in process.stderr


def test_a_rank_that_ends_between_torchruns_look_and_its_signal_does_not_end_torchrun(
    capfd: pytest.CaptureFixture[str],
) -> None:
    start = FailureMonitor().wrap(SubprocessHandler)
    environ = dict(os.environ)
    rank = start(sys.executable, ("-c", "raise SystemExit(3)"), environ, None, None, 0, None)
    os.waitid(os.P_PID, rank.proc.pid, os.WEXITED | os.WNOWAIT)
    rank.close(signal.SIGTERM)
    assert '"exitcode":3' in capfd.readouterr().out
