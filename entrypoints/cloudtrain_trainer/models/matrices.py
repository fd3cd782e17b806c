"""Which parameters of a model are matrices of hidden layers, the ones that Muon is for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from torch import nn

from cloudtrain_trainer.checkpoints.earlier_names import Joined


class Rows(NamedTuple):
    """How the rows of a matrix are shared out among several that are joined in it: in `groups`, one
    part of each.
    """

    parts: int = 1
    groups: int = 1


def hidden_matrices(
    model: nn.Module, joined: Mapping[str, Joined] | None = None
) -> dict[str, Rows]:
    """The names of these matrices that are trained, and what is joined in each.

    All parameters of two dimensions but those of `nn.Embedding`s and the last one, which is the
    head, unless the head is an embedding's matrix. `joined`: as in `Task`.
    """
    embeddings = {
        id(p)
        for m in model.modules()
        if isinstance(m, nn.Embedding)
        for p in m.parameters(recurse=False)
    }
    uses = [
        name for name, p in model.named_parameters(remove_duplicate=False) if id(p) in embeddings
    ]
    found = {
        name: p for name, p in model.named_parameters() if p.dim() == 2 and id(p) not in embeddings
    }
    if found and len(uses) == len(embeddings):
        found.popitem()
    return {name: _rows(name, joined or {}) for name, p in found.items() if p.requires_grad}


def _rows(name: str, joined: Mapping[str, Joined]) -> Rows:
    known = next((one for end, one in joined.items() if f".{name}".endswith(f".{end}")), None)
    return Rows() if known is None else Rows(len(known.parts), known.groups)
