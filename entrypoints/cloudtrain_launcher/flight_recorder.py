"""NCCL's flight recorder: torch's record of each rank's last collectives after a timeout.

The files are part of the job's output, `fetch` downloads them, and a warning at the end of the run
names them. `cloudtrain diagnose FOLDER` compares them. Standard library only.

Names and defaults: FlightRecorder.hpp and ProcessGroupNCCL.hpp of torch 2.13, which by default
records 2,000 collectives and writes them after a timeout; an older torch needs other variables.
Tests check the settings and the warning; NCCL's own writing is untested without GPUs.
"""

from __future__ import annotations

import re
from collections.abc import MutableMapping
from contextlib import suppress
from pathlib import Path

from cloudtrain_launcher.contract import Job

FOLDER = "flight-recorder"
PREFIX = "rank_"
"""Subfolder of the output, and prefix of the files before the rank."""
RECORDED = 2000
"""Collectives per rank, torch 2.13's default: a few hundred bytes each."""

_NEW_NAMES_SINCE = (2, 13)
_FILE = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
_SIZE = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
"""Variable of torch 2.13, and its older name, which a newer torch warns about."""


def enable(
    job: Job, output_dir: str, torch_version: str, environ: MutableMapping[str, str]
) -> None:
    """Enable the recorder for NCCL's timeouts, unless the user has configured it.

    Do nothing for a job on CPUs. `torch_version`: such as `2.13.0+cu130`. Raise OSError if the
    folder cannot be created.
    """
    if not job.gpus:
        return

    version = tuple(int(number) for number in re.findall(r"\d+", torch_version)[:2])
    old = version < _NEW_NAMES_SINCE
    environ.setdefault("TORCH_NCCL_DUMP_ON_TIMEOUT", "1")
    if not any(name in environ for name in _SIZE):
        environ[_SIZE[old]] = str(RECORDED)

    if not any(name in environ for name in _FILE):
        folder = Path(output_dir, FOLDER)
        folder.mkdir(parents=True, exist_ok=True)
        environ[_FILE[old]] = str(folder / PREFIX)


def finish(output_dir: str, since: float) -> str:
    """Name the records written since a Unix timestamp, in a sentence; empty without any.

    Remove the folder if it is empty.
    """
    folder = Path(output_dir, FOLDER)
    with suppress(OSError):
        folder.rmdir()

    paths = [path for path in folder.glob(f"{PREFIX}*") if path.stat().st_size]
    records = [path for path in paths if path.stat().st_mtime >= since]
    if not records:
        return ""

    return (
        f"a collective of NCCL has timed out: the last ones of {len(records)} ranks are in {FOLDER}/"
        f" of the output; torch's own `torchfrtrace {FOLDER}` names the rank that did not come"
    )
