"""Print facts about a Python and its torch as JSON. Standard library only.

A separate program. Its arguments are the packages to report versions of.
"""

from __future__ import annotations

import json
import platform
import sys
from importlib import import_module, metadata
from typing import Any


def versions(names: list[str]) -> dict[str, str]:
    """Return the versions of the installed packages among these."""
    installed = {}
    for name in names:
        try:
            installed[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return installed


def torch_facts() -> dict[str, Any]:
    """Return torch's version, its CUDA and the number of GPUs, or the error of the import."""
    try:
        torch = import_module("torch")
    except ModuleNotFoundError:
        return {}
    except Exception as error:  # noqa: BLE001  (a library of CUDA that is missing, or one built for another numpy)
        return {"error": f"{type(error).__name__}: {error}"}
    return {
        "version": str(torch.__version__),
        "cuda": torch.version.cuda or "",
        "gpus": torch.cuda.device_count() if torch.version.cuda else 0,
    }


if __name__ == "__main__":
    facts = {
        "python": platform.python_version(),
        "versions": versions(sys.argv[1:]),
        "torch": torch_facts(),
    }
    print("\n" + json.dumps(facts))
