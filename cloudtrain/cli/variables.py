"""Variables CLOUDTRAIN_* of the environment that mean nothing: somebody has set them to be obeyed,
and is told.
"""

from __future__ import annotations

from collections.abc import Mapping

from cloudtrain.cli.output import print_message
from cloudtrain.cli.terminal import one_line
from cloudtrain.issues import did_you_mean
from cloudtrain.settings import PREFIX, known_settings, variable_of

_FAMILIES = ("INPUT_", "SECRET_", "STREAM_", "TEST_")
"""What names of several variables begin with, after the prefix: a job's inputs and secrets, and
what tests read.
"""

_OTHERS = frozenset(
    PREFIX + name
    for name in (
        *(
            "RUN_ID",
            "JOB_NAME",
            "PLATFORM",
            "NODE_RANK",
            "NODES",
            "PROCESSES",
            "ARGS_FILE",
            "JOB_FILE",
            "JOB",
        ),
        *(
            "OUTPUT_DIR",
            "MODEL_DIR",
            "CHECKPOINT_DIR",
            "CHECKPOINT_EVERY",
            "CHECKPOINT_KEEP",
            "TENSORBOARD_DIR",
        ),
        *(
            "RESULT_FILE",
            "RESUME_DIR",
            "RUN_DIR",
            "STOP_FILE",
            "PAYLOAD",
            "LAUNCHER_PID",
            "SUPERVISOR_PID",
        ),
        *(
            "MASTER_ADDR",
            "MASTER_PORT",
            "NODE_ADDR",
            "INTERFACE",
            "SCHEDULED_EVENTS",
            "SSH_HOST",
            "PACKAGES_DIR",
        ),
        *("NAMESPACES", "ENGINE_DIR", "REWRITE_TABLES", "RANK_CPUS", "PUBLISHED", "WARM_ROOM"),
        *("MEASURE", "SERVICE_METRIC", "TRIAL_FOLDER"),
    )
)
"""Variables that are no settings: of a job, which people set to try their script by hand, and of
our own tools.
"""


def unknown_variables(environ: Mapping[str, str]) -> list[str]:
    """A sentence for each variable `CLOUDTRAIN_*` that is neither a setting nor one of a job."""
    ours = {variable_of(key) for key in known_settings(third_parties=False)} | _OTHERS
    left = [name for name in sorted(environ) if name.startswith(PREFIX) and name not in ours]
    left = [name for name in left if not name.removeprefix(PREFIX).startswith(_FAMILIES)]
    if not left:
        return []
    known = {variable_of(key) for key in known_settings()} | ours
    return [
        f"the variable {one_line(name)} means nothing to cloudtrain{did_you_mean(name, known)}"
        for name in left
        if name not in known
    ]


def tell_unknown_variables(environ: Mapping[str, str]) -> None:
    """Print a note for each of them."""
    for text in unknown_variables(environ):
        print_message(f"note: {text}")
