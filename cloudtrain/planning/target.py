"""Where a plan is to run, as a value: a provider, what it can do, its machines, its image and its
own settings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any, Self, TypeVar

from cloudtrain.declaration import Declaration, declaration_of

if TYPE_CHECKING:  # a provider that looks after a run needs none of these
    from cloudtrain.catalog.choice import MachineChoice
    from cloudtrain.catalog.pricing import CostEstimate
    from cloudtrain.images.selection import PlannedImage
    from cloudtrain.issues import Issue


@dataclass(frozen=True, kw_only=True, slots=True)
class ProviderConfig:
    """What a provider decides for one plan besides what every target has: each declares its own
    fields.
    """

    def to_json(self) -> dict[str, Any]:
        """Plain JSON."""
        return asdict(self)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """What `to_json` gave, read back. Unknown keys are passed over; what is missing takes its
        default.
        """
        known = {each.name for each in fields(cls)}
        return cls(**{name: _frozen(value) for name, value in document.items() if name in known})


Config = TypeVar("Config", bound=ProviderConfig)


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """Where a plan is to run: a provider, and what it can do, as data."""

    provider: str
    contract: str = "plain"
    where: str
    """For people: `this machine`, `us-east-1`."""
    max_nodes: int = 1
    grace_seconds: int
    """From the platform's SIGTERM to its SIGKILL."""
    unused: tuple[str, ...] = ()
    """Fields of the spec, dotted, that are not used here; a plan lists those that are set."""
    config: ProviderConfig = field(default_factory=ProviderConfig)
    """The provider's own settings for this plan; `config_as` gives them their type."""
    image: PlannedImage | None = None
    """What the job runs in; None where it runs on this machine without an image."""
    instances: tuple[str, ...] = ()
    """Instance types, in order of preference."""
    tries_all_instances: bool = True
    """Whether the later types are tried where the first one is not available."""
    cluster: str = ""
    """The cluster whose machines are used, where one is named: what they are may be unknown."""
    borrowed: Mapping[str, str] = field(default_factory=dict)
    """Account settings, by dotted path, that were taken from the cloud's own tools."""
    origins: Mapping[str, str] = field(default_factory=dict)
    """Where settings come from that are not in the spec, by dotted path: `cloudtrain.toml:3`."""
    gpus: int | None = None
    """GPUs per node, where the machine decides it; None: as in the spec."""
    cost_estimate: CostEstimate | None = None
    """What it may cost; None where nothing is billed."""
    choice: MachineChoice | None = None
    """Why these machines, and what would cost less; None where none are chosen."""
    problems: tuple[Issue, ...] = ()
    """What is missing or wrong, so that no request can be made."""

    @property
    def declaration(self) -> Declaration:
        """The declaration of its provider."""
        return declaration_of(self.provider)

    @property
    def image_address(self) -> str:
        """The image's address or name; empty where there is none."""
        return self.image.address if self.image else ""

    @property
    def placeholders(self) -> tuple[str, ...]:
        """Dotted names of account settings that are not set, and have placeholders here: nothing of
        it may be sent.
        """
        found: tuple[str, ...] = getattr(self.config, "placeholders", ())
        return found

    def config_as(self, kind: type[Config]) -> Config:
        """The provider's own settings, of its own type. TypeError for another provider's target."""
        if not isinstance(self.config, kind):
            raise TypeError(
                f"the target of {self.provider} has {type(self.config).__name__}, not"
                f" {kind.__name__}"
            )
        return self.config

    def location_for(self, locations: Mapping[str, str]) -> str | None:
        """Where this provider finds an input or a secret, of the locations by provider ("*": all);
        None for none.
        """
        return self.declaration.location_for(locations)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON, without the problems. `facts`, as plan.json has always called it, is the
        provider's part.
        """
        facts = self.config.to_json()
        if self.image is not None:
            recipe = self.image.recipe
            facts |= {"image": self.image.address, "recipe": recipe.to_json() if recipe else None}
        if self.instances:
            facts["instances"] = list(self.instances)
        if self.borrowed:
            facts["borrowed"] = list(self.borrowed)
        return {
            **{name: getattr(self, name) for name in _PLAIN},
            "facts": facts,
            "quote": asdict(self.cost_estimate) if self.cost_estimate else None,
            "choice": asdict(self.choice) if self.choice else None,
        }


_PLAIN = (
    *("provider", "contract", "where", "max_nodes", "grace_seconds", "unused"),
    *("tries_all_instances", "cluster", "origins", "gpus"),
)
"""Fields of a target that are JSON as they are."""


def _frozen(value: Any) -> Any:
    """Lists as tuples, as values have them."""
    return tuple(map(_frozen, value)) if isinstance(value, list) else value
