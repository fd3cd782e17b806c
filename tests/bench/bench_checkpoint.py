"""Saving and loading a checkpoint of 300 MB, weights and the state of AdamW, against torch's own.

One process, one thread, files in the system's cache. Ours copies the tensors to be free to train,
writes and flushes them, and keeps their sums; it checks the sums and puts the tensors into a model
and a new optimizer. torch.distributed.checkpoint does so without copies and sums. torch.save
writes and flushes alone, and torch.load reads alone; by hand, its result is put into both.
"""

from __future__ import annotations

import os
import resource
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.bench.measure import Comparison, Cost, compare, options, report, workplace

LAYERS = 25
WIDTH = 1000
"""4 MB of weights per layer, and twice as much of AdamW's state."""
BAR = 1.3


def main() -> None:
    """Print the rows."""
    sys.path[1:1] = [str(Path(sys.path[0]) / name) for name in ("entrypoints", "entrypoints/job")]
    import torch
    from torch.distributed import checkpoint
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    from cloudtrain_trainer.checkpoints import tensors as checkpoint_tensors
    from cloudtrain_trainer.checkpoints.store import CheckpointStore
    from cloudtrain_trainer.ranks import Ranks

    parsed = options(rounds=9)
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")  # that there is one process
    model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, WIDTH)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    tensors = checkpoint_tensors.tensors_of(model, optimizer)

    with workplace() as (place, _):
        store = CheckpointStore(place / "checkpoints", keep=1, ranks=Ranks())
        reference = place / "reference.pt"
        by_hand = place / "by-hand.pt"
        torch.save({"weights": model.state_dict(), "state": optimizer.state_dict()}, by_hand)
        distributed = place / "distributed"
        steps = iter(range(10**6))

        def save() -> None:
            store.save(next(steps), 0, tensors, {}, {})
            store.finish()

        def save_alone() -> None:
            with reference.open("wb") as file:
                torch.save(tensors, file)
                file.flush()
                os.fsync(file.fileno())

        def save_distributed() -> None:
            weights, state = get_state_dict(model, optimizer)
            checkpoint.save({"weights": weights, "state": state}, checkpoint_id=distributed)

        def load() -> None:
            optimizer.state.clear()
            newest = store.find_newest()
            assert newest is not None
            checkpoint_tensors.load(store.read_tensors(newest), model, optimizer)

        def load_alone() -> Any:
            return torch.load(reference, weights_only=True)

        def load_by_hand() -> None:
            optimizer.state.clear()
            loaded = torch.load(by_hand, weights_only=True)
            model.load_state_dict(loaded["weights"])
            optimizer.load_state_dict(loaded["state"])

        def load_distributed() -> None:
            optimizer.state.clear()
            weights, state = get_state_dict(model, optimizer)
            checkpoint.load({"weights": weights, "state": state}, checkpoint_id=distributed)
            set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=state)

        comparisons = []
        for what, work, reference_name, reference_work in (
            ("saving", save, "torch.save", save_alone),
            ("saving", save, "torch.distributed.checkpoint", save_distributed),
            ("loading", load, "torch.load", load_alone),
            ("loading", load, "torch.load by hand", load_by_hand),
            ("loading", load, "torch.distributed.checkpoint", load_distributed),
        ):
            comparison = Comparison(f"{what} 300 MB", reference_name, {"wall": None, "cpu": BAR})
            compare(comparison, measured(work), measured(reference_work), parsed.rounds)
            comparisons.append(comparison)

    report(comparisons, parsed.json)


def measured(work: Callable[[], object]) -> Callable[[], Cost]:
    """Return a call that measures the work in this process, all threads included."""

    def cost() -> Cost:
        before = resource.getrusage(resource.RUSAGE_SELF)
        begun = time.perf_counter()
        work()
        wall = time.perf_counter() - begun
        after = resource.getrusage(resource.RUSAGE_SELF)
        return Cost(wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)

    return cost


if __name__ == "__main__":
    main()
