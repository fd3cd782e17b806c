"""What a Python and its torch say of themselves, as JSON on stdout. A program of its own; standard
library only.

Its arguments are the packages whose versions are wanted.
"""

from __future__ import annotations

import json
import platform
import sys
from importlib import import_module, metadata
from typing import Any


def versions(names: list[str]) -> dict[str, str]:
    """The versions of those packages that are installed here."""
    found = {}
    for name in names:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def torch_facts() -> dict[str, Any]:
    """Its version, the CUDA it is built for, and how many GPUs it sees; the error where it cannot
    be imported.
    """
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
