"""Weights that training does not change: checkpoints leave them out, and know them again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from cloudtrain_trainer.ranks import Ranks
from cloudtrain_trainer.rules import Refused

WORDS = {
    1: torch.uint8,
    2: torch.int16,
    4: torch.int32,
    8: torch.int64,
}
"""Bytes of an element -> integer of the same size."""
NAMED = 3
"""Maximum number of names in a message."""


class FrozenWeights:
    """The frozen weights of a model, as its factory made them.

    All ranks call each method together. `choice`: the value of `--save-frozen`.
    """

    def __init__(self, model: nn.Module, ranks: Ranks, choice: str) -> None:
        self._model = model
        self._ranks = ranks
        self.lines: dict[str, str] = {}
        """A line for each frozen weight; empty if checkpoints keep them."""
        frozen = self._frozen()
        by_id = {id(p): p for p in frozen.values()}  # tied weights once
        left_out = sum(p.numel() for p in by_id.values())
        everything = sum(p.numel() for p in model.parameters())
        if choice == "yes" or not left_out or (choice == "auto" and 2 * left_out <= everything):
            return

        self.lines = bit_sums(frozen)
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
        """Return the names of frozen weights that have their first values."""
        if not self.lines:
            return set()

        lines = bit_sums(self._frozen())
        return {name for name, line in lines.items() if self.lines.get(name) == line}

    def check(self, names: Iterable[str], saved: Mapping[str, str], source: object) -> None:
        """Raise `Refused` if weights that a checkpoint lacks are not those of its run.

        `names`: missing weights. `saved`: the `lines` of the run. Weights without a
        line are left to the reader of the checkpoint.
        """
        parameters = dict(self._model.named_parameters(remove_duplicate=False))
        lines = bit_sums({name: parameters[name] for name in names if name in saved})
        mine = [name for name, line in lines.items() if line != saved[name]]
        other: list[str] = []
        for differing in self._ranks.all_gather(mine):
            other += differing

        if other:
            named = ", ".join(dict.fromkeys(other[:NAMED]))
            raise Refused(
                f"{source} was saved without its frozen weights, and the model has other ones now"
                f" ({named}): build it from the same base weights (inputs, --seed), or"
                " start from scratch: --no-resume here, cloudtrain rerun --fresh for a run"
            )

    def _frozen(self) -> dict[str, Tensor]:
        # Weights of another class, such as quantized ones, have no plain values: they are saved.
        frozen: dict[str, Tensor] = {}
        for name, p in self._model.named_parameters(remove_duplicate=False):
            if not p.requires_grad and type(p.data) is Tensor:
                frozen[name] = p

        return frozen


@torch.no_grad()
def bit_sums(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """Return dtype, shape and a sum of the bits of each tensor, whatever its device."""
    distinct = {id(tensor): tensor for tensor in tensors.values()}
    if not distinct:
        return {}

    sums = torch.stack([_sum_of_bits(tensor) for tensor in distinct.values()]).tolist()
    lines = {}
    for (key, tensor), total in zip(distinct.items(), sums, strict=True):
        lines[key] = f"{tensor.dtype} {list(tensor.shape)} {total}"

    return {name: lines[id(tensor)] for name, tensor in tensors.items()}


def _sum_of_bits(tensor: Tensor) -> Tensor:
    """Return the sum of the elements' bits as integers: shape (), int64."""
    if tensor.is_complex():
        values = torch.view_as_real(tensor)
    else:
        values = tensor

    return values.detach().view(WORDS[values.element_size()]).sum(dtype=torch.int64)
