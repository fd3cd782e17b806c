"""What torch.compile has made, kept beside the checkpoints: a run that is started again need not
compile again.

    compiled-0.bin   one file per rank of a node: a line of JSON, then `torch.compiler.save_cache_artifacts`

On one machine torch has a cache of its own (`TORCHINDUCTOR_CACHE_DIR`), which ends with the
machine, or with its container; this file is where a spot job finds its checkpoints, whatever
machine it resumes on. The ranks of the first node write one each, since the code of a GPU names its
number, and ranks of other nodes read that of the same number.

The file is code: it contains pickles, and programs for the GPU. So it is read only if this very run
wrote it, by its id and its checksum; whoever can write into the folder of a run can make it run
code, here as with the program itself. Outside of a job, where there is no id, nothing is kept.
`TORCHINDUCTOR_FORCE_DISABLE_CACHES=1` turns it off.

Measured on a CPU, four layers: the first step takes 45.6 s of CPU time, 22.6 s with the file and an
empty cache (torch keeps Triton's programs for GPUs in it, for CPUs only the source, which g++
compiles again), 2.2 s with torch's cache. The file has 1.1 MB. Not measured on GPUs.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import torch

from cloudtrain_trainer.checkpoints.files import sync_folder
from cloudtrain_trainer.hardware import device_name
from cloudtrain_trainer.ranks import Ranks

MAX_BYTES = 512 * 2**20
"""A larger file is neither written nor read: it would delay checkpoints, which go the same way."""
STEPS = 3
"""After so many steps of a process nothing is compiled any more
(`tests/entrypoints/test_compiling.py`).
"""
_MAX_HEADER_BYTES = 4096


class CompileCache:
    """The file of this rank. `run`: the run's id, which stays when its platform restarts it; empty:
    keep nothing.
    """

    def __init__(self, folder: Path, ranks: Ranks, run: str) -> None:
        self.path = folder / f"compiled-{ranks.local_rank}.bin"
        self.ranks = ranks
        self.enabled = bool(run) and os.environ.get("TORCHINDUCTOR_FORCE_DISABLE_CACHES") != "1"
        device = device_name(ranks.device) + f" {torch.backends.cpu.get_cpu_capability()}" * (
            ranks.device.type == "cpu"
        )
        self._origin = {"run": run, "torch": torch.__version__, "device": device}
        self._steps = 0
        self._loaded = ""

    def load(self) -> None:
        """Give torch what an earlier start has compiled; a file that is not this run's, or damaged,
        is left alone.
        """
        content = self._read() if self.enabled else b""
        if not content:
            return
        try:
            torch.compiler.load_cache_artifacts(content)
        except Exception as error:  # noqa: BLE001  (whatever is wrong with a cache, training needs none)
            self.ranks.log(f"{self.path.name} is not used: {type(error).__name__}: {error}")
            return
        self._loaded = hashlib.sha256(content).hexdigest()
        self.ranks.log(
            f"what an earlier start has compiled is used again ({len(content) / 1e6:.1f} MB)"
        )

    def step_done(self) -> None:
        """Count a step of this process; after the last that may compile, write the file."""
        self._steps += 1
        if self.enabled and self._steps == STEPS and self.ranks.rank == self.ranks.local_rank:
            self._save()

    def _save(self) -> None:
        """Write the file whole or not at all: it has its name only when it is on the disk."""
        saved = torch.compiler.save_cache_artifacts()
        content = saved[0] if saved else b""
        digest = hashlib.sha256(content).hexdigest()
        if not content or digest == self._loaded:
            return
        if len(content) > MAX_BYTES:
            self.ranks.log(
                f"compiled code is not kept for a restart: {len(content) / 1e6:.0f} MB are too much"
            )
            return
        partial = self.path.with_name(f"{self.path.name}.partial")
        try:
            with partial.open("wb") as file:
                file.write(
                    json.dumps({**self._origin, "sha256": digest}).encode() + b"\n" + content
                )
                file.flush()
                os.fsync(file.fileno())
            partial.replace(self.path)
            sync_folder(self.path.parent)
        except OSError as error:  # a full disk: the next checkpoint says so, if it needs the space
            partial.unlink(missing_ok=True)
            self.ranks.log(f"compiled code is not kept for a restart: {error.strerror}")

    def _read(self) -> bytes:
        """The content of a file that this run has written on such a device with this torch; empty
        if there is none.
        """
        try:
            with self.path.open("rb") as file:
                if os.fstat(file.fileno()).st_size > MAX_BYTES + _MAX_HEADER_BYTES:
                    return b""
                header: Any = json.loads(file.readline(_MAX_HEADER_BYTES))
                content = file.read()
        except (OSError, ValueError):
            return b""
        expected = {**self._origin, "sha256": hashlib.sha256(content).hexdigest()}
        return content if header == expected else b""
