"""Print what a training would take, as JSON on the last line of stdout: `cloudtrain check --memory`.

The argument is a `Request` as JSON. It computes on the CPU alone, and starts no rank.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cloudtrain_trainer.options import Options


@dataclass(frozen=True)
class Request:
    """A command line of the trainer, and the machine for it."""

    argv: list[str]
    ranks: int
    per_node: int
    gpu: str = ""
    """The GPU's model; empty for a CPU."""
    gpu_gib: float = 0
    """The GiB in the GPU's name."""
    memory: int = 0
    """Instead: bytes per rank; 0: unknown."""


def main(argument: str) -> dict[str, Any]:
    """Return `plan`, `memory` and `alternatives`; or `refused` or `error` with a sentence."""
    request = Request(**json.loads(argument))
    os.environ.update(
        WORLD_SIZE=str(request.ranks),
        LOCAL_WORLD_SIZE=str(request.per_node),
        RANK="0",
        LOCAL_RANK="0",
        CUDA_VISIBLE_DEVICES="",
    )
    from cloudtrain_trainer.arguments import parse
    from cloudtrain_trainer.memory import device
    from cloudtrain_trainer.rules import Refused

    memory = request.memory or device.usable(request.gpu, request.gpu_gib)
    try:
        options = parse(request.argv)
        plan = _plan(options, request, memory)
        alternatives = []
        if plan["verdict"] not in ("fits", ""):
            alternatives = list(_alternatives(options, request, memory))
    except Refused as reason:
        return {"refused": str(reason)}
    except Exception as error:  # noqa: BLE001  (a model of the user's may raise anything)
        first_line = (str(error).splitlines() or [""])[0]
        return {"error": f"{type(error).__name__}: {first_line[:300]}"}
    return {"plan": plan, "memory": memory, "alternatives": alternatives}


def _plan(options: Options, request: Request, memory: int) -> dict[str, Any]:
    """Return the memory of a rank with these options."""
    from cloudtrain_trainer.memory import device
    from cloudtrain_trainer.memory.rehearsal import CUDA_BLOCK, rehearse

    held = rehearse(
        options,
        like_gpu=bool(request.gpu),
        amp=device.precision(options.amp, request.gpu),
        block=CUDA_BLOCK if request.gpu else 1,
    )
    need = device.needed(held.peak, request.gpu, request.ranks)
    return {
        "strategy": options.strategy,
        "recompute": options.recompute,
        "held": {**vars(held), "activations": held.activations},
        "needed": need,
        "verdict": device.verdict(need, memory),
    }


def _alternatives(options: Options, request: Request, memory: int) -> Iterator[dict[str, Any]]:
    """Yield plans that fit: with recomputation, sharding, or both."""
    from cloudtrain_trainer import rules

    changes = [{"recompute": "blocks"}]
    if request.ranks > 1:
        changes += [{"strategy": "fsdp"}, {"strategy": "fsdp", "recompute": "blocks"}]
    for change in changes:
        changed = replace(options, **change)  # type: ignore[arg-type]
        try:
            rules.check(changed, request.ranks, request.per_node)
            plan = _plan(changed, request, memory)
        except rules.Refused:
            continue
        if changed != options and plan["verdict"] == "fits":
            yield plan


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    answer = main(sys.argv[1])
    print("\n" + json.dumps(answer))
    sys.stdout.flush()
    os._exit(0)  # torch may abort while it tears down its groups
