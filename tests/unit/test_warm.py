"""The warm process, with a module of the standard library in place of torch: whom it serves, and
what ends it.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cloudtrain.planning.launch import Launch
from cloudtrain.providers.local import warm
from cloudtrain.providers.local.supervisor_status import end_orphans
from cloudtrain.providers.local.warm import WarmProcess, open_for, warm_process
from cloudtrain.runs.folder import RunFolder
from cloudtrain.runs.history import History
from cloudtrain.runs.store import RunStore
from tests.repo.tools import ROOT
from tests.support.samples import BORN, write_events
from tests.support.waiting import eventually

pytestmark = pytest.mark.linux("processes that end with their parent, and /proc")

LAUNCHER = """
import json, os, sys, time
from pathlib import Path
Path("draft").write_text(json.dumps({"modules": sorted(sys.modules), "variables": dict(os.environ),
    "argv": sys.argv, "path": sys.path, "parent": os.getppid(), "name": __name__, "pid": os.getpid()}))
os.rename("draft", "found.json")
print("it runs", flush=True)
while os.environ.get("WAITS") and not Path("go").exists():
    time.sleep(0.02)
sys.exit(int(os.environ.get("CODE", 0)))
"""


class Runs:
    """Runs of a launcher of a few lines, and the process that is kept warm for them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.warm = WarmProcess()
        self.store = RunStore(folder / "data")
        (folder / "launcher.py").write_text(LAUNCHER)
        with tarfile.open(folder / "source.tar.gz", "w:gz"):
            pass

    def start(
        self, run_id: str, secrets: dict[str, str] | None = None, **env: str
    ) -> tuple[RunFolder, int | None]:
        """A run's folder, and the process id of the supervisor that was forked; None if it was not."""
        where = self.folder / run_id
        where.mkdir()
        argv = (sys.executable, "-u", str(self.folder / "launcher.py"), "an argument")
        launch = Launch(node=0, argv=argv, cwd=str(where), env=env, secrets=secrets or {})
        request = {
            "launches": [launch.to_json()],
            "max_runtime_seconds": 99,
            "grace_seconds": 5,
            "resume_from": None,
        }
        plan = {"provider": "local", "target": {"contract": "plain"}}
        documents = {"plan.json": json.dumps(plan), "request.json": json.dumps(request)}
        run = self.store.create(run_id, documents)
        write_events(run, {**BORN, "time": time.time()})
        with (run.path / "log").open("wb") as log:
            return run, self.warm.start(
                [launch], [str(run.path), str(self.folder / "source.tar.gz")], log
            )

    def status_of(self, run_id: str) -> dict[str, Any]:
        """Return the status that a run's launcher wrote."""
        file = self.folder / run_id / "found.json"
        eventually(file.exists)
        status: dict[str, Any] = json.loads(file.read_text())
        return status

    @property
    def pid(self) -> int:
        assert self.warm._process is not None
        return self.warm._process.pid


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Runs]:
    monkeypatch.setattr(warm, "_MODULES", ("wave",))
    started = Runs(tmp_path)
    yield started
    started.warm.close()
    for run in (tmp_path / "data/runs").iterdir():
        end_orphans(run)


def end_of(run: RunFolder) -> str:
    return eventually(lambda: ((state := History(run).read()).has_ended and state.state) or "")


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_supervisor_and_launcher_are_forks_without_client_modules(
    runs: Runs,
) -> None:
    run, supervisor = runs.start("a", COLOUR="red")
    assert end_of(run) == "succeeded"
    status = runs.status_of("a")
    assert status["parent"] == supervisor
    assert "wave" in status["modules"]
    assert [name for name in status["modules"] if name.startswith("cloudtrain")] == []
    assert [status["name"], status["argv"]] == [
        "__main__",
        [str(runs.folder / "launcher.py"), "an argument"],
    ]
    assert status["path"][0] == str(runs.folder)
    assert status["variables"]["COLOUR"] == "red"
    assert "it runs" in (run.path / "logs/node-0.log").read_text()


def test_the_exit_code_of_a_launcher_decides_as_ever(runs: Runs) -> None:
    run, _ = runs.start("a", CODE="3")
    assert end_of(run) == "failed"


def test_all_processes_of_a_run_carry_its_mark(runs: Runs) -> None:
    run, _ = runs.start("a", WAITS="1")
    launcher = runs.status_of("a")["pid"]
    mark = f"CLOUDTRAIN_RUN_DIR={run.path}".encode()
    assert mark in Path(f"/proc/{launcher}/environ").read_bytes().split(b"\0")
    (runs.folder / "a/go").touch()
    assert end_of(run) == "succeeded"


def memory_of(pid: int) -> bytes:
    """Return the memory that a process has written or may write."""
    statuses = []
    with Path(f"/proc/{pid}/mem").open("rb", 0) as memory:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            start, end, rights = re.match(r"(\w+)-(\w+) (\S+)", line).groups()  # type: ignore[union-attr]
            if rights.startswith("rw") and "[v" not in line:
                memory.seek(int(start, 16))
                statuses.append(memory.read(int(end, 16) - int(start, 16)))
    return b"".join(statuses)


def test_no_variable_of_a_run_stays_in_the_memory_from_which_the_next_is_forked(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOWN", "all-runs-have-this")
    monkeypatch.setenv("MY_TOKEN", "value-of-the-first-run")
    run, supervisor = runs.start("a", secrets={"TOKEN": "env:MY_TOKEN"})
    assert supervisor
    assert end_of(run) == "succeeded"
    assert runs.status_of("a")["variables"]["TOKEN"] == "value-of-the-first-run"
    memory = memory_of(runs.pid)
    assert b"all-runs-have-this" in memory
    assert b"value-of-the-first-run" not in memory


def test_only_runs_of_the_same_python_and_variables_are_served(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, served = runs.start("a", CLOUDTRAIN_NODE_RANK="0", CUDA_VISIBLE_DEVICES="0")
    assert served
    assert end_of(first) == "succeeded"
    assert runs.start("b", CUDA_VISIBLE_DEVICES="1")[1] is None
    assert runs.start("c", CUDA_VISIBLE_DEVICES="0", OMP_NUM_THREADS="7")[1] is None
    monkeypatch.setattr(sys, "executable", "/another/python")
    assert runs.start("d", CUDA_VISIBLE_DEVICES="0")[1] is None
    monkeypatch.undo()
    monkeypatch.setattr(warm, "_MODULES", ())  # it would not be started again
    last, served = runs.start("e", CLOUDTRAIN_NODE_RANK="1", CUDA_VISIBLE_DEVICES="0")
    assert served
    assert end_of(last) == "succeeded"


def test_after_it_was_killed_one_run_starts_by_itself_and_the_next_from_a_new_one(
    runs: Runs,
) -> None:
    run, served = runs.start("a")
    assert served
    assert end_of(run) == "succeeded"
    os.kill(runs.pid, signal.SIGKILL)
    assert runs.start("b")[1] is None
    run, served = runs.start("c")
    assert served
    assert end_of(run) == "succeeded"


def test_when_packages_were_installed_it_is_not_used_any_more(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = runs.folder / "packages"
    project = runs.folder / "project"
    for folder in (packages, project):
        folder.mkdir()
    (packages / "framework.py").touch()
    monkeypatch.setenv("PYTHONPATH", f"{packages}:{project}")
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setattr(warm, "_MODULES", ("framework",))
    assert end_of(runs.start("a")[0]) == "succeeded"
    (project / "new.py").touch()  # not imported from this folder
    run, served = runs.start("b")
    assert served
    assert end_of(run) == "succeeded"
    (packages / "new.py").touch()
    assert runs.start("c")[1] is None


def test_one_that_cannot_import_torch_is_started_once(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warm, "_MODULES", ("no_such_module",))
    assert runs.start("a")[1] is None
    monkeypatch.setattr(subprocess, "Popen", None)
    assert runs.start("b")[1] is None


def test_runs_go_on_when_it_ends(runs: Runs) -> None:
    run, _ = runs.start("a", WAITS="1")
    runs.status_of("a")
    process = runs.pid
    runs.warm.close()
    assert not is_running(process)
    (runs.folder / "a/go").touch()
    assert end_of(run) == "succeeded"


def test_several_threads_may_ask_at_once(runs: Runs) -> None:
    attempts: list[tuple[RunFolder, int | None]] = []
    threads = [
        threading.Thread(target=lambda name=name: attempts.append(runs.start(name)))
        for name in "abc"
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({supervisor for _, supervisor in attempts if supervisor}) == 3
    assert [end_of(run) for run, _ in attempts] == ["succeeded"] * 3


def test_it_ends_with_the_process_that_opened_it() -> None:
    opener = (
        "from cloudtrain.providers.local import warm\n"
        "import os, sys, time\n"
        "warm._MODULES, process = ('wave',), warm.WarmProcess()\n"
        "assert process._open_process(sys.executable, dict(os.environ))\n"
        "print(process._process.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", opener], stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        assert is_running(pid)
        process.kill()
    eventually(lambda: not is_running(pid))


def test_only_runs_of_the_data_folder_for_which_it_is_open_find_it(tmp_path: Path) -> None:
    with warm_process(tmp_path / "data"):
        process = open_for(tmp_path / "data")
        assert process is not None
        assert open_for(tmp_path / "other") is None
        with warm_process(tmp_path / "data"):
            assert open_for(tmp_path / "data") is process
        assert open_for(tmp_path / "data") is process
    assert open_for(tmp_path / "data") is None
