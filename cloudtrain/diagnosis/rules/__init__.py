"""Table of known failures, one file for each field. The first match of a line counts."""

from __future__ import annotations

from cloudtrain.diagnosis.rule import Rule
from cloudtrain.diagnosis.rules.access import ACCESS
from cloudtrain.diagnosis.rules.builds import BUILDS
from cloudtrain.diagnosis.rules.capacity import CAPACITY
from cloudtrain.diagnosis.rules.checkpoints import CHECKPOINTS
from cloudtrain.diagnosis.rules.communication import COMMUNICATION
from cloudtrain.diagnosis.rules.consequences import CONSEQUENCES
from cloudtrain.diagnosis.rules.data import DATA
from cloudtrain.diagnosis.rules.hardware import HARDWARE
from cloudtrain.diagnosis.rules.images import IMAGES
from cloudtrain.diagnosis.rules.loaders import LOADERS
from cloudtrain.diagnosis.rules.memory import MEMORY
from cloudtrain.diagnosis.rules.models import MODELS
from cloudtrain.diagnosis.rules.processes import PROCESSES
from cloudtrain.diagnosis.rules.program import PROGRAM
from cloudtrain.diagnosis.rules.settings import SAID_BY_LIBRARIES, SETTINGS
from cloudtrain.diagnosis.rules.storage import STORAGE
from cloudtrain.diagnosis.rules.tensors import TENSORS
from cloudtrain.diagnosis.rules.versions import VERSIONS

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
    "Said by libraries": SAID_BY_LIBRARIES,
}
"""Rules by field, in order of priority."""

RULES: tuple[Rule, ...] = tuple(rule for field in FIELDS.values() for rule in field)


def rule_named(name: str) -> Rule:
    """Return a rule by name. Raise KeyError for an unknown name."""
    return _BY_NAME[name]


_BY_NAME = {rule.name: rule for rule in RULES}
