"""What each strategy costs a rank: memory held between steps, CPU time of a step, and how long a
checkpoint stops it.

One launch per strategy, the same small decoder, the same global batch. Memory is counted, not
sampled: the bytes of the parameters, gradients and optimizer state that a rank itself holds after a
step, the largest rank's; what the layers keep for the backward pass comes on top of it, and is not
in it. The checkpoint is the trainer's own, asynchronous one.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
WAYS: dict[str, tuple[int, list[str]]] = {
    "single": (1, []),
    "ddp": (4, []),
    "fsdp": (4, []),
    "hsdp": (4, ["--shard", "2"]),
    "tp": (4, []),
    "pipeline": (4, []),
    "hybrid (data x tensor)": (4, ["--tensor", "2"]),
    "hybrid (data x pipeline)": (4, ["--stages", "2"]),
    "model-parallel": (1, []),
}
"""Ranks and flags."""
COMMON = ["--task", "gpt", "--size", "tiny", "--batch-size", "32"]
WARM = 3


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    parser.add_argument("--way", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.way:
        measure(options.way, options.steps)
    found = {way: launched(way, options.steps) for way in WAYS}
    print(
        "| strategy | ranks | parameters | gradients | optimizer | CPU s per step | checkpoint s |"
        " it stops for s |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for way, told in found.items():
        kib = " | ".join(
            f"{told[part] / 1024:.0f} KiB" for part in ("parameters", "gradients", "optimizer")
        )
        times = " | ".join(f"{told[part]:.3f}" for part in ("cpu", "checkpoint", "stall"))
        print(f"| {way} | {told['ranks']} | {kib} | {times} |")
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n")
    return 0


def launched(way: str, steps: int) -> dict[str, Any]:
    """What the ranks of one launch have found."""
    ranks, _ = WAYS[way]
    paths = os.pathsep.join(map(str, (ROOT, ROOT / "entrypoints", ROOT / "entrypoints" / "job")))
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
    argv = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        f"--nproc-per-node={ranks}",
        __file__,
    ]
    done = subprocess.run(
        [*argv, "--way", way, "--steps", str(steps)],
        env=env,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{way}: {done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def measure(way: str, steps: int) -> None:
    """One rank; rank 0 prints what all have found."""
    from cloudtrain_job import set_output
    from cloudtrain_trainer import strategies, tasks
    from cloudtrain_trainer.arguments import parse
    from cloudtrain_trainer.checkpoints.store import CheckpointStore, SavedCheckpoint
    from cloudtrain_trainer.ranks import Ranks, configure_threads
    from cloudtrain_trainer.sigterm import Stop
    from cloudtrain_trainer.training.loop import Loop

    set_output(os.open(os.devnull, os.O_WRONLY))
    options = parse([*COMMON, "--strategy", way.split()[0], *WAYS[way][1]])
    ranks = Ranks()
    strategy = strategies.build(ranks, options)
    configure_threads(ranks)
    strategy.start()
    folder = Path(ranks.all_gather(tempfile.mkdtemp())[0])
    written: list[SavedCheckpoint] = []
    checkpoints = CheckpointStore(folder, 1, ranks, strategy.shard_group_size, written.append)
    loop = Loop(tasks.from_options(options), strategy, options, checkpoints, Stop())
    loop.steps = WARM
    loop._train_epoch()
    begun = time.process_time()
    loop.steps = WARM + steps
    loop._train_epoch()
    cpu = (time.process_time() - begun) / steps
    loop.checkpointer.save(last=True)
    loop.step.forward_backward(*next(loop.batches.load(epoch=0, skip=0)))
    parameters = list(loop.step.model.parameters())
    held = {
        "parameters": size(parameters),
        "gradients": size([p.grad for p in parameters if p.grad is not None]),
        "optimizer": size(
            [
                v
                for s in loop.step.optimizer.state.values()
                for v in s.values()
                if hasattr(v, "numel")
            ]
        ),
        "cpu": cpu,
    }
    everyone = ranks.all_gather(held)
    if ranks.rank == 0:
        most: dict[str, Any] = {name: max(one[name] for one in everyone) for name in held}
        most["cpu"] = sum(one["cpu"] for one in everyone)
        most |= {"ranks": ranks.size, "checkpoint": written[0].seconds, "stall": written[0].stall}
        print(json.dumps(most), flush=True)
    ranks.exit()


def size(tensors: list[Any]) -> int:
    """The bytes that this rank holds of them."""
    mine = [tensor.to_local() if hasattr(tensor, "to_local") else tensor for tensor in tensors]
    return sum(tensor.numel() * tensor.element_size() for tensor in mine)


if __name__ == "__main__":
    sys.exit(main())
