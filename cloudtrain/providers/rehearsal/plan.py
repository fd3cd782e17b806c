"""What an emulator needs to know of the plan whose request it executes, read back from the run's
folder.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cloudtrain.declaration import declaration_of
from cloudtrain.errors import StorageError
from cloudtrain.planning.target import Config
from cloudtrain.runs.folder import RunFolder
from cloudtrain.runs.record import PLAN


@dataclass(frozen=True, kw_only=True, slots=True)
class EmulatedPlan:
    """A stored plan, as far as its request's execution on this machine depends on it."""

    provider: str
    """The one that executes it."""
    contract: str
    grace_seconds: int
    gpus: int | None
    """GPUs per node, where the machine that the request names decides it."""
    folder: str
    """The job's folder; relative paths count from it."""
    resume_from: str
    inputs: Mapping[str, Mapping[str, str]]
    """By name: what the spec says per provider."""
    secrets: Mapping[str, Mapping[str, str]]
    image: str
    """What containers of this machine are started from; empty for processes."""
    cores: int
    """Of this machine; all nodes share them."""
    host_settings: Mapping[str, Any]
    target_settings: Mapping[str, Any]

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> EmulatedPlan:
        """What a plan's `to_json` gave."""
        target, spec, context = (document.get(name) or {} for name in ("target", "spec", "facts"))
        host = (document.get("host") or target).get("facts") or {}
        return cls(
            provider=document["provider"],
            contract=target.get("contract", "plain"),
            grace_seconds=target.get("grace_seconds", 0),
            gpus=target.get("gpus"),
            folder=context.get("folder", ""),
            resume_from=context.get("resume_from", ""),
            inputs={name: item["uri"] for name, item in spec.get("inputs", {}).items()},
            secrets=spec.get("secrets", {}),
            image=host.get("image") or "",
            cores=host.get("cores", 1),
            host_settings=host,
            target_settings=target.get("facts") or {},
        )

    def host_config(self, kind: type[Config]) -> Config:
        """The settings of the provider that executes it."""
        return kind.from_json(self.host_settings)

    def target_config(self, kind: type[Config]) -> Config:
        """The settings of the provider whose request it is."""
        return kind.from_json(self.target_settings)

    @property
    def python(self) -> str:
        """The Python of this machine that runs the nodes' programs. StorageError when the plan does
        not name it.
        """
        python = self.host_settings.get("python")
        if not isinstance(python, str):
            hint = "the run's folder was changed by hand, or its disk failed"
            raise StorageError(
                f"{PLAN} cannot be read: it does not say which python runs the job", hint=hint
            )
        return python

    def local_input(self, name: str) -> str:
        """Where this machine has an input, by the spec; empty when it says nothing of it."""
        location = self._on_this_machine(self.inputs[name])
        return str(Path(self.folder) / Path(location).expanduser()) if location else ""

    def local_secrets(self) -> dict[str, str]:
        """Where this machine has the secrets that the spec says a local place for."""
        found = {name: self._on_this_machine(locations) for name, locations in self.secrets.items()}
        return {name: location for name, location in found.items() if location}

    def _on_this_machine(self, locations: Mapping[str, str]) -> str:
        """What the spec says for the provider that runs it here, for any run on this machine, or
        for all providers.

        Empty where that is an address: it is brought from there as the cloud would.
        """
        location = declaration_of(self.provider).location_for(locations) or ""
        return "" if "://" in location else location


def emulated_plan(run: RunFolder) -> EmulatedPlan:
    """That of a run. StorageError when it cannot be read."""
    return EmulatedPlan.from_json(run.document(PLAN, {"provider": str, "target.contract": str}))
