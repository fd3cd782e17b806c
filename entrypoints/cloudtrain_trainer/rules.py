"""Tasks with their options, and strategies, ranks and batch sizes that work together.

Standard library only: `--help` does not import torch.
"""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from cloudtrain_trainer.options import Options

USER_TASK = "model"
"""The value of `Options.task` if `--model` is given without `--task`."""

STRATEGIES = {
    "ddp": "ddp",
    "dp": "one_process",
    "fsdp": "fsdp",
    "hsdp": "fsdp",
    "hybrid": "hybrid",
    "model-parallel": "one_process",
    "pipeline": "pipeline",
    "single": "one_process",
    "tp": "tp",
}
"""Values of `--strategy`, and their modules in strategies/."""

ONE_PROCESS = {
    "single": "trains in one process",
    "dp": "drives all GPUs from one process",
    "model-parallel": "spreads one process over all GPUs",
}
"""Strategies that run in a single process, and its work."""


OPTIMIZERS = ("adamw", "sgd")
"""Built-in values of `--optimizer`."""


class Refused(Exception):
    """The options cannot work here. The process exits with code 2.

    The message gives the reason and what to do instead.
    """


class RefusedData(Refused):
    """A problem in data that perhaps only one rank has met: that rank prints the message."""


class Capabilities(NamedTuple):
    """Capabilities of a task. A test compares this table with the tasks themselves."""

    batch_size: int
    """Default of `--batch-size`: samples per step over all ranks."""
    tensor_limit: int = 0
    """The number of tensor-parallel ranks must divide this; 0: not supported."""
    max_stages: int = 1
    """Maximum number of pipeline stages."""
    fsdp: bool = True
    """True if FSDP can shard the parameters: torch itself must have created them."""


TASKS: dict[str, dict[str, Capabilities]] = {
    "digits": {"": Capabilities(32, tensor_limit=64, max_stages=4)},
    "mnist": {"": Capabilities(128, tensor_limit=128, max_stages=4)},
    "keras-mnist": {"": Capabilities(128, fsdp=False)},
    "gpt": {
        "tiny": Capabilities(32, tensor_limit=4, max_stages=4),
        "small": Capabilities(32, tensor_limit=8, max_stages=6),
        "gpt2-124m": Capabilities(32, tensor_limit=4, max_stages=12),
    },
}
"""Capabilities per task and `--size`; the first size of each task is its default."""


class Option(NamedTuple):
    """An option of one task."""

    reader: Callable[[str], Any]
    """Converts the text; ArgumentTypeError says what is expected."""
    default: Any
    """None: the task decides, as the help says."""
    help: str


def one_of(*names: str) -> Callable[[str], str]:
    """Return a reader of one of these values; ArgumentTypeError for any other text."""

    def read(text: str) -> str:
        if text not in names:
            raise ArgumentTypeError(f"expected {' or '.join(names)}, got {text!r}")
        return text

    return read


def yes_or_no(text: str) -> bool:
    """Read yes (True) or no (False); ArgumentTypeError for any other text."""
    return one_of("yes", "no")(text) == "yes"


def multiple_of(unit: int, limit: int) -> Callable[[str], int]:
    """Return a reader of multiples of `unit`, up to `limit`; else ArgumentTypeError."""

    def read(text: str) -> int:
        if not text.isdecimal() or len(text) > 9 or not 0 < int(text) <= limit or int(text) % unit:
            raise ArgumentTypeError(f"expected a multiple of {unit} up to {limit}, got {text!r}")
        return int(text)

    return read


HANDWRITTEN = Option(
    one_of("mnist", "digits"),
    "mnist",
    "mnist|digits: $CLOUDTRAIN_INPUT_MNIST, or scikit-learn's [mnist]",
)

OPTIONS: dict[str, dict[str, Option]] = {
    "digits": {},
    "mnist": {"data": HANDWRITTEN},
    "keras-mnist": {"data": HANDWRITTEN},
    "gpt": {
        "size": Option(one_of("tiny", "small", "gpt2-124m"), "tiny", "tiny|small|gpt2-124m [tiny]"),
        "context": Option(
            multiple_of(8, 65536), None, "tokens per sequence, a multiple of 8 [the size's]"
        ),
        "data": Option(
            one_of("text", "synthetic"),
            "text",
            "text|synthetic: $CLOUDTRAIN_INPUT_TEXT, else Python's source; random tokens [text]",
        ),
        "tied": Option(
            yes_or_no, None, "yes|no: one matrix for embedding and head [gpt2-124m: yes]"
        ),
    },
}
"""Options per task. An option `data` is `--data` on the command line, and the parameter `data` of the
task's function.
"""


def capabilities(task: str, options: dict[str, Any]) -> Capabilities:
    """Return the capabilities of a built-in task with its options.

    KeyError for an unknown task.
    """
    sizes = TASKS[task]
    size = options.get("size", next(iter(sizes)))
    supported = sizes[size]
    if task != "gpt":
        return supported
    # A matrix that embedding and head share cannot be split.
    if options.get("tied", size == "gpt2-124m"):
        return supported._replace(tensor_limit=0, max_stages=1)
    return supported


def is_own(options: Options) -> bool:
    """Return whether the task, its model or its data is the user's."""
    return bool(options.model or options.data) or options.task not in TASKS


def microbatches_per_step(requested: int | None, accumulate: int, stages: int) -> int:
    """Return the micro-batches per optimizer step and pipeline, with accumulation.

    `requested`: `--microbatches`; None: twice the stages.
    """
    return (requested or 2 * stages) * accumulate


def can_compile(options: Options) -> bool:
    """Return whether `--compile` works with the strategy.

    torch cannot compile recomputed layers that are split over ranks.
    """
    if options.recompute != "none" and (options.strategy == "tp" or options.tensor):
        return False
    if options.strategy == "hybrid":
        return options.stages is None
    return options.strategy in ("single", "ddp", "fsdp", "hsdp", "tp")


def check(
    options: Options, ranks: int, per_node: int, supported: Capabilities | None = None
) -> None:
    """Raise `Refused` if the options cannot work on `ranks` ranks, `per_node` of them on each node.

    `supported`: the capabilities of a task that is not in `TASKS`.
    """
    if supported is None and is_own(options):
        if options.task not in TASKS:
            return  # it is checked again when the user's task is built
        if options.model:
            supported = Capabilities(capabilities(options.task, options.task_options).batch_size)
    supported = supported or capabilities(options.task, options.task_options)
    _check_flags(options)
    _check_strategy(options, supported, ranks, per_node)
    _check_batch(options, supported, ranks)


def _check_flags(options: Options) -> None:
    """Refuse flags that the strategy would silently ignore."""
    users = {
        "shard": ("hsdp",),
        "tensor": ("hybrid",),
        "stages": ("hybrid", "model-parallel"),
        "microbatches": ("pipeline", "hybrid"),
    }
    for flag, strategies in users.items():
        if getattr(options, flag) is not None and options.strategy not in strategies:
            name = "--" + flag.replace("_", "-")
            raise Refused(
                f"{name} is for --strategy {' or '.join(strategies)}, not {options.strategy}: leave"
                " it out"
            )

    piped = options.strategy == "pipeline" or (options.strategy == "hybrid" and options.stages)
    if options.microbatches and not piped:
        raise Refused("--microbatches is for pipelines: use --stages with it, or leave it out")

    if options.amp == "fp16" and options.strategy not in ("single", "dp", "ddp"):
        raise Refused(
            f"--amp fp16 scales the loss, which --strategy {options.strategy} does not: use --amp"
            " bf16"
        )

    if options.betas and options.optimizer != "adamw":
        raise Refused("--betas is for --optimizer adamw: leave it out, or set them in your factory")
    if options.min_lr and options.lr_schedule != "cosine":
        raise Refused(
            f"--min-lr ends --lr-schedule cosine, not {options.lr_schedule}: leave one of them out"
        )

    if options.eval_only and not options.resume:
        raise Refused(
            "--no-resume is about training, which --eval-only leaves out: leave out one of them"
        )

    if options.recompute != "none" and options.strategy == "dp":
        raise Refused("--recompute is not offered with --strategy dp, which copies layers: use ddp")
    if options.compile == "yes" and not can_compile(options):
        also = " and --recompute" if can_compile(replace(options, recompute="none")) else ""
        raise Refused(
            f"--compile is not offered with --strategy {options.strategy}{also}: leave it out, or"
            " use ddp or fsdp"
        )


def _check_strategy(options: Options, supported: Capabilities, ranks: int, per_node: int) -> None:
    strategy = options.strategy
    task = options.task
    if strategy in ONE_PROCESS and ranks > 1:
        better = "fsdp or pipeline" if strategy == "model-parallel" else "ddp"
        raise Refused(
            f"--strategy {strategy} {ONE_PROCESS[strategy]}; each of {ranks} processes would train"
            f" alone: use --strategy {better}, or start one process (resources.processes: 1,"
            " --nproc-per-node 1)"
        )

    if strategy in ("fsdp", "hsdp") and not supported.fsdp:
        raise Refused(
            f"FSDP cannot shard the parameters of --task {task}, which Keras creates: use"
            " --strategy ddp"
        )
    if strategy == "hsdp":
        _check_groups(options, ranks, per_node)
    if strategy == "hybrid" and (options.tensor is None) == (options.stages is None):
        raise Refused(
            "--strategy hybrid combines data parallelism with one other kind: choose it with"
            " --tensor N (ranks per tensor-parallel group) or --stages N (ranks per pipeline)"
        )

    if strategy == "tp" or options.tensor:
        _check_tensor(options, supported, options.tensor or ranks, ranks)

    if strategy in ("pipeline", "model-parallel") or options.stages:
        alone = strategy == "model-parallel"
        _check_stages(
            options, supported, options.stages or (2 if alone else ranks), None if alone else ranks
        )


def _check_groups(options: Options, ranks: int, per_node: int) -> None:
    size = options.shard or per_node
    if ranks % size:
        raise Refused(f"--shard {size} does not divide the {ranks} ranks: use a number that does")
    if size == ranks:
        raise Refused(
            f"--strategy hsdp would make one group of all {ranks} ranks, which is --strategy fsdp:"
            " use that, or --shard N with fewer ranks per group"
        )


def _check_tensor(options: Options, supported: Capabilities, size: int, ranks: int) -> None:
    name = f"--task {options.task}"
    if not supported.tensor_limit:
        raise Refused(
            f"{name} has no tensor-parallel plan with these options: use --strategy ddp or fsdp"
        )
    if supported.tensor_limit % size:
        fits = [n for n in range(1, ranks + 1) if supported.tensor_limit % n == 0]
        raise Refused(
            f"tensor parallelism splits {name} into {supported.tensor_limit} parts (heads,"
            f" columns), which {size} ranks do not divide: use {_list(fits)} ranks, or --strategy"
            " hybrid --tensor N with such an N"
        )
    if ranks % size or (options.tensor and not 1 < size < ranks):
        raise Refused(
            f"--tensor {size} must be more than 1, less than the {ranks} ranks, and divide them:"
            " use such a number, or --strategy tp for all ranks"
        )


def _check_stages(options: Options, supported: Capabilities, size: int, ranks: int | None) -> None:
    """Check the stages. `ranks`: None if one process holds all of them."""
    name = f"--task {options.task}"
    if supported.max_stages < 2:
        raise Refused(
            f"{name} cannot be split into stages with these options: use --strategy ddp or fsdp"
        )
    if size > supported.max_stages:
        raise Refused(
            f"{name} can be split into at most {supported.max_stages} stages, not {size}: use"
            f" --strategy hybrid --stages {supported.max_stages} or less, or as many processes"
        )
    if ranks is None:
        return
    if size > ranks:
        raise Refused(
            f"--stages {size} needs as many ranks, and there are {ranks}: start more, or use fewer"
            " stages"
        )
    if size < 2 or ranks % size or (options.stages and size == ranks):
        hint = (
            "start several processes"
            if ranks < 2
            else f"for all {ranks} ranks use --strategy pipeline"
        )
        raise Refused(f"{ranks} ranks cannot form several pipelines of {size} stages: {hint}")


def _check_batch(options: Options, supported: Capabilities, ranks: int) -> None:
    batch = options.batch_size or supported.batch_size
    stages = (
        ranks
        if options.strategy == "pipeline"
        else (options.stages or 1)
        if options.strategy == "hybrid"
        else 1
    )
    if stages < 2:
        return
    count = microbatches_per_step(options.microbatches, options.accumulate, stages)
    pipelines = ranks // stages
    if options.schedule != "gpipe" and count < stages:
        raise Refused(
            f"{count} micro-batches do not fill {stages} stages under --schedule"
            f" {options.schedule}: use --microbatches {stages} or more, or --schedule gpipe"
        )
    if batch % (count * pipelines):
        multiple = count * pipelines
        raise Refused(
            f"a batch of {batch} cannot be split into {pipelines} pipelines x {count} micro-batches"
            f" of equal size: use --batch-size {max(multiple, batch // multiple * multiple)}, or"
            " another --microbatches"
        )


def _list(numbers: list[int]) -> str:
    return " or ".join(map(str, numbers))
