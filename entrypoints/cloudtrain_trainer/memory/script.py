"""Runs the first steps of any training script on the CPU, as one rank of its job, and says what it
held.

Its argument is a `Script` as JSON; the answer is the last line of stdout, in the form of
`memory/__main__.py`. The script does what it always does until then: it reads its data, and may
write files.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cloudtrain_launcher.host import set_parent_death_signal


@dataclass(frozen=True)
class Script:
    """What is run."""

    path: str
    """`train.py`, or `-m package.train`."""
    argv: list[str]
    ranks: int
    per_node: int
    gpu: str = ""
    memory: int = 0
    gpu_gib: float = 0
    steps: int = 3
    """Optimizer steps; the first makes the optimizer's state."""
    parent: int = 0
    """The process whose end ends this one, too; 0: none."""


class Done(BaseException):
    """Enough steps: it passes through `except Exception` of the script."""


class Recorder:
    """Counts optimizer steps, and what the optimizers hold after the last one."""

    def __init__(self, steps: int) -> None:
        self.left = steps
        self.optimizers: dict[int, Any] = {}

    def after_step(self, optimizer: Any, *_: Any) -> None:
        """Called by torch after each step of any optimizer. Raises `Done` after the last one."""
        self.optimizers[id(optimizer)] = optimizer
        self.left -= 1
        if self.left <= 0:
            raise Done

    def held(self, peak: int) -> dict[str, int]:
        """As `rehearsal.Held` has it; buffers are not known here and count as activations."""
        from cloudtrain_trainer.memory.live_bytes import sizes

        groups = [
            group for optimizer in self.optimizers.values() for group in optimizer.param_groups
        ]
        parameters = sizes(p for group in groups for p in group["params"])
        values = [
            x
            for optimizer in self.optimizers.values()
            for each in optimizer.state.values()
            for x in each.values()
        ]
        state = sizes(x for x in values if hasattr(x, "untyped_storage"))
        rest = max(0, peak - 2 * parameters - state)
        return {
            "peak": peak, "parameters": parameters, "gradients": parameters, "optimizer": state, "activations": rest
        }  # fmt: skip


def main(argument: str) -> dict[str, Any]:
    """The answer: `plan`, or `error` with a sentence."""
    script = Script(**json.loads(argument))
    if script.parent:
        set_parent_death_signal(script.parent)
    os.environ.update(
        RANK="0", LOCAL_RANK="0", GROUP_RANK="0", WORLD_SIZE=str(script.ranks), LOCAL_WORLD_SIZE=str(script.per_node),
        MASTER_ADDR="127.0.0.1", MASTER_PORT="0", CUDA_VISIBLE_DEVICES="", TORCHDYNAMO_DISABLE="1",
    )  # fmt: skip
    from torch.optim.optimizer import register_optimizer_step_post_hook

    from cloudtrain_trainer.memory import device
    from cloudtrain_trainer.memory.live_bytes import BLOCK, LiveBytes
    from cloudtrain_trainer.memory.raised import one_line

    _join_alone(script.ranks)
    recorder = Recorder(script.steps)
    register_optimizer_step_post_hook(recorder.after_step)
    sys.argv = [script.path, *script.argv]
    sys.path.insert(0, str(Path(script.path).resolve().parent))
    live = LiveBytes(BLOCK if script.gpu else 1, values=True, gloo=not script.gpu)
    try:
        with live:
            if script.path.startswith("-m "):
                runpy.run_module(script.path[3:].strip(), run_name="__main__", alter_sys=True)
            else:
                runpy.run_path(script.path, run_name="__main__")
    except Done:
        pass
    except SystemExit as end:
        if end.code not in (None, 0):
            return {"error": f"{script.path} ended with {end.code!r}"}
    except BaseException as error:  # noqa: BLE001  (whatever the script raises)
        return {"error": f"{script.path}: {one_line(error)}"}
    if not recorder.optimizers:
        return {"error": f"{script.path} ended without a step of an optimizer of torch.optim"}
    held = recorder.held(live.peak)
    range_ = device.needed(held["peak"], script.gpu, script.ranks)
    memory = script.memory or device.usable(script.gpu, script.gpu_gib)
    answer = device.verdict(range_, memory)
    return {
        "plan": {"held": held, "needed": range_, "verdict": answer},
        "fits": answer == "fits",
        "memory": memory,
    }


def _join_alone(ranks: int) -> None:
    """Let the script join a group of all ranks, whose messages go nowhere; DDP would wait for them
    in C++.
    """
    import torch.distributed as dist
    from torch.nn import parallel

    from cloudtrain_trainer.memory.alone import Buckets

    if not dist.is_available():
        return
    join = dist.init_process_group

    def init_process_group(*_: Any, **__: Any) -> None:
        from torch.testing._internal.distributed.fake_pg import FakeStore

        join("fake", store=FakeStore(), rank=0, world_size=ranks)

    parallel.DistributedDataParallel = parallel.distributed.DistributedDataParallel = Buckets  # type: ignore[misc, assignment]
    dist.init_process_group = init_process_group
    dist.distributed_c10d.init_process_group = init_process_group


if __name__ == "__main__":
    found = main(sys.argv[1])
    sys.stdout.flush()
    print("\n" + json.dumps(found))
    sys.stdout.flush()
    os._exit(0)  # whatever the script has started ends here
