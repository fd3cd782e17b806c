"""Place of a plan: a provider with its abilities, machines, image and settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from cloudtrain.declaration import Declaration, declaration_of
from cloudtrain.runs.provider_config import Config, ProviderConfig

if TYPE_CHECKING:
    from cloudtrain.errors import Issue
    from cloudtrain.planning.cost import CostEstimate
    from cloudtrain.planning.machine_choice import MachineChoice
    from cloudtrain.planning.selection import PlannedImage

_PLAIN_FIELDS = (
    "provider",
    "contract",
    "where",
    "max_nodes",
    "grace_seconds",
    "unused",
    "tries_all_instances",
    "cluster",
    "origins",
    "gpus",
)
"""Fields that are plain JSON already."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """Place of a plan: a provider and its abilities, as data."""

    provider: str
    contract: str = "plain"
    where: str
    """Place for people: `this machine`, `us-east-1`."""
    max_nodes: int = 1
    grace_seconds: int
    """Time from the platform's SIGTERM to its SIGKILL."""
    unused: tuple[str, ...] = ()
    """Fields of the spec, dotted, that this provider ignores."""
    config: ProviderConfig = field(default_factory=ProviderConfig)
    """Settings of the provider for this plan, typed by `config_as`."""
    image: PlannedImage | None = None
    """Image of the job; None without one."""
    instances: tuple[str, ...] = ()
    """Instance types, in order of preference."""
    tries_all_instances: bool = True
    """True if the platform itself tries later types; else a submit plans each one by itself."""
    cluster: str = ""
    """Name of the cluster; its machines may be unknown."""
    borrowed: Mapping[str, str] = field(default_factory=dict)
    """Account settings, by dotted path, from the cloud's own tools."""
    origins: Mapping[str, str] = field(default_factory=dict)
    """Origins of settings that are not in the spec: `cloudtrain.toml:3`."""
    gpus: int | None = None
    """GPUs per node if the machine decides; None: as in the spec."""
    cost_estimate: CostEstimate | None = None
    """Estimated cost; None if it is free."""
    choice: MachineChoice | None = None
    """Reasons for the machines; None if none are chosen."""
    problems: tuple[Issue, ...] = ()
    """Issues that prevent a request."""

    @property
    def declaration(self) -> Declaration:
        """Declaration of the provider."""
        return declaration_of(self.provider)

    @property
    def is_rented(self) -> bool:
        """True if a cloud rents out its machines; their types have prices."""
        return self.cost_estimate is not None and bool(self.instances or self.cluster)

    @property
    def image_address(self) -> str:
        """Address or name of the image, or ""."""
        return self.image.address if self.image else ""

    @property
    def placeholders(self) -> tuple[str, ...]:
        """Account settings that are unset, so the request must not be sent."""
        names: tuple[str, ...] = getattr(self.config, "placeholders", ())
        return names

    def config_as(self, kind: type[Config]) -> Config:
        """Return the provider's settings with their type. Raise TypeError for another type."""
        if not isinstance(self.config, kind):
            raise TypeError(
                f"the target of {self.provider} has {type(self.config).__name__}, not"
                f" {kind.__name__}"
            )

        return self.config

    def location_for(self, locations: Mapping[str, str]) -> str | None:
        """Return this provider's location of an input or a secret, or None. "*" means all."""
        return self.declaration.location_for(locations)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON, without problems. `facts` is the provider's part."""
        facts = self.config.to_json()
        if self.image is not None:
            facts["image"] = self.image.address
            facts["recipe"] = self.image.recipe and self.image.recipe.to_json()

        if self.instances:
            facts["instances"] = list(self.instances)
        if self.borrowed:
            facts["borrowed"] = list(self.borrowed)

        document = {name: getattr(self, name) for name in _PLAIN_FIELDS}
        document["facts"] = facts
        document["quote"] = None
        if self.cost_estimate:
            document["quote"] = asdict(self.cost_estimate)

        document["choice"] = None
        if self.choice:
            document["choice"] = asdict(self.choice)

        return document


@dataclass(frozen=True, kw_only=True, slots=True)
class CloudConfig(ProviderConfig):
    """Settings of both clouds; each cloud adds more."""

    prices: Mapping[str, float] = field(default_factory=dict)
    """Price by instance type, in US dollars per machine and hour; unknown prices are missing."""
    poll: float = 10.0
    """Seconds between two status requests."""
    placeholders: tuple[str, ...] = ()
    """Dotted names of missing settings that a rehearsal replaces by placeholders."""
    unpaid: tuple[str, ...] = ()
    """Messages about cost limits: errors of a real job, notes of a rehearsal."""

    @property
    def account(self) -> str:
        """Account where the storage has its name; empty if the name is the only one."""
        return ""

    @property
    def storage(self) -> str:
        """URI of the storage that holds what is ours."""
        raise NotImplementedError
