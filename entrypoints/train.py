"""The program of one rank: task x strategy. Run under torchrun, or alone; `train.py --help` shows how.

    torchrun --nproc-per-node 2 train.py --task digits --epochs 3

Inside a job the launcher starts it; by hand it writes to ./cloudtrain-output.
"""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

if find_spec("cloudtrain_job") is None:  # run by hand; in a job the launcher has put it on the path
    sys.path.insert(1, str(Path(__file__).parent / "job"))

from cloudtrain_job import tell, to_json, write_result
from cloudtrain_launcher.events import Checkpoint, Result
from cloudtrain_trainer.arguments import end, parse, refuse
from cloudtrain_trainer.options import Folders, Options
from cloudtrain_trainer.rules import Refused


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
    from cloudtrain_trainer import finite, memory, rules, strategies, tasks
    from cloudtrain_trainer.checkpoint import Checkpoints, Written
    from cloudtrain_trainer.gpu_monitor import watch
    from cloudtrain_trainer.hardware import device_name
    from cloudtrain_trainer.loop import Loop
    from cloudtrain_trainer.ranks import Ranks, exit_at_once_on_errors, use_threads
    from cloudtrain_trainer.sigterm import Stop
    from cloudtrain_trainer.trackers import Trackers

    ranks = Ranks()
    strategy = strategies.build(ranks, options)
    use_threads(ranks)
    strategy.start()
    ranks.check_size()
    exit_at_once_on_errors()
    stop = Stop()
    stop.listen()  # after the group has formed: until then a SIGTERM ends the process at once
    watch(ranks.device)

    def report(written: Written) -> None:
        if ranks.rank == 0:
            times = {"seconds": round(written.seconds, 4), "stall_seconds": round(written.stall, 4)}
            tell(Checkpoint(step=written.step, path=str(written.folder)).but(**times))

    task = tasks.chosen(options)
    rules.check(options, ranks.size, ranks.local_size, tasks.ability(task) if options.model else None)
    run = os.environ.get("CLOUDTRAIN_RUN_ID", "")
    checkpoints = Checkpoints(folders.checkpoints, options.keep, ranks, strategy.holders, report, run)
    trackers = Trackers(folders.output, vars(options), active=ranks.rank == 0)
    # A restart inside the job goes on, also after --no-resume. Nodes may count restarts differently: agree.
    restarted = ranks.agree(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0")()[0]
    if not options.resume and not restarted:
        checkpoints.set_aside()
    learnt = memory.Learnt(folders.checkpoints, ranks, f"{options.task} {options.strategy} {device_name(ranks.device)}")
    loop: Any = None
    try:
        loop = Loop(task, strategy, options, checkpoints, stop, trackers)
        memory.fit(loop, learnt)
        loop.resume()
        outcome = loop.run()
    except finite.NotFinite as error:
        give_up_numbers(str(error), loop, checkpoints, trackers, folders)
    except Exception as error:
        if not memory.is_out_of_memory(error):
            raise
        give_up_memory(error, loop, learnt)
    with stop.patience():
        finish(loop, outcome, folders)
        trackers.close(outcome)
    ranks.leave()


def give_up_memory(error: Exception, loop: Any, learnt: Any) -> NoReturn:
    """Out of memory in training: the peers wait in a collective, so there is nothing to agree on but the next start."""
    from cloudtrain_trainer import memory

    said = f"out of memory: {memory.meaning(error)}. "
    if loop is None or loop.micro_batch == 1:
        way_out = loop.strategy.more_room if loop else "use --strategy fsdp, or larger machines"
        said += f"not even one sample per rank fits: {way_out}"
    else:
        learnt.write(loop.micro_batch // 2)
        said += f"The next start takes parts of {loop.micro_batch // 2} samples per rank, and the same batch"
    end(memory.OOM_EXIT, "OutOfMemory", said)


def give_up_numbers(why: str, loop: Any, checkpoints: Any, trackers: Any, folders: Folders) -> NoReturn:
    """A loss, a gradient or a weight is not a finite number. All ranks know and are here: nobody waits for another."""
    from cloudtrain_trainer import finite

    with loop.stop.patience():
        checkpoints.finish()  # what is being written is from before
        saved = checkpoints.steps()
    way_out = "try a lower --lr, --clip-norm or another --amp, and look at the data"
    if not loop.step.skips:
        way_out += "; --on-nan skip leaves such steps out"
    kept = f"the checkpoint of step {saved[0]} is kept, and the next start goes on from it" if saved else ""
    said = f"{why}. Training stops{': ' if kept else ''}{kept}. Remedy: {way_out}"
    if loop.ranks.rank == 0:
        write_numbers(folders, {"outcome": "failed", "why": why, **loop.at._asdict(), **loop.metrics})
    trackers.close("failed")
    end(finite.EXIT, "NotFinite", said, speaks=loop.ranks.rank == 0)


def write_numbers(folders: Folders, numbers: dict[str, Any]) -> None:
    """metrics.json beside the results."""
    folders.output.mkdir(parents=True, exist_ok=True)
    (folders.output / "metrics.json").write_text(to_json(numbers, indent=1) + "\n")


def finish(loop: Any, outcome: str, folders: Folders) -> None:
    """Write what the run leaves behind, and say how it ended.

    A run that was told to stop has its checkpoint, and little time: its model is not brought together.
    """
    told = {"parameters_sha256": export_model(loop, folders)} if outcome == "succeeded" else {}
    if loop.ranks.rank == 0:
        best = loop.saving.best
        numbers = {"outcome": outcome, **loop.at._asdict(), **loop.metrics, **told}
        if best.step >= 0:
            numbers.update(best_step=best.step, best_val_loss=best.val_loss)
        numbers.update(seconds=round(loop.meter.seconds(), 3), samples_per_s=round(loop.meter.mean_rate(), 1))
        write_numbers(folders, numbers)
    loop.ranks.barrier()
    if loop.ranks.rank == 0:
        tell(Result(outcome=outcome, step=loop.at.step).but(**told))
    write_result(outcome, step=loop.at.step)


def export_model(loop: Any, folders: Folders) -> str:
    """Write the model, and tell its fingerprint: rank 0, and each rank that has the whole model."""
    from cloudtrain_trainer import checkpointer, state

    loop.strategy.sync_buffers(loop.step.model)
    loop.strategy.average(loop.task.statistics(loop.step.model))
    weights = loop.strategy.whole_state(loop.step.model)
    if not weights and loop.ranks.rank != 0:
        return ""
    fingerprint = state.fingerprint(weights)
    sys.stdout.flush()
    os.write(1, f"parameters sha256 {fingerprint} (rank {loop.ranks.rank})\n".encode())
    if loop.ranks.rank == 0:
        model, judged = folders.model / "model", loop.saving.best.step >= 0  # else it is an earlier run's best
        if not judged or checkpointer.take_best(folders.checkpoints, model) is None:
            checkpointer.write_model(model, weights, loop.ranks.say)
    return fingerprint


if __name__ == "__main__":
    main()
