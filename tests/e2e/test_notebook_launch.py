"""`cloudtrain.launch`: a function run by several ranks from a notebook's cell, with the launcher's
rules.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.support.limits import HANG_SECONDS

pytestmark = [pytest.mark.torchrun]

BEGIN = """
import os, signal, sys, time
import torch
import cloudtrain
def meet():
    import torch.distributed as dist
    dist.init_process_group("gloo")
    return dist
"""


def run(program: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Return the output of a program that imports torch once and then launches, as a notebook's
    kernel does.
    """
    file = folder / "cells.py"
    file.write_text(BEGIN + textwrap.dedent(program))
    env = {**os.environ, **variables}
    return subprocess.run(
        [sys.executable, str(file)],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        check=False,
    )


def test_every_rank_returns_what_it_has_found_and_sees_what_the_cell_sees(tmp_path: Path) -> None:
    process = run(
        """
        big = {"weights": 41}
        torch.randn(900, 900) @ torch.randn(900, 900)  # OpenMP's threads run now, which no fork inherits
        def train(rate, steps=1):
            dist = meet()
            total = torch.ones(1) * dist.get_rank()
            dist.all_reduce(total)
            torch.randn(900, 900) @ torch.randn(900, 900)
            return dist.get_rank(), dist.get_world_size(), total.item(), rate, steps, big["weights"]
        print(cloudtrain.launch(train, 0.5, processes=3, steps=2))
        print(cloudtrain.launch(train, 0.5, processes=1), "RANK" in os.environ)
        ours = open("ours.txt", "w")
        ours.write("of the notebook;")
        import atexit, gzip, threading
        atexit.register(lambda: print("goodbye", os.environ.get("RANK")))
        def leave(how):
            global log, late
            log = open(f"log-{os.environ['RANK']}.txt", "w")
            log.write("of a rank")
            packed = gzip.open(f"log-{os.environ['RANK']}.gz", "wt")
            packed.write("packed")
            globals()["packed"] = packed
            if os.environ["RANK"] == "0":
                ours.write("of rank 0;")
            def work():
                global late
                late = open(f"late-{os.environ['RANK']}.txt", "w")
                late.write("by a thread")
            threading.Thread(target=work).start()
            if how == "badly":
                raise ValueError("on purpose")
        for how in ("well", "badly"):
            try:
                cloudtrain.launch(leave, how, processes=2)
            except cloudtrain.JobFailed as error:
                print(str(error).splitlines()[0][7:])
            for rank in "01":
                print(open(f"log-{rank}.txt").read(), gzip.open(f"log-{rank}.gz", "rt").read(),
                      open(f"late-{rank}.txt").read(), sep=", ")
                for name in (f"log-{rank}.txt", f"log-{rank}.gz", f"late-{rank}.txt"):
                    os.unlink(name)
            ours.flush()
            print(open("ours.txt").read())
        """,
        tmp_path,
    )
    assert process.stdout.splitlines() == [
        "[(0, 3, 3.0, 0.5, 2, 41), (1, 3, 3.0, 0.5, 2, 41), (2, 3, 3.0, 0.5, 2, 41)]",
        "[(0, 1, 0.0, 0.5, 1, 41)] False",
        "of a rank, packed, by a thread",
        "of a rank, packed, by a thread",
        "of the notebook;of rank 0;",
        "(node 0) raised ValueError: on purpose",
        "of a rank, packed, by a thread",
        "of a rank, packed, by a thread",
        "of the notebook;of rank 0;of rank 0;",
        "goodbye None",
    ], process.stderr


@pytest.fixture(scope="module")
def failures(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Return the output of two launches that fail, one after the other in one notebook."""
    process = run(
        """
        def fail_beside_one_that_meets():
            os.write(1, f"pid {os.getpid()}\\n".encode())  # before they meet: both do, each in one piece
            dist = meet()
            if dist.get_rank() == 1:
                raise ValueError("the dog ate shard 1")
            dist.all_reduce(torch.ones(1))
        def die_beside_one_that_waits():
            if os.environ["RANK"] == "0":
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                signal.pause()
            os.kill(os.getpid(), signal.SIGKILL)
        for function in (fail_beside_one_that_meets, die_beside_one_that_waits):
            try:
                cloudtrain.launch(function, processes=2)
            except cloudtrain.JobFailed as error:
                print(error, flush=True)
            print("----", flush=True)
        """,
        tmp_path_factory.mktemp("failures"),
    )
    assert process.returncode == 0, process.stderr
    return process.stdout.split("----\n")


def test_first_failed_rank_is_named_with_its_traceback(
    failures: list[str],
) -> None:
    lines = failures[0].splitlines()
    pids = [int(line.split()[1]) for line in lines if line.startswith("pid")]
    assert "rank 1 (node 0) raised ValueError: the dog ate shard 1" in lines
    assert 'raise ValueError("the dog ate shard 1")' in failures[0]
    assert len(pids) == 2
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_a_rank_that_waits_for_a_failed_one_is_ended_all_the_same(failures: list[str]) -> None:
    assert failures[1].strip() == "rank 1 (node 0) was killed by SIGKILL"


def test_an_interrupt_of_the_cell_ends_all_ranks(tmp_path: Path) -> None:
    file = tmp_path / "cells.py"
    file.write_text(
        BEGIN
        + textwrap.dedent("""
            def train():
                os.write(1, f"pid {os.getpid()}\\n".encode())
                signal.pause()
            try:
                cloudtrain.launch(train, processes=2)
            except KeyboardInterrupt:
                print("interrupted", flush=True)
            """)
    )
    with subprocess.Popen([sys.executable, str(file)], stdout=subprocess.PIPE, text=True) as kernel:
        assert kernel.stdout is not None
        pids = [int(kernel.stdout.readline().split()[1]) for _ in range(2)]
        kernel.send_signal(signal.SIGINT)
        assert kernel.stdout.read().strip() == "interrupted"
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_fresh_processes_run_an_imported_function_and_say_what_a_cells_own_needs(
    tmp_path: Path,
) -> None:
    (tmp_path / "mine.py").write_text(
        "import os\ndef train(x):\n    return int(os.environ['RANK']) + x\n"
    )
    process = run(
        """
        import mine
        from cloudtrain.submission import notebook
        local_spawn = notebook._module("local_spawn")
        def own():
            pass
        def launch(function, *args):
            return local_spawn.run(function, args, {}, 2, entry=notebook._enter, spawn=True, flush=notebook._flush)
        if __name__ == "__main__":
            print([outcome.value for outcome in launch(mine.train, 5)])
            sys.modules["cloudpickle"] = None
            try:
                launch(own)
            except ValueError as error:
                print(error)
        """,
        tmp_path,
        PYTHONPATH=os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]),
    )
    first, second = process.stdout.splitlines()
    assert first == "[5, 6]", process.stderr
    assert (
        "it is defined in the notebook itself; pip install cloudpickle, or put it into a module"
        in second
    )


@pytest.mark.parametrize("count", [0, -1, True, "2", 1.5])
def test_an_invalid_number_of_processes_is_refused(count: object) -> None:
    import cloudtrain

    with pytest.raises(
        cloudtrain.UsageError, match=r"processes is .*: expected a whole number from 1 on"
    ):
        cloudtrain.launch(print, processes=count)  # type: ignore[arg-type]
