"""Notes about environment variables CLOUDTRAIN_* that are not used."""

from __future__ import annotations

from collections.abc import Mapping

from cloudtrain.cli.output import print_message
from cloudtrain.cli.terminal import one_line
from cloudtrain.issues import did_you_mean
from cloudtrain.settings import PREFIX, known_settings, variable_of

_FAMILIES = ("INPUT_", "SECRET_", "STREAM_", "TEST_")
"""Prefixes of families of variables: a job's inputs and secrets, and what tests read."""

_NOT_SETTINGS = frozenset(
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
        *("MEASURE", "MEASURE_REPORTS", "SERVICE_METRIC", "TRIAL_FOLDER"),
    )
)
"""Variables of a job, which people set to try their script, and of our tools."""


def unknown_variables(environ: Mapping[str, str]) -> list[str]:
    """Return a sentence for each unused variable `CLOUDTRAIN_*`."""
    variables = {variable_of(key) for key in known_settings(third_parties=False)} | _NOT_SETTINGS
    unknown = [
        name for name in sorted(environ) if name.startswith(PREFIX) and name not in variables
    ]
    unknown = [name for name in unknown if not name.removeprefix(PREFIX).startswith(_FAMILIES)]
    if not unknown:
        return []
    candidates = {variable_of(key) for key in known_settings()} | variables
    return [
        f"the variable {one_line(name)} means nothing to cloudtrain{did_you_mean(name, candidates)}"
        for name in unknown
        if name not in candidates
    ]


def tell_unknown_variables(environ: Mapping[str, str]) -> None:
    """Print a note for each unused variable."""
    for text in unknown_variables(environ):
        print_message(f"note: {text}")
