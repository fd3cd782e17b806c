"""SageMaker's own model of the requests that start jobs, from a table of ours.

A plan must not spend time on the import of an SDK. `create_training_job.json` in the catalog is the part of
botocore's service model about training and tuning jobs. tests/unit/test_service_model.py compares
it with botocore, and updates it. If the table finds a mistake, the model of an installed botocore
is read as a file: a newer SDK may know an instance type that the table does not.

Required members and types hold for every version. An enum, a pattern or a maximum goes out of date,
and botocore does not enforce them (boto/botocore#779 removed its check of the maximum); violations
are warnings that name the versions.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from cloudtrain.issues import Issue

TABLE = "create_training_job.json"
OPERATION_INPUT = "CreateTrainingJobRequest"
TUNING_INPUT = "CreateHyperParameterTuningJobRequest"


class TableShape:
    """A shape of a service model as JSON, with the attributes of botocore's own shapes."""

    def __init__(self, name: str, traits: Mapping[str, Any], shapes: Mapping[str, Any]) -> None:
        self.name = name
        self.type_name = traits["type"]
        self.metadata = traits
        self._shapes = shapes

    @cached_property
    def members(self) -> dict[str, TableShape]:
        """Shapes of a structure's members."""
        return {
            name: self._of(reference)
            for name, reference in self.metadata.get("members", {}).items()
        }

    @property
    def member(self) -> TableShape:
        """Shape of a list's items."""
        return self._of(self.metadata["member"])

    @property
    def key(self) -> TableShape:
        """Shape of a map's keys."""
        return self._of(self.metadata["key"])

    @property
    def value(self) -> TableShape:
        """Shape of a map's values."""
        return self._of(self.metadata["value"])

    def _of(self, reference: Mapping[str, Any]) -> TableShape:
        name = reference["shape"]
        return TableShape(name, {**self._shapes[name], **reference}, self._shapes)


def request_violations(body: Mapping[str, Any], operation: str = OPERATION_INPUT) -> list[Issue]:
    """Return violations of the table that an installed botocore also finds.

    `operation`: the shape of the request: OPERATION_INPUT or TUNING_INPUT.
    """
    from cloudtrain.providers.aws.shapes import violations

    issues = violations(_table(operation), body)
    installed = _installed(operation) if issues else None
    if installed is not None:
        wrong = {violation.path for violation in violations(installed, body)}
        issues = [violation for violation in issues if violation.path in wrong]
    return issues


def models() -> str:
    """Return the names of the models: `botocore 1.40.2 and 1.43.4`, or one version."""
    from importlib.metadata import version

    versions = {
        str(_file()["botocore"]),
        *([version("botocore")] if _installed(OPERATION_INPUT) else []),
    }
    return f"botocore {' and '.join(sorted(versions))}"


def shapes_of(model: Mapping[str, Any]) -> dict[str, Any]:
    """Return the shapes of these requests out of a whole service model, without their prose."""
    shapes: dict[str, Any] = {}
    names = [OPERATION_INPUT, TUNING_INPUT]
    while names:
        name = names.pop()
        if name in shapes:
            continue
        shapes[name] = _without_prose(model["shapes"][name])
        parts = [
            *shapes[name].get("members", {}).values(),
            *(shapes[name].get(k) for k in ("member", "key", "value")),
        ]
        names += [part["shape"] for part in parts if part]
    return dict(sorted(shapes.items()))


def _without_prose(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {
            k: _without_prose(v)
            for k, v in value.items()
            if not (k == "documentation" and isinstance(v, str))
        }
    return [_without_prose(item) for item in value] if isinstance(value, list) else value


@cache
def _table(operation: str) -> TableShape:
    shapes = _file()["shapes"]
    return TableShape(operation, shapes[operation], shapes)


@cache
def _file() -> dict[str, Any]:
    path = Path(__file__).parents[2] / "catalog" / TABLE
    content: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return content


@cache
def _installed(operation: str) -> TableShape | None:
    """Return the shape from the files of an installed botocore, without importing it, or None."""
    import gzip
    from importlib.util import find_spec

    spec = find_spec("botocore")
    if spec is None or not spec.origin:
        return None
    try:
        path = max((Path(spec.origin).parent / "data" / "sagemaker").glob("*/service-2.json*"))
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        shapes = json.loads(raw)["shapes"]
        return TableShape(operation, shapes[operation], shapes)
    except (OSError, ValueError, KeyError):
        return None
