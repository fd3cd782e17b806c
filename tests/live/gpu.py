"""Collects on one GPU, in ten minutes at most, what no test without one can prove.

    python -m tests.live.gpu [--rehearse] [--json FILE]

Prints a table for the pages, and writes a JSON with the figures of each part, or the reason why it
failed or cannot run on this machine. Each part runs in a separate process. `--rehearse` runs all
parts on the CPU in tiny sizes, which proves only that they work.
"""

from __future__ import annotations

import argparse
import datetime
import json
import multiprocessing
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from tests.live.gpu_parts import PARTS, NotHere, Setting, the_gpu_is_known

LIMIT_SECONDS = 600.0


def prove(setting: Setting, seconds: float = LIMIT_SECONDS) -> dict[str, dict[str, Any]]:
    """Return the outcome of each part by its name; a part that fails does not end the others."""
    deadline = time.monotonic() + seconds
    outcomes = {}
    for part, limit in PARTS.items():
        claim = " ".join((part.__doc__ or "").split())
        print(f"... {claim}", file=sys.stderr, flush=True)
        began = time.monotonic()
        outcome = _in_process(part, setting, min(limit, deadline - began))
        print(outcome.get("reason", outcome["shown"]), file=sys.stderr, flush=True)
        taken = round(time.monotonic() - began, 1)
        outcomes[part.__name__] = {"claim": claim, **outcome, "took_seconds": taken}
        if part is the_gpu_is_known and outcome["shown"] == "not here":
            break

    return outcomes


def _in_process(part: Callable[..., Any], setting: Setting, seconds: float) -> dict[str, Any]:
    """Return the outcome of a part in a forked process, which alone touches the GPU."""
    if seconds <= 0:
        return {"shown": "NO", "reason": "no time was left"}

    fork = multiprocessing.get_context("fork")
    receiver, sender = fork.Pipe(duplex=False)
    process = fork.Process(target=_run, args=(part, setting, sender))
    process.start()
    sender.close()
    try:
        if not receiver.poll(seconds):
            return {"shown": "NO", "reason": f"it took longer than {seconds:.0f} s"}
        outcome: dict[str, Any] = receiver.recv()
        return outcome
    except EOFError:
        process.join()
        return {"shown": "NO", "reason": f"its process ended with code {process.exitcode}"}
    finally:
        process.kill()
        process.join()


def _run(part: Callable[..., Any], setting: Setting, sender: Connection) -> None:
    os.dup2(2, 1)  # the table alone goes to stdout
    tempfile.tempdir = str(setting.folder)
    try:
        outcome = {"shown": "ran" if setting.rehearse else "yes", "figures": part(setting)}
    except NotHere as reason:
        outcome = {"shown": "not here", "reason": str(reason)}
    except Exception as error:  # noqa: BLE001  (of any library: it is the outcome)
        outcome = {"shown": "NO", "reason": f"{type(error).__name__}: {error}"[:2000]}
    sender.send(outcome)


def main(argv: list[str]) -> int:
    """Return 0 if no part failed, 1 if one did, 2 without a GPU."""
    parser = argparse.ArgumentParser(prog="python -m tests.live.gpu", description=__doc__)
    parser.add_argument("--rehearse", action="store_true", help="on the CPU, in tiny sizes")
    parser.add_argument("--json", type=Path, metavar="FILE", default=Path("gpu.json"))
    options = parser.parse_args(argv)
    if options.rehearse:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""

    with tempfile.TemporaryDirectory(prefix="cloudtrain-gpu-") as folder:
        parts = prove(Setting(Path(folder), options.rehearse))

    document = {
        "rehearsal": options.rehearse,
        "date": f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "parts": parts,
    }
    options.json.write_text(json.dumps(document, indent=2) + "\n")
    print("| what | shown | how |\n|---|---|---|")
    for part in parts.values():
        how = part.get("reason") or json.dumps(part["figures"])
        print(f"| {part['claim']} | {part['shown']} | {' '.join(how.split()).replace('|', '/')} |")
    print(f"\nThe figures are in {options.json}.", file=sys.stderr)

    shown = [part["shown"] for part in parts.values()]
    return 2 if shown[0] == "not here" else int("NO" in shown)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
