"""Where a plan is to run, as a value: a provider, what it can do, its machines, its image and its own settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any, Self, TypeVar

if TYPE_CHECKING:  # a provider that looks after a run needs none of these
    from cloudtrain.catalog.pricing import Quote
    from cloudtrain.images.selection import PlannedImage
    from cloudtrain.issues import Issue


@dataclass(frozen=True, kw_only=True, slots=True)
class ProviderConfig:
    """What a provider decides for one plan besides what every target has: each declares its own fields."""

    def to_json(self) -> dict[str, Any]:
        """Plain JSON."""
        return asdict(self)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """What `to_json` gave, read back. Unknown keys are passed over; what is missing takes its default."""
        known = {each.name for each in fields(cls)}
        return cls(**{name: _frozen(value) for name, value in document.items() if name in known})


Config = TypeVar("Config", bound=ProviderConfig)


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """Where a plan is to run: a provider, and what it can do, as data."""

    provider: str
    contract: str = "plain"
    where: str
    """In words: `this machine`, `us-east-1`."""
    max_nodes: int
    grace_seconds: int
    """From the platform's SIGTERM to its SIGKILL."""
    schemes: tuple[str, ...]
    """Where inputs may lie: `s3`, `https`; empty text for a folder on this machine."""
    kin: tuple[str, ...] = ()
    """Other providers whose places in the spec are this one's too: what `local` finds, a container here finds."""
    unused: tuple[str, ...] = ()
    """Fields of the spec, dotted, that mean nothing here; a plan says so when they are set."""
    config: ProviderConfig = field(default_factory=ProviderConfig)
    """The provider's own settings for this plan; `config_as` gives them their type."""
    image: PlannedImage | None = None
    """What the job runs in; None where it runs in nothing but this machine."""
    instances: tuple[str, ...] = ()
    """Instance types, in order of preference."""
    tries_all_instances: bool = True
    """Whether the later types are tried where the first one is not to be had."""
    cluster: str = ""
    """The cluster whose machines are used, where one is named: what they are may be unknown."""
    borrowed: Mapping[str, str] = field(default_factory=dict)
    """Account settings, by dotted path, that were taken from the cloud's own tools."""
    origins: Mapping[str, str] = field(default_factory=dict)
    """Where settings come from that no line of the spec says, by dotted path: `cloudtrain.toml:3`."""
    gpus: int | None = None
    """GPUs per node, where the machine decides it; None: as the spec says."""
    quote: Quote | None = None
    """What it may cost; None where nothing is billed."""
    problems: tuple[Issue, ...] = ()
    """What is missing or wrong, so that no request can be made."""

    @property
    def image_address(self) -> str:
        """The image's address or name; empty where there is none."""
        return self.image.address if self.image else ""

    def config_as(self, kind: type[Config]) -> Config:
        """The provider's own settings, of its own type. TypeError for another provider's target."""
        if not isinstance(self.config, kind):
            raise TypeError(f"the target of {self.provider} has {type(self.config).__name__}, not {kind.__name__}")
        return self.config

    def place_of(self, places: Mapping[str, str]) -> str | None:
        """Where this provider finds an input or a secret, of what the spec says per provider ("*": for all)."""
        return next((places[name] for name in (self.provider, *self.kin, "*") if name in places), None)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON, without the problems. `facts`, as plan.json has always called it, is the provider's part."""
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
            "quote": asdict(self.quote) if self.quote else None,
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any], config: type[ProviderConfig]) -> Target:
        """What `to_json` gave, read back, without what only planning needs (quote and origins of settings).

        A run that another machine has started knows less of it; what is missing takes its default.
        """
        from cloudtrain.images.recipe import from_json as recipe_from_json
        from cloudtrain.images.selection import PlannedImage

        facts = document["facts"]
        image = None
        if "image" in facts:
            recipe = recipe_from_json(facts["recipe"]) if facts.get("recipe") else None
            image = PlannedImage(facts["image"], recipe)
        plain: dict[str, Any] = {"where": "", "max_nodes": 0, "grace_seconds": 0, "schemes": ()}
        plain |= {name: _frozen(document[name]) for name in _PLAIN if name in document}
        borrowed = {path: str(facts.get(path.partition(".")[2])) for path in facts.get("borrowed", ())}
        return cls(
            **plain,
            config=config.from_json(facts),
            image=image,
            instances=tuple(facts.get("instances", ())),
            borrowed=borrowed,
        )


_PLAIN = (
    *("provider", "contract", "where", "max_nodes", "grace_seconds", "schemes", "kin", "unused"),
    *("tries_all_instances", "cluster", "origins", "gpus"),
)
"""Fields of a target that are JSON as they are."""


def _frozen(value: Any) -> Any:
    """Lists as tuples, as values have them."""
    return tuple(map(_frozen, value)) if isinstance(value, list) else value
