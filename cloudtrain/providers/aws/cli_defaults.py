"""The region that AWS's own tools would use here: from the environment, or from the profile in force."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from cloudtrain.providers.cloud.cli_defaults import Found, ini_value, variable


def region_around(environ: Mapping[str, str] = os.environ) -> Found | None:
    """By the variables, then by the profile in `~/.aws/config`, as "Configuration and credential file settings" says.

    `AWS_REGION` is what AWS's newer SDKs read and `AWS_DEFAULT_REGION` what boto3 reads: either counts here.
    """
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        if found := variable(environ, name):
            return found
    profile = environ.get("AWS_DEFAULT_PROFILE") or environ.get("AWS_PROFILE") or "default"
    path = Path(environ.get("AWS_CONFIG_FILE") or "~/.aws/config").expanduser()
    for section in (f"profile {profile}", *(["default"] if profile == "default" else [])):
        if found := ini_value(path, section, "region"):
            return found[0], f"{found[1]}, profile {profile}"
    return None
