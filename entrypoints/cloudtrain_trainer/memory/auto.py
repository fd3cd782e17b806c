"""`--strategy auto` in a job: rank 0 finds the cheapest plan that fits the smallest device, and all
ranks take it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from cloudtrain_trainer import hardware, rules
from cloudtrain_trainer.memory.__main__ import Request
from cloudtrain_trainer.options import Options
from cloudtrain_trainer.ranks import Ranks
from cloudtrain_trainer.rules import Refused

SECONDS = 600
"""How long the search may take; a plan takes seconds."""


def choose(options: Options, ranks: Ranks, argv: list[str]) -> Options:
    """The options with strategy, accumulation and recomputation as the plan has them. Called by all
    ranks.

    `argv`: this rank's command line. Raises `Refused` if no plan is possible, or none could be
    computed.
    """
    if options.strategy != rules.AUTO:
        return options
    if ranks.size > 1:
        ranks.init_process_group(options.backend)
        ranks.allow_slow_start()
    memory = min(ranks.all_gather(hardware.memory_per_rank(ranks.device, ranks.local_size)))
    mine = _ask(argv, ranks, memory) if ranks.rank == 0 else None
    answer = ranks.all_gather(mine)[0]
    reason = answer.get("refused") or answer.get("error")
    if reason:
        raise Refused(
            f"--strategy auto could not find a plan: {reason}. Name a strategy, such as ddp or fsdp"
        )
    plan = answer["plan"]
    ranks.log(f"{answer['text']}")
    return replace(
        options, **{name: plan[name] for name in ("strategy", "accumulate", "recompute")}
    )


def _ask(argv: list[str], ranks: Ranks, memory: int) -> dict[str, Any]:
    """What a process of its own finds: a rehearsal has a process group, and would need another one
    here.
    """
    gpu = (
        hardware.gpu_model(hardware.device_name(ranks.device))
        if ranks.device.type == "cuda"
        else ""
    )
    request = Request(argv, ranks.size, ranks.local_size, gpu, memory)
    root = Path(__file__).parents[2]
    paths = [str(root), str(root / "job"), *sys.path]
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(path for path in paths if path)),
    }
    command = [sys.executable, "-m", "cloudtrain_trainer.memory", json.dumps(asdict(request))]
    try:
        done = subprocess.run(
            command, env=env, capture_output=True, text=True, timeout=SECONDS, check=False
        )
        answer: dict[str, Any] = json.loads((done.stdout.strip().splitlines() or [""])[-1])
    except subprocess.TimeoutExpired:
        return {"error": f"no answer in {SECONDS} s"}
    except ValueError:
        return {"error": f"exit code {done.returncode}: {done.stderr.strip()[-300:]}"}
    return answer
