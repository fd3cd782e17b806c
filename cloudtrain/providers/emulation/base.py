"""What an emulator is: it makes a run's request ready to be executed here. And what those of rehearsals share."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from cloudtrain.contracts.launch import Launch
from cloudtrain.providers.emulation.run_paths import RunPaths

LaunchT = TypeVar("LaunchT", bound=Launch, covariant=True)


class Emulator(Protocol[LaunchT]):
    """One run's request, made ready to be executed here. `LaunchT`: what it says of a node."""

    max_runtime_seconds: int | None
    grace_seconds: int
    nodes_are_here: bool
    """Whether a path that a node speaks of is a path of this machine."""

    def inherits(self, variable: str) -> bool:
        """Whether the job sees this variable of the person's own environment."""
        ...

    def prepare(self, archive: Path) -> Sequence[LaunchT]:
        """Lay everything out, and say what is to be started, one launch per node."""
        ...

    def keep(self) -> None:
        """Called now and then while it runs: what must survive even if this machine dies."""
        ...

    def clear(self) -> None:
        """Called when the nodes' processes have ended: nothing that they have started goes on. CloudtrainError."""
        ...

    def collect(self) -> list[str]:
        """Called once, when all is over: bring what the nodes left to where people look. What is to be said of it."""
        ...


OF_THE_MACHINE = {
    *("PATH", "HOME", "USER", "LANG", "TMPDIR", "TZ", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES"),
    *("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "PYTHONDONTWRITEBYTECODE"),
}
"""Variables that a program needs to run on this machine at all, whatever contract it runs under."""


def search_path(plan: Mapping[str, Any]) -> str:
    """The PATH of a rehearsal: the chosen Python comes first, as it is the image that is not there."""
    return f"{Path(plan['host']['facts']['python']).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"


def threads(paths: RunPaths, plan: Mapping[str, Any]) -> dict[str, str]:
    """How many threads a rehearsed rank has, unless the spec says: all nodes stand on this machine, each cloud's on one
    of its own. Too many threads cost factors, not percents: OpenMP's wait busily for each other.
    """
    job = json.loads(paths.job_file.read_text())
    share = plan["host"]["facts"]["cores"] // (job["nodes"] * job["processes"])
    return {"OMP_NUM_THREADS": str(max(1, share))}


def local_secrets(plan: Mapping[str, Any]) -> dict[str, str]:
    """Where this machine has the secrets that the spec says a local place for."""
    secrets: Mapping[str, Mapping[str, str]] = plan["spec"].get("secrets", {})
    found = {name: _on_this_machine(plan, places) for name, places in secrets.items()}
    return {name: place for name, place in found.items() if place}


def local_input(plan: Mapping[str, Any], name: str) -> str:
    """Where this machine has an input, by the spec; empty when it says nothing of it."""
    place = _on_this_machine(plan, plan["spec"]["inputs"][name]["uri"])
    return str(Path(plan["facts"]["folder"]) / Path(place).expanduser()) if place else ""


def _on_this_machine(plan: Mapping[str, Any], places: Mapping[str, str]) -> str:
    """What the spec says for the provider that runs it here, for any run on this machine, or for all providers.

    Empty where that is an address: it is brought from there as the cloud would.
    """
    place = next((places[name] for name in (plan["provider"], "local", "*") if name in places), "")
    return "" if "://" in place else place
