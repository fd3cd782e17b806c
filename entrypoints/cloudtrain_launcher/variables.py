"""Reads what a platform says in variables; a mistake is told by the variable's name. Standard library only."""

from __future__ import annotations

from typing import Any, Mapping

from cloudtrain_launcher.contract import INPUT


def text(environ: Mapping[str, str], name: str) -> str:
    """The variable's value; RuntimeError if there is none."""
    if not environ.get(name):
        raise RuntimeError(f"the variable {name} is not set")
    return environ[name]


def number(environ: Mapping[str, str], name: str) -> int:
    """The variable's value as a whole number, zero or more."""
    value = text(environ, name)
    if not value.isdecimal():
        raise RuntimeError(f"{name} is {value!r}: expected a whole number")
    return int(value)


def folders(environ: Mapping[str, str]) -> dict[str, Any]:
    """The fields of a `Place` that say where things are, as our own variables name them."""
    return {
        "output_dir": text(environ, "CLOUDTRAIN_OUTPUT_DIR"),
        "model_dir": text(environ, "CLOUDTRAIN_MODEL_DIR"),
        "checkpoint_dir": text(environ, "CLOUDTRAIN_CHECKPOINT_DIR"),
        "inputs": {key[len(INPUT) :]: value for key, value in environ.items() if key.startswith(INPUT)},
    }
