"""Run by test_relaid.py: how models lie on ranks, who brings what to a checkpoint, and who holds a whole model.

The ranks are forks, as in forked.py: python relaid.py <name of a check> <folder>
"""

from __future__ import annotations

import shutil
import sys
import weakref
from importlib import import_module
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.entrypoints.forked import IMPORTED, Group

BASE = "--task digits --epochs 1 --max-steps 3 --batch-size 32"
CHECKPOINTS = "cloudtrain-output/checkpoints"

BRING = {
    "--strategy ddp": [0],
    "--strategy hsdp --shard 2": [0, 1],
    "--strategy hybrid --tensor 2": [0, 1, 2, 3],
    "--strategy hybrid --stages 2": [0, 1],
}
"""Of four ranks, those that hold a whole model together and have no copy of what one before them has."""


def watched(rank: int) -> None:
    """Tell what is copied for a checkpoint, and hold what whole_state says against the model that all began with."""
    from cloudtrain_trainer import sharded, state, strategies
    from cloudtrain_trainer.loop import Loop

    copy_to_host, whole, resume = sharded.copy_to_host, strategies.full_tensor, Loop.resume
    gathered: list[weakref.ref[Any]] = []

    def staging(tensors: dict[str, Any]) -> dict[str, Any]:
        print("staged", flush=True)
        return copy_to_host(tensors)

    def one_by_one(value: Any) -> Any:
        if rank != 0:
            assert [ref for ref in gathered if ref() is not None] == [], "the one before is still held"
        full = whole(value)
        if full is not value:
            gathered.append(weakref.ref(full))
        return full

    def compare(loop: Loop) -> None:
        found = loop.strategy.full_state_dict(loop.step.model)
        state.seed_generators(loop.options.seed)
        wanted = loop.task.model().state_dict()
        if rank == 0 or loop.options.strategy == "ddp":
            assert list(found) == list(wanted)
            assert {name for name in wanted if not found[name].equal(wanted[name])} == set()
        else:
            assert found == {}
        loop.seed_this_rank()
        resume(loop)

    for place, name, new in (
        (sharded, "copy_to_host", staging),
        (strategies, "full_tensor", one_by_one),
        (Loop, "resume", compare),
    ):
        setattr(place, name, new)


def brought(folder: Path) -> None:
    """Only one copy of the model is staged for a checkpoint, and one process goes on from it to the same parameters."""
    for layout, bring in BRING.items():
        place = folder / layout.replace(" ", "")
        four = Group(place, 4, f"{BASE} {layout}", watched)
        parameters = four.succeed()["parameters_sha256"]
        assert [rank for rank, log in enumerate(four.logs) if "staged" in log.read_text()] == bring, layout
        alone = Group(place, 1, f"{BASE} --strategy single")
        assert alone.succeed()["parameters_sha256"] == parameters, alone.said()
        assert [event["step"] for event in alone.events("resumed")] == [3], alone.said()
        print(f"{layout}: brought by {bring}", flush=True)


def relaid(folder: Path) -> None:
    """The same strategy on as many ranks, cut otherwise: weights go on, what each rank had of its own does not."""
    flags = {"--stages 2": " --microbatches 6", "--stages 3": " --microbatches 6", "--tensor 2": ""}
    base, first = BASE.replace("32", "36") + " --strategy hybrid ", "--stages 2"
    Group(folder / "first", 6, base + first + flags[first]).succeed()
    for other in ("--stages 3", "--tensor 2"):
        place = folder / other.replace(" ", "")
        shutil.copytree(folder / "first" / CHECKPOINTS, place / CHECKPOINTS)
        again = Group(place, 6, base.replace("--max-steps 3", "--max-steps 4") + other + flags[other])
        assert again.succeed()["step"] == 4
        assert f"from a checkpoint of 6 (hybrid {first}, now hybrid {other}): weights" in again.said(), again.said()
        print(f"{other} went on from {first}", flush=True)


def main() -> None:
    for name in IMPORTED:  # once, for all ranks
        import_module(name)
    globals()[sys.argv[1]](Path(sys.argv[2]))


if __name__ == "__main__":
    main()
