"""Decide when to save checkpoints, and their content; resume; keep the best weights."""

from __future__ import annotations

import math
import time
from collections.abc import Collection
from typing import Any, NamedTuple

import torch

from cloudtrain_job import activity
from cloudtrain_trainer import rules, state
from cloudtrain_trainer.checkpoints import tensors as checkpoint_tensors
from cloudtrain_trainer.checkpoints.frozen import FrozenWeights
from cloudtrain_trainer.checkpoints.store import CheckpointStore, FoundCheckpoint
from cloudtrain_trainer.data.stream_batches import StreamBatches
from cloudtrain_trainer.rules import Refused
from cloudtrain_trainer.strategies import sync_buffers
from cloudtrain_trainer.training.run import TrainingRun

OF_TRAINING = ("batch_size", "optimizer")
"""Parts of a run's identity that an evaluation of its weights ignores."""


class Best(NamedTuple):
    """The best evaluation until now."""

    val_loss: float = float("inf")
    step: int = -1
    evaluations_since: int = 0
    """Evaluations after the best one."""
    evaluated_at: int = -1
    """The step of the last evaluation, which a resumed run may repeat."""


class Checkpointer:
    """Saves and resumes the checkpoints of a training.

    All ranks call each method together, except `is_due` and `is_due_at`.
    """

    def __init__(self, run: TrainingRun, checkpoints: CheckpointStore) -> None:
        self.run = run
        self.checkpoints = checkpoints
        self.best = Best()
        self.frozen = FrozenWeights(run.step.model, run.ranks, run.options.save_frozen)
        self._saved_step = -1
        self._saved_at = time.monotonic()
        self._best_in_checkpoint = -1
        """The step of the best evaluation that the newest checkpoint refers to."""
        if run.device.type == "cuda":
            for copies in (checkpoints.copies, checkpoints.best_copies):
                run.step.optimizer.register_step_pre_hook(lambda *_, copies=copies: copies.hold())

    def is_due(self) -> bool:
        """Return whether `--checkpoint-every` has passed. Raise the error of a failed save."""
        self.checkpoints.check()
        return time.monotonic() - self._saved_at >= self.run.options.checkpoint_every

    def is_due_at(self, step: int) -> bool:
        """Return whether `--checkpoint-every-steps` asks for a checkpoint after this step.

        The answer is the same on all ranks.
        """
        every = self.run.options.checkpoint_every_steps
        return every is not None and step % every == 0

    def save(self, last: bool = False) -> None:
        """Save a checkpoint of the current step, unless it is saved already.

        `last`: wait until it is complete, and raise its error, such as OSError for a full disk.
        Raise `NotFinite` if the weights are not finite.
        """
        with self.run.stop.busy(), activity("saving"), self.run.step.clock.during("saving"):
            self._save()
            if last:
                self.checkpoints.finish()

    def _save(self) -> None:
        run = self.run
        if self._saved_step == run.position.step:
            return

        step = run.step
        left_out = self.frozen.unchanged()
        tensors = checkpoint_tensors.tensors_of(step.model, step.optimizer, left_out)
        if step.averages is not None:
            tensors |= {f"ema.{name}": value for name, value in step.averages.tensors.items()}
        # A bad checkpoint must not replace a good one.
        optimizer_state = [v for name, v in tensors.items() if name.startswith("optimizer.")]
        run.check_finite(step.trained + optimizer_state)  # others, such as masks, may be infinite

        rank_state: dict[str, Any] = {
            "generators": state.generator_states(run.devices),
            "buffers": state.buffers(step.model),
            "loss": step.loss.state(),
            "groups": step.group_numbers.changed(),
        }
        if isinstance(run.batches, StreamBatches):
            rank_state["stream"] = run.batches.state()
        # The weights must not depend on the rank that writes them.
        sync_buffers(step.model, run.ranks)

        shared = {
            "run": self._identity(),
            "layout": self._layout(),
            "at": list(run.position),
            "metrics": dict(run.metrics),
            "best": list(self.best),
            "groups": rank_state["groups"],
            "scaler": step.scaler.state_dict() if step.scaler is not None else None,
            "frozen": self.frozen.lines,
        }

        self.checkpoints.save(
            run.position.step,
            run.position.epoch,
            tensors,
            shared,
            rank_state,
            self._steady(tensors),
        )
        self._best_in_checkpoint = self.best.step
        state.restore_buffers(step.model, rank_state["buffers"])
        self._saved_step = run.position.step
        self._saved_at = time.monotonic()

    def _steady(self, tensors: Collection[str]) -> set[str]:
        """Return the names of tensors that only an update may change, if anything does.

        Frozen weights are included: each would be cloned on the GPU.
        """
        model = self.run.step.model
        parameters = {f"model.{name}" for name, _ in model.named_parameters(remove_duplicate=False)}
        of_update = {name for name in tensors if name.startswith(("optimizer.", "ema."))}
        return of_update | (parameters & set(tensors))

    def resume(self) -> None:
        """Load the newest complete checkpoint, if any. Raise `Refused` if options differ."""
        checkpoint = self.checkpoints.find_newest()
        if checkpoint is None:
            return
        shared, rank_state = self.checkpoints.read_state(checkpoint)
        if shared["run"] != self._identity():
            raise Refused(
                f"{checkpoint.folder} was saved with {_flags(shared['run'])}, not"
                f" {_flags(self._identity())}: use the same, or start from scratch: --no-resume"
                " here, cloudtrain rerun --fresh for a run"
            )
        with activity("restoring"):
            self._load(checkpoint, shared, rank_state)

    def load_weights(self) -> None:
        """Load only the weights of the newest checkpoint; a user's model needs none.

        Raise `Refused` without a checkpoint, or if it is of another task, model or data.
        """
        run = self.run
        checkpoint = self.checkpoints.find_newest()
        if checkpoint is None:
            if rules.is_own(run.options):
                run.ranks.log(
                    f"evaluates the model as it is made: no checkpoint in {self.checkpoints.folder}"
                )
                return
            raise Refused(f"--eval-only: there is no checkpoint in {self.checkpoints.folder}")
        shared, _ = self.checkpoints.read_state(checkpoint)
        saved = shared["run"]
        mine = self._identity()
        for key in OF_TRAINING:
            saved.pop(key, None)
            mine.pop(key, None)

        if saved != mine:
            raise Refused(
                f"{checkpoint.folder} was saved with {_flags(saved)}, not {_flags(mine)}: use the same"
            )
        with activity("restoring"):
            self._load_tensors(checkpoint, shared, None)
        run.position = type(run.position)(*shared["at"])
        run.ranks.log(f"evaluates {checkpoint.folder}")

    def _load(
        self, checkpoint: FoundCheckpoint, shared: dict[str, Any], rank_state: dict[str, Any] | None
    ) -> None:
        """Load a checkpoint of the same options."""
        run = self.run
        step = self.run.step
        run.run_discarded_step()
        step.loss.restore((0.0, 0))
        self._load_tensors(checkpoint, shared, step.optimizer)

        if step.scaler is not None and shared["scaler"]:
            step.scaler.load_state_dict(shared["scaler"])
        groups = (rank_state or {}).get("groups") or shared.get("groups")
        if groups:  # of rank 0, if this rank's are missing
            step.group_numbers.restore(groups)
        run.position = type(run.position)(*shared["at"])
        # JSON has null for a number that is not finite.
        run.metrics = {}
        for name, value in shared["metrics"].items():
            run.metrics[name] = math.nan if value is None else value

        val_loss, *counts = shared["best"]
        self.best = Best(math.inf if val_loss is None else val_loss, *counts)
        self._best_in_checkpoint = self.best.step
        before = {name: x for name, x in shared["layout"].items() if x is not None}
        layout = self._layout()

        if rank_state is None or before != layout:
            run.seed_this_rank()
            run.ranks.log(
                f"resumed on {run.ranks.size} ranks from a checkpoint of {checkpoint.ranks}"
                f" ({_describe_layout(before)}, now {_describe_layout(layout)}): weights and optimizer"
                " state continue, the random generators are seeded anew; the result is not"
                " bit-identical to that of an uninterrupted run"
            )
        else:
            state.restore_buffers(step.model, rank_state["buffers"])
            state.restore_generators(rank_state["generators"], run.devices)
            step.loss.restore(rank_state["loss"])
            if isinstance(run.batches, StreamBatches) and "stream" in rank_state:
                run.batches.resume(rank_state["stream"])
        self._saved_step = run.position.step

    def _load_tensors(
        self,
        checkpoint: FoundCheckpoint,
        shared: dict[str, Any],
        optimizer: torch.optim.Optimizer | None,
    ) -> None:
        """Load weights and optimizer state; frozen weights may be missing, and are then checked.

        Without averages of the weights in the checkpoint, `--ema` begins with these weights.
        """
        model = self.run.step.model
        averages = self.run.step.averages
        lines = shared.get("frozen", {})
        saved = self.checkpoints.read_tensors(checkpoint)
        missing = checkpoint_tensors.missing(saved, model)
        self.frozen.check(missing, lines, checkpoint.folder)
        left_out = [name for name in missing if name in lines]
        checkpoint_tensors.load(saved, model, optimizer, left_out)
        if averages is not None:
            averages.restart()
            by_name = {f"ema.{name}": value for name, value in averages.tensors.items()}
            checkpoint_tensors.copy_known(saved, by_name)

    def record_evaluation(self, val_loss: float) -> None:
        """Keep the weights if this evaluation is the best; else count it.

        They are written during training. No later checkpoint is complete before that.
        """
        run = self.run
        best = self.best
        if run.position.step == best.evaluated_at:
            return
        if not (math.isfinite(val_loss) and val_loss < best.val_loss):
            self.best = best._replace(
                evaluations_since=best.evaluations_since + 1, evaluated_at=run.position.step
            )
            return
        self.best = Best(val_loss, run.position.step, 0, run.position.step)

        left_out = self.frozen.unchanged()
        averages = run.step.averages
        weights = checkpoint_tensors.weights_of(run.step.model)
        if averages is not None:
            weights |= averages.tensors
        tensors = {
            f"model.{name}": value for name, value in weights.items() if name not in left_out
        }
        self.checkpoints.save_best(
            run.position.step, tensors, self._steady(tensors), self._best_in_checkpoint
        )

    def load_best(self) -> None:
        """Load the best weights into the model after training, if there are other ones."""
        run = self.run
        best = self.best.step
        if best in (-1, run.position.step):
            return

        checkpoint = self.checkpoints.find_best(best)
        if checkpoint is None:
            run.ranks.log(f"{self.checkpoints.folder} lacks the best weights, of step {best}")
            return

        model = run.step.model
        saved = self.checkpoints.read_tensors(checkpoint)
        checkpoint_tensors.load(saved, model, None, checkpoint_tensors.missing(saved, model))

    def _layout(self) -> dict[str, Any]:
        """Return how ranks use devices: the state of a rank fits only the same layout."""
        layout: dict[str, Any] = {"strategy": self.run.options.strategy}
        devices = len(self.run.devices)
        if devices > 1:
            layout["devices"] = devices

        return layout

    def _identity(self) -> dict[str, Any]:
        """Return what a resume must not change: split, order and size of the batches."""
        options = self.run.options
        identity = {
            "task": options.task,
            "seed": options.seed,
            "batch_size": self.run.batches.batch_size,
        }
        if options.model:
            identity["model"] = options.model
        if options.data:
            identity["data"] = options.data
        if options.optimizer != "adamw":
            identity["optimizer"] = options.optimizer

        return identity


def _describe_layout(layout: dict[str, Any]) -> str:
    sizes = dict(layout)
    strategy = str(sizes.pop("strategy"))
    return f"{strategy} {_flags(sizes)}" if sizes else strategy


def _flags(identity: dict[str, Any]) -> str:
    return " ".join(f"--{key.replace('_', '-')} {value}" for key, value in identity.items())
