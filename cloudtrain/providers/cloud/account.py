"""The facts of an account that a job needs: from the spec, or else from the settings. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cloudtrain.issues import Issue
from cloudtrain.providers.cloud.cli_defaults import Found
from cloudtrain.settings import Settings


def gather(
    provider: str, section: Any, settings: Settings, names: Sequence[str], around: Callable[[], Mapping[str, Found]]
) -> tuple[dict[str, Any], dict[str, str]]:
    """The facts by name, and the origins of those that no spec line says. A fact that nobody has said is None or ().

    `around`: what the cloud's own tools are set to, asked for where something is missing; `facts["borrowed"]` names
    what was taken from there, by dotted path, so that a plan can show it.
    """
    facts: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for name in names:
        facts[name] = getattr(section, name)
        if facts[name] in (None, (), "") and settings.get(f"{provider}.{name}"):
            facts[name] = settings[f"{provider}.{name}"]
            origins[f"{provider}.{name}"] = settings.origins[f"{provider}.{name}"]
    missing = [name for name in names if facts[name] in (None, (), "")]
    borrowed = {name: found for name, found in (around() if missing else {}).items() if name in missing}
    facts |= {name: value for name, (value, _) in borrowed.items()}
    origins |= {f"{provider}.{name}": origin for name, (_, origin) in borrowed.items()}
    facts["borrowed"] = [f"{provider}.{name}" for name in borrowed]
    return facts, origins


def complete(
    provider: str,
    facts: dict[str, Any],
    needed: Mapping[str, tuple[str, str]],
    placeholders: Mapping[str, str],
    *,
    rehearsal: bool,
) -> list[Issue]:
    """What is missing. `needed`: name -> an example and its meaning.

    A rehearsal may go without: placeholders stand in, and `facts["placeholders"]` names them.
    """
    problems: list[Issue] = []
    facts["placeholders"] = []
    for name, (example, meaning) in needed.items():
        if facts[name]:
            continue
        if rehearsal:
            facts[name] = placeholders[name]
            facts["placeholders"].append(f"{provider}.{name}")
            continue
        hint = (
            f"{meaning}: {provider}: {{{name}: {example}}} in job.yaml, [{provider}] {name} in cloudtrain.toml, "
            f"or CLOUDTRAIN_{provider.upper()}_{name.upper()}"
        )
        problems.append(Issue((provider, name), "is not set", hint))
    return problems
