"""The command-job document of a sweep's trial. Pure; without pydantic, since watching needs it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from cloudtrain.planning.tuned import plain_name
from cloudtrain.providers.shared.paths import as_folder
from cloudtrain.providers.shared.tags import TAG_PREFIX

SWEEP_TAG = f"{TAG_PREFIX}sweep"
"""Tag of the sweep job with its id, which distinguishes it from a run."""

OF_TRIAL = ("code", "command", "environment", "environment_variables", "distribution", "resources")
"""Keys of a command job that belong to the `trial` of a sweep job."""
OF_SWEEP = ("display_name", "experiment_name", "inputs", "outputs", "properties")
"""Keys of a command job that a sweep job has itself; OPTIONAL: keys that either may have."""
OPTIONAL = ("compute", "queue_settings", "identity")


def trial_document(sweep: Mapping[str, Any], name: str, texts: Mapping[str, str]) -> dict[str, Any]:
    """Return the command-job document of a trial.

    `texts`: its values, by setting or by their plain names.
    """
    values = {plain_name(key): text for key, text in texts.items()}
    trial: Mapping[str, Any] = sweep["trial"]
    command = re.sub(
        r"\$\{\{search_space\.(\w+)\}\}",
        lambda match: values.get(match[1], match[0]),
        str(trial["command"]),
    )
    outputs = {
        kind: {**item, "path": f"{as_folder(item['path'])}{name}/"}
        for kind, item in sweep["outputs"].items()
    }
    return {
        **{key: sweep[key] for key in (*OF_SWEEP, "tags", *OPTIONAL) if key in sweep},
        **trial,
        "type": "command",
        "name": name,
        "display_name": name,
        "command": command,
        "outputs": outputs,
        "limits": {"timeout": sweep["limits"]["trial_timeout"]},
    }
