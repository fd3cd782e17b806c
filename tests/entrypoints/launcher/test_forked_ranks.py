"""Ranks that are forked from a process which has imported torch: what `python program` is, and as
safe.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cloudtrain_launcher.fork_rules import read_source, reason_in_source
from tests.entrypoints.launchers import ENTRYPOINTS, events, finish, start

pytestmark = [pytest.mark.linux("forks are safe on Linux only")]

PROBE = Path(__file__).with_name("process_probe.py").read_text()
RANKS = 2
OF_RESTARTS = (
    "MASTER_ADDR",
    "TORCHELASTIC_MAX_RESTARTS",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_SIGNALS_TO_HANDLE",
)
"""Variables of torchrun's rendezvous for restarts, and of torchrun itself."""
Found = tuple[dict[str, Any], dict[str, Any]]
NEW_PROCESSES = "[torchrun] each rank imports torch by itself: "


def probe(folder: Path, *, processes: int = RANKS, **job: Any) -> dict[str, Any]:
    """Return the facts that the ranks of a job report, and the job's output."""
    folder.mkdir(exist_ok=True)
    argv = [str(folder.parent / "found"), "a b", ""]
    process = start(folder, PROBE, new_process=True, processes=processes, argv=argv, **job)
    (folder.parent / "found").mkdir(exist_ok=True)
    text = finish(process)
    assert process.returncode == 0, text
    ranks = [
        json.loads((folder.parent / "found" / f"rank-{rank}.json").read_text())
        for rank in range(processes)
    ]
    return {"ranks": ranks, "text": text, "only": [rank.pop("only") for rank in ranks]}


@pytest.fixture(scope="module")
def no_hangup() -> Iterator[None]:
    """SIGHUP is ignored by the parent of the ranks."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.fixture(scope="module")
def forked_and_new(tmp_path_factory: pytest.TempPathFactory, no_hangup: None) -> Found:
    """The same program in the same folder, its ranks forked and as new processes."""
    folder = tmp_path_factory.mktemp("probe")
    return probe(folder / "job", warm=True), probe(folder / "job", warm=False)


@pytest.mark.torchrun
def test_a_forked_rank_finds_everything_as_a_new_process_does(forked_and_new: Found) -> None:
    forked, new = forked_and_new
    for forked_rank, new_rank in zip(forked["ranks"], new["ranks"], strict=True):
        assert forked_rank == new_rank


@pytest.mark.torchrun
def test_the_only_rank_of_a_job_finds_what_torchrun_gives(tmp_path: Path, no_hangup: None) -> None:
    ranks = []
    for restarts in (0, 1):
        (rank,) = probe(tmp_path / "job", processes=1, restarts=restarts, warm=False)["ranks"]
        for name in OF_RESTARTS:
            rank["variables"].pop(name, None)
        ranks.append(rank)
    assert ranks[0] == ranks[1]


@pytest.mark.torchrun
def test_what_must_differ_between_ranks_differs(forked_and_new: Found) -> None:
    for name in ("random", "numpy", "torch", "key"):
        values = [only[name] for kind in forked_and_new for only in kind["only"]]
        assert len(set(values)) == len(values), name


@pytest.mark.torchrun
def test_only_the_forked_ranks_have_a_parent_that_is_not_torchrun(forked_and_new: Found) -> None:
    forked, new = ([only["is_forked"] for only in kind["only"]] for kind in forked_and_new)
    assert [*forked, *new] == [True, True, False, False]


@pytest.mark.torchrun
def test_a_forked_rank_can_spawn_loader_processes(forked_and_new: Found) -> None:
    assert forked_and_new[0]["only"][0]["spawned"] == [[0, 1, 4, 9], [16, 25, 36, 49]]


@pytest.mark.torchrun
def test_ranks_restart_as_new_processes_when_the_forking_one_is_killed(
    tmp_path: Path,
) -> None:
    script = (
        "import os, signal, time\n"
        "if os.environ['TORCHELASTIC_RESTART_COUNT'] == '0':\n"
        "    open('here-' + os.environ['RANK'], 'w').close()\n"
        "    while not os.path.exists('here-1'): time.sleep(0.01)\n"
        "    if os.environ['RANK'] == '0': os.kill(os.getppid(), signal.SIGKILL)\n"
        "    time.sleep(600)\n"
        "print('again')\n"
    )
    process = start(tmp_path, script, processes=2, restarts=1)
    text = finish(process)
    assert process.returncode == 0, text
    assert text.count("] again") == 2
    assert text.count(f"{NEW_PROCESSES}the process that forks them has died") == 1
    (restarted,) = (event for event in events(text) if event["type"] == "restarted")
    assert "SIGKILL" in restarted["why"]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("os.environ['OMP_NUM_THREADS'] = '1'", "train.py:2 sets OMP_NUM_THREADS"),
        ("os.environ.setdefault('MKL_NUM_THREADS', '1')", "train.py:2 sets MKL_NUM_THREADS"),
        (
            "os.environ.pop('PYTORCH_CUDA_ALLOC_CONF', None)",
            "train.py:2 sets PYTORCH_CUDA_ALLOC_CONF",
        ),
        (
            "os.environ.update({'A': '1', 'TORCH_SHOW_CPP_STACKTRACES': '1'})",
            "train.py:2 sets TORCH_SHOW_CPP_STACKTRACES",
        ),
        ("os.environ.update(OMP_PROC_BIND='true')", "train.py:2 sets OMP_PROC_BIND"),
        ("os.environ |= {'MALLOC_ARENA_MAX': '1'}", "train.py:2 sets MALLOC_ARENA_MAX"),
        ("os.environ['LD_LIBRARY_PATH'] += ':/lib'", "train.py:2 sets LD_LIBRARY_PATH"),
        ("del os.environ['OMP_NUM_THREADS']", "train.py:2 sets OMP_NUM_THREADS"),
        ("for name in ('OMP_NUM_THREADS',): os.environ[name] = '1'", "train.py:2 sets OMP"),
        ("values = dict(OMP_NUM_THREADS='1'); os.environ.update(values)", "train.py:2 sets OMP"),
        ("NAME = 'MKL_NUM_THREADS'; os.environ[NAME] = '1'", "train.py:2 sets MKL_NUM_THREADS"),
        ("import tensorflow as tf", "train.py:2 imports tensorflow"),
        ("    from jax import numpy", "train.py:2 imports jax"),
        ("threads = os.environ['OMP_NUM_THREADS']", ""),
        ("if os.environ['OMP_NUM_THREADS'] == '1': pass", ""),
        ("threads = int(os.environ['OMP_NUM_THREADS'])", ""),
        ("threads = os.environ.get('OMP_NUM_THREADS') or os.getenv('MKL_NUM_THREADS')", ""),
        ("PYTORCH_DTYPES = ['float32']", ""),
        ("os.environ['CUDA_VISIBLE_DEVICES'] = '0'", ""),
        ("os.environ['TORCH_NCCL_BLOCKING_WAIT'] = '1'", ""),
        ("import jaxtyping", ""),
    ],
)
def test_what_speaks_against_a_fork_is_named_with_its_line(
    line: str, reason: str, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(f"import os\n{line}\n")
    why_not = reason_in_source(read_source(tmp_path / "train.py", tmp_path), tmp_path)
    assert why_not.startswith(reason)
    assert bool(why_not) == bool(reason)


def test_local_modules_and_notebooks_are_read_but_not_installed_packages(
    tmp_path: Path,
) -> None:
    sets = "import os\nos.environ['OMP_NUM_THREADS'] = '1'\n"
    (tmp_path / "train.py").write_text("import data\n")
    for folder in (".venv/lib", "lib/site-packages", "__pycache__"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "some.py").write_text(sets)

    source = read_source(tmp_path / "train.py", tmp_path)
    assert reason_in_source(source, tmp_path) == ""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "loading.py").write_text(sets)
    source = read_source(tmp_path / "train.py", tmp_path)
    assert reason_in_source(source, tmp_path).startswith("data/loading.py:2 sets")
    cells = {"cells": [{"cell_type": "code", "source": ['os.environ["OMP_NUM_THREADS"] = "1"\n']}]}
    (tmp_path / "train.ipynb").write_text(json.dumps(cells))
    assert "OMP_NUM_THREADS" in reason_in_source(
        read_source(tmp_path / "train.ipynb", tmp_path / "none"), tmp_path
    )


@pytest.mark.parametrize(
    ("before", "reason"),
    [
        ("", ""),
        (
            (
                "import threading, time; threading.Thread(target=time.sleep, args=(600,),"
                " daemon=True).start()"
            ),
            "1 threads",
        ),
        (
            (
                "import mmap; m = mmap.mmap((f := open('libcuda.so.1', 'rb')).fileno(), 0,"
                " prot=mmap.PROT_READ)"
            ),
            "the CUDA driver",
        ),
        ("open('json.py', 'w').close(); import json.decoder", "json.py has the name of a module"),
        ("open('mine.py', 'w').close(); sys.path.insert(0, '.'); import mine", ""),
        ("open('__main__.py', 'w').close()", ""),
    ],
    ids=[
        "nothing",
        "a thread",
        "CUDA",
        "a module of the same name",
        "a module of the program",
        "a program",
    ],
)
def test_a_process_that_must_not_be_forked_is_recognised(
    before: str, reason: str, tmp_path: Path
) -> None:
    (tmp_path / "libcuda.so.1").write_bytes(b"driver")
    code = (
        f"import sys\nfrom pathlib import Path\nsys.path.append({str(ENTRYPOINTS)!r})\nimport"
        f" json\n{before}\n"
    )
    code += (
        "from cloudtrain_launcher.fork_rules import"
        " reason_in_process\nprint(reason_in_process([Path.cwd()]))"
    )
    process = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert reason in process.stdout
    assert bool(process.stdout.strip()) == bool(reason)
