"""What can work with what: task, strategy, ranks and batch, told before anything starts. Standard library only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from cloudtrain_trainer.options import Options

USERS = "model"
"""What takes the place of a task's name where `--model` gives a whole task."""

ALONE = {
    "single": "trains in one process",
    "dp": "drives all GPUs from one process",
    "model-parallel": "spreads one process over all GPUs",
}
"""Strategies of one process."""


class Refused(Exception):
    """What was asked for cannot work here: why, and the way out. The process exits with 2."""


class Ability(NamedTuple):
    """What the rules must know of a task. A test holds it against the task itself."""

    batch_size: int
    """When none is asked for."""
    cuts: int = 0
    """What the number of ranks that cut its matrices must divide, such as its heads; 0: they cannot be cut."""
    stages: int = 1
    """Into how many stages it can be cut at most."""
    shards: bool = True
    """Whether FSDP knows its parameters."""


TASKS: dict[str, dict[str, Ability]] = {
    "digits": {"": Ability(32, cuts=64, stages=4)},
    "mnist": {"": Ability(128, cuts=128, stages=4)},
    "keras-mnist": {"": Ability(128, shards=False)},
    "resnet50": {"full": Ability(256, stages=16), "tiny": Ability(32, stages=4)},
    "gpt": {
        "tiny": Ability(32, cuts=4, stages=4),
        "small": Ability(32, cuts=8, stages=6),
        "gpt2-124m": Ability(32, cuts=4, stages=12),
    },
}
"""By `--size`, its default first."""


def ability(task: str, options: dict[str, Any]) -> Ability:
    """That of a task with these options of its own."""
    sizes = TASKS[task]
    size = options.get("size", next(iter(sizes)))
    if task == "gpt" and options.get("tied", size == "gpt2-124m"):
        return Ability(sizes[size].batch_size)  # one matrix at both ends
    return sizes[size]


def micro_batches(asked: int | None, accumulate: int, stages: int) -> int:
    """How many pass through a pipeline per step: accumulated parts are more of them."""
    return (asked or 2 * stages) * accumulate


def check(options: Options, ranks: int, per_node: int, can: Ability | None = None) -> None:
    """Raise `Refused` for what cannot work on so many ranks. `can`: of a task that is not in the table."""
    if can is None and options.model:
        if options.task == USERS:
            return  # only the model's own code knows what it can: asked again once it is built
        can = Ability(ability(options.task, options.task_options).batch_size)
    can = can or ability(options.task, options.task_options)
    _check_flags(options)
    _check_strategy(options, can, ranks, per_node)
    _check_batch(options, can, ranks)


def _check_flags(options: Options) -> None:
    """Flags that would be passed over in silence are refused."""
    users = {
        "shard": ("hsdp",),
        "tensor": ("hybrid",),
        "stages": ("hybrid", "model-parallel"),
        "microbatches": ("pipeline", "hybrid"),
    }
    for flag, strategies in users.items():
        if getattr(options, flag) is not None and options.strategy not in strategies:
            raise Refused(f"--{flag} is for --strategy {' or '.join(strategies)}, not {options.strategy}: leave it out")
    piped = options.strategy == "pipeline" or (options.strategy == "hybrid" and options.stages)
    if options.microbatches and not piped:
        raise Refused("--microbatches is for pipelines: use --stages with it, or leave it out")
    if options.amp == "fp16" and options.strategy not in ("single", "dp", "ddp"):
        raise Refused(f"--amp fp16 scales the loss, which --strategy {options.strategy} does not: use --amp bf16")
    if options.compile and (piped or options.strategy in ("dp", "tp", "model-parallel", "hybrid")):
        raise Refused(f"--compile is not offered with --strategy {options.strategy}: leave it out, or use ddp or fsdp")


def _check_strategy(options: Options, can: Ability, ranks: int, per_node: int) -> None:
    strategy, task = options.strategy, options.task
    if strategy in ALONE and ranks > 1:
        better = "fsdp or pipeline" if strategy == "model-parallel" else "ddp"
        raise Refused(
            f"--strategy {strategy} {ALONE[strategy]}; there are {ranks} and each would train alone: "
            f"use --strategy {better}, or start one process (resources.processes: 1, --nproc-per-node 1)"
        )
    if strategy in ("fsdp", "hsdp") and not can.shards:
        raise Refused(f"the parameters of --task {task} are not torch's own to shard: use --strategy ddp")
    if strategy == "hsdp":
        _check_groups(options, ranks, per_node)
    if strategy == "hybrid" and (options.tensor is None) == (options.stages is None):
        raise Refused(
            "--strategy hybrid joins data parallelism with one other kind: say which by --tensor N (ranks that "
            "cut each matrix) or --stages N (ranks in a row)"
        )
    if strategy == "tp" or options.tensor:
        _check_tensor(options, can, options.tensor or ranks, ranks)
    if strategy in ("pipeline", "model-parallel") or options.stages:
        alone = strategy == "model-parallel"
        _check_stages(options, can, options.stages or (2 if alone else ranks), None if alone else ranks)


def _check_groups(options: Options, ranks: int, per_node: int) -> None:
    size = options.shard or per_node
    if ranks % size:
        raise Refused(f"--shard {size} does not divide the {ranks} ranks: use a number that does")
    if size == ranks:
        raise Refused(
            f"--strategy hsdp would make one group of all {ranks} ranks, which is --strategy fsdp: use that, or "
            "--shard N with fewer ranks per group"
        )


def _check_tensor(options: Options, can: Ability, size: int, ranks: int) -> None:
    name = f"--task {options.task}"
    if not can.cuts:
        raise Refused(f"{name} has no plan that cuts its matrices (as it is asked for): use --strategy ddp or fsdp")
    if can.cuts % size:
        fits = [n for n in range(1, ranks + 1) if can.cuts % n == 0]
        raise Refused(
            f"what {name} cuts (heads, columns) comes in {can.cuts} pieces, which {size} ranks do not divide: use "
            f"{_some(fits)} ranks, or --strategy hybrid --tensor N with such an N"
        )
    if ranks % size or (options.tensor and not 1 < size < ranks):
        raise Refused(
            f"--tensor {size} must be more than 1, less than the {ranks} ranks, and divide them: use such a number, "
            "or --strategy tp for all ranks"
        )


def _check_stages(options: Options, can: Ability, size: int, ranks: int | None) -> None:
    """`ranks`: None when one process has all stages."""
    name = f"--task {options.task}"
    if can.stages < 2:
        raise Refused(f"{name} cannot be cut into stages (as it is asked for): use --strategy ddp or fsdp")
    if size > can.stages:
        raise Refused(
            f"{name} can be cut into at most {can.stages} stages, not {size}: use --strategy hybrid "
            f"--stages {can.stages} or less, or as many processes"
        )
    if ranks is None:
        return
    if size > ranks:
        raise Refused(f"--stages {size} needs as many ranks, and there are {ranks}: start more, or use fewer stages")
    if size < 2 or ranks % size or (options.stages and size == ranks):
        hint = "start several processes" if ranks < 2 else f"for all {ranks} ranks use --strategy pipeline"
        raise Refused(f"{size} stages do not make pipelines side by side of {ranks} ranks: {hint}")


def _check_batch(options: Options, can: Ability, ranks: int) -> None:
    batch = options.batch_size or can.batch_size
    stages = ranks if options.strategy == "pipeline" else (options.stages or 1) if options.strategy == "hybrid" else 1
    if stages < 2:
        return
    cuts, pipelines = micro_batches(options.microbatches, options.accumulate, stages), ranks // stages
    if options.schedule == "1f1b" and cuts < stages:
        raise Refused(
            f"{cuts} micro-batches do not fill {stages} stages under --schedule 1f1b: use --microbatches {stages} "
            "or more, or --schedule gpipe"
        )
    if batch % (cuts * pipelines):
        whole = cuts * pipelines
        raise Refused(
            f"a batch of {batch} cannot be cut into {pipelines} pipelines x {cuts} micro-batches of one size: use "
            f"--batch-size {max(whole, batch // whole * whole)}, or another --microbatches"
        )


def _some(numbers: list[int]) -> str:
    return " or ".join(map(str, numbers))
