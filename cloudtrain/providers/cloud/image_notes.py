"""Whether our own image suits the machines that a plan names: what it lacks of them is said before it is paid for."""

from __future__ import annotations

import re
from collections.abc import Sequence

from cloudtrain.catalog.machines import find_instance
from cloudtrain.planning.plan import Plan

_BEFORE_TURING = ("V100", "P100", "P40", "P4", "K80", "M60")
"""GPUs of a compute capability below 7.5, which CUDA 13 has no code for (NVIDIA, CUDA 13.0 release notes)."""

_OLD_TYPES = re.compile(r"ml\.p[23]\..*|ml\.p3dn\..*|Standard_(NC\d+r?s?(_v[23])?|ND\d+r?s(_v2)?|NV\d+s?(_v2)?)", re.I)
"""Their machines by name, where our table does not have them."""


def image_notes(plan: Plan) -> list[str]:
    """Notes about an image that we build; nothing of one that somebody names."""
    recipe, types = plan.target.image.recipe if plan.target.image else None, plan.target.instances
    if recipe is None or recipe.kind != "cuda":
        return []
    args = dict(arg.partition("=")[::2] for arg in recipe.args)
    return [*_without_efa(plan, types, args), *_too_new(plan, types, args)]


def _without_efa(plan: Plan, types: Sequence[str], args: dict[str, str]) -> list[str]:
    rows = [find_instance(plan.target.provider, name) for name in types]
    adapters = [row.instance_type for row in rows if row and row.network == "efa"]
    if plan.spec.resources.nodes < 2 or not adapters or args.get("WITH_EFA") == "1":
        return []
    return [
        f"{adapters[0]} has EFA, and our image is planned without it: nodes would speak TCP, which is far slower; "
        'image.args = ["WITH_EFA=1", "EFA_SHA256=…"] (docker/README.md), or image: dlc:pytorch-…'
    ]


def _too_new(plan: Plan, types: Sequence[str], args: dict[str, str]) -> list[str]:
    if args.get("TORCH", "cuda") != "cuda":
        return []
    for name in types:
        row = find_instance(plan.target.provider, name)
        if (row.gpu in _BEFORE_TURING) if row else _OLD_TYPES.fullmatch(name):
            gpu = f" ({row.gpu})" if row else ""
            return [
                f"{name}{gpu} is older than what our image's torch has code for (CUDA 13: compute capability 7.5 and "
                "later): name an image with CUDA 12 or older, or build your own: image: {build: docker/Dockerfile}"
            ]
    return []
