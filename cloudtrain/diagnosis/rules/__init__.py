"""Table of known failures by field. The first match of a line counts."""

from __future__ import annotations

from cloudtrain.diagnosis.rule import Rule
from cloudtrain.diagnosis.rules.clouds import ACCESS, CAPACITY
from cloudtrain.diagnosis.rules.communication import COMMUNICATION
from cloudtrain.diagnosis.rules.consequences import CONSEQUENCES
from cloudtrain.diagnosis.rules.data import DATA, LOADERS
from cloudtrain.diagnosis.rules.hardware import HARDWARE
from cloudtrain.diagnosis.rules.images import BUILDS, IMAGES
from cloudtrain.diagnosis.rules.models import CHECKPOINTS, MODELS
from cloudtrain.diagnosis.rules.program import PROCESSES, PROGRAM, SETTINGS
from cloudtrain.diagnosis.rules.storage import STORAGE
from cloudtrain.diagnosis.rules.tensors import MEMORY, TENSORS
from cloudtrain.diagnosis.rules.versions import VERSIONS
from cloudtrain.diagnosis.signals import with_signal_name
from cloudtrain_launcher.events import Cause

FIELDS: dict[str, tuple[Rule, ...]] = {
    "Capacity, quota, time": CAPACITY,
    "Images and containers": IMAGES,
    "Rights and credentials": ACCESS,
    "Memory": MEMORY,
    "Loader": LOADERS,
    "GPUs and drivers": HARDWARE,
    "Communication": COMMUNICATION,
    "Compiling": BUILDS,
    "Models and tokenizers": MODELS,
    "Versions and packages": VERSIONS,
    "Checkpoints": CHECKPOINTS,
    "Data": DATA,
    "Storage": STORAGE,
    "Tensors": TENSORS,
    "Settings": SETTINGS,
    "Program": PROGRAM,
    "Processes": PROCESSES,
    "Consequences": CONSEQUENCES,
}
"""Rules by field."""

RULES: tuple[Rule, ...] = tuple(
    sorted(
        (rule for field in FIELDS.values() for rule in field),
        key=lambda rule: (rule.is_consequence, rule.is_symptom),
    )
)
"""Rules in the order in which they explain a line: a cause, then a symptom, a consequence."""


def hint_for(cause: Cause) -> str | None:
    """Return a remedy for a root cause, or None. The reporter may have given one."""
    return cause.hint or hint_for_message(f"{cause.exception}: {cause.message}")


def hint_for_message(message: str) -> str | None:
    """Return a remedy for a failure message; None if only a consequence is known."""
    rule = rule_of(message)
    return rule.remedy_for(message) if rule and not rule.is_consequence else None


def rule_of(message: str) -> Rule | None:
    """Return the rule that explains a message, or None."""
    named = with_signal_name(message)
    return next((rule for rule in RULES if rule.matches(named)), None)
