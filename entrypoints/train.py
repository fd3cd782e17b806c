"""Program of one rank: trains a task, with or without torchrun.

    torchrun --nproc-per-node 2 train.py --task digits --epochs 3

`train.py --help` lists its options. In a job the launcher starts it; elsewhere it writes to
./cloudtrain-output.
"""

from __future__ import annotations

import os
import sys
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any, NoReturn

# The module beside this file, not an older one that is installed.
sys.path.insert(1, str(Path(__file__).parent / "job"))

from cloudtrain_job import activity, emit_event, to_json, write_result
from cloudtrain_trainer.arguments import exit_with_error, parse, refuse
from cloudtrain_trainer.options import Folders, Options
from cloudtrain_trainer.own_task import from_options
from cloudtrain_trainer.rules import Refused
from cloudtrain_wire.events import Checkpoint, Result

ALLOCATOR_SETTINGS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
"""Variables of torch's allocator: the current name and older ones that torch still reads."""


def main() -> NoReturn:
    """Parse the options and train; exit with code 2 and an error event if they are refused.

    Slow imports come after that.
    """
    use_expandable_segments(os.environ)

    try:
        options = parse(sys.argv[1:])
        from torch.distributed.elastic.multiprocessing.errors import record

        record(train)(options, Folders.from_environment())
    except Refused as reason:
        refuse(reason)

    raise AssertionError("train() ends the process")


def use_expandable_segments(environ: MutableMapping[str, str]) -> None:
    """Let torch's allocator grow its blocks on GPUs, to avoid gaps between batches of other sizes.

    Do nothing if the user has set the allocator. torch 2.13 reads the variable at the allocator's
    first use, even if it was imported before, as in a forked rank.
    """
    if not any(name in environ for name in ALLOCATOR_SETTINGS):
        environ[ALLOCATOR_SETTINGS[0]] = "expandable_segments:True"


def train(options: Options, folders: Folders) -> NoReturn:
    """Train as one rank, export the model, and end the process; never returns."""
    from cloudtrain_trainer import finite, hardware
    from cloudtrain_trainer.checkpoints.store import CheckpointStore, SavedCheckpoint
    from cloudtrain_trainer.ranks import Ranks, configure_threads, exit_on_uncaught_errors
    from cloudtrain_trainer.reporting.trackers import Trackers
    from cloudtrain_trainer.sigterm import Stop
    from cloudtrain_trainer.training import memory
    from cloudtrain_trainer.training.loop import Loop

    ranks = Ranks(options.start_timeout)
    configure_threads(ranks, deterministic=options.deterministic)
    if options.strategy == "ddp":
        ranks.init_process_group(options.backend)
    ranks.check_world_size()
    exit_on_uncaught_errors()
    stop = Stop()
    stop.listen()  # late: while the process group forms, SIGTERM ends the process at once

    def report(saved: SavedCheckpoint) -> None:
        if ranks.rank == 0:
            times = {"seconds": round(saved.seconds, 4), "stall_seconds": round(saved.stall, 4)}
            emit_event(Checkpoint(step=saved.step, path=str(saved.folder)).replace(**times))

    task = from_options(options)
    if options.network_check:
        hardware.check_network(ranks)

    run = os.environ.get("CLOUDTRAIN_RUN_ID", "")
    checkpoints = CheckpointStore(
        folders.checkpoints,
        options.keep,
        ranks,
        report,
        run,
        writes=not options.eval_only,
    )
    trackers = Trackers(folders.output, vars(options), active=ranks.rank == 0)
    # A restart within the job resumes even with --no-resume. Nodes may count differently, so any
    # counts.
    restarted = ranks.all_reduce_max(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0")()[0]
    if not options.resume and not restarted:
        checkpoints.set_aside()

    key = f"{options.task} {options.strategy} {hardware.device_name(ranks.device)}"
    micro_batches = memory.MicroBatchCache(folders.checkpoints, ranks, key)
    loop: Any = None

    try:
        loop = Loop(task, ranks, options, checkpoints, stop, trackers)
        outcome = train_or_evaluate(loop, micro_batches)
    except finite.NotFinite as error:
        exit_not_finite(str(error), loop, checkpoints, trackers, folders)
    except Exception as error:
        if not memory.is_out_of_memory(error):
            raise
        exit_out_of_memory(error, loop, micro_batches)

    with stop.busy():
        finish(loop, outcome, folders)
        trackers.close(outcome)

    ranks.exit()


def train_or_evaluate(loop: Any, micro_batches: Any) -> str:
    """Train or evaluate, as configured; return "succeeded" or "stopped"."""
    from cloudtrain_trainer.training import memory

    memory.fit_micro_batch(loop, micro_batches)
    if not loop.options.eval_only:
        loop.ranks.log(loop.describe_batch())

    loop.resume()
    if loop.options.eval_only:
        outcome: str = loop.evaluate_only()
    else:
        outcome = loop.run()

    return outcome


def exit_out_of_memory(error: Exception, loop: Any, micro_batches: Any) -> NoReturn:
    """Exit this rank with code 12 for lack of memory; the next start halves the micro-batch size.

    Its peers wait in a collective, so it cannot agree with them. `loop`: None before it existed.
    """
    from cloudtrain_trainer.training import memory
    from cloudtrain_trainer.training.run import OOM_HINT

    message = f"out of memory: {memory.describe_error(error)}. "

    if loop is not None and loop.options.eval_only:
        message += (
            "Nothing was trained: use a smaller --batch-size, of which an evaluation takes"
            " micro-batches"
        )
    elif loop is None or loop.micro_batch == 1:
        message += f"Not even one sample per rank fits: {OOM_HINT}"
    else:
        micro_batches.write(loop.micro_batch // 2)
        message += (
            f"The next start uses micro-batches of {loop.micro_batch // 2} samples per rank, and"
            " the same batch"
        )

    exit_with_error(memory.OOM_EXIT, "OutOfMemory", message)


def exit_not_finite(
    why: str, loop: Any, checkpoints: Any, trackers: Any, folders: Folders
) -> NoReturn:
    """Exit with code 33 after a loss, gradient or weight that is not finite.

    All ranks call it, so none waits for another.
    """
    from cloudtrain_trainer import finite

    with loop.stop.busy():
        checkpoints.finish()  # a checkpoint in progress is older than the bad step
        saved = checkpoints.steps()

    hint = "try a lower --lr, --clip-norm or another --amp, and look at the data"
    checkpoint = ""
    if saved:
        checkpoint = (
            f": the checkpoint of step {saved[0]} is kept, and the next start resumes from it"
        )

    message = f"{why}. Training stops{checkpoint}. What to do: {hint}"

    if loop.ranks.rank == 0:
        metrics: dict[str, Any] = {"outcome": "failed", "why": why}
        write_metrics_file(folders, metrics | loop.position._asdict() | loop.metrics)

    trackers.close("failed")
    exit_with_error(finite.EXIT, "NotFinite", message, prints=loop.ranks.rank == 0)


def write_metrics_file(folders: Folders, metrics: dict[str, Any]) -> None:
    """Write metrics.json into the output folder; NaN and infinity become null."""
    folders.output.mkdir(parents=True, exist_ok=True)
    (folders.output / "metrics.json").write_text(to_json(metrics, indent=1) + "\n")


def finish(loop: Any, outcome: str, folders: Folders) -> None:
    """Export the model, write metrics.json and report the outcome. Called by all ranks.

    A stopped run has its checkpoint and little time, so its model is not exported, nor is the model
    of an evaluation.
    """
    trained = not loop.options.eval_only
    exported = {}
    if outcome == "succeeded" and trained:
        exported["parameters_sha256"] = export_model(loop, folders)

    if loop.ranks.rank == 0:
        best = loop.checkpointer.best
        metrics: dict[str, Any] = {"outcome": outcome}
        metrics |= loop.position._asdict() | loop.metrics | exported
        if best.step >= 0:
            metrics.update(best_step=best.step, best_val_loss=best.val_loss)

        metrics.update(seconds=round(loop.meter.seconds(), 3))
        if trained:
            metrics.update(samples_per_s=round(loop.meter.mean_rate(), 1))

        write_metrics_file(folders, metrics)

    loop.ranks.barrier()
    if loop.ranks.rank == 0:
        emit_event(Result(outcome=outcome, step=loop.position.step).replace(**exported))

    write_result(outcome, step=loop.position.step)


@activity("saving")
def export_model(loop: Any, folders: Folders) -> str:
    """Write the model on rank 0; return the fingerprint of the last weights.

    Each rank prints the fingerprint, so that the log shows differences. Called by all ranks.
    """
    from cloudtrain_trainer import state, strategies
    from cloudtrain_trainer.checkpoints import files

    model = loop.step.model
    strategies.sync_buffers(model, loop.ranks)
    if loop.step.averages is not None:
        loop.step.averages.use()

    frozen = loop.checkpointer.frozen
    left_out = frozen.unchanged()
    weights = {name: value for name, value in model.state_dict().items() if name not in left_out}
    fingerprint = state.fingerprint(weights)
    sys.stdout.flush()
    os.write(1, f"parameters sha256 {fingerprint} (rank {loop.ranks.rank})\n".encode())

    loop.checkpointer.load_best()  # in place: `weights` are the best ones now
    if loop.ranks.rank == 0:
        files.write_model(folders.model / "model", weights, loop.ranks.log, frozen.metadata)
        loop.serving.write(folders.model, loop.ranks.log)

    return fingerprint


if __name__ == "__main__":
    main()
