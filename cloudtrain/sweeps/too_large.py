"""Whether a trial failed since its batch was too large: memory was short, in one of the disguises
that this takes.
"""

from __future__ import annotations

import re

from cloudtrain.diagnosis.rules.loaders import LOADERS
from cloudtrain.diagnosis.rules.memory import MEMORY
from cloudtrain.runs.state import RunState

_NAMES = {
    "container-memory-limit",
    "host-out-of-memory",
    "host-allocation-failed",
    "gpu-out-of-memory",
    "gpu-library-without-memory",
    "out-of-memory",
    "loader-worker-killed",
}
"""The rules of memory, but for shared memory, which is a setting of the job (resources.shm)."""
_RULES = [rule for rule in (*MEMORY, *LOADERS) if rule.name in _NAMES]

_OTHER_SIGNS = re.compile(
    r"NCCL.{0,200}Failed to (CUDA )?[mc]alloc"
    r"|RESOURCE_EXHAUSTED"  # JAX, TensorFlow
    r"|instance type with more memory"  # SageMaker, of a container that it has killed
    # The shared trainer, of its data set: nothing larger can be trained on.
    r"|--batch-size \d+ is more than the \d+ training samples"
)


def is_too_large(state: RunState) -> bool:
    """Whether the failure of a run says that memory, or the shared trainer's data set, was too
    small for its batch.

    A process that was killed for unknown reasons does not say so: the launcher adds what the kernel
    has counted.
    """
    cause = state.error
    text = f"{cause.exception}: {cause.message}" if cause else state.reason
    return any(rule.matches(text) for rule in _RULES) or _OTHER_SIGNS.search(text) is not None
