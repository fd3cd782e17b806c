"""The program of one rank: task x strategy. Run under torchrun, or alone; `train.py --help` shows how.

    torchrun --nproc-per-node 2 train.py --task digits --epochs 3

Inside a job the launcher starts it; by hand it writes to ./cloudtrain-output.
"""

from __future__ import annotations

import json
import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

if find_spec("cloudtrain_job") is None:  # run by hand; in a job the launcher has put it on the path
    sys.path.insert(1, str(Path(__file__).parent / "job"))

from arguments import Folders, Options, Refused, parse, refuse


def main() -> NoReturn:
    """One rank from start to end. Everything slow is imported after the arguments are known to be good."""
    try:
        options = parse(sys.argv[1:])
        from torch.distributed.elastic.multiprocessing.errors import record

        record(train)(options, Folders.from_environment())
    except Refused as reason:
        refuse(str(reason))
    raise AssertionError("train() ends the process")


def train(options: Options, folders: Folders) -> NoReturn:
    import strategies
    import tasks
    from checkpoint import Checkpoints
    from loop import Loop, Stop
    from ranks import Ranks, exit_at_once_on_errors, use_threads

    ranks = Ranks()
    strategy = strategies.build(options.strategy, ranks)
    use_threads(ranks)
    strategy.start()
    ranks.check_size()
    exit_at_once_on_errors()
    stop = Stop()
    stop.listen()  # after the group has formed: until then a SIGTERM ends the process at once

    task = tasks.build(options.task, options.seed)
    checkpoints = Checkpoints(folders.checkpoints, options.keep, ranks)
    loop = Loop(task, strategy, options, checkpoints, stop)
    # A restart inside the job goes on, also after --no-resume. Nodes may count restarts differently: agree.
    restarted = ranks.agree(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0")()[0]
    if options.resume or restarted:
        loop.resume()
    else:
        checkpoints.set_aside()
    outcome = loop.run()
    finish(loop, outcome, folders)
    ranks.leave()


def finish(loop: Any, outcome: str, folders: Folders) -> None:
    """Write what the run leaves behind, and say how it ended: all ranks the fingerprint, rank 0 the rest."""
    import state
    from cloudtrain_job import emit, write_result

    loop.strategy.sync_buffers(loop.model)
    fingerprint = state.fingerprint(loop.model)
    sys.stdout.flush()
    os.write(1, f"parameters sha256 {fingerprint} (rank {loop.ranks.rank})\n".encode())
    if loop.ranks.rank == 0:
        if outcome == "succeeded":
            _export(loop.model, folders.model / "model.pt")
        numbers = {"outcome": outcome, **loop.at._asdict(), **loop.metrics, "parameters_sha256": fingerprint}
        numbers.update(seconds=round(loop.meter.seconds(), 3), samples_per_s=round(loop.meter.mean_rate(), 1))
        folders.output.mkdir(parents=True, exist_ok=True)
        (folders.output / "metrics.json").write_text(json.dumps(numbers, indent=1) + "\n")
    loop.ranks.barrier()
    if loop.ranks.rank == 0:
        emit("result", outcome=outcome, step=loop.at.step, parameters_sha256=fingerprint)
        write_result(outcome, step=loop.at.step)


def _export(model: Any, path: Path) -> None:
    """The weights as a state dict, whole or not at all."""
    import torch

    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    torch.save(model.state_dict(), temporary)
    temporary.replace(path)


if __name__ == "__main__":
    main()
