"""Frozen weights, which checkpoints can leave out: each start builds them again.

A checkpoint keeps a line for each frozen weight, so that a resume detects another base model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Partial, Replicate

from cloudtrain_trainer.ranks import Ranks
from cloudtrain_trainer.rules import Refused
from cloudtrain_trainer.training.optimizers import grouped, sharding

WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Bytes of an element -> integer of the same size."""
NAMED = 3
"""Maximum number of names in a message."""


class FrozenWeights:
    """The frozen weights of a model, as its factory or `--weights` made them.

    All ranks call each method together. `choice`: the value of `--save-frozen`.
    """

    def __init__(self, model: nn.Module, ranks: Ranks, choice: str) -> None:
        self._model = model
        self._ranks = ranks
        self.lines: dict[str, str] = {}
        """A line for each frozen weight of the whole model; empty if checkpoints keep them."""
        frozen = self._frozen()
        distinct = {id(p): p.numel() for p in frozen.values()}
        by_rank = ranks.all_gather(
            (sum(distinct.values()), sum(p.numel() for p in model.parameters()))
        )
        left_out = sum(size for size, _ in by_rank)
        everything = sum(size for _, size in by_rank)
        if choice == "yes" or not left_out or (choice == "auto" and 2 * left_out <= everything):
            return
        for lines in ranks.all_gather(describe(frozen)):
            self.lines |= lines
        ranks.log(
            f"checkpoints and the model file leave out {len(self.lines)} frozen tensors,"
            f" {100 * left_out / everything:.1f} % of the parameters: each start builds them"
            " again (--save-frozen yes keeps them)"
        )

    @property
    def metadata(self) -> dict[str, str]:
        """Return a note for the file of the model if it lacks frozen weights."""
        if not self.lines:
            return {}
        return {"left_out": f"{len(self.lines)} frozen tensors of the base model"}

    def unchanged(self) -> set[str]:
        """Return the names of frozen weights of this rank that have their first values."""
        if not self.lines:
            return set()
        lines = describe(self._frozen())
        return {name for name, line in lines.items() if self.lines.get(name) == line}

    def check(self, names: Iterable[str], saved: Mapping[str, str], source: object) -> None:
        """Raise `Refused` if weights that a checkpoint lacks are not those of its run.

        `names`: missing weights of this rank. `saved`: the `lines` of the run. Weights without a
        line are left to the reader of the checkpoint.
        """
        parameters = dict(self._model.named_parameters(remove_duplicate=False))
        lines = describe({name: parameters[name] for name in names if name in saved})
        mine = [name for name, line in lines.items() if line != saved[name]]
        other = [name for differing in self._ranks.all_gather(mine) for name in differing]
        if other:
            named = ", ".join(dict.fromkeys(other[:NAMED]))
            raise Refused(
                f"{source} was saved without its frozen weights, and the model has other ones now"
                f" ({named}): build it from the same base weights (--weights, inputs, --seed), or"
                " start from scratch: --no-resume here, cloudtrain rerun --fresh for a run"
            )

    def _frozen(self) -> dict[str, Tensor]:
        # Weights of another class, such as quantized ones, have no plain values: they are saved.
        return {
            name: p
            for name, p in self._model.named_parameters(remove_duplicate=False)
            if not p.requires_grad and type(p.data) in (Tensor, DTensor)
        }


@torch.no_grad()
def describe(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """Return dtype, shape and a sum of the bits of each tensor, whatever its strategy or device.

    Called by all ranks that share a tensor.
    """
    distinct = {id(tensor): tensor for tensor in tensors.values()}
    lines = {}
    for group in grouped(list(distinct.values()), sharding):
        sums = torch.stack([_sum_of_bits(tensor) for tensor in group])
        if isinstance(group[0], DTensor):
            placements = [
                Partial() if placement.is_shard() else Replicate()
                for placement in group[0].placements
            ]
            sums = DTensor.from_local(
                sums, group[0].device_mesh, placements, run_check=False
            ).full_tensor()
        for tensor, total in zip(group, sums.tolist(), strict=True):
            lines[id(tensor)] = f"{tensor.dtype} {list(tensor.shape)} {total}"
    return {name: lines[id(tensor)] for name, tensor in tensors.items()}


def _sum_of_bits(tensor: Tensor) -> Tensor:
    """Return the sum of the elements' bits as integers, over this rank's shard: shape (), int64."""
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    if local.is_complex():
        local = torch.view_as_real(local)
    return local.detach().view(WORDS[local.element_size()]).sum(dtype=torch.int64)
