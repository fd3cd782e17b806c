"""A program that writes facts about its process as JSON: one file per rank, below `argv[1]`."""

from __future__ import annotations

import atexit
import gc
import json
import locale
import multiprocessing
import os
import random
import resource
import signal
import sys
import tempfile
import threading
import warnings
from pathlib import Path
from typing import Any

import numpy
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

OF_THIS_JOB = (
    "MASTER_PORT",
    "CLOUDTRAIN_MASTER_PORT",
    "PET_MASTER_PORT",
    "CLOUDTRAIN_LAUNCHER_PID",
    "TORCHELASTIC_ERROR_FILE",
)


class Numbers(Dataset[int]):
    """A dataset of module level, which a spawned loader process must be able to import."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        return index * index


def answer(queue: Any, number: int) -> None:
    """Run in a child process."""
    queue.put((number * number, multiprocessing.current_process().name))


def of_a_child(method: str) -> list[Any]:
    """Return the answer and the exit code of a process started by that method."""
    context: Any = multiprocessing.get_context(method)
    queue = context.Queue()
    process = context.Process(target=answer, args=(queue, 7))
    process.start()
    reply = queue.get()
    process.join()
    return [reply[0], process.exitcode]


def loaded(method: str) -> list[list[int]]:
    """The batches of a loader process started by that method."""
    loader = DataLoader(Numbers(), batch_size=4, num_workers=1, multiprocessing_context=method)
    return [batch.tolist() for batch in loader]


def trained(*, compiles: bool) -> str:
    """The parameters after three steps together, bit for bit."""
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(16, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    step = torch.compile(
        lambda x: model(x).square().mean(), backend="aot_eager", disable=not compiles
    )
    for _ in range(3):
        optimizer.zero_grad()
        step(torch.randn(8, 16)).backward()
        optimizer.step()

    parameters: numpy.ndarray[Any, Any] = model.module.weight.detach().numpy()
    return parameters.tobytes().hex()


def main() -> None:
    """Look, and write."""
    folder = Path(sys.argv[1])
    rank = int(os.environ["RANK"])
    scratch = os.environ["CLOUDTRAIN_STREAM_DIR"]
    status = dict(
        line.split(":\t", 1)
        for line in Path("/proc/self/status").read_text().splitlines()
        if ":\t" in line
    )
    launcher = os.environ["CLOUDTRAIN_LAUNCHER_PID"]
    streams: list[Any] = [sys.stdin, sys.stdout, sys.stderr]
    facts = {
        "argv": sys.argv[2:],
        "orig_argv": sys.orig_argv[1:],
        "path": sys.path,
        "flags": list(sys.flags),
        "main": [
            __name__,
            __file__,
            sys.modules["__main__"].__dict__ is globals(),
            sys.modules["__main__"].__spec__ is None,
        ],
        "folder": str(Path.cwd()),
        "temporary": tempfile.tempdir,
        "descriptors": sorted(
            path.name for path in Path("/proc/self/fd").iterdir() if path.exists()
        ),
        "variables": {
            key: value.replace(scratch, "")
            for key, value in os.environ.items()
            if key not in OF_THIS_JOB
        },
        "handlers": {s.name: str(signal.getsignal(s)).partition(" at ")[0] for s in signal.Signals},
        "signals": [status["SigBlk"], status["SigIgn"], status["SigCgt"]],
        "wakeup": signal.set_wakeup_fd(-1),
        "threads": [
            status["Threads"],
            threading.active_count(),
            threading.main_thread().native_id == os.getpid(),
        ],
        "session": [os.getsid(0) == os.getpid(), os.getpgid(0) == os.getpid()],
        "umask": status["Umask"],
        "limits": [
            resource.getrlimit(getattr(resource, name))
            for name in sorted(dir(resource))
            if name.startswith("RLIMIT_")
        ],
        "streams": [
            (s.name, s.encoding, s.errors, s.line_buffering, s.write_through) for s in streams
        ],
        "input": str(Path("/proc/self/fd/0").readlink()),
        "locale": locale.setlocale(locale.LC_ALL),
        "interpreter": [
            sys.getrecursionlimit(),
            gc.get_threshold(),
            gc.isenabled(),
            sys.getswitchinterval(),
        ],
        "processes": [
            multiprocessing.get_start_method(),
            multiprocessing.current_process().name,
            multiprocessing.parent_process(),
        ],
        "torch": [torch.get_num_threads(), torch.get_num_interop_threads()],
    }
    facts |= {"fork": of_a_child("fork"), "loader": loaded("fork")}
    parent = Path(f"/proc/{os.getppid()}/status").read_text()
    is_forked = f"PPid:\t{launcher}\n" not in parent
    dist.init_process_group("gloo")
    seed = torch.initial_seed()
    facts["trained"] = trained(compiles=rank == 1)
    facts["warnings"] = [sys.warnoptions, [str(item) for item in warnings.filters]]
    dist.destroy_process_group()
    facts["only"] = {
        "random": random.getrandbits(128),
        "torch": seed,
        "numpy": numpy.random.randint(1 << 62),
        "key": bytes(multiprocessing.current_process().authkey).hex(),
        "is_forked": is_forked,
        # Expensive imports, on one forked rank: a spawned child imports torch again.
        "spawned": loaded("spawn") if is_forked and rank == 0 else None,
    }
    (folder / f"rank-{rank}.json").write_text(json.dumps(facts))
    atexit.register(print, "registered first")
    atexit.register(print, "registered last")


if __name__ == "__main__":
    main()
