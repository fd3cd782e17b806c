"""Says what a training would take, as JSON on the last line of stdout: for `cloudtrain check
--memory` and `auto`.

Its argument is a `Request` as JSON. It computes on the CPU alone, and starts no rank.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from dataclasses import asdict, dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Request:
    """What is asked."""

    argv: list[str]
    """The trainer's command line."""
    ranks: int
    per_node: int
    gpu: str = ""
    """The GPU's model; empty for a CPU."""
    memory: int = 0
    """Bytes per rank; 0: not known."""
    gpu_gib: float = 0
    """Instead: the GiB in the GPU's name."""
    devices: int = 1
    """GPUs that one process drives."""
    alternatives: bool = False
    """Whether to look for what would fit, if this does not."""


def main(argument: str) -> dict[str, Any]:
    """The answer: `plan`, `fits`, and `alternatives`; or `refused` or `error` with a sentence."""
    request = Request(**json.loads(argument))
    os.environ.update(
        WORLD_SIZE=str(request.ranks), LOCAL_WORLD_SIZE=str(request.per_node), RANK="0", LOCAL_RANK="0",
        CUDA_VISIBLE_DEVICES="",
    )  # fmt: skip
    from cloudtrain_trainer.memory.raised import one_line
    from cloudtrain_trainer.rules import Refused

    try:
        return _answer(request)
    except Refused as reason:
        return {"refused": str(reason)}
    except Exception as error:  # noqa: BLE001  (a model of the user's may raise anything)
        return {"error": one_line(error)}


def _answer(request: Request) -> dict[str, Any]:
    from cloudtrain_trainer import rules
    from cloudtrain_trainer.arguments import parse
    from cloudtrain_trainer.memory import device, plans

    options = parse(request.argv)
    memory = request.memory or device.usable(request.gpu, request.gpu_gib)
    where = device.Device(memory, request.gpu)
    search = plans.Search(_rehearsed(request), where, request.ranks)
    if options.strategy == rules.AUTO:
        plan, fits = search.cheapest(options, request.per_node)
        text = plans.chosen_text(plan, fits, where)
        return {"plan": asdict(plan), "fits": fits, "memory": memory, "text": text}
    plan = search.plan(options)
    answer: dict[str, Any] = {
        "plan": asdict(plan),
        "fits": plan.verdict == "fits",
        "memory": memory,
    }
    if request.alternatives and plan.verdict not in ("fits", ""):
        answer["alternatives"] = [
            asdict(other) for other in _alternatives(search, options, request)
        ]
    return answer


def _alternatives(search: Any, options: Any, request: Request) -> list[Any]:
    """What would fit: smaller micro-batches, recomputing, sharding, and what auto would take."""
    from cloudtrain_trainer import rules

    changes: list[dict[str, Any]] = [{}, {"recompute": "blocks"}]
    if request.ranks > 1 and options.strategy != "fsdp":
        changes.append({"strategy": "fsdp"})
    if request.ranks > 1:
        changes.append({"strategy": "fsdp", "recompute": "blocks"})
    found: list[Any] = []
    for change in changes:
        changed = replace(options, **change)
        try:
            rules.check(changed, request.ranks, request.per_node)
            fitting = search.smaller(changed)
        except rules.Refused:
            continue
        if fitting is not None and fitting not in found:
            found.append(fitting)
    return found


def _rehearsed(request: Request) -> Any:
    from cloudtrain_trainer.memory import device
    from cloudtrain_trainer.memory.alone import World
    from cloudtrain_trainer.memory.live_bytes import BLOCK
    from cloudtrain_trainer.memory.rehearsal import rehearse

    world = World(request.ranks, request.per_node, request.devices)

    def run(options: Any, limit: int) -> Any:
        amp = device.precision(options.amp, request.gpu)
        block = BLOCK if request.gpu else 1
        return rehearse(
            options, world, like_gpu=bool(request.gpu), amp=amp, block=block, limit=limit
        )

    return run


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    found = main(sys.argv[1])
    print("\n" + json.dumps(found))
    sys.stdout.flush()
    os._exit(0)  # torch may abort while it tears down its groups
