"""What of a run outlives its processes: checkpoints, the way back from them, the best weights and the trained model."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor

from cloudtrain_trainer import finite, sharded, state
from cloudtrain_trainer.checkpoint import Checkpoints
from cloudtrain_trainer.rules import Refused

if TYPE_CHECKING:
    from cloudtrain_trainer.loop import Loop
import shutil
from collections.abc import Callable
from pathlib import Path

import torch


class Best(NamedTuple):
    """The best evaluation so far."""

    val_loss: float = float("inf")
    step: int = -1
    stale: int = 0
    """Evaluations since then."""
    judged: int = -1
    """The step of the last evaluation: a resumed run may repeat it."""


class Saving:
    """The checkpoints of one loop. Every method but `is_due` and `is_due_after` is called by all ranks together."""

    def __init__(self, loop: Loop, checkpoints: Checkpoints) -> None:
        self.loop, self.checkpoints, self.best = loop, checkpoints, Best()
        self._saved_step, self._saved_at = -1, time.monotonic()

    def is_due(self) -> bool:
        """Whether it is time for a checkpoint."""
        self.checkpoints.check()
        return time.monotonic() - self._saved_at >= self.loop.options.checkpoint_every

    def is_due_after(self, step: int) -> bool:
        """Whether this very step is one for a checkpoint, which all ranks know."""
        every = self.loop.options.checkpoint_every_steps
        return every is not None and step % every == 0

    def save(self, last: bool = False) -> None:
        """A checkpoint of this very step, unless there is one. `last`: wait until it can be seen."""
        with self.loop.stop.patience():
            self._save()
            if last:
                self.checkpoints.finish()

    def _save(self) -> None:
        loop = self.loop
        if self._saved_step != loop.at.step:
            step = loop.step
            tensors = sharded.tensors_of(step.model, step.optimizer)
            loop.check_finite(self._learnt(tensors))  # what cannot go on must not push out what can
            own: dict[str, Any] = {
                "generators": state.generators(loop.strategy.devices),
                "buffers": state.buffers(step.model, step.task.statistics(step.model)),
                "loss": step.loss.state(),
            }
            loop.strategy.sync_buffers(step.model)  # the weights must not depend on who writes them
            loop.strategy.average(step.task.statistics(step.model))
            shared = {
                "run": self._identity(),
                "layout": self._layout(),
                "at": list(loop.at),
                "metrics": dict(loop.metrics),
                "best": list(self.best),
                "skipped": step.watch.count,
                "scaler": step.scaler.state_dict() if step.scaler is not None else None,
            }
            self.checkpoints.save(loop.at.step, loop.at.epoch, tensors, shared, own)
            state.restore_buffers(step.model, own["buffers"], step.task.statistics(step.model))
            self._saved_step, self._saved_at = loop.at.step, time.monotonic()

    def _learnt(self, tensors: dict[str, Tensor]) -> list[Tensor]:
        """What training changes. Other tensors may hold infinities on purpose, such as masks."""
        learnt: list[Tensor] = [p for p in self.loop.step.model.parameters() if p.requires_grad]
        return learnt + [value for name, value in tensors.items() if name.startswith("optimizer.")]

    def resume(self) -> None:
        """Go on from the newest whole checkpoint, if there is one."""
        loop, step = self.loop, self.loop.step
        found = self.checkpoints.newest()
        if found is None:
            return
        shared, own = self.checkpoints.about(found)
        if shared["run"] != self._identity():
            raise Refused(
                f"{found.folder} was written with {_flags(shared['run'])}, not {_flags(self._identity())}: "
                "use the same, or start anew: --no-resume here, cloudtrain rerun --fresh for a run"
            )
        loop.rehearse()
        step.loss.restore((0.0, 0))
        self.checkpoints.load(found, step.model, step.optimizer)
        learnt = self._learnt(sharded.tensors_of(step.model, step.optimizer))
        if loop.ranks.agree(not finite.all_finite(learnt))()[0]:  # an earlier release kept those, too
            raise Refused(
                f"{found.folder} holds weights that are not finite numbers, from which nothing is learnt: remove it, "
                "so that an earlier one is taken, or start anew: --no-resume here, cloudtrain rerun --fresh for a run"
            )
        if step.scaler is not None and shared["scaler"]:
            step.scaler.load_state_dict(shared["scaler"])
        step.watch.restore(shared.get("skipped", 0))
        loop.at = type(loop.at)(*shared["at"])  # in JSON, what is no finite number is null
        loop.metrics = {name: math.nan if value is None else value for name, value in shared["metrics"].items()}
        val_loss, *others = shared["best"]
        self.best = Best(math.inf if val_loss is None else val_loss, *others)
        wrote, now = shared.get("layout") or {"strategy": shared["strategy"]}, self._layout()
        if own is None or wrote != now:
            loop.seed_this_rank()
            loop.ranks.say(
                f"resumed on {loop.ranks.size} ranks what {found.ranks} wrote ({_words(wrote)}, now "
                f"{_words(now)}): weights and optimizer go on, the generators are seeded anew; the result is "
                "not bit-identical to an uninterrupted run's"
            )
        else:
            state.restore_buffers(step.model, own["buffers"], step.task.statistics(step.model))
            state.restore_generators(own["generators"], loop.strategy.devices)
            step.loss.restore(own["loss"])
        self._saved_step = loop.at.step

    def judge(self, val_loss: float) -> None:
        """Keep the weights if this evaluation is the best so far, and count those that were not."""
        loop, best = self.loop, self.best
        if loop.at.step == best.judged:
            return
        if not (math.isfinite(val_loss) and val_loss < best.val_loss):
            self.best = best._replace(stale=best.stale + 1, judged=loop.at.step)
            return
        self.best = Best(val_loss, loop.at.step, 0, loop.at.step)
        weights = loop.strategy.whole_state(loop.step.model)
        if loop.ranks.rank == 0:
            write_model(self.checkpoints.folder / BEST, weights, loop.ranks.say)

    def _layout(self) -> dict[str, Any]:
        """How the model lies on the ranks: what a rank has of its own fits no other layout."""
        options = self.loop.options
        shard = self.loop.strategy.holders if options.strategy == "hsdp" else None
        layout = {"strategy": options.strategy, "shard": shard, "tensor": options.tensor, "stages": options.stages}
        devices = len(self.loop.strategy.devices)
        return {**layout, "devices": devices} if devices > 1 else layout

    def _identity(self) -> dict[str, Any]:
        """What must not change under a resume: the split, the order, and what a step is."""
        options = self.loop.options
        identity = {"task": options.task, "seed": options.seed, "batch_size": self.loop.batches.batch_size}
        if options.model:
            identity["model"] = options.model
        return {**identity, **dict(sorted(options.task_options.items()))}


def _words(layout: dict[str, Any]) -> str:
    sizes = {key: value for key, value in layout.items() if key != "strategy" and value is not None}
    return " ".join(part for part in (layout["strategy"], _flags(sizes)) if part)


def _flags(identity: dict[str, Any]) -> str:
    return " ".join(f"--{key.replace('_', '-')} {value}" for key, value in identity.items())


BEST = "best"
"""The name, without its ending, of the best weights so far, kept beside the checkpoints."""


def write_model(path: Path, state: dict[str, Tensor], say: Callable[[str], None]) -> Path:
    """Write a state dict, whole or not at all. `path` has no ending; the one it got is in what comes back."""
    path.parent.mkdir(parents=True, exist_ok=True)
    state = {name: value.detach().cpu().contiguous() for name, value in state.items()}
    try:
        from safetensors.torch import save_file
    except ImportError:
        final = path.with_name(path.name + ".pt")
        say(f"the package safetensors is not installed here: the model is written by torch.save to {final}")
        temporary = final.with_name(final.name + ".partial")
        torch.save(state, temporary)
    else:
        final = path.with_name(path.name + ".safetensors")
        temporary = final.with_name(final.name + ".partial")
        save_file(_unshared(state), str(temporary), metadata={"format": "pt"})
    temporary.replace(final)
    return final


def take_best(checkpoints: Path, model: Path) -> Path | None:
    """Copy the best weights so far to where the model belongs; None when there are none."""
    for ending in (".safetensors", ".pt"):
        best = checkpoints / (BEST + ending)
        if best.is_file():
            model.parent.mkdir(parents=True, exist_ok=True)
            temporary = model.with_name(model.name + ending + ".partial")
            shutil.copyfile(best, temporary)
            return temporary.replace(model.with_name(model.name + ending))
    return None


def _unshared(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """safetensors refuses tensors that share memory, such as tied weights: each gets its own."""
    seen: set[int] = set()
    for name, value in state.items():
        if value.untyped_storage().data_ptr() in seen:
            state[name] = value.clone()
        seen.add(state[name].untyped_storage().data_ptr())
    return state
