"""What Azure's command line is set to here: its default subscription, resource group, workspace and location."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from cloudtrain.providers.cloud.cli_defaults import Found, in_words, ini_value, variable

_DEFAULTS = {"resource_group": "group", "workspace": "workspace", "location": "location"}
"""Our facts, and the names of `az configure --defaults`."""


def account_around(environ: Mapping[str, str] = os.environ) -> dict[str, Found]:
    """Those facts that are set, by "Azure CLI configuration": variables first, then `~/.azure/config`.

    The subscription is the one that `az account set` has chosen, from `~/.azure/azureProfile.json`.
    """
    folder = Path(environ.get("AZURE_CONFIG_DIR") or "~/.azure").expanduser()
    found: dict[str, Found] = {}
    for fact, name in _DEFAULTS.items():
        value = variable(environ, f"AZURE_DEFAULTS_{name.upper()}") or ini_value(folder / "config", "defaults", name)
        found |= {fact: value} if value else {}
    subscription = _subscription(folder / "azureProfile.json")
    return found | ({"subscription": subscription} if subscription else {})


def _subscription(path: Path) -> Found | None:
    try:
        document = json.loads(path.read_text(encoding="utf-8-sig"))
        chosen = next(item for item in document["subscriptions"] if item.get("isDefault"))
        return str(chosen["id"]), in_words(path)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, StopIteration):
        return None  # not logged in, or in some other way: then somebody must say it
