"""A program that prints facts about a Python and its torch as JSON. Standard library only."""

from __future__ import annotations

import json
import platform
from importlib import import_module
from typing import Any


def torch_facts() -> dict[str, Any]:
    """Return torch's version, its CUDA and the number of GPUs, or the error of the import."""
    try:
        torch = import_module("torch")
    except ModuleNotFoundError:
        return {}
    except Exception as error:  # noqa: BLE001  (a library of CUDA that is missing, or one built for another numpy)
        return {"error": f"{type(error).__name__}: {error}"}

    facts = {"version": str(torch.__version__), "cuda": torch.version.cuda or "", "gpus": 0}
    if torch.version.cuda:
        facts["gpus"] = torch.cuda.device_count()

    return facts


if __name__ == "__main__":
    facts = {"python": platform.python_version(), "torch": torch_facts()}
    print("\n" + json.dumps(facts))
